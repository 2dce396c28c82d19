"""Claims about shot sensitivity: abstract, Sections 1, 4 and 5, Figure 3, Table 2."""

from collections.abc import Iterable
from fractions import Fraction
from statistics import fmean, geometric_mean

import numpy as np

from anyshot.measure.sensitivity import decompose
from anyshot.paper.claims import Evidence, all_hold, all_parts_hold, claim, count, number, sensitivity, true_or_false
from anyshot.paper.printed import COSINE, EUCLIDEAN, PAIRS, SETTINGS, Group, find, group, study, text
from anyshot.paper.rounding import Derived, judge, mean, parse, ratio, total


@claim("Sec. 1, Sec. 4.3", "overfitting to the train shot is a consistent problem of the Euclidean heads")
def _overfitting_everywhere() -> Evidence:
    """Whether the residual's corners where the shots match lie above those where they differ."""
    contrast = fmean(_matched(g) for g in EUCLIDEAN)
    return "consistent", [
        true_or_false(contrast > 0, f"{contrast:.2f} points", "matched minus mismatched corners, mean of 18 groups"),
        all_hold(((g, _matched(g) > 0) for g in EUCLIDEAN), "in every group"),
    ]


@claim("Fig. 3", "proto and cosine-proto on meta-inat/conv4 both show the XOR pattern")
def _figure_3_pattern() -> Evidence:
    groups = [Group("meta-inat", "conv4", head) for head in ("proto", "cosine-proto")]
    return "both", [all_hold(((g, bool((_corners(g) > 0).all())) for g in groups), "signs of the four corners")]


@claim("Fig. 3", "sensitivity of proto and of cosine-proto on meta-inat/conv4")
def _figure_3_scores() -> Evidence:
    first, second = text("example sensitivity")
    heads = zip((first, second), ("proto", "cosine-proto"), strict=True)
    parts = (number(printed, sensitivity(Group("meta-inat", "conv4", head)), head) for printed, head in heads)
    return f"{first} vs {second}", [all_parts_hold(*parts)]


@claim("Abstract, Sec. 4, Sec. 6, Table 2", "cosine matches or reduces sensitivity in every setting")
def _cosine_never_worse() -> Evidence:
    return "all settings", [all_hold((cos, sensitivity(cos).value <= sensitivity(euc).high) for euc, cos in PAIRS)]


@claim("Sec. 4.3", "cosine reduces sensitivity but for one pair, where it is unchanged")
def _single_exception() -> Evidence:
    same = [(euc, cos) for euc, cos in PAIRS if sensitivity(cos).high >= sensitivity(euc).low]
    listed = ", ".join(f"{cos} ({sensitivity(euc)} to {sensitivity(cos)})" for euc, cos in same)
    return "1 exception, unchanged", [true_or_false(len(same) == 1, f"{len(same)} exception, {listed}")]


@claim("Sec. 4.3", "cosine divides sensitivity by this factor on average", follows="cub/resnet12/frn/own/sensitivity")
def _sensitivity_factor() -> Evidence:
    (printed,) = text("sensitivity factor")
    table = {group(row): parse(row["printed"]) for row in find("sensitivity", "Table 2")}
    as_printed = fmean(float(table[euc] / table[cos]) for euc, cos in PAIRS)
    ratios = [ratio(sensitivity(euc), sensitivity(cos)) for euc, cos in PAIRS]
    before, after = (total([sensitivity(pair[i]) for pair in PAIRS]) for i in (0, 1))
    geometric = Derived(Fraction(geometric_mean(map(float, ratios))))
    return printed, [
        number(printed, mean(ratios), "mean of the 18 ratios"),
        number(printed, ratio(before, after), "ratio of the means"),
        number(printed, geometric, "geometric mean of the ratios"),
        f"Table 2 as printed has a mean ratio of {as_printed:.3f}, by its sensitivity of frn on cub/resnet12",
    ]


@claim("Sec. 4.3", "on conv4 the most sensitive cosine group is below the least sensitive Euclidean")
def _worst_cosine_best_euclidean() -> Evidence:
    worst, best = text("worst cosine, best euclidean")
    cosine = max(sensitivity(g) for g in COSINE if g.backbone == "conv4")
    heads = [g for g in EUCLIDEAN if g.backbone == "conv4"]
    projected = [Group(*s, "proto", readout) for s in SETTINGS[:3] for readout in ("pca60", "est60")]
    among = {"Euclidean heads read as trained": heads, "PCA and EST counted as Euclidean": heads + projected}
    readings = []
    for reading, groups in among.items():
        euclidean = min(map(sensitivity, groups))
        as_printed = "contradicted" not in (judge(worst, cosine), judge(best, euclidean))
        readings.append(true_or_false(cosine < euclidean and as_printed, f"{cosine} vs {euclidean}", reading))
    return f"{worst} vs {best}", readings


@claim("Sec. 4.3", "sensitivities of proto on conv4 lie between these points")
def _proto_range() -> Evidence:
    low, high = text("conv4 proto sensitivity")
    sensitivities = sorted(sensitivity(Group(*setting, "proto")).value for setting in SETTINGS[:3])
    whole = [int(value) for value in sensitivities]
    stands = parse(low) <= sensitivities[0] and sensitivities[-1] <= parse(high)
    return f"{low} to {high}", [
        true_or_false(stands, f"{float(sensitivities[0]):.2f} to {float(sensitivities[-1]):.2f}", "as bounds"),
        true_or_false(
            [whole[0], whole[-1]] == [parse(low), parse(high)], f"{whole[0]} to {whole[-1]}", "without decimals"
        ),
    ]


@claim("Sec. 4.2", "within as many points as the sensitivity a model stays of its best or worst case")
def _score_bounds_performance() -> Evidence:
    (score, _) = text("example score")
    residual = all(np.ptp(_residual(g)) <= float(sensitivity(g).high) for g in study())
    near = [np.ptp(study()[g].cells, axis=1).max() <= 100 * sensitivity(g).value for g in study()]
    listed = f"in {sum(near)} of {len(near)} grids no farther apart than the score"
    return f"{score} points at a score of {score}", [
        true_or_false(residual, "by definition", "after test and model bias are removed"),
        true_or_false(all(near), listed, "accuracies of two models at one test shot"),
    ]


@claim("Sec. 4.3", "proto is the most sensitive head on conv4")
def _proto_worst_offender() -> Evidence:
    heads = {s: [sensitivity(Group(*s, head)) for head in ("proto", "feat", "frn")] for s in SETTINGS[:3]}
    return "worst", [all_hold((s, all(other < proto for other in others)) for s, (proto, *others) in heads.items())]


@claim("Sec. 4.3", "feat and frn are about as sensitive as proto, on the same backbone")
def _heads_alike() -> Evidence:
    alike = {f"{g.head} {g.backbone}": _average(e for e in EUCLIDEAN if e[1:] == g[1:]) for g in EUCLIDEAN}
    listed = ", ".join(f"{name} {mean_sensitivity:.2f}" for name, mean_sensitivity in alike.items())
    return "similar", [f"no bound is given; mean sensitivities: {listed}"]


@claim("Abstract, Sec. 1, Sec. 4.3", "sensitivity is generally lower on resnet12 than on conv4")
def _larger_backbone() -> Evidence:
    groups = [g for g in study() if g.data in ("cub", "mini") and g.backbone == "conv4"]
    _, listed = count((g, sensitivity(g._replace(backbone="resnet12")) < sensitivity(g)) for g in groups)
    conv4, resnet12 = (_average(g for g in study() if g.backbone == b) for b in ("conv4", "resnet12"))
    return "generally", [
        true_or_false(resnet12 < conv4, f"{conv4:.2f} to {resnet12:.2f}", "mean sensitivity of all 24 groups"),
        f"group by group on cub and mini: {listed}",
    ]


@claim("Sec. 6", "cosine reduces sensitivity even on resnet12")
def _robust_resnet12_too() -> Evidence:
    before, after = (_average(pair[i] for pair in PAIRS if pair[i].backbone == "resnet12") for i in (0, 1))
    return "even on resnet12", [true_or_false(after < before, f"{before:.2f} to {after:.2f}", "mean of nine pairs")]


@claim("Sec. 4.4", "EST is not always less sensitive than PCA")
def _est_not_always_better() -> Evidence:
    both = {s: [sensitivity(Group(*s, "proto", readout)) for readout in ("est60", "pca60")] for s in SETTINGS}
    always, listed = count((s, est < pca) for s, (est, pca) in both.items())
    return "not always", [true_or_false(not always, f"less sensitive in {listed}")]


@claim("Sec. 4.4", "PCA and EST both reduce the sensitivity of proto")
def _projections_reduce() -> Evidence:
    own = _average(Group(*s, "proto") for s in SETTINGS)
    means = {r: _average(Group(*s, "proto", r) for s in SETTINGS) for r in ("pca60", "est60")}
    groups = [Group(*s, "proto", readout) for readout in means for s in SETTINGS]
    listed = ", ".join(f"{readout} {value:.2f}" for readout, value in means.items())
    return "both reduce", [
        true_or_false(all(m < own for m in means.values()), f"{own:.2f} to {listed}", "mean of the six settings"),
        all_hold(((g, sensitivity(g) < sensitivity(g.euclidean)) for g in groups), "in every setting"),
    ]


@claim("Abstract, Sec. 4.4, Sec. A.4", "cosine-proto is less sensitive than both PCA and EST")
def _cosine_beats_projections() -> Evidence:
    cosine = {s: sensitivity(Group(*s, "cosine-proto")).high for s in SETTINGS}
    cases = ((s, all(cosine[s] < sensitivity(Group(*s, "proto", r)).low for r in ("pca60", "est60"))) for s in SETTINGS)
    return "superior", [all_hold(cases)]


@claim("Table 2, Table 5, Table 6, Table 7", "bold marks the one lowest sensitivity of a setting and family of heads")
def _bold_is_best() -> Evidence:
    cases = []
    for table in ("Table 2", "Table 5", "Table 6", "Table 7"):
        rows = list(find("sensitivity", table))
        for row in rows:
            family = [r for r in rows if group(r).euclidean == group(row).euclidean and r is not row]
            lowest = all(parse(row["printed"]) < parse(r["printed"]) for r in family)
            cases.append((f"{group(row)} in {table}", lowest == (row["mark"] == "bold")))
    return "bold", [all_hold(cases)]


def _residual(group: Group) -> np.ndarray:
    return decompose(study()[group].cells / 100).residual


def _corners(group: Group) -> np.ndarray:
    """The residual at the lowest and highest shots, positive where overfitting makes it so."""
    return _residual(group)[np.ix_([0, -1], [0, -1])] * [[1, -1], [-1, 1]]


def _matched(group: Group) -> float:
    """The corners where shots match minus those where they differ."""
    return float(_corners(group).sum())


def _average(groups: Iterable[Group]) -> float:
    """The mean sensitivity of some groups."""
    return fmean(float(sensitivity(group)) for group in groups)
