"""Step: which head. Accuracy by shot of every head, on the same episodes with nested shots."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from anyshot.errors import BadInput
from anyshot.inspect.case import AdviceCase, HeldOut
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
CURVES_SHARE = 0.5  # share of the time of all advice, roughly
FEW_EXAMPLES, WIDE = 20, 0.05  # a class of fewer examples, with intervals wider than this, is called rough; not tuned


@dataclass(frozen=True)
class EpisodeSource:
    """What episodes are drawn from."""

    features: torch.Tensor
    plan: Plan
    shots: list[int]
    pool: EpisodePool
    doubts: list[str]

    @property
    def judged_on(self) -> str:
        """Where the queries come from: the examples at hand, or those held out."""
        return "at hand" if self.pool.held_out is None else "held out"


def measure_curves(case: AdviceCase, source: EpisodeSource) -> dict[str, np.ndarray]:
    """Return the accuracies of every head by shot and episode, from 0 to 1."""
    plan = source.plan
    if any(case.registry.head(head).estimator for head in case.heads):
        # Such a head factorises a matrix for each support, as small as its examples or its features are many.
        d, sizes = case.features[0].numel(), [plan.way * shot for shot in source.shots]
        per_episode = sum(2 * size**3 if size <= d else 3 * d**2 * size for size in sizes)
        plan = replace(plan, episodes=min(plan.episodes, max(LEAST_EPISODES, int(OPERATIONS / per_episode))))
    evaluation = evaluate(
        source.features, plan.labels, case.heads, source.shots, plan=plan, registry=case.registry,
        parameters=case.options.get("parameters"), embed=case.options.get("embed"),
        progress=scale_progress(case.progress, CURVES_SHARE),
    )  # fmt: skip
    release_memory()  # the threads of the episodes hold some
    return {head: evaluation.accuracies(head) / 100 for head in case.heads}


def compare_heads(case: AdviceCase, source: EpisodeSource, accuracies: dict[str, np.ndarray]) -> Section:
    """Choose the head for the shots that are expected.

    Its values are `class_names` and `counts` of the classes that are drawn into episodes; `way`, `queries`, `episodes`
    and `shots` of these; `curves`, by head the shot, the accuracy and its 95 % interval (low, high), from 0 to 1;
    `best`, the head of the highest mean accuracy over the shots that are expected (`expected_shots`); `robust`, the
    head whose largest shortfall from the best at any of these shots is smallest; `lead`, that of the best head over
    each other one on the same episodes, with half of its 95 % interval; and `judged_on`, what all was measured on.
    """
    shots, steps, pool = source.shots, np.array(source.shots), source.pool
    expected = sorted({min(shots, key=lambda step: (abs(step - shot), step)) for shot in case.shots}) or shots
    places = [shots.index(shot) for shot in expected]
    half_widths = {head: pool.half_widths(a, steps) for head, a in accuracies.items()}
    means = {head: a.mean(1)[places] for head, a in accuracies.items()}
    top = np.max(list(means.values()), 0)
    best = max(means, key=lambda head: float(means[head].mean()))
    robust = min(means, key=lambda head: float((top - means[head]).max()))
    independent = pool.count_independent(accuracies[best], steps)[places].min()
    points = {head: (accuracies[best] - a)[places].mean(0) for head, a in accuracies.items() if head != best}
    lead = {h: (float(p.mean()), float(1.96 * p.std(ddof=1) / np.sqrt(independent))) for h, p in points.items()}
    classes = np.flatnonzero(case.counts >= LEAST_EXAMPLES)
    counts: list[int] = case.counts[classes].tolist()
    curves = {head: _list_points(shots, a.mean(1), half_widths[head]) for head, a in accuracies.items()}
    cells = [
        [head, *(f"{100 * row['accuracy']:.1f} ± {50 * (row['high'] - row['low']):.1f}" for row in curve)]
        for head, curve in curves.items()
    ]
    values = {
        "class_names": [case.class_names[place] for place in classes],
        "counts": counts,
        "way": source.plan.way,
        "queries": source.plan.queries,
        "episodes": case.episodes,
        "shots": shots,
        "curves": curves,
        "best": best,
        "robust": robust,
        "expected_shots": expected,
        "lead": lead,
        "judged_on": source.judged_on,
    }
    doubts = [*source.doubts]
    if max(case.shots, default=0) > shots[-1]:
        doubts.append(
            f"You expect up to {max(case.shots)} shots; the examples allow to measure {shots[-1]}: the choice of a "
            "head is made at the shots that can be measured."
        )
    doubts += _doubt_curves(accuracies[best].mean(1), half_widths[best], 1 / source.plan.way, counts)
    table = Table("", ["accuracy at shot", *map(str, shots)], cells)
    sentences = _describe_choice(best, robust, lead, expected, _describe_basis(case, source, counts))
    return Section("Which head", sentences, [table], doubts, values)


def _list_points(shots: list[int], means: np.ndarray, half_widths: np.ndarray) -> list[dict[str, Any]]:
    return [
        {"shot": shot, "accuracy": mean, "low": max(mean - half, 0.0), "high": min(mean + half, 1.0)}
        for shot, mean, half in zip(shots, means.tolist(), half_widths.tolist(), strict=True)
    ]


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
        return _draw_from(case, classes, doubts)
    queries = np.bincount(case.held_out.codes[case.held_out.codes >= 0], minlength=len(case.counts))
    tested = classes[queries[classes] > 0]
    if len(tested) < 2:
        doubts.append("Fewer than two classes have examples held out: what is said is of the examples at hand.")
        return _draw_from(case, classes, doubts)
    if untested := [case.class_names[place] for place in classes if not queries[place]]:
        doubts.append(
            f"{len(untested)} classes have no example held out ({join_some(untested)}): the curves are of the others, "
            "and of these classes only the examples at hand tell."
        )
    return _draw_from(case, tested, doubts, case.held_out)


def _draw_from(
    case: AdviceCase, classes: np.ndarray, doubts: list[str], held_out: HeldOut | None = None
) -> EpisodeSource:
    """Draw supports from the examples at hand; queries from those held out, or from other groups at hand."""
    rows = np.isin(case.labels, classes)
    labels = np.searchsorted(classes, case.labels[rows])
    features = case.features if rows.all() else case.features[torch.from_numpy(rows)]  # all may stay on a disk
    counts, way = case.counts[classes], len(classes) if case.way == "all" else case.way
    names, query_count = [case.class_names[place] for place in classes], None
    options: dict[str, Any] = {}
    if held_out is not None:
        query_rows = np.isin(held_out.codes, classes)
        query_labels = np.searchsorted(classes, held_out.codes[query_rows])
        features = torch.cat([features, held_out.features[torch.from_numpy(query_rows)]])
        labels, query_count = np.concatenate([labels, query_labels]), len(query_labels)
        queries = min(MOST_QUERIES, int(np.bincount(query_labels).min()))
        options = {"held_out": np.arange(len(labels)) >= len(labels) - query_count}
    else:
        queries = max(1, min(MOST_QUERIES, int(counts.min()) // 4))
        if case.groups.evidence:
            options = {"group": case.groups.group[rows]}
            queries = min(queries, GroupedPlan(labels, way, 1, 1, **options).most_queries)
    arguments = (labels, way, 1, queries, case.episodes, case.seed, names)
    plan = GroupedPlan(*arguments, **options) if options else Plan(*arguments)
    shots = [shot for shot in SHOTS if shot <= plan.feasible.min()]
    pool = EpisodePool(int(np.median(counts)), len(classes), way, queries, query_count)
    return EpisodeSource(features, replace(plan, shot=shots[-1]), shots, pool, doubts)


def _describe_basis(case: AdviceCase, source: EpisodeSource, counts: list[int]) -> str:
    origin = f"of the examples at hand{', groups drawn whole' if case.groups.evidence else ''}"
    if source.judged_on == "held out":
        origin = "learned from the examples at hand, asked of those held out"
    per_class = format_range(min(counts), max(counts))
    return f"({source.plan.way} classes at once, {sum(counts)} examples, {per_class} per class; {origin})"


def _describe_choice(
    best: str, robust: str, lead: dict[str, tuple[float, float]], expected: list[int], basis: str
) -> list[str]:
    if not lead:
        return [f"Only {best} was tried {basis}."]
    sentences = [f"Use {best}: it is the most accurate over {', '.join(map(str, expected))} shots {basis}."]
    for head, (mean, half) in lead.items():
        verdict = "ahead of" if mean > half else "not surely better than"
        gap = f"{100 * mean:+.1f} points, give or take {100 * half:.1f}" if half < 0.5 else "too few examples to tell"
        sentences.append(f"It is {verdict} {head}: {gap}.")
    subject = "It is also the most robust" if robust == best else f"The most robust is {robust}"
    return [*sentences, f"{subject}: its worst shortfall from the best at any of these shots is the smallest."]


def _doubt_curves(means: np.ndarray, half_widths: np.ndarray, chance: float, counts: list[int]) -> list[str]:
    doubts = []
    if (means - half_widths).max() <= chance:
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
