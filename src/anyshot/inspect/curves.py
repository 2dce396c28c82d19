"""Steps: which head, by its accuracy at each shot on the same episodes; and whether logistic regression is better."""

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import t as student_t
from sklearn.model_selection import StratifiedGroupKFold

from anyshot.inspect.case import AdviceCase
from anyshot.inspect.episodes import LEAST_EXAMPLES, EpisodeSource
from anyshot.inspect.sections import Section, Table
from anyshot.machine import release_memory
from anyshot.measure.evaluate import evaluate
from anyshot.progress import OnProgress, scale_progress
from anyshot.text import count_noun, format_range, group_by

LEAST_EPISODES = 20  # episodes of a head that is fitted to every support, however long that takes; not tuned
OPERATIONS_PER_SECOND = 5e9  # multiplications for such a head, on one core (docs/log/advice.md)
OPERATIONS = 30 * OPERATIONS_PER_SECOND
FIT_OPERATIONS = 5e7  # what a fit costs besides, however small: some 10 ms
FEW_EXAMPLES, WIDE = 20, 0.05  # a class of fewer examples, with intervals wider than this, is called rough; not tuned
LOGISTIC = "logistic"  # the head that is tried where most classes have many examples
LEAST_FITTED = 15  # of the median class: with fewer, little is gained (docs/log/posterior.md)
MOST_FITTED = 1000  # examples of all classes together, which takes some seconds
FOLDS = 3


def limit_episodes(case: AdviceCase, source: EpisodeSource) -> tuple[EpisodeSource, dict[str, float]]:
    """Return the source with no more episodes than are affordable, and roughly the seconds that each head takes."""
    plan, d = source.plan, case.features[0].numel()
    sizes = [plan.way * shot for shot in source.shots]
    # A head that is fitted to each support factorises a matrix for several ridges, as large as its examples or its
    # features are many, and leaves each example out. Other heads compare queries with the means of classes.
    to_fit = sum(FIT_OPERATIONS + 8 * min(size, d) ** 2 * (min(size, d) + size) for size in sizes)
    to_compare = sum(d * (size + plan.queries * plan.way**2) for size in sizes)
    operations = {head: to_fit if case.registry.head(head).estimator else to_compare for head in case.heads}
    if to_fit in operations.values():
        plan = replace(plan, episodes=min(plan.episodes, max(LEAST_EPISODES, int(OPERATIONS / to_fit))))
    seconds = {head: plan.episodes * count / OPERATIONS_PER_SECOND for head, count in operations.items()}
    return replace(source, plan=plan), seconds


def measure_curves(
    case: AdviceCase, source: EpisodeSource, seconds: dict[str, float], progress: OnProgress
) -> dict[str, np.ndarray]:
    """Return the accuracies of every head by shot and episode, from 0 to 1.

    Args:
        case: The examples.
        source: What episodes are drawn from.
        seconds: How long each head takes: heads that take equally long are measured together.
        progress: Called with shares of this work that add up to 1.
    """
    accuracies: dict[str, np.ndarray] = {}
    for heads in group_by(case.heads, lambda head: seconds[head]).values():
        share = sum(seconds[head] for head in heads) / sum(seconds.values())
        evaluation = evaluate(
            source.features, source.plan.labels, heads, source.shots, plan=source.plan, registry=case.registry,
            parameters=case.parameters, embed=case.embed,
            progress=scale_progress(progress, share),
        )  # fmt: skip
        accuracies |= {head: evaluation.accuracies(head) / 100 for head in heads}
    release_memory()  # the threads of the episodes hold some
    return {head: accuracies[head] for head in case.heads}


def compare_heads(case: AdviceCase, source: EpisodeSource, accuracies: dict[str, np.ndarray]) -> Section:
    """Choose the head for the shots that are expected.

    Args:
        case: The examples.
        source: What episodes were drawn from.
        accuracies: The accuracies of each head, by shot and episode.

    Returns:
        The section, whose values are
        `class_names` and `counts` of the classes that are drawn into episodes;
        `way`, `queries`, `episodes` and `shots` of these;
        `curves`, by head the shot, the accuracy and its 95 % interval (low, high), from 0 to 1;
        `best`, the head that is recommended for the shots that are expected (`expected_shots`);
        `robust`, the head whose largest shortfall from the highest accuracy at any of these shots is smallest;
        `lead`, that of the best head over each other one on the same episodes (below 0 where the other was more
        accurate), with half of its 95 % interval;
        `judged_on`, where the queries come from.
    """
    shots, pool = source.shots, source.pool
    expected = sorted({min(shots, key=lambda step: (abs(step - shot), step)) for shot in case.shots}) or shots
    places = [shots.index(shot) for shot in expected]
    half_widths = {head: pool.half_widths(a, np.array(shots)) for head, a in accuracies.items()}
    means = {head: a.mean(1)[places] for head, a in accuracies.items()}
    top = np.max(list(means.values()), 0)
    robust = min(means, key=lambda head: float((top - means[head]).max()))
    best = _choose_head(case.default_head, source, accuracies, places)
    lead = _measure_leads(best, source, accuracies, places)
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
        "episodes": source.plan.episodes,
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
    """Return the points of a curve: each shot with its accuracy and the 95 % interval of that."""
    return [
        {"shot": shot, "accuracy": mean, "low": max(mean - half, 0.0), "high": min(mean + half, 1.0)}
        for shot, mean, half in zip(shots, means.tolist(), half_widths.tolist(), strict=True)
    ]


def _choose_head(default: str, source: EpisodeSource, accuracies: dict[str, np.ndarray], places: list[int]) -> str:
    """Return the default head, unless others are surely ahead of it; then the most accurate of these."""
    candidates = list(accuracies)
    if default in accuracies:
        leads = _measure_leads(default, source, accuracies, places)
        candidates = [head for head, (lead, half) in leads.items() if -lead > half] or [default]
    return max(candidates, key=lambda head: float(accuracies[head][places].mean()))


def _measure_leads(
    head: str, source: EpisodeSource, accuracies: dict[str, np.ndarray], places: list[int]
) -> dict[str, tuple[float, float]]:
    """Return the lead of a head over each other one on the same episodes, with half of its 95 % interval."""
    independent = source.pool.count_independent(accuracies[head], np.array(source.shots))[places].min()
    leads = {other: (accuracies[head] - a)[places].mean(0) for other, a in accuracies.items() if other != head}
    half_widths = {other: 1.96 * lead.std(ddof=1) / np.sqrt(independent) for other, lead in leads.items()}
    return {other: (float(lead.mean()), float(half_widths[other])) for other, lead in leads.items()}


def _describe_basis(case: AdviceCase, source: EpisodeSource, counts: list[int]) -> str:
    """Return on what the heads were compared, in brackets."""
    origin = f"of the examples at hand{', groups drawn whole' if case.groups.evidence else ''}"
    if source.judged_on == "held out":
        origin = "learned from the examples at hand, asked of those held out"
    per_class = format_range(min(counts), max(counts))
    return f"({source.plan.way} classes at once, {sum(counts)} examples, {per_class} per class; {origin})"


def _describe_choice(
    best: str, robust: str, lead: dict[str, tuple[float, float]], expected: list[int], basis: str
) -> list[str]:
    """Return which head to use, and how far it is ahead of each other one, in sentences."""
    if not lead:
        return [f"Only {best} was tried {basis}."]
    over = f"at {count_noun(expected[0], 'shot')} {basis}"
    if len(expected) > 1:  # the leads are means over these shots: at some of them another head may be ahead
        over = f"on average over {', '.join(map(str, expected[:-1]))} and {expected[-1]} shots {basis}"
    sentences = [f"Of these heads use {best}: it is the most accurate {over}."]
    if any(mean < 0 for mean, _ in lead.values()):
        why = f"none is surely more accurate {over}, and it is the default of `anyshot fit`"
        sentences = [f"Of these heads use {best}: {why}."]
    for head, (mean, half) in lead.items():
        verdict = "ahead of" if mean > half else "not surely better than" if mean >= 0 else "not surely worse than"
        gap = f"{100 * mean:+.1f} points, give or take {100 * half:.1f}" if half < 0.5 else "too few examples to tell"
        sentences.append(f"It is {verdict} {head}: {gap}.")
    subject = "It is also the most robust" if robust == best else f"The most robust is {robust}"
    return [*sentences, f"{subject}: its worst shortfall from the best at any of these shots is the smallest."]


def _doubt_curves(means: np.ndarray, half_widths: np.ndarray, chance: float, counts: list[int]) -> list[str]:
    """Return what the examples are too few to say about the accuracies of the best head."""
    doubts = []
    if (means - half_widths).max() <= chance:
        doubts.append(
            f"No accuracy is surely above chance ({chance:.1%}): these features do not tell these classes apart, and "
            "what is said above is noise. Try other features before labelling more."
        )
    if min(counts) < FEW_EXAMPLES and half_widths.max() > WIDE:
        doubts.append(
            f"With {format_range(min(counts), max(counts))} examples a class the level of the accuracies is known to "
            f"about {100 * half_widths.max():.0f} points only. Differences between heads, measured on the same "
            "episodes, are known better."
        )
    return doubts


def compare_with_regression(case: AdviceCase, best: str) -> Section:
    """Compare logistic regression with the best head: fit two thirds of the examples, test the others, three times.

    Its values are the advice to use it, if any, and the lead (from -1 to 1) with half of the 95 % interval; None where
    it was not tried.
    """
    title = "Logistic regression instead"
    if obstacle := _find_obstacle(case):
        return Section(title, [obstacle], values={"regression_lead": None, "regression_advice": ""})
    rows = _sample_rows(case)
    features, labels = case.features[rows].numpy(), case.labels[rows]
    folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=case.seed)
    right = np.zeros((2, len(rows)))
    for support, query in folds.split(features, labels, case.groups.group[rows]):
        for place, head in enumerate((best, LOGISTIC)):
            fitted = case.classifier(head).set_params(keep=MOST_FITTED).fit(features[support], labels[support])
            right[place, query] = fitted.predict(features[query]) == labels[query]
    difference = right[1] - right[0]
    lead = float(difference.mean())
    half = float(student_t.ppf(0.975, len(rows) - 1) * difference.std(ddof=1) / len(rows) ** 0.5)
    accuracy_of_best, accuracy = right.mean(1)
    advice, gap = "", f"{100 * lead:+.1f} ± {100 * half:.1f}"
    if lead > half:
        options = f"--head {LOGISTIC} --keep {int(case.counts.max())}"
        advice = (
            f"Use {LOGISTIC} ({options}): with as many examples as these it is {100 * lead:.1f} points ahead of {best}."
        )
    sentences = [
        f"Fitted to two thirds of {len(rows)} examples and tested on the others, three times: logistic regression is "
        f"right on {accuracy:.1%}, {best} on {accuracy_of_best:.1%} (a difference of {gap} points).",
        advice or f"That is no reason to prefer it to {best}, which is faster.",
    ]
    return Section(title, sentences, values={"regression_lead": (lead, half), "regression_advice": advice})


def _find_obstacle(case: AdviceCase) -> str:
    """Return why logistic regression is not compared with the best head here; nothing where it is."""
    if LOGISTIC in case.heads:
        return "It is among the heads above."
    if (median := int(np.median(case.counts))) < LEAST_FITTED:
        return f"It was not tried: it takes {LEAST_FITTED} examples of a class, and the median class has {median}."
    if len(case.counts) * LEAST_FITTED > MOST_FITTED:
        return f"It was not tried: there are more than {MOST_FITTED // LEAST_FITTED} classes."
    return ""


def _sample_rows(case: AdviceCase) -> np.ndarray:
    """Return the rows of as many examples of each class as are affordable, whole groups before parts of others.

    Classes of fewer examples than there are parts are left aside.
    """
    rng, most = np.random.default_rng(case.seed), MOST_FITTED // len(case.counts)
    order = rng.permutation(int(case.groups.group.max()) + 1)[case.groups.group].argsort(kind="stable")
    classes = np.flatnonzero(case.counts >= FOLDS)
    return np.sort(np.concatenate([order[case.labels[order] == label][:most] for label in classes]))
