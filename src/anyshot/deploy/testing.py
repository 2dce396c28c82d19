"""`anyshot test`: how well a classifier does on examples that it has not learned from, in all and class by class."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import softmax
from scipy.stats import beta

from anyshot.deploy.calibration import calibration_error
from anyshot.deploy.classifier import FewShotClassifier
from anyshot.errors import BadInput

Share = tuple[float, float, float]


@dataclass(frozen=True)
class ClassResult:
    """One class of a test."""

    name: str
    examples: int
    right: int
    recall: Share
    """The share of its examples that was recognised, with the ends of its 95 % interval."""
    taken_for: list[tuple[str, int]]
    """What the others were taken for, the commonest first."""


@dataclass(frozen=True)
class Result:
    """What a test found. Shares lie between 0 and 1."""

    examples: int
    right: int
    accuracy: Share
    calibration_error: float
    accepted: float
    """Share of the examples that were not called none of these."""
    classes: list[ClassResult]
    strangers: int
    """Examples of classes that the classifier does not have; they are not among the others."""
    strangers_rejected: float
    absent: list[str]
    """Classes of the classifier without an example here."""

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)


def share(right: int, examples: int) -> Share:
    """A share with its 95 % interval (Clopper and Pearson), for examples that were drawn one by one."""
    low = float(beta.ppf(0.025, right, examples - right + 1)) if right else 0.0
    high = float(beta.ppf(0.975, right + 1, examples - right)) if right < examples else 1.0
    return right / examples, low, high


def run_test(classifier: FewShotClassifier, features: np.ndarray, labels: Sequence[Any]) -> Result:
    """Classify examples with labels, and count."""
    names = classifier.classes_.astype(str)
    truth = np.array([str(label) for label in labels])
    vectors = classifier.vectors(features)
    logits, evidence = classifier.logits_of(vectors), classifier.evidence_of(vectors)
    threshold = -np.inf if classifier.coverage_ is None else classifier.coverage_.threshold
    is_known, is_mine = evidence >= threshold, np.isin(truth, names)
    if not is_mine.any():
        raise BadInput(f"no example is of a class that the classifier has: it has {_some(names)}, not {_some(truth)}.")
    answers = names[logits.argmax(1)]
    right = (answers == truth) & is_mine
    classes = []
    for name in sorted(set(truth[is_mine])):
        here = truth == name
        wrong = Counter(answers[here & ~right].tolist()).most_common()
        counts = int(here.sum()), int(right[here].sum())
        classes.append(ClassResult(name, *counts, share(counts[1], counts[0]), wrong))
    order = np.argsort(names)
    place = order[np.searchsorted(names, truth[is_mine], sorter=order)]
    strangers = int((~is_mine).sum())
    return Result(
        int(is_mine.sum()),
        int(right.sum()),
        share(int(right.sum()), int(is_mine.sum())),
        calibration_error(softmax(logits[is_mine], axis=1), place),
        float(is_known[is_mine].mean()),
        classes,
        strangers,
        float((~is_known[~is_mine]).mean()) if strangers else 0.0,
        sorted(set(names) - set(truth)),
    )


def as_text(result: Result, worst: int = 10) -> str:
    """For a terminal: the whole, then the classes that are recognised least."""
    accuracy, low, high = result.accuracy
    lines = [
        f"Accuracy {accuracy:.1%} ({low:.1%} to {high:.1%}): {result.right} of {result.examples} examples of "
        f"{len(result.classes)} classes. Mean over the classes: "
        f"{np.mean([one.recall[0] for one in result.classes]):.1%}. (95 % intervals.)",
        f"Expected calibration error {result.calibration_error:.1%}; {result.accepted:.1%} are taken for one of the "
        "classes at all.",
    ]
    if result.strangers:
        lines.append(
            f"{result.strangers} examples of other classes are not counted; {result.strangers_rejected:.1%} of these "
            "are called none of the classes."
        )
    if result.absent:
        lines.append(f"Not tested, for want of examples: {_some(result.absent)}.")
    ranked = sorted(result.classes, key=lambda one: (one.recall[0], one.name))
    lines += ["", f"{'class':30} {'right':>9} {'recall':>7} {'95 % interval':>16}  mostly taken for"]
    for one in ranked[:worst]:
        recall, low, high = one.recall
        wrong = ", ".join(f"{name} {times}" for name, times in one.taken_for[:2])
        numbers = f"{f'{one.right}/{one.examples}':>9} {recall:7.1%} {f'{low:.1%} to {high:.1%}':>16}"
        lines.append(f"{one.name[:30]:30} {numbers}  {wrong}".rstrip())
    if len(ranked) > worst:
        lines.append(f"... and {len(ranked) - worst} classes that are recognised better: --json has them all.")
    return "\n".join(lines)


def _some(names: Sequence[str] | np.ndarray) -> str:
    distinct = sorted({str(name) for name in names})
    return ", ".join(distinct[:5]) + (f" and {len(distinct) - 5} more" if len(distinct) > 5 else "")
