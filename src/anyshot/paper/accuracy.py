"""Claims about accuracy: gains over the Euclidean heads, the train shot, PCA and EST, the old FRN."""

from fractions import Fraction
from itertools import pairwise
from statistics import fmean

import numpy as np

from anyshot.paper import printed as paper
from anyshot.paper.claims import Evidence, all_hold, all_parts_hold, claim, count, number, sensitivity, true_or_false
from anyshot.paper.printed import COSINE, EUCLIDEAN, PAIRS, SETTINGS, TEST_SHOTS, Group, find, group, study, text
from anyshot.paper.rounding import Derived, mean, parse
from anyshot.paper.tables import Interpretation

PROJECTIONS = ("pca60", "est60")
HIGH_SHOTS = {"32-shot": (32,), "16- and 32-shot": (16, 32), "8- to 32-shot": (8, 16, 32)}


def gain(group: Group, test_shot: int) -> Derived:
    """How far a group lies above its Euclidean counterpart at a test shot."""
    at = TEST_SHOTS.index(test_shot)
    return study()[group].means[at] - study()[group.euclidean].means[at]


def mean_gain(groups: list[Group], test_shots: tuple[int, ...] = TEST_SHOTS) -> Derived:
    """The mean of these groups' gains at these test shots."""
    return mean([gain(group, shot) for group in groups for shot in test_shots])


def overall(group: Group) -> Fraction:
    """The mean of all cells of a group's grid."""
    return mean(study()[group].means).value


@claim("Sec. 5", "mean 1-shot gain of the cosine heads")
def _one_shot_gain() -> Evidence:
    (printed,) = text("1-shot gain")
    return printed, [number(printed, mean_gain(COSINE, (1,)), "18 pairs")]


@claim("Sec. 5", "mean accuracy that cosine gives up at high test shots, where it saturates")
def _high_shot_loss() -> Evidence:
    (printed,) = text("high-shot loss")
    readings = list(HIGH_SHOTS.items())[:2]
    return printed, [number(printed, -mean_gain(COSINE, shots), reading) for reading, shots in readings]


@claim("Sec. 6", "cosine gives up less than this at high test shots on average")
def _high_shot_loss_bounded() -> Evidence:
    (printed,) = text("high-shot loss, less than")
    losses = {reading: -mean_gain(COSINE, shots) for reading, shots in HIGH_SHOTS.items()}
    readings = [
        true_or_false(loss.value < parse(printed), f"{float(loss):.2f}", reading) for reading, loss in losses.items()
    ]
    return f"less than {printed}", readings


@claim("Sec. 1, Sec. 6", "the largest 1-shot gain of cosine has two digits")
def _double_digit_gain() -> Evidence:
    (printed, _) = text("low-shot gain, at most") + text("1-shot gain, at most")
    gains = {g: gain(g, 1) for g in COSINE}
    best = max(gains, key=lambda g: gains[g])
    many = sum(gained.value >= 10 for gained in gains.values())
    return printed, [true_or_false(gains[best].low >= 10, f"{float(gains[best]):.2f}, {best}; {many} of 18 reach 10")]


@claim("Abstract, Sec. 4", "cosine brings a bump in 1-shot accuracy")
def _low_shot_bump() -> Evidence:
    _, listed = count((g, gain(g, 1).value > 0) for g in COSINE)
    average = float(mean_gain(COSINE, (1,)))
    return "notable bump", [true_or_false(average > 0, f"{average:+.2f}", "on average"), f"pair by pair: {listed}"]


@claim("Sec. 4, Sec. 5", "cosine trades high-shot for low-shot accuracy, usually at a beneficial rate")
def _beneficial_trade() -> Evidence:
    traded = [g for g in COSINE if gain(g, 32).value < 0 < gain(g, 1).value]
    won = sum(gain(g, 1).value > -gain(g, 32).value for g in traded)
    lost = [g for g in COSINE if gain(g, 1).value < 0 and gain(g, 32).value < 0]
    listed = f"{won} of the {len(traded)} that trade gain more at 1-shot than they lose at 32-shot"
    return "usually", [true_or_false(2 * won > len(traded), f"{listed}; {len(lost)} lose at both")]


@claim("Sec. 1, Sec. 5, Sec. 6", "cosine gives up no accuracy in expectation")
def _accuracy_kept() -> Evidence:
    own = mean_gain(COSINE)
    each = {head: mean_gain([g for g in COSINE if g.head == head]) for head in dict.fromkeys(g.head for g in COSINE)}
    listed = ", ".join(f"{head} {float(gained):+.2f}" for head, gained in each.items())
    return "not sacrificed", [
        true_or_false(own.value >= 0, f"{float(own):+.2f}", "mean gain over pairs and test shots"),
        true_or_false(all(gained.value >= 0 for gained in each.values()), listed, "for every head"),
    ]


@claim("Sec. 4", "frn is more accurate than feat, and feat than proto")
def _head_order() -> Evidence:
    means = [_head_mean(head) for head in ("frn", "feat", "proto")]
    groups = {s: [Group(*s, head) for head in ("frn", "feat", "proto")] for s in SETTINGS}
    settings = ((s, _falls([mean(study()[g].means) for g in heads])) for s, heads in groups.items())
    cells = (
        (f"{s} at {shot}-shot", _falls([study()[g].means[i] for g in heads]))
        for s, heads in groups.items()
        for i, shot in enumerate(TEST_SHOTS)
    )
    listed = " > ".join(f"{accuracy:.2f}" for accuracy in means)
    return "as expected", [
        true_or_false(means == sorted(means, reverse=True), listed, "mean over settings and test shots"),
        all_hold(settings, "mean over test shots, in every setting"),
        all_hold(cells, "at every test shot of every setting"),
    ]


@claim("Sec. 5", "no 4-shot cosine model lies above the mean of its group")
def _four_shot_cosine_below() -> Evidence:
    offsets = {g: study()[g].offsets[0] for g in COSINE}
    above = {g: k for g, k in offsets.items() if k.value > 0}
    listed = ", ".join(f"{g} +{k}" + ("" if k.low > 0 else " (may round to it)") for g, k in above.items())
    return "none", [true_or_false(not any(k.low > 0 for k in above.values()), f"above its group: {listed or 'none'}")]


@claim("Sec. 5", "leaving out the 4-shot models raises cosine accuracy by this much on average")
def _gain_without_four_shot() -> Evidence:
    (printed,) = text("gain without 4-shot models")
    offset = mean([study()[g].offsets[0] for g in COSINE])
    return printed, [
        number(printed, -offset / 3, "group mean without them minus group mean with them"),
        number(printed, -offset / Fraction(3, 4), "other three models minus the 4-shot model"),
    ]


@claim("Sec. 5", "cosine model offsets gather closer around their mean trend by train shot than Euclidean ones")
def _closer_to_trend() -> Evidence:
    spread = {name: _spread(groups) for name, groups in (("euclidean", EUCLIDEAN), ("cosine", COSINE))}
    listed = ", ".join(f"{name} {value:.2f}" for name, value in spread.items())
    return "closer", [
        true_or_false(spread["cosine"] < spread["euclidean"], listed, "root mean square distance to the trend")
    ]


@claim("Sec. 5", "cosine prefers a higher train shot; Euclidean heads prefer neither high nor low consistently")
def _train_shot_preference() -> Evidence:
    def best(groups: list[Group]) -> str:
        shots = [study()[g].offsets.index(max(study()[g].offsets)) for g in groups]
        return "/".join(str(shots.count(i)) for i in range(4))

    cosine, euclidean = (sum(study()[g].offsets[0].value < 0 for g in groups) for groups in (COSINE, EUCLIDEAN))
    listed = f"4-shot model below its group in {cosine} of 18 cosine and {euclidean} of 18 Euclidean groups; "
    listed += f"best train shot 4/8/16/32: cosine {best(COSINE)}, Euclidean {best(EUCLIDEAN)}"
    return "higher", [true_or_false(cosine > euclidean, listed)]


@claim("Sec. 5", "cosine is not reliably more or less robust to the train shot")
def _train_shot_robustness() -> Evidence:
    ranges = {g: max(study()[g].offsets).value - min(study()[g].offsets).value for pair in PAIRS for g in pair}
    less = sum(ranges[cos] < ranges[euc] for euc, cos in PAIRS)
    listed = f"range of the model bias is smaller for cosine in {less} of 18 pairs"
    return "neither", [true_or_false(0 < less < len(PAIRS), listed)]


@claim("Sec. 4.4", "EST is generally more accurate than PCA")
def _est_more_accurate() -> Evidence:
    return "generally", _more_accurate("est60", "pca60")


@claim("Abstract, Sec. A.4", "cosine-proto is generally more accurate than EST and PCA across test shots")
def _cosine_more_accurate_than_projections() -> Evidence:
    est, pca = _more_accurate("cosine", "est60"), _more_accurate("cosine", "pca60")
    return "generally", [all_parts_hold(est[0], pca[0]), all_parts_hold(est[1], pca[1]), *est[2:], *pca[2:]]


@claim("Fig. 6, Sec. A.4", "cosine-proto is the frontier of accuracy against sensitivity among PCA, EST and cosine")
def _cosine_frontier() -> Evidence:
    groups = [_projected(s, way) for s in SETTINGS for way in (*PROJECTIONS, "cosine")]
    points = {g: (mean_gain([g]).value, -sensitivity(g).value) for g in groups}
    frontier = [g for g in groups if not any(_dominates(points[o], points[g]) for o in groups)]
    others = ", ".join(str(g) for g in frontier if g.readout != "own")
    ours = {s: points[_projected(s, "cosine")] for s in SETTINGS}
    _, beaten = count((s, all(_dominates(ours[s], points[_projected(s, w)]) for w in PROJECTIONS)) for s in SETTINGS)
    return "clear frontier", [
        true_or_false(
            not others, f"{len(frontier)} points, {others or 'all of them cosine'}", "all 18 points together"
        ),
        f"settings where cosine beats both in accuracy and sensitivity: {beaten}",
    ]


@claim("Sec. 4.4", "proto is the least accurate of the three heads overall")
def _proto_worst() -> Evidence:
    means = {head: _head_mean(head) for head in ("proto", "feat", "frn")}
    listed = ", ".join(f"{head} {accuracy:.2f}" for head, accuracy in means.items())
    return "worst", [true_or_false(means["proto"] == min(means.values()), listed)]


@claim("Sec. A.3, Table 4", "the new FRN is slightly more accurate than the old one overall")
def _frn_new_better() -> Evidence:
    old, new = (paper.exact_grids()["Table 4", Group("meta-inat", "conv4", head)] for head in ("frn-old", "frn"))
    shots = zip(TEST_SHOTS, old.means, new.means, strict=True)
    difference = mean(new.means).value - mean(old.means).value
    _, higher = count((f"{shot}-shot", a < b) for shot, a, b in shots)
    listed = f"{float(difference):+.2f} on average; higher at {higher} test shots"
    return "slight improvement", [true_or_false(difference > 0, listed)]


@claim("Sec. 5", "in 1- and 5-shot training the low-shot gain of cosine cancels against its dislike of low train shots")
def _matched_low_shot() -> Evidence:
    gained = sum(study()[cos].cells[2, 0] - study()[euc].cells[2, 0] for euc, cos in PAIRS) / 1800
    nearest = f"4-shot models at 4-shot test: mean gain {gained:+.2f}"
    return "cancelled", [f"needs 1- and 5-shot models; nearest, {nearest}"]


@claim("Sec. 3.3", "cosine-frn is more robust than frn in all settings, at competitive accuracy")
def _cosine_frn_robust() -> Evidence:
    groups = [g for g in COSINE if g.head == "cosine-frn"]
    listed = f"mean gain over test shots {float(mean_gain(groups)):+.2f}"
    return "consistent", [all_hold((g, sensitivity(g) < sensitivity(g.euclidean)) for g in groups), listed]


@claim("Table 5, Table 6, Table 7", "gains are blue, losses red")
def _gain_colours() -> Evidence:
    cases = [
        (f"{group(row)} at {row['test_shot']}-shot", (row["mark"] == "red") == row["printed"].startswith("-"))
        for row in find("gain")
    ]
    return "blue, red", [all_hold(cases)]


@claim("Fig. 5, Sec. 5", "swapped predictors follow the head a model was trained with")
def _swapped_predictors() -> Evidence:
    return f"{text('swapped models')[0]} models", ["the figure prints no numbers"]


def _head_mean(head: str) -> float:
    """Mean accuracy of a head over all settings and shots."""
    return fmean(float(overall(Group(*setting, head))) for setting in SETTINGS)


def _projected(setting: tuple[str, str], way: str) -> Group:
    return Group(*setting, "cosine-proto") if way == "cosine" else Group(*setting, "proto", way)


def _falls(values: list[Derived]) -> bool:
    return all(after < before for before, after in pairwise(values))


def _dominates(a: tuple[Fraction, Fraction], b: tuple[Fraction, Fraction]) -> bool:
    return a != b and all(x >= y for x, y in zip(a, b, strict=True))


def _more_accurate(first: str, second: str) -> tuple[Interpretation, Interpretation, str]:
    groups = [(_projected(s, first), _projected(s, second)) for s in SETTINGS]
    _, listed = count((a.setting, overall(a) > overall(b)) for a, b in groups)
    wins = sum(y < x for a, b in groups for x, y in zip(study()[a].means, study()[b].means, strict=True))
    difference = fmean(float(overall(a) - overall(b)) for a, b in groups)
    return (
        true_or_false(
            difference > 0, f"{difference:+.2f}", f"{first} minus {second}, mean over settings and test shots"
        ),
        true_or_false(2 * wins > 36, f"higher in {wins} of 36", f"{first} against {second}, by setting and test shot"),
        f"{first} above {second} setting by setting: {listed}",
    )


def _spread(groups: list[Group]) -> float:
    """Root mean square distance of the model biases to their mean at each train shot."""
    offsets = np.array([[float(offset) for offset in study()[group].offsets] for group in groups])
    return float(offsets.std(0) @ offsets.std(0) / offsets.shape[1]) ** 0.5
