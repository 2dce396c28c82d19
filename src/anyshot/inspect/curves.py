"""Step: which head. Accuracy by shot of every head, on the same episodes with nested shots."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from anyshot.errors import BadInput
from anyshot.inspect.case import AdviceCase
from anyshot.inspect.grouped_plan import GroupedPlan
from anyshot.inspect.sections import Section, Table, join_some
from anyshot.inspect.shot_curve import EpisodePool
from anyshot.machine import release_memory
from anyshot.measure.evaluate import evaluate
from anyshot.measure.plan import Plan
from anyshot.progress import scale_progress
from anyshot.text import format_range

SHOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # shots that are measured, as far as the examples reach
LEAST_EXAMPLES = 3  # examples of a class, to be drawn into episodes: two to learn from at two shots, and a query
MOST_QUERIES = 16  # examples of a class that an episode asks, as in the paper's protocol
LEAST_EPISODES = 20  # episodes of a head that is fitted to every support, however long that takes; not tuned
OPERATIONS = 2e11  # multiplications for such a head: about a minute on one core, by a rough measurement
PROGRESS = 0.5  # share of the time of all advice, roughly
FEW_EXAMPLES, WIDE = 20, 0.05  # a class of fewer examples, with intervals wider than this, is called rough; not tuned

JudgedOn = Literal["at hand", "held out"]


@dataclass(frozen=True)
class EpisodeSource:
    """What episodes are drawn from."""

    features: torch.Tensor
    plan: Plan
    shots: list[int]
    pool: EpisodePool
    judged_on: JudgedOn
    doubts: list[str]


@dataclass(frozen=True)
class Curves:
    """Accuracies by head, shot and episode, from 0 to 1, and half of the 95 % interval of each mean over episodes."""

    source: EpisodeSource
    accuracies: dict[str, np.ndarray]
    half_widths: dict[str, np.ndarray]


@dataclass(frozen=True)
class HeadChoice:
    """The heads compared, and the one to use."""

    class_names: list[str]
    """Classes that have enough examples to be drawn into episodes."""
    counts: list[int]
    way: int
    queries: int
    episodes: int
    shots: list[int]
    curves: dict[str, list[dict[str, Any]]]
    """By head: shot, accuracy and its 95 % interval (low, high), from 0 to 1."""
    best: str
    """The head of the highest mean accuracy over the shots that are expected."""
    robust: str
    """The head whose largest shortfall from the best at any of these shots is smallest."""
    expected_shots: list[int]
    lead: dict[str, tuple[float, float]]
    """The lead of the best head over each other one, on the same episodes, with half of its 95 % interval."""
    judged_on: JudgedOn
    """What the curves, and with them the choice of a head and the forecasts, were measured on."""
    section: Section


def measure_curves(case: AdviceCase) -> Curves:
    """Measure the accuracy of every head at every shot."""
    source = choose_episodes(case)
    plan = source.plan
    if any(case.registry.head(head).estimator for head in case.heads):
        affordable = _affordable_episodes(case.features[0].numel(), plan.way, source.shots)
        plan = replace(plan, episodes=min(plan.episodes, affordable))
    evaluation = evaluate(
        source.features, plan.labels, case.heads, source.shots, plan=plan,
        parameters={head: learned for head in case.heads if (learned := case.parameters(head)) is not None},
        embed=case.options.get("embed"), registry=case.registry, progress=scale_progress(case.progress, PROGRESS),
    )  # fmt: skip
    accuracies = {head: evaluation.accuracies(head) / 100 for head in case.heads}
    release_memory()  # the threads of the episodes hold some
    steps = np.array(source.shots)
    return Curves(source, accuracies, {head: source.pool.half_widths(a, steps) for head, a in accuracies.items()})


def compare_heads(case: AdviceCase) -> HeadChoice:
    """Choose the head for the shots that are expected."""
    curves = case.result(measure_curves)
    source, accuracies = curves.source, curves.accuracies
    expected, doubts = _expect_shots(case.shots, source.shots)
    places = [source.shots.index(shot) for shot in expected]
    means = {head: a.mean(1)[places] for head, a in accuracies.items()}
    top = np.max(list(means.values()), 0)
    best = max(means, key=lambda head: float(means[head].mean()))
    robust = min(means, key=lambda head: float((top - means[head]).max()))
    lead = _measure_lead(curves, best, places)
    classes = np.flatnonzero(case.counts >= LEAST_EXAMPLES)
    counts: list[int] = case.counts[classes].tolist()
    rows = {
        head: [
            {"shot": shot, "accuracy": mean, "low": max(mean - half, 0.0), "high": min(mean + half, 1.0)}
            for shot, mean, half in zip(
                source.shots, a.mean(1).tolist(), curves.half_widths[head].tolist(), strict=True
            )
        ]
        for head, a in accuracies.items()
    }
    cells = [
        [head, *(f"{100 * row['accuracy']:.1f} ± {50 * (row['high'] - row['low']):.1f}" for row in curve)]
        for head, curve in rows.items()
    ]
    if source.judged_on == "held out":
        drawn = "learned from the examples at hand, asked of those held out"
    else:
        drawn = f"of the examples at hand{', groups drawn whole' if case.groups.evidence else ''}"
    basis = (
        f"({source.plan.way} classes at once, {sum(counts)} examples, {format_range(min(counts), max(counts))} per "
        f"class; {drawn})"
    )
    section = Section(
        "Which head",
        _describe_choice(best, robust, lead, expected, basis),
        [Table("", ["accuracy at shot", *map(str, source.shots)], cells)],
        [*source.doubts, *doubts, *_doubt_curves(curves, best, counts)],
    )
    return HeadChoice(
        class_names=[case.class_names[place] for place in classes],
        counts=counts,
        way=source.plan.way,
        queries=source.plan.queries,
        episodes=case.episodes,
        shots=source.shots,
        curves=rows,
        best=best,
        robust=robust,
        expected_shots=expected,
        lead=lead,
        judged_on=source.judged_on,
        section=section,
    )


# ------------------------------------------------------------------------------------------------------------- episodes


def choose_episodes(case: AdviceCase) -> EpisodeSource:
    """Return where to draw episodes from.

    Queries are held-out examples where two classes have such, or else examples at hand, of other groups than the
    support.
    """
    classes = np.flatnonzero(case.counts >= LEAST_EXAMPLES)
    if len(classes) < 2:
        raise BadInput(
            f"advice needs at least 2 classes of {LEAST_EXAMPLES} examples; {len(classes)} have as many: label more "
            "first."
        )
    doubts = []
    if few := [name for name, count in zip(case.class_names, case.counts, strict=True) if count < LEAST_EXAMPLES]:
        doubts.append(
            f"{len(few)} classes have fewer than {LEAST_EXAMPLES} examples ({join_some(few)}): left out of the curves."
        )
    if case.held_out is None:
        return _at_hand(case, classes, doubts)
    queries = np.bincount(case.held_out.codes[case.held_out.codes >= 0], minlength=len(case.counts))
    tested = classes[queries[classes] > 0]
    if len(tested) < 2:
        doubts.append("Fewer than two classes have examples held out: what is said is of the examples at hand.")
        return _at_hand(case, classes, doubts)
    if untested := [case.class_names[place] for place in classes if not queries[place]]:
        doubts.append(
            f"{len(untested)} classes have no example held out ({join_some(untested)}): the curves are of the others, "
            "and of these classes only the examples at hand tell."
        )
    return _held_out(case, tested, int(queries[tested].min()), doubts)


def _held_out(case: AdviceCase, classes: np.ndarray, queries: int, doubts: list[str]) -> EpisodeSource:
    """Draw supports from the examples at hand, queries from those held out."""
    held_out = case.held_out
    assert held_out is not None
    ours, theirs = np.isin(case.labels, classes), np.isin(held_out.codes, classes)
    labels = np.searchsorted(classes, np.concatenate([case.labels[ours], held_out.codes[theirs]]))
    is_query = np.repeat([False, True], [int(ours.sum()), int(theirs.sum())])
    counts, way, queries = case.counts[classes], _way(case, classes), min(MOST_QUERIES, queries)
    shots = [shot for shot in SHOTS if shot <= counts.min()]
    plan = GroupedPlan(labels, way, shots[-1], queries, case.episodes, case.seed, held_out=is_query)
    pool = EpisodePool(int(np.median(counts)), len(classes), way, queries, int(theirs.sum()))
    features = torch.cat([case.features[torch.from_numpy(ours)], held_out.features[torch.from_numpy(theirs)]])
    return EpisodeSource(features, plan, shots, pool, "held out", doubts)


def _at_hand(case: AdviceCase, classes: np.ndarray, doubts: list[str]) -> EpisodeSource:
    """Draw supports and queries from the examples at hand, of different groups."""
    ours = np.isin(case.labels, classes)
    labels, names = np.searchsorted(classes, case.labels[ours]), [case.class_names[place] for place in classes]
    counts, way, is_grouped = case.counts[classes], _way(case, classes), bool(case.groups.evidence)
    group = _split_single_groups(labels, case.groups.group[ours]) if is_grouped else np.arange(len(labels))

    def plan(shot: int, queries: int) -> Plan:
        arguments = (labels, way, shot, queries, case.episodes, case.seed, names)
        return GroupedPlan(*arguments, group=group) if is_grouped else Plan(*arguments)

    queries = min(max(1, min(MOST_QUERIES, int(counts.min()) // 4)), _fewest_beside_largest(labels, group))
    shots = [shot for shot in SHOTS if shot <= plan(1, queries).feasible.min()]
    pool = EpisodePool(int(np.median(counts)), len(classes), way, queries)
    features = case.features if ours.all() else case.features[torch.from_numpy(ours)]  # all may stay on a disk
    return EpisodeSource(features, plan(shots[-1], queries), shots, pool, "at hand", doubts)


def _way(case: AdviceCase, classes: np.ndarray) -> int:
    return len(classes) if case.way == "all" else case.way


def _fewest_beside_largest(labels: np.ndarray, group: np.ndarray) -> int:
    """Return how many examples every class has beside its largest group: as many can be queries."""
    by_class = (np.unique(group[labels == label], return_counts=True)[1] for label in range(int(labels.max()) + 1))
    return min(int(sizes.sum() - sizes.max()) for sizes in by_class)


def _split_single_groups(labels: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return the groups, but for classes of a single one: their examples are drawn one by one."""
    group = group.copy()
    for label in range(int(labels.max()) + 1):
        members = np.flatnonzero(labels == label)
        if len(np.unique(group[members])) == 1:
            group[members] = group.max() + 1 + np.arange(len(members))
    return group


def _affordable_episodes(d: int, way: int, shots: Sequence[int]) -> int:
    """Return how many episodes OPERATIONS allow of a head that factorises a matrix for each support."""
    sides = [sorted((way * shot, d)) for shot in shots]
    each = sum(
        2 * small**3 if small == way * shot else 3 * small**2 * large
        for (small, large), shot in zip(sides, shots, strict=True)
    )
    return max(LEAST_EPISODES, int(OPERATIONS / each))


# ------------------------------------------------------------------------------------------------------------ sentences


def _expect_shots(shots: Sequence[int], measured: list[int]) -> tuple[list[int], list[str]]:
    """Return the measured shots nearest to those that are expected, and doubts."""
    if not shots:
        return measured, []
    doubts = []
    if max(shots) > measured[-1]:
        doubts.append(
            f"You expect up to {max(shots)} shots; the examples allow to measure {measured[-1]}: the choice of a head "
            "is made at the shots that can be measured."
        )
    return sorted({min(measured, key=lambda step: (abs(step - shot), step)) for shot in shots}), doubts


def _measure_lead(curves: Curves, best: str, places: list[int]) -> dict[str, tuple[float, float]]:
    """Return the mean lead over each other head, paired on the same episodes, and half of its interval."""
    steps = np.array(curves.source.shots)
    independent = curves.source.pool.independent(curves.accuracies[best], steps)[places].min()
    lead = {}
    for head, accuracies in curves.accuracies.items():
        if head != best:
            points = (curves.accuracies[best] - accuracies)[places].mean(0)
            lead[head] = float(points.mean()), float(1.96 * points.std(ddof=1) / np.sqrt(independent))
    return lead


def _describe_choice(
    best: str, robust: str, lead: dict[str, tuple[float, float]], expected: list[int], basis: str
) -> list[str]:
    if not lead:
        return [f"Only {best} was asked for; what follows is of it {basis}."]
    sentences = [f"Use {best}: it is the most accurate over {', '.join(map(str, expected))} shots {basis}."]
    for head, (mean, half) in lead.items():
        sure = "ahead of" if mean > half else "not surely better than"
        far = f"{100 * mean:+.1f} points, give or take {100 * half:.1f}" if half < 0.5 else "too few examples to tell"
        sentences.append(f"It is {sure} {head}: {far}.")
    which = "It is also the most robust" if robust == best else f"The most robust is {robust}"
    return [*sentences, f"{which}: its worst shortfall from the best at any of these shots is the smallest."]


def _doubt_curves(curves: Curves, best: str, counts: list[int]) -> list[str]:
    doubts, half_widths, chance = [], curves.half_widths[best], 1 / curves.source.plan.way
    if (curves.accuracies[best].mean(1) - half_widths).max() <= chance:
        doubts.append(
            f"No accuracy is surely above chance ({chance:.1%}): these features do not tell these classes apart, and "
            "what is said above is noise. Try other features before labelling more."
        )
    if min(counts) < FEW_EXAMPLES and half_widths.max() > WIDE:
        doubts.append(
            f"With {format_range(min(counts), max(counts))} examples a class the accuracies are known to about "
            f"{half_widths.max():.0%} only; heads closer than that cannot be told apart."
        )
    return doubts
