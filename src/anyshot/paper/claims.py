"""The claims of the paper's abstract, text and captions: one function each.

A function's name is the claim's id, its docstring the places in the paper and our words for it. It returns the printed
value, and the ways to read the claim with what each comes to; plain text among these is a remark, without a verdict.
"""

from collections.abc import Iterable
from fractions import Fraction
from statistics import fmean, geometric_mean
from typing import Any

import numpy as np

from anyshot.measure.sensitivity import decompose
from anyshot.paper.checks import Evidence, all_hold, all_parts_hold, count, number, true_or_false
from anyshot.paper.printed import (
    COSINE,
    EUCLIDEAN,
    PAIRS,
    SETTINGS,
    TEST_SHOTS,
    TRAIN_SHOTS,
    Group,
    exact_grids,
    find,
    group,
    study,
    text,
)
from anyshot.paper.rounding import HIGH, LOW, VALUE, Bounds, divide, judge, parse, show_ties, subtract

HIGH_SHOTS = {"32-shot": slice(-1, None), "16- and 32-shot": slice(-2, None), "8- to 32-shot": slice(-3, None)}
PARAMETERS = {"conv4": 113_088, "resnet12": 12_424_320}  # counted on the two architectures; the paper prints neither

# Batches of 256 images in one pass over CUB's 5,903 training images, by train shot; counted on its classes.
CUB_IMAGES, CUB_BATCHES = 5903, {4: 22, 8: 21, 16: 18, 32: 12}


def _sensitivity(group: Group) -> Bounds:
    return study()[group].sensitivity


def _score(group: Group) -> Fraction:
    return _sensitivity(group)[VALUE]


def _mean_score(groups: Iterable[Group]) -> float:
    return fmean(float(_score(group)) for group in groups)


def _gain(group: Group) -> Bounds:
    """How far a group lies above its Euclidean counterpart, by test shot."""
    return subtract(study()[group].means, study()[group.euclidean].means)


def _mean_gain(groups: Iterable[Group], shots: slice = slice(None)) -> Bounds:
    """The mean of these groups' gains at all test shots, or at some of them."""
    return np.concatenate([_gain(group)[shots] for group in groups]).mean(0)


def _accuracies(group: Group) -> np.ndarray:
    return study()[group].means[:, VALUE]


def _head_mean(head: str) -> float:
    """Mean accuracy of a head over all settings and shots."""
    return fmean(float(_accuracies(Group(*setting, head)).mean()) for setting in SETTINGS)


def _projected(setting: tuple[str, str], way: str) -> Group:
    return Group(*setting, "cosine-proto") if way == "cosine" else Group(*setting, "proto", way)


def _list(values: dict[Any, Any], sign: str = "") -> str:
    """Names and numbers with two decimals."""
    return ", ".join(f"{name} {float(value):{sign}.2f}" for name, value in values.items())


# ------------------------------------------------------------------------------------------------------ sensitivity


def _corners(group: Group) -> np.ndarray:
    """The residual at the lowest and highest shots, positive where overfitting makes it so."""
    return decompose(study()[group].cells / 100).residual[np.ix_([0, -1], [0, -1])] * [[1, -1], [-1, 1]]


def overfitting_everywhere() -> Evidence:
    """Sec. 1, Sec. 4.3: overfitting to the train shot is a consistent problem of the Euclidean heads."""
    contrasts = {g: float(_corners(g).sum()) for g in EUCLIDEAN}  # where shots match minus where they differ
    mean = fmean(contrasts.values())
    return "consistent", [
        true_or_false(mean > 0, f"{mean:.2f} points", "matched minus mismatched corners, mean of 18 groups"),
        all_hold(((g, contrast > 0) for g, contrast in contrasts.items()), "in every group"),
    ]


def figure_3_pattern() -> Evidence:
    """Fig. 3: proto and cosine-proto on meta-inat/conv4 both show the XOR pattern."""
    groups = [Group("meta-inat", "conv4", head) for head in ("proto", "cosine-proto")]
    return "both", [all_hold(((g, bool((_corners(g) > 0).all())) for g in groups), "signs of the four corners")]


def figure_3_scores() -> Evidence:
    """Fig. 3: sensitivity of proto and of cosine-proto on meta-inat/conv4."""
    heads = dict(zip(("proto", "cosine-proto"), text("example sensitivity"), strict=True))
    parts = (number(value, _sensitivity(Group("meta-inat", "conv4", head)), head) for head, value in heads.items())
    return " vs ".join(heads.values()), [all_parts_hold(*parts)]


def cosine_never_worse() -> Evidence:
    """Abstract, Sec. 4, Sec. 6, Table 2: cosine matches or reduces sensitivity in every setting."""
    return "all settings", [all_hold((cos, _score(cos) <= _sensitivity(euc)[HIGH]) for euc, cos in PAIRS)]


def single_exception() -> Evidence:
    """Sec. 4.3: cosine reduces sensitivity but for one pair, where it is unchanged."""
    scores = {cos: (_sensitivity(euc), _sensitivity(cos)) for euc, cos in PAIRS}
    same = [f"{g} ({show_ties(euc)} to {show_ties(cos)})" for g, (euc, cos) in scores.items() if cos[HIGH] >= euc[LOW]]
    return "1 exception, unchanged", [true_or_false(len(same) == 1, f"{len(same)} exception, {', '.join(same)}")]


def sensitivity_factor() -> Evidence:
    """Sec. 4.3: cosine divides sensitivity by this factor on average."""
    (printed,) = text("sensitivity factor")
    table = {group(row): parse(row["printed"]) for row in find("sensitivity", "Table 2")}
    as_printed = fmean(float(table[euc] / table[cos]) for euc, cos in PAIRS)
    euclidean, cosine = (np.array([_sensitivity(g) for g in groups]) for groups in (EUCLIDEAN, COSINE))
    ratios = divide(euclidean, cosine)
    geometric = np.full(3, Fraction(geometric_mean(map(float, ratios[:, VALUE]))))
    return printed, [
        number(printed, ratios.mean(0), "mean of the 18 ratios"),
        number(printed, divide(euclidean.sum(0), cosine.sum(0)), "ratio of the means"),
        number(printed, geometric, "geometric mean of the ratios"),
        f"Table 2 as printed has a mean ratio of {as_printed:.3f}, by its sensitivity of frn on cub/resnet12",
    ]


def worst_cosine_best_euclidean() -> Evidence:
    """Sec. 4.3: on conv4 the most sensitive cosine group is below the least sensitive Euclidean."""
    worst, best = text("worst cosine, best euclidean")
    cosine = _sensitivity(max((g for g in COSINE if g.backbone == "conv4"), key=_score))
    heads = [g for g in EUCLIDEAN if g.backbone == "conv4"]
    projected = [Group(*s, "proto", readout) for s in SETTINGS[:3] for readout in ("pca60", "est60")]
    among = {"Euclidean heads read as trained": heads, "PCA and EST counted as Euclidean": heads + projected}
    readings = []
    for reading, groups in among.items():
        euclidean = _sensitivity(min(groups, key=_score))
        stands = cosine[VALUE] < euclidean[VALUE]
        stands &= "contradicted" not in (judge(worst, cosine), judge(best, euclidean))
        readings.append(true_or_false(stands, f"{show_ties(cosine)} vs {show_ties(euclidean)}", reading))
    return f"{worst} vs {best}", readings


def proto_range() -> Evidence:
    """Sec. 4.3: sensitivities of proto on conv4 lie between these points."""
    printed = text("conv4 proto sensitivity")
    low, *_, high = sorted(_score(Group(*setting, "proto")) for setting in SETTINGS[:3])
    stands = parse(printed[0]) <= low and high <= parse(printed[1])
    return " to ".join(printed), [
        true_or_false(stands, f"{float(low):.2f} to {float(high):.2f}", "as bounds"),
        true_or_false([str(int(low)), str(int(high))] == printed, f"{int(low)} to {int(high)}", "without decimals"),
    ]


def score_bounds_performance() -> Evidence:
    """Sec. 4.2: within as many points as the sensitivity a model stays of its best or worst case."""
    score = text("example score")[0]
    residual = all(np.ptp(decompose(grid.cells / 100).residual) <= grid.sensitivity[HIGH] for grid in study().values())
    near = [np.ptp(grid.cells, axis=1).max() <= 100 * grid.sensitivity[VALUE] for grid in study().values()]
    listed = f"in {sum(near)} of {len(near)} grids no farther apart than the score"
    return f"{score} points at a score of {score}", [
        true_or_false(residual, "by definition", "after test and model bias are removed"),
        true_or_false(all(near), listed, "accuracies of two models at one test shot"),
    ]


def proto_worst_offender() -> Evidence:
    """Sec. 4.3: proto is the most sensitive head on conv4."""
    heads = {s: [_score(Group(*s, head)) for head in ("proto", "feat", "frn")] for s in SETTINGS[:3]}
    return "worst", [all_hold((s, proto > max(others)) for s, (proto, *others) in heads.items())]


def heads_alike() -> Evidence:
    """Sec. 4.3: feat and frn are about as sensitive as proto, on the same backbone."""
    alike = {f"{g.head} {g.backbone}": _mean_score(e for e in EUCLIDEAN if e[1:] == g[1:]) for g in EUCLIDEAN}
    return "similar", [f"no bound is given; mean sensitivities: {_list(alike)}"]


def larger_backbone() -> Evidence:
    """Abstract, Sec. 1, Sec. 4.3: sensitivity is generally lower on resnet12 than on conv4."""
    groups = [g for g in study() if g.data in ("cub", "mini") and g.backbone == "conv4"]
    _, listed = count((g, _score(g._replace(backbone="resnet12")) < _score(g)) for g in groups)
    conv4, resnet12 = (_mean_score(g for g in study() if g.backbone == b) for b in ("conv4", "resnet12"))
    return "generally", [
        true_or_false(resnet12 < conv4, f"{conv4:.2f} to {resnet12:.2f}", "mean sensitivity of all 24 groups"),
        f"group by group on cub and mini: {listed}",
    ]


def robust_resnet12_too() -> Evidence:
    """Sec. 6: cosine reduces sensitivity even on resnet12."""
    before, after = (_mean_score(g for g in heads if g.backbone == "resnet12") for heads in (EUCLIDEAN, COSINE))
    return "even on resnet12", [true_or_false(after < before, f"{before:.2f} to {after:.2f}", "mean of nine pairs")]


def est_not_always_better() -> Evidence:
    """Sec. 4.4: EST is not always less sensitive than PCA."""
    always, listed = count((s, _score(_projected(s, "est60")) < _score(_projected(s, "pca60"))) for s in SETTINGS)
    return "not always", [true_or_false(not always, f"less sensitive in {listed}")]


def projections_reduce() -> Evidence:
    """Sec. 4.4: PCA and EST both reduce the sensitivity of proto."""
    plain = _mean_score(Group(*s, "proto") for s in SETTINGS)
    means = {r: _mean_score(Group(*s, "proto", r) for s in SETTINGS) for r in ("pca60", "est60")}
    groups = [Group(*s, "proto", readout) for readout in means for s in SETTINGS]
    return "both reduce", [
        true_or_false(max(means.values()) < plain, f"{plain:.2f} to {_list(means)}", "mean of the six settings"),
        all_hold(((g, _score(g) < _score(g.euclidean)) for g in groups), "in every setting"),
    ]


def cosine_beats_projections() -> Evidence:
    """Abstract, Sec. 4.4, Sec. A.4: cosine-proto is less sensitive than both PCA and EST."""
    cosine = {s: _sensitivity(Group(*s, "cosine-proto"))[HIGH] for s in SETTINGS}
    others = {s: [_sensitivity(Group(*s, "proto", r))[LOW] for r in ("pca60", "est60")] for s in SETTINGS}
    return "superior", [all_hold((s, cosine[s] < min(others[s])) for s in SETTINGS)]


def bold_is_best() -> Evidence:
    """Table 2, Table 5, Table 6, Table 7: bold marks the one lowest sensitivity of a setting and family of heads."""
    cases = []
    for table in ("Table 2", "Table 5", "Table 6", "Table 7"):
        rows = list(find("sensitivity", table))
        for row in rows:
            family = [r for r in rows if group(r).euclidean == group(row).euclidean and r is not row]
            lowest = all(parse(row["printed"]) < parse(r["printed"]) for r in family)
            cases.append((f"{group(row)} in {table}", lowest == (row["mark"] == "bold")))
    return "bold", [all_hold(cases)]


# --------------------------------------------------------------------------------------------------------- accuracy


def one_shot_gain() -> Evidence:
    """Sec. 5: mean 1-shot gain of the cosine heads."""
    (printed,) = text("1-shot gain")
    return printed, [number(printed, _mean_gain(COSINE, slice(1)), "18 pairs")]


def high_shot_loss() -> Evidence:
    """Sec. 5: mean accuracy that cosine gives up at high test shots, where it saturates."""
    (printed,) = text("high-shot loss")
    readings = list(HIGH_SHOTS.items())[:2]
    return printed, [number(printed, -_mean_gain(COSINE, shots)[::-1], reading) for reading, shots in readings]


def high_shot_loss_bounded() -> Evidence:
    """Sec. 6: cosine gives up less than this at high test shots on average."""
    (printed,) = text("high-shot loss, less than")
    losses = {reading: -_mean_gain(COSINE, shots)[VALUE] for reading, shots in HIGH_SHOTS.items()}
    readings = [true_or_false(loss < parse(printed), f"{float(loss):.2f}", reading) for reading, loss in losses.items()]
    return f"less than {printed}", readings


def double_digit_gain() -> Evidence:
    """Sec. 1, Sec. 6: the largest 1-shot gain of cosine has two digits."""
    (printed, _) = text("low-shot gain, at most") + text("1-shot gain, at most")
    gains = {g: _gain(g)[0] for g in COSINE}
    best = max(gains, key=lambda g: gains[g][VALUE])
    many = sum(gain[VALUE] >= 10 for gain in gains.values())
    listed = f"{float(gains[best][VALUE]):.2f}, {best}; {many} of 18 reach 10"
    return printed, [true_or_false(gains[best][LOW] >= 10, listed)]


def low_shot_bump() -> Evidence:
    """Abstract, Sec. 4: cosine brings a bump in 1-shot accuracy."""
    _, listed = count((g, _gain(g)[0][VALUE] > 0) for g in COSINE)
    mean = float(_mean_gain(COSINE, slice(1))[VALUE])
    return "notable bump", [true_or_false(mean > 0, f"{mean:+.2f}", "on average"), f"pair by pair: {listed}"]


def beneficial_trade() -> Evidence:
    """Sec. 4, Sec. 5: cosine trades high-shot for low-shot accuracy, usually at a beneficial rate."""
    ends = [_gain(g)[[0, -1], VALUE] for g in COSINE]
    traded = [low > -high for low, high in ends if high < 0 < low]
    lose = sum(max(low, high) < 0 for low, high in ends)
    listed = f"{sum(traded)} of the {len(traded)} that trade gain more at 1-shot than they lose at 32-shot"
    return "usually", [true_or_false(2 * sum(traded) > len(traded), f"{listed}; {lose} lose at both")]


def accuracy_kept() -> Evidence:
    """Sec. 1, Sec. 5, Sec. 6: cosine gives up no accuracy in expectation."""
    mean = _mean_gain(COSINE)[VALUE]
    each = {h.head: _mean_gain([g for g in COSINE if g.head == h.head])[VALUE] for h in COSINE}
    return "not sacrificed", [
        true_or_false(mean >= 0, f"{float(mean):+.2f}", "mean gain over pairs and test shots"),
        true_or_false(min(each.values()) >= 0, _list(each, "+"), "for every head"),
    ]


def head_order() -> Evidence:
    """Sec. 4: frn is more accurate than feat, and feat than proto."""
    means = [_head_mean(head) for head in ("frn", "feat", "proto")]
    heads = np.array([[_accuracies(Group(*s, head)) for head in ("frn", "feat", "proto")] for s in SETTINGS])
    settings = zip(SETTINGS, (np.diff(heads.mean(2), axis=1) < 0).all(1), strict=True)
    falls: Any = (np.diff(heads, axis=1) < 0).all(1)  # by setting and test shot
    cells = ((f"{s} at {shot}-shot", falls[i, j]) for i, s in enumerate(SETTINGS) for j, shot in enumerate(TEST_SHOTS))
    listed = " > ".join(f"{accuracy:.2f}" for accuracy in means)
    return "as expected", [
        true_or_false(means == sorted(means, reverse=True), listed, "mean over settings and test shots"),
        all_hold(settings, "mean over test shots, in every setting"),
        all_hold(cells, "at every test shot of every setting"),
    ]


def four_shot_cosine_below() -> Evidence:
    """Sec. 5: no 4-shot cosine model lies above the mean of its group."""
    above = {g: bias for g in COSINE if (bias := study()[g].offsets[0])[VALUE] > 0}
    listed = [f"{g} +{show_ties(b)}" + ("" if b[LOW] > 0 else " (may round to it)") for g, b in above.items()]
    stands = not any(bias[LOW] > 0 for bias in above.values())
    return "none", [true_or_false(stands, f"above its group: {', '.join(listed) or 'none'}")]


def gain_without_four_shot() -> Evidence:
    """Sec. 5: leaving out the 4-shot models raises cosine accuracy by this much on average."""
    (printed,) = text("gain without 4-shot models")
    below = -np.array([study()[g].offsets[0] for g in COSINE]).mean(0)[::-1]
    return printed, [
        number(printed, below / 3, "group mean without them minus group mean with them"),
        number(printed, below / Fraction(3, 4), "other three models minus the 4-shot model"),
    ]


def closer_to_trend() -> Evidence:
    """Sec. 5: cosine model offsets gather closer around their mean trend by train shot than Euclidean ones."""
    spread = {}
    for name, groups in (("euclidean", EUCLIDEAN), ("cosine", COSINE)):
        offsets = np.array([study()[group].offsets[:, VALUE] for group in groups]).astype(float)
        spread[name] = float(np.mean(offsets.var(0))) ** 0.5
    reading = "root mean square distance to the trend"
    return "closer", [true_or_false(spread["cosine"] < spread["euclidean"], _list(spread), reading)]


def train_shot_preference() -> Evidence:
    """Sec. 5: cosine prefers a higher train shot; Euclidean heads prefer neither high nor low consistently."""
    biases = [np.array([study()[g].offsets[:, VALUE] for g in groups]) for groups in (COSINE, EUCLIDEAN)]
    cosine, euclidean = (sum(bias[:, 0] < 0) for bias in biases)
    best = ["/".join(map(str, np.bincount(bias.argmax(1), minlength=4))) for bias in biases]
    listed = f"4-shot model below its group in {cosine} of 18 cosine and {euclidean} of 18 Euclidean groups; "
    listed += f"best train shot 4/8/16/32: cosine {best[0]}, Euclidean {best[1]}"
    return "higher", [true_or_false(cosine > euclidean, listed)]


def train_shot_robustness() -> Evidence:
    """Sec. 5: cosine is not reliably more or less robust to the train shot."""
    ranges = {g: np.ptp(study()[g].offsets[:, VALUE]) for g in (*EUCLIDEAN, *COSINE)}
    less = sum(ranges[cos] < ranges[euc] for euc, cos in PAIRS)
    listed = f"range of the model bias is smaller for cosine in {less} of 18 pairs"
    return "neither", [true_or_false(0 < less < len(PAIRS), listed)]


def est_more_accurate() -> Evidence:
    """Sec. 4.4: EST is generally more accurate than PCA."""
    return "generally", _more_accurate("est60", "pca60")


def cosine_more_accurate_than_projections() -> Evidence:
    """Abstract, Sec. A.4: cosine-proto is generally more accurate than EST and PCA across test shots."""
    est, pca = _more_accurate("cosine", "est60"), _more_accurate("cosine", "pca60")
    return "generally", [all_parts_hold(est[0], pca[0]), all_parts_hold(est[1], pca[1]), est[2], pca[2]]


def _more_accurate(first: str, second: str) -> tuple[Any, Any, str]:
    lead = {s: _accuracies(_projected(s, first)) - _accuracies(_projected(s, second)) for s in SETTINGS}
    mean = fmean(float(each.mean()) for each in lead.values())
    wins = sum(sum(each > 0) for each in lead.values())
    _, listed = count((s, each.mean() > 0) for s, each in lead.items())
    return (
        true_or_false(mean > 0, f"{mean:+.2f}", f"{first} minus {second}, mean over settings and test shots"),
        true_or_false(2 * wins > 36, f"higher in {wins} of 36", f"{first} against {second}, by setting and test shot"),
        f"{first} above {second} setting by setting: {listed}",
    )


def cosine_frontier() -> Evidence:
    """Fig. 6, Sec. A.4: cosine-proto is the frontier of accuracy against sensitivity among PCA, EST and cosine."""
    groups = [_projected(s, way) for s in SETTINGS for way in ("pca60", "est60", "cosine")]
    points = {g: (_mean_gain([g])[VALUE], -_score(g)) for g in groups}

    def dominates(a: Group, b: Group) -> bool:
        return points[a] != points[b] and all(x >= y for x, y in zip(points[a], points[b], strict=True))

    frontier = [g for g in groups if not any(dominates(other, g) for other in groups)]
    others = ", ".join(str(g) for g in frontier if g.readout != "own")
    listed = f"{len(frontier)} points, {others or 'all of them cosine'}"
    trios = zip(SETTINGS, groups[2::3], groups[::3], groups[1::3], strict=True)
    _, beaten = count((s, dominates(cosine, pca) and dominates(cosine, est)) for s, cosine, pca, est in trios)
    return "clear frontier", [
        true_or_false(not others, listed, "all 18 points together"),
        f"settings where cosine beats both in accuracy and sensitivity: {beaten}",
    ]


def proto_worst() -> Evidence:
    """Sec. 4.4: proto is the least accurate of the three heads overall."""
    means = {head: _head_mean(head) for head in ("proto", "feat", "frn")}
    return "worst", [true_or_false(means["proto"] == min(means.values()), _list(means))]


def frn_new_better() -> Evidence:
    """Sec. A.3, Table 4: the new FRN is slightly more accurate than the old one overall."""
    grids = (exact_grids()["Table 4", Group("meta-inat", "conv4", head)] for head in ("frn-old", "frn"))
    old, new = (grid.means[:, VALUE] for grid in grids)
    mean = (new - old).mean()
    _, higher = count(zip(TEST_SHOTS, new > old, strict=True))
    return "slight improvement", [
        true_or_false(mean > 0, f"{float(mean):+.2f} on average; higher at {higher} test shots")
    ]


def matched_low_shot() -> Evidence:
    """Sec. 5: in 1- and 5-shot training the low-shot gain of cosine cancels against its dislike of low train shots."""
    gained = sum(study()[cos].cells[2, 0] - study()[euc].cells[2, 0] for euc, cos in PAIRS) / 1800
    nearest = f"4-shot models at 4-shot test: mean gain {gained:+.2f}"
    return "cancelled", [f"needs 1- and 5-shot models; nearest, {nearest}"]


def cosine_frn_robust() -> Evidence:
    """Sec. 3.3: cosine-frn is more robust than frn in all settings, at competitive accuracy."""
    groups = [g for g in COSINE if g.head == "cosine-frn"]
    listed = f"mean gain over test shots {float(_mean_gain(groups)[VALUE]):+.2f}"
    return "consistent", [all_hold((g, _score(g) < _score(g.euclidean)) for g in groups), listed]


def gain_colours() -> Evidence:
    """Table 5, Table 6, Table 7: gains are blue, losses red."""
    return "blue, red", [
        all_hold((group(row), (row["mark"] == "red") == row["printed"].startswith("-")) for row in find("gain"))
    ]


def swapped_predictors() -> Evidence:
    """Fig. 5, Sec. 5: swapped predictors follow the head a model was trained with."""
    return f"{text('swapped models')[0]} models", ["the figure prints no numbers"]


# ------------------------------------------------------------------------------------------------------- the set-up


def _integers(quantity: str) -> list[int]:
    """Whole numbers of the text."""
    return [int(number) for number in text(quantity)]


def _datasets() -> dict[tuple[str, str], str]:
    """Table 3 as printed, by data set and quantity."""
    return {(row["data"], row["quantity"]): row["printed"] for row in find(table="Table 3")}


def _consistency() -> dict[tuple[str, str, int], int]:
    """Percent of unchanged predictions by trained head, predictor and train shot."""
    return {(row["head"], row["readout"], row["train_shot"]): int(row["printed"]) for row in find("consistency")}


def parameter_factor() -> Evidence:
    """Sec. 4.3: resnet12 has more than this many times the parameters of conv4."""
    (printed,) = text("parameter factor")
    factor = PARAMETERS["resnet12"] / PARAMETERS["conv4"]
    listed = f"{PARAMETERS['resnet12']:,} / {PARAMETERS['conv4']:,} = {factor:.1f}"
    return f"over {printed}", [true_or_false(factor > parse(printed), listed)]


def shots() -> Evidence:
    """Sec. 4.2: the train and test shots of the text are those of every grid."""
    train, test = (tuple(_integers(f"{which} shots")) for which in ("train", "test"))
    ends = _integers("test shot range")
    stands = (train, test) == (TRAIN_SHOTS, TEST_SHOTS) and ends == [test[0], test[-1]]
    listed = f"{len(exact_grids())} grids of {len(test)} x {len(train)} cells"
    return f"{len(train)} train shots, {len(test)} test shots", [true_or_false(stands, listed)]


def settings() -> Evidence:
    """Sec. 4.1: the study covers two backbones and four datasets."""
    data, backbones = ({group[i] for group in study()} for i in (0, 1))
    pairs = {group.setting for group in study()}
    listed = f"{len(backbones)} and {len(data)}, {len(study())} grids"
    alone = "meta-inat on conv4 alone, tiered on resnet12 alone"
    return "2 backbones, 4 datasets", [
        true_or_false((len(backbones), len(data)) == (2, 4), listed, "each appears"),
        f"{len(pairs)} of the {len(data) * len(backbones)} combinations: {alone}",
    ]


def batch_size() -> Evidence:
    """Sec. 4.2, Sec. A.2: every training batch has the same size."""
    (size,), (cut,) = _integers("batch size"), _integers("way cut, percent")
    reduced = size * (1 - cut / 100)
    ways, fewer = ([batch / shot for shot in TRAIN_SHOTS] for batch in (size, reduced))
    listed = f"ways {'/'.join(f'{w:g}' for w in ways)}, or {'/'.join(f'{w:g}' for w in fewer)} where cut by {cut} %"
    exceptions = f"{reduced:g} for feat on resnet12 and the proto family on cub/resnet12"
    return str(size), [
        true_or_false(all(way == int(way) for way in ways + fewer), listed, "within a group, over its train shots"),
        true_or_false(reduced == size, exceptions, "for all models of the study"),
    ]


def same_data() -> Evidence:
    """Sec. 4.2: a constant batch size gives all models the same amount of data."""
    (size,), (images,), (classes,) = text("batch size"), text("cub images"), text("cub classes")
    each = float(parse(images) / parse(classes))
    shares = [f"{100 * batches * int(size) / CUB_IMAGES:.0f}" for batches in CUB_BATCHES.values()]
    seen = f"{', '.join(shares[:-1])} and {shares[-1]} % of the images at {', '.join(map(str, CUB_BATCHES))} shots"
    why = f"a class of {each:.0f} images gives {TRAIN_SHOTS[-1]} only once"
    return "same", [true_or_false(len(set(shares)) == 1, f"{seen}, as {why}", "in a pass over cub")]


def splits_add_up() -> Evidence:
    """Table 3, Sec. A.1: train, validation and test classes add up to the classes of each dataset."""
    table = {where: int(parse(printed)) for where, printed in _datasets().items()}
    datasets = dict.fromkeys(data for data, _ in table)
    sums = ((d, sum(table[d, part] for part in ("train", "val", "test")) == table[d, "classes"]) for d in datasets)
    return "4 datasets", [all_hold(sums)]


def text_matches_table() -> Evidence:
    """Sec. A.1, Table 3: class and image counts of the text are those of the table."""
    table = {where: parse(printed) for where, printed in _datasets().items()}
    quoted = {f"{data} {what}": [(data, what)] for data, what in table if what in ("images", "classes")}
    quoted |= {
        f"{data} split": [(data, part) for part in ("train", "val", "test")] for data in ("cub", "mini", "tiered")
    }
    quoted["meta-inat test classes"] = [("meta-inat", "test")]
    quoted = {words: where for words, where in quoted.items() if text(words)}
    cases = [(words, [*map(parse, text(words))] == [table[one] for one in where]) for words, where in quoted.items()]
    return f"{len(cases)} statements", [all_hold(cases)]


def meta_inat_fifth() -> Evidence:
    """Sec. A.1: test classes of meta-inat are one fifth of all."""
    (classes,), (test,) = _integers("meta-inat classes"), _integers("meta-inat test classes")
    return str(test), [true_or_false(test * 5 == classes, f"{classes} / 5 = {classes / 5:g}")]


def mini_images() -> Evidence:
    """Sec. A.1, Table 3: images of mini are its classes times the images of a class."""
    (classes,), (each,), printed = (
        _integers("mini classes"),
        _integers("mini images a class"),
        _datasets()["mini", "images"],
    )
    return printed, [true_or_false(parse(printed) == classes * each, f"{classes} x {each} = {classes * each:,}")]


def meta_inat_images() -> Evidence:
    """Sec. A.1, Table 3: images of meta-inat fit its bounds on the images of a class."""
    (classes,), printed = _integers("meta-inat classes"), _datasets()["meta-inat", "images"]
    low, high = (classes * each for each in _integers("meta-inat images a class"))
    return printed, [true_or_false(low <= parse(printed) <= high, f"between {low:,} and {high:,}")]


def comparison_rows() -> Evidence:
    """Sec. A.4: PCA, EST and cosine-proto are these rows of the gain tables."""
    first, last, third, fourth = _integers("rows of the comparison")
    cases = []
    for table in ("Table 5", "Table 6", "Table 7"):
        rows = [(row["head"], row["readout"]) for row in find("sensitivity", table)]
        wanted = [("proto", "pca60"), ("proto", "est60"), ("cosine-proto", "own")]
        cases.append((table, rows[first - 1 : last] == wanted == rows[third - 1 : fourth]))
    return f"{first}-{last} and {third}-{fourth}", [all_hold(cases)]


def consistent_prediction() -> Evidence:
    """Table 1, Sec. 3.1: cosine prediction is more consistent than Euclidean prediction for all four models."""
    share = _consistency()
    cases = ((f"{h} {s}-shot", share[h, "cosine", s] > share[h, "euclidean", s]) for h, r, s in share if r == "cosine")
    return "all models", [all_hold(cases)]


def consistent_training() -> Evidence:
    """Table 1, Sec. 3.1: 4- and 32-shot consistency lie much closer after cosine training."""
    share = _consistency()
    scores, heads = ("euclidean", "cosine"), ("proto", "cosine-proto")
    gaps = {head: [abs(share[head, score, 4] - share[head, score, 32]) for score in scores] for head in heads}
    listed = ", ".join(f"{head} {gap[0]} and {gap[1]} points" for head, gap in gaps.items())
    return "much closer", [true_or_false(max(gaps["cosine-proto"]) < min(gaps["proto"]), listed)]


def consistency_shares() -> Evidence:
    """Table 1: shares of predictions that survive a new support."""
    shares = _consistency().values()
    return f"{min(shares)} to {max(shares)} %", ["needs the models; eight shares, no cells behind them"]


def frn_terms() -> Evidence:
    """Sec. 3.3: ratio of the FRN terms and its standard deviations."""
    printed = text("frn ratio") + text("frn ratio deviation") + text("frn ratio deviation within a query")
    why = "needs the model; the text speaks of the first and third term, but gives the ratio of the first and second"
    return ", ".join(printed), [why]


def confidence_intervals() -> Evidence:
    """Sec. 4.2: 95 % intervals by test shot, the same for all models."""
    return ", ".join(text("confidence interval")), ["needs the accuracies of single episodes"]


def layer_norm_between() -> Evidence:
    """Sec. 3.2: feat with LayerNorm lies between Euclidean and cosine feat."""
    return "generally", ["prints no sensitivities with LayerNorm"]


def prior_work() -> Evidence:
    """Sec. 4.3, Sec. 5: how small advances on these benchmarks are, and which test shots other work uses."""
    (advance,), (largest,) = text("small advance"), text("usual largest test shot")
    return f"{advance} points; {largest}; {'/'.join(text('test shots of est'))}", ["facts of other papers"]


def tiered_images() -> Evidence:
    """Table 3: images of tiered."""
    return _datasets()["tiered", "images"], ["the images of a class are not printed"]
