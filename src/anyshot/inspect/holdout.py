"""`anyshot test`: how well a classifier does on examples that it has not learned from, in all and class by class."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import beta

from anyshot.classify.calibration import calibration_error, calibration_error_by_chance
from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.keys import hash_rows
from anyshot.errors import BadInput
from anyshot.inspect.sections import Cell, ExampleCell, Section, Table, as_text
from anyshot.text import count_noun, list_first

MOST_MISTAKES = 60  # mistakes that a page shows; all are in the JSON
ENOUGH = 0.9  # share of the right answers that should be accepted: below, advice is given; not tuned

Share = tuple[float, float, float]  # a share, and the ends of its 95 % interval


@dataclass(frozen=True)
class ClassResult:
    """How the examples of one class are classified.

    Attributes:
        name: The class.
        examples: The number of its examples.
        right: How many of these are classified right.
        recall: The share of these.
        probability: The mean probability of the class for its examples.
        taken_for: What the others are taken for, and how many, the commonest first.
    """

    name: str
    examples: int
    right: int
    recall: Share
    probability: float
    taken_for: list[tuple[str, int]]


@dataclass(frozen=True)
class Mistake:
    """An example that is classified wrongly.

    Attributes:
        place: Its place in the test.
        name: What a person finds it by.
        label: Its label.
        taken_for: Its likeliest class.
        probability: The probability of that class.
        is_known: Whether it looks like one of the classes, rather than none of these.
    """

    place: int
    name: str
    label: str
    taken_for: str
    probability: float
    is_known: bool


@dataclass(frozen=True)
class HoldoutResult:
    """What a test found. Shares lie between 0 and 1.

    Attributes:
        examples: The number of examples of classes that the classifier has; all shares but one are of these.
        right: How many of them are classified right.
        accuracy: The share of these.
        calibration_error: The expected calibration error.
        calibration_error_by_chance: What a perfectly calibrated classifier would show on as many examples.
        accepted: Share of the examples that are not called none of these.
        accepted_right: The same share of the examples whose likeliest class is right.
        accepted_wrong: The same share of the mistakes, which may well be called none of these.
        right_and_accepted: Share of the examples whose class `predict` names: classified right, and accepted.
        classes: The result of each class that has examples here.
        strangers: The number of examples of classes that the classifier does not have.
        strangers_rejected: Share of the strangers that are called none of these.
        absent: Classes of the classifier without an example here.
        confused: What is taken for what, and how often, the commonest first.
        mistakes: The examples that are classified wrongly, the surest first.
        learned: Examples that the classifier learned from, as far as it still has them: they make the test too easy.
    """

    examples: int
    right: int
    accuracy: Share
    calibration_error: float
    calibration_error_by_chance: float
    accepted: float
    accepted_right: float
    accepted_wrong: float
    right_and_accepted: float
    classes: list[ClassResult]
    strangers: int
    strangers_rejected: float
    absent: list[str]
    confused: list[tuple[str, str, int]]
    mistakes: list[Mistake]
    learned: int

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

    @property
    def sentences(self) -> list[str]:
        """The whole result in sentences."""
        accuracy, low, high = self.accuracy
        sentences = [
            f"Accuracy {accuracy:.1%} ({low:.1%} to {high:.1%}): {self.right} of {count_noun(self.examples, 'example')}"
            f" of {count_noun(len(self.classes), 'class')}. Mean over the classes: "
            f"{np.mean([one.recall[0] for one in self.classes]):.1%}. (95 % intervals.)",
            f"Right and accepted: {self.right_and_accepted:.1%}. So often `anyshot predict` names the right class; the "
            "others are mistaken, or called none of these.",
            f"{describe_calibration(self.calibration_error, self.calibration_error_by_chance)}; {self.acceptance}",
        ]
        if self.strangers:
            sentences.append(
                f"{count_noun(self.strangers, 'example')} of other classes {'is' if self.strangers == 1 else 'are'} "
                f"not counted; {self.strangers_rejected:.1%} of these are called none of the classes."
            )
        if self.learned:
            among = f"{'is' if self.learned == 1 else 'are'} among those that the classifier learned from"
            sentences.append(f"{self.learned} of the examples {among}, so the accuracy is optimistic.")
        if self.absent:
            sentences.append(f"Not tested, for want of examples: {list_first(self.absent)}.")
        if self.confused:
            pairs = [f"{label} for {answer} ({times})" for label, answer, times in self.confused[:3]]
            sentences.append(f"Most often mistaken: {', '.join(pairs)}.")
        return sentences

    @property
    def sections(self) -> list[Section]:
        """The sentences, the classes that are recognised least first, and the surest mistakes."""
        classes = [
            [
                one.name,
                f"{one.right}/{one.examples}",
                f"{one.recall[0]:.1%}",
                f"{one.recall[1]:.1%} to {one.recall[2]:.1%}",
                ", ".join(f"{name} {times}" for name, times in one.taken_for[:3]),
            ]
            for one in sorted(self.classes, key=lambda one: (one.recall[0], one.name))
        ]
        mistakes: list[list[Cell]] = [
            [
                ExampleCell(one.place, one.name),
                one.label,
                one.taken_for + ("" if one.is_known else " (or none of these)"),
                f"{one.probability:.0%}",
            ]
            for one in self.mistakes[:MOST_MISTAKES]
        ]
        cut = f" ({MOST_MISTAKES} of {len(self.mistakes)}; all are in the JSON)"
        by_class = Table("", ["class", "right", "recall", "95 % interval", "mostly taken for"], classes)
        surest = Table("", ["example", "label", "taken for", "probability"], mistakes)
        title = f"Mistakes, the surest first{cut if len(self.mistakes) > MOST_MISTAKES else ''}"
        last = [Section(title, [], [surest])] if mistakes else []
        return [Section("In all", self.sentences[1:]), Section("Class by class", [], [by_class]), *last]

    def to_text(self) -> str:
        """Return the result for a terminal."""
        return as_text(self.sentences[0], self.sections)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        return asdict(self)


def describe_calibration(error: float, by_chance: float) -> str:
    """Say how large the calibration error is, beside what chance alone makes of it."""
    return f"Expected calibration error {error:.1%} (with this many examples {by_chance:.1%} would be chance alone)"


def compute_share(right: int, examples: int) -> Share:
    """Return a share with its 95 % interval (Clopper and Pearson 1934), for examples that were drawn one by one."""
    low, high = beta.ppf((0.025, 0.975), (right, right + 1), (examples - right + 1, examples - right))
    return right / examples, float(np.nan_to_num(low, nan=0.0)), float(np.nan_to_num(high, nan=1.0))


def summarize_classes(
    names: Sequence[str], labels: Int[np.ndarray, " example"], probabilities: Float[np.ndarray, "example class"]
) -> list[ClassResult]:
    """Return how the examples of each class that has any are classified, by name.

    Args:
        names: The names of all classes.
        labels: The class of each example, counted from 0.
        probabilities: Those of all classes, for each example.
    """
    predicted, results = probabilities.argmax(1), []
    for label in sorted(np.unique(labels).tolist(), key=lambda label: names[label]):
        is_member = labels == label
        counts, examples = Counter(predicted[is_member].tolist()), int(is_member.sum())
        right = counts.pop(label, 0)
        taken_for = [(names[other], times) for other, times in counts.most_common()]
        probability = float(probabilities[is_member, label].mean())
        results.append(
            ClassResult(names[label], examples, right, compute_share(right, examples), probability, taken_for)
        )
    return results


def measure_holdout(
    classifier: FewShotClassifier, features: np.ndarray, labels: Sequence[Any], names: Sequence[str] = ()
) -> HoldoutResult:
    """Classify labelled examples, and count the right answers and the mistakes.

    Args:
        classifier: A fitted classifier.
        features: Features of the examples.
        labels: Their labels; those of classes that the classifier does not have are strangers.
        names: What a person finds the examples by.

    Raises:
        BadInput: If no example is of a class that the classifier has.
    """
    classes, truth = classifier.classes_.astype(str).tolist(), [str(label) for label in labels]
    places = {name: place for place, name in enumerate(classes)}
    codes = np.array([places.get(label, -1) for label in truth])
    is_member = codes >= 0
    if not is_member.any():
        known, unknown = (list_first(sorted(set(group))) for group in (classes, truth))
        raise BadInput(f"no example is of a class that the classifier has: it has {known}, not {unknown}.")
    probabilities = classifier.predict_proba(features)
    is_known, predicted, confidence = classifier.is_known(features), probabilities.argmax(1), probabilities.max(1)
    right, wrong = predicted == codes, is_member & (predicted != codes)
    mistakes = [
        Mistake(
            place,
            names[place] if len(names) else f"example {place}",
            truth[place],
            classes[predicted[place]],
            round(float(confidence[place]), 6),
            bool(is_known[place]),
        )
        for place in sorted(np.flatnonzero(wrong).tolist(), key=lambda place: (-confidence[place], place))
    ]
    results = summarize_classes(classes, codes[is_member], probabilities[is_member])
    confused = [(one.name, other, times) for one in results for other, times in one.taken_for]
    keys = hash_rows(np.asarray(features).reshape(len(truth), -1))
    return HoldoutResult(
        examples=int(is_member.sum()),
        right=int(right.sum()),
        accuracy=compute_share(int(right.sum()), int(is_member.sum())),
        calibration_error=calibration_error(probabilities[is_member], codes[is_member]),
        calibration_error_by_chance=calibration_error_by_chance(probabilities[is_member]),
        accepted=float(is_known[is_member].mean()),
        accepted_right=_mean(is_known[right]),
        accepted_wrong=_mean(is_known[wrong]),
        right_and_accepted=_mean((is_known & right)[is_member]),
        classes=results,
        strangers=int((~is_member).sum()),
        strangers_rejected=_mean(~is_known[~is_member]),
        absent=sorted(set(classes) - set(truth)),
        confused=sorted(confused, key=lambda row: -row[2]),
        mistakes=mistakes,
        learned=int(np.isin(keys, classifier.support_.all_keys[0]).sum()),
    )


def _mean(values: np.ndarray) -> float:
    """Return the mean; 0 of no values."""
    return float(values.mean()) if len(values) else 0.0
