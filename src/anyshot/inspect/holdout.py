"""`anyshot test`: how well a classifier does on examples that it has not learned from, in all and class by class."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import softmax
from scipy.stats import beta

from anyshot.classify.calibration import calibration_error
from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.images import ImageClassifier, make_thumbnail
from anyshot.classify.keys import hash_rows
from anyshot.data.packer import Item
from anyshot.errors import BadInput
from anyshot.models.cache import FeatureCache
from anyshot.models.examples import embed_readable
from anyshot.progress import OnMessage, no_message

SHOWN = 60  # mistakes on the page
ENOUGH = 0.9  # of the rightly classified examples, that are not called none of these
PART = 1024  # examples that are classified at once
Share = tuple[float, float, float]


@dataclass(frozen=True)
class ClassResult:
    """One class of a test."""

    name: str
    examples: int
    right: int
    recall: Share
    """The share of its examples that was recognised, with the ends of its 95 % interval."""
    probability: float
    """The mean probability of the class for its examples."""
    taken_for: list[tuple[str, int]]
    """What the others were taken for, the commonest first."""


@dataclass(frozen=True)
class Mistake:
    """An example that was taken for another class."""

    place: int
    """Its number among all examples of the test."""
    name: str
    label: str
    taken_for: str
    probability: float
    is_known: bool
    """Whether it was taken for one of the classes at all, rather than for none of these."""


@dataclass(frozen=True)
class HoldoutResult:
    """What a test found. Shares lie between 0 and 1."""

    examples: int
    right: int
    accuracy: Share
    calibration_error: float
    accepted: float
    """Share of the examples that were not called none of these."""
    accepted_right: float
    """Of those whose likeliest class is right; the others may well be called so."""
    accepted_wrong: float
    """And of those whose likeliest class is wrong."""
    classes: list[ClassResult]
    strangers: int
    """Examples of classes that the classifier does not have; they are not among the others."""
    strangers_rejected: float
    absent: list[str]
    """Classes of the classifier without an example here."""
    confused: list[tuple[str, str, int]]
    """What was taken for what, and how often, the commonest first."""
    mistakes: list[Mistake]
    """The surest first."""
    learned: int
    """Examples that the classifier learned from, as far as it still has them: they make the test too easy."""

    @property
    def acceptance(self) -> str:
        """What was called none of these, and whether rightly so, in a sentence."""
        words = f"{self.accepted:.1%} are taken for one of the classes at all"
        if self.accepted == 1 or not self.mistakes or not self.right:
            return f"{words}."
        right, wrong = f"{self.accepted_right:.1%}", f"{self.accepted_wrong:.1%}"
        words += f": {right} of those that are rightly classified, {wrong} of the mistakes."
        if self.accepted_right >= ENOUGH:
            return words
        return (
            f"{words} To lose fewer that are right, let it learn from examples like these (anyshot add), or fit with a "
            "smaller --reject; 0 never says none of these."
        )

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)


def share(right: int, examples: int) -> Share:
    """A share with its 95 % interval (Clopper and Pearson), for examples that were drawn one by one."""
    low = float(beta.ppf(0.025, right, examples - right + 1)) if right else 0.0
    high = float(beta.ppf(0.975, right + 1, examples - right)) if right < examples else 1.0
    return right / examples, low, high


def measure_holdout(
    classifier: FewShotClassifier, features: np.ndarray, labels: Sequence[Any], names_of: Sequence[str] | None = None
) -> HoldoutResult:
    """Classify examples with labels, and count. `names_of` are what a person finds the examples by."""
    names = classifier.classes_.astype(str)
    truth = np.array([str(label) for label in labels])
    parts = []
    for start in range(0, len(truth), PART):
        vectors = classifier.vectors(features[start : start + PART])
        parts.append((classifier.logits_of(vectors), classifier.evidence_of(vectors)))
    logits, evidence = (np.concatenate(each) for each in zip(*parts, strict=True))
    threshold = classifier.threshold_
    is_known, is_mine = evidence >= threshold, np.isin(truth, names)
    if not is_mine.any():
        raise BadInput(f"no example is of a class that the classifier has: it has {_some(names)}, not {_some(truth)}.")
    answers = names[logits.argmax(1)]
    right = (answers == truth) & is_mine
    probabilities = softmax(logits, axis=1)
    classes = []
    for name in sorted(set(truth[is_mine])):
        here = truth == name
        own = float(probabilities[here][:, names == name].mean())
        wrong = Counter(answers[here & ~right].tolist()).most_common()
        counts = int(here.sum()), int(right[here].sum())
        classes.append(ClassResult(name, *counts, share(counts[1], counts[0]), own, wrong))
    order = np.argsort(names)
    place = order[np.searchsorted(names, truth[is_mine], sorter=order)]
    strangers = int((~is_mine).sum())
    sure = probabilities.max(1)
    wrong_places = sorted(np.flatnonzero(is_mine & ~right).tolist(), key=lambda one: (-sure[one], one))
    pairs = Counter((str(truth[one]), str(answers[one])) for one in wrong_places)
    keys = hash_rows(np.asarray(features).reshape(len(truth), -1))
    return HoldoutResult(
        int(is_mine.sum()),
        int(right.sum()),
        share(int(right.sum()), int(is_mine.sum())),
        calibration_error(probabilities[is_mine], place),
        float(is_known[is_mine].mean()),
        float(is_known[right].mean()) if right.any() else 0.0,
        float(is_known[is_mine & ~right].mean()) if (is_mine & ~right).any() else 0.0,
        classes,
        strangers,
        float((~is_known[~is_mine]).mean()) if strangers else 0.0,
        sorted(set(names) - set(truth)),
        [(label, answer, times) for (label, answer), times in pairs.most_common()],
        [
            Mistake(
                one,
                names_of[one] if names_of else f"example {one}",
                str(truth[one]),
                str(answers[one]),
                round(float(sure[one]), 6),
                bool(is_known[one]),
            )
            for one in wrong_places
        ],
        int(np.isin(keys, classifier.support_.all_keys[0]).sum()),
    )


def measure_holdout_pictures(
    classifier: ImageClassifier, items: Sequence[Item], cache: FeatureCache | None = None, say: OnMessage = no_message
) -> tuple[HoldoutResult, dict[int, bytes]]:
    """The same for pictures, and small copies of the surest mistakes by their place."""
    doing = f"classifying {len(items)} pictures"
    rows, readable = embed_readable(classifier.backbone, items, doing, cache, say)
    if not readable:
        raise BadInput("none of the pictures could be read.")
    names, labels = [item.name for item in readable], [item.class_name for item in readable]
    result = measure_holdout(classifier.classifier, rows.array, labels, names)
    shown = {mistake.place: readable[mistake.place] for mistake in result.mistakes[:SHOWN]}
    read = classifier.backbone.read
    return result, {place: make_thumbnail(read(item.read(), item.name, item.box)) for place, item in shown.items()}


def summary_lines(result: HoldoutResult) -> list[str]:
    """The whole of a test, in sentences."""
    accuracy, low, high = result.accuracy
    lines = [
        f"Accuracy {accuracy:.1%} ({low:.1%} to {high:.1%}): {result.right} of {result.examples} examples of "
        f"{len(result.classes)} classes. Mean over the classes: "
        f"{np.mean([one.recall[0] for one in result.classes]):.1%}. (95 % intervals.)",
        f"Expected calibration error {result.calibration_error:.1%}; {result.acceptance}",
    ]
    if result.strangers:
        lines.append(
            f"{result.strangers} examples of other classes are not counted; {result.strangers_rejected:.1%} of these "
            "are called none of the classes."
        )
    if result.learned:
        lines.append(
            f"{result.learned} of the examples are among those that the classifier learned from: this says too much "
            "good of it."
        )
    if result.absent:
        lines.append(f"Not tested, for want of examples: {_some(result.absent)}.")
    if result.confused:
        pairs = [f"{label} for {answer} ({times})" for label, answer, times in result.confused[:3]]
        lines.append(f"Most often mistaken: {', '.join(pairs)}.")
    return lines


def as_text(result: HoldoutResult, worst: int = 10) -> str:
    """For a terminal: the whole, then the classes that are recognised least."""
    lines = summary_lines(result)
    ranked = sorted(result.classes, key=lambda one: (one.recall[0], one.name))
    lines += ["", f"{'class':30} {'right':>9} {'recall':>7} {'95 % interval':>16}  mostly taken for"]
    for one in ranked[:worst]:
        recall, low, high = one.recall
        wrong = ", ".join(f"{name} {times}" for name, times in one.taken_for[:2])
        numbers = f"{f'{one.right}/{one.examples}':>9} {recall:7.1%} {f'{low:.1%} to {high:.1%}':>16}"
        lines.append(f"{one.name[:30]:30} {numbers}  {wrong}".rstrip())
    if len(ranked) > worst:
        lines.append(f"... and {len(ranked) - worst} classes that are recognised better: --json has them all.")
    if result.mistakes:
        lines += ["", "The surest mistakes:"]
        lines += [
            f"  {one.name}: {one.label}, taken for {one.taken_for} ({one.probability:.0%})"
            for one in result.mistakes[:worst]
        ]
    return "\n".join(lines)


def _some(names: Sequence[str] | np.ndarray) -> str:
    distinct = sorted({str(name) for name in names})
    return ", ".join(distinct[:5]) + (f" and {len(distinct) - 5} more" if len(distinct) > 5 else "")
