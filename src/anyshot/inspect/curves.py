"""Steps: which head, by its accuracy at each shot on the same episodes; and whether logistic regression is better."""

from dataclasses import replace

import numpy as np
from scipy.stats import t as student_t
from sklearn.model_selection import StratifiedGroupKFold

from anyshot.inspect.case import AdviceCase
from anyshot.inspect.episodes import LEAST_EXAMPLES, EpisodeSource
from anyshot.inspect.sections import Section, Table
from anyshot.machine import release_memory
from anyshot.measure.evaluate import evaluate
from anyshot.progress import scale_progress
from anyshot.text import format_range

LEAST_EPISODES = 20  # episodes of a head that is fitted to every support, however long that takes; not tuned
OPERATIONS = 1.5e11  # multiplications for such a head: half a minute on one core (docs/log/advice.md)
FIT_OPERATIONS = 5e7  # what a fit costs besides, however small: some 10 ms
CURVES_SHARE = 0.5  # share of the time of all advice, roughly
FEW_EXAMPLES, WIDE = 20, 0.05  # a class of fewer examples, with intervals wider than this, is called rough; not tuned
LOGISTIC = "logistic"  # the head that is tried where every class has many examples
LEAST_FITTED = 15  # of every class: with fewer, logistic regression was behind on all sets (docs/log/posterior.md)
MOST_FITTED = 1000  # examples of all classes together, which takes some seconds
FOLDS = 3


def measure_curves(case: AdviceCase, source: EpisodeSource) -> dict[str, np.ndarray]:
    """Return the accuracies of every head by shot and episode, from 0 to 1."""
    plan = source.plan
    if any(case.registry.head(head).estimator for head in case.heads):
        # For each support, and for several ridges, such a head factorises a matrix, as large as its examples or its
        # features are many, and leaves each example out.
        d, sizes = case.features[0].numel(), [plan.way * shot for shot in source.shots]
        per_episode = sum(FIT_OPERATIONS + 8 * min(size, d) ** 2 * (min(size, d) + size) for size in sizes)
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
    curves = {
        head: [
            {"shot": shot, "accuracy": mean, "low": max(mean - half, 0.0), "high": min(mean + half, 1.0)}
            for shot, mean, half in zip(shots, a.mean(1).tolist(), half_widths[head].tolist(), strict=True)
        ]
        for head, a in accuracies.items()
    }
    cells = [
        [head, *(f"{100 * row['accuracy']:.1f} ± {50 * (row['high'] - row['low']):.1f}" for row in curve)]
        for head, curve in curves.items()
    ]
    values = {
        "class_names": [case.class_names[place] for place in classes],
        "counts": counts,
        "way": source.plan.way,
        "queries": source.plan.queries,
        "episodes": accuracies[best].shape[1],
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


def compare_with_regression(case: AdviceCase, best: str) -> Section:
    """Compare logistic regression with the best head: fit two thirds of the examples, test the others, three times.

    Its values are the advice to use it, if any, and the lead (from -1 to 1) with half of the 95 % interval; None where
    it was not tried.
    """
    title = "Logistic regression instead"
    if reason := _find_obstacle(case):
        values = {"regression_lead": None, "regression_advice": ""}
        return Section(title, [f"It was not tried: {reason}."], values=values)
    rows = _sample(case)
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
        advice or f"That is no reason to prefer it to {best}, which also takes classes of few examples.",
    ]
    return Section(title, sentences, values={"regression_lead": (lead, half), "regression_advice": advice})


def _find_obstacle(case: AdviceCase) -> str:
    """Return why logistic regression is not tried; nothing where it is."""
    smallest = int(case.counts.min())
    if LOGISTIC in case.heads:
        return "it is among the heads above"
    if smallest < LEAST_FITTED:
        return f"it takes {LEAST_FITTED} examples of every class, and the smallest has {smallest}"
    if len(case.counts) * LEAST_FITTED > MOST_FITTED:
        return f"there are more than {MOST_FITTED // LEAST_FITTED} classes"
    return ""


def _sample(case: AdviceCase) -> np.ndarray:
    """Return the rows of as many examples of each class as are affordable, whole groups before parts of others."""
    rng, most = np.random.default_rng(case.seed), MOST_FITTED // len(case.counts)
    order = rng.permutation(int(case.groups.group.max()) + 1)[case.groups.group].argsort(kind="stable")
    return np.sort(np.concatenate([order[case.labels[order] == label][:most] for label in range(len(case.counts))]))
