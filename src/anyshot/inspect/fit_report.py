"""What `anyshot fit` and `add` say of the examples that were learned: which are the same picture twice, and how many
are recognised when left out, each alone, and where these are bursts of photos of one moment, with the whole burst."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

import numpy as np
from sklearn.base import clone

from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.groups import MOST_IMAGES, find_groups, leave_out_groups
from anyshot.classify.images import LearnedBatch
from anyshot.classify.keys import Keys, hash_rows
from anyshot.classify.leave_one_out import LeaveOneOutAccuracy
from anyshot.models.embedders import FeatureBuffer

MOST_COPIES = 1_000_000  # examples among which the same ones are looked for


@dataclass
class LearnedPictures:
    """The pictures that were learned, as far as bursts are looked for among so many.

    Args:
        most: How many will be learned, at most; of too many nothing is kept.
    """

    most: int = 0
    labels: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    times: list[float | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.features = FeatureBuffer(self.most)

    def see(self, batch: LearnedBatch) -> None:
        """Keep what is needed of some more pictures."""
        if self.most > MOST_IMAGES:
            return
        for example in batch.examples:
            if example.features is not None:
                self.features.add(example.features)
        self.labels += [str(label) for label in batch.labels]
        self.names += [example.item.name for example in batch.examples]
        self.times += batch.times


class RepeatedExamples:
    """Examples that were learned twice: equal to the last number, whatever their files and labels.

    Args:
        classifier: What has learned some examples before; those that it still has are known again.
    """

    def __init__(self, classifier: FewShotClassifier | None = None) -> None:
        self.pairs: list[tuple[str, str]] = []
        self.conflicts: list[tuple[str, str]] = []
        self._first: dict[int, tuple[str, str]] = {}
        if classifier is not None:
            support = classifier.support_
            keys, owner = support.all_keys
            labels = support.labels[owner].tolist()
            self._first = {key: ("", str(label)) for key, label in zip(keys.tolist(), labels, strict=True)}

    def see(self, batch: LearnedBatch) -> None:
        """Look at some more pictures."""
        self._look(batch.keys, [str(label) for label in batch.labels], [one.item.name for one in batch.examples])

    def look(self, features: np.ndarray, labels: Sequence[str], names: Sequence[str]) -> None:
        """Look at some more features."""
        self._look(hash_rows(features), labels, names)

    def _look(self, keys: Keys, labels: Sequence[str], names: Sequence[str]) -> None:
        for key, label, name in zip(keys.tolist(), labels, names, strict=True):
            if len(self._first) < MOST_COPIES:
                self._first.setdefault(key, (name, label))
            first, other = self._first.get(key, (name, label))
            if first != name:
                (self.pairs if other == label else self.conflicts).append((name, first or f"one of {other} before"))

    def __str__(self) -> str:
        words = []
        if self.conflicts:
            what = "1 picture has" if len(self.conflicts) == 1 else f"{len(self.conflicts)} pictures have"
            words.append(f"{what} two labels, one of which is wrong: {_some_pairs(self.conflicts)}.")
        if self.pairs:
            what = "1 picture is" if len(self.pairs) == 1 else f"{len(self.pairs)} pictures are"
            words.append(f"{what} there twice, and counted once: {_some_pairs(self.pairs)}.")
        return " ".join(words)


def _some_pairs(pairs: Sequence[tuple[str, str]], most: int = 3) -> str:
    more = f" and {len(pairs) - most} more" if len(pairs) > most else ""
    return ", ".join(f"{one} is {other}" for one, other in pairs[:most]) + more


def describe_accuracy(classifier: FewShotClassifier, learned: LearnedPictures, out: Path) -> str:
    """How accurate a classifier is, as far as its own examples tell; nothing where none can be left out."""
    coverage = classifier.coverage_
    if coverage is None or len(classifier.classes_) < 2:
        return ""
    left_out, error = _left_out(classifier, learned, coverage.accuracy_of_all), classifier.support_calibration_error()
    how = f"To know how much harder: anyshot test {quote(str(out))} FOLDER."
    return f"{left_out.words} {how} Expected calibration error {error:.1%}."


def _left_out(classifier: FewShotClassifier, learned: LearnedPictures, alone: float) -> LeaveOneOutAccuracy:
    if not learned.labels:
        return LeaveOneOutAccuracy(alone)
    features, labels = learned.features.array, np.unique(learned.labels, return_inverse=True)[1]
    vectors = classifier.vectors(features)
    bursts = find_groups(vectors, labels, learned.names, learned.times)
    if not bursts.told_by:
        return LeaveOneOutAccuracy(alone)
    alike = vectors if classifier.head_.head.adapts and classifier.base is None else None
    return leave_out_groups(lambda: clone(classifier), features, labels, bursts, alone, alike)[1]
