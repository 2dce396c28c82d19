"""What `anyshot fit` and `add` say of the examples that were learned: which are there twice, and the accuracy."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

import numpy as np

from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.copies import MOST_EXAMPLES, Float64View
from anyshot.classify.groups import find_groups
from anyshot.classify.images import LearnedBatch
from anyshot.classify.keys import Keys, hash_rows
from anyshot.classify.leave_one_out import LeaveOneOutAccuracy, leave_out
from anyshot.models.features import FeatureBuffer
from anyshot.text import count_noun

MOST_COMPARED = 1_000_000  # examples among which equal ones are looked for: their keys take some 200 MB
MOST_NAMED = 3  # pairs that a sentence names


class RepeatedExamples:
    """Examples that were learned twice: equal to the last number, whatever their files and labels.

    Args:
        classifier: What has learned some examples before; those that it still has are recognised.
    """

    def __init__(self, classifier: FewShotClassifier | None = None) -> None:
        self.pairs: list[tuple[str, str]] = []
        self.conflicts: list[tuple[str, str]] = []
        self._noun = "example"
        self._first: dict[int, tuple[str, str]] = {}
        if classifier is not None:
            support = classifier.support_
            keys, owner = support.all_keys
            labels = support.labels[owner].tolist()
            self._first = {key: ("", str(label)) for key, label in zip(keys.tolist(), labels, strict=True)}

    def add_pictures(self, batch: LearnedBatch) -> None:
        """Compare some more pictures."""
        self._noun = "picture"
        self._compare(batch.keys, [str(label) for label in batch.labels], [one.item.name for one in batch.examples])

    def add_features(self, features: np.ndarray, labels: Sequence[str], names: Sequence[str]) -> None:
        """Compare some more features."""
        self._compare(hash_rows(features), labels, names)

    def _compare(self, keys: Keys, labels: Sequence[str], names: Sequence[str]) -> None:
        for key, label, name in zip(keys.tolist(), labels, names, strict=True):
            if len(self._first) < MOST_COMPARED:
                self._first.setdefault(key, (name, label))
            first, other = self._first.get(key, (name, label))
            if first != name:
                (self.pairs if other == label else self.conflicts).append((name, first or f"one of {other} before"))

    def __str__(self) -> str:
        sentences = []
        for pairs, one, several, what in (
            (self.conflicts, "has", "have", "two labels, one of which is wrong"),
            (self.pairs, "is", "are", "there twice, and counted once"),
        ):
            if pairs:
                named = ", ".join(f"{name} is {other}" for name, other in pairs[:MOST_NAMED])
                more = f" and {len(pairs) - MOST_NAMED} more" if len(pairs) > MOST_NAMED else ""
                verb = one if len(pairs) == 1 else several
                sentences.append(f"{count_noun(len(pairs), self._noun)} {verb} {what}: {named}{more}.")
        return " ".join(sentences)


class FitReport:
    """Collects what is needed of the examples while they are learned.

    Args:
        most: How many will be learned at most; of too many only equal ones are looked for.
    """

    def __init__(self, most: int) -> None:
        self.repeats = RepeatedExamples()
        self._features = FeatureBuffer(most) if most <= MOST_EXAMPLES else None
        self._labels: list[str] = []
        self._names: list[str] = []
        self._times: list[float | None] = []

    def add_pictures(self, batch: LearnedBatch) -> None:
        """Collect some more pictures."""
        self.repeats.add_pictures(batch)
        if self._features is not None:
            for example in batch.examples:
                if example.features is not None:
                    self._features.add(example.features)
            self._labels += [str(label) for label in batch.labels]
            self._names += [example.item.name for example in batch.examples]
            self._times += batch.times

    def add_features(self, features: np.ndarray, labels: Sequence[str], names: Sequence[str]) -> None:
        """Collect some more features."""
        self.repeats.add_features(features, labels, names)
        if self._features is not None:
            for row in features:
                self._features.add(row)
            self._labels += labels
            self._names += names

    def describe_accuracy(self, classifier: FewShotClassifier, out: Path) -> str:
        """Return how accurate a classifier is, as far as its own examples tell; nothing where none can be left out."""
        if classifier.coverage_ is None or len(classifier.classes_) < 2:
            return ""
        test = f"To know how much harder: anyshot test {quote(str(out))} FOLDER."
        error = classifier.support_calibration_error()
        return f"{self._leave_out(classifier).sentences} {test} Expected calibration error {error:.1%}."

    def _leave_out(self, classifier: FewShotClassifier) -> LeaveOneOutAccuracy:
        """Return the accuracy that `anyshot advise` gives for the same head and examples."""
        assert classifier.coverage_ is not None
        if not self._labels or self._features is None:
            return LeaveOneOutAccuracy(classifier.coverage_.accuracy_of_all)
        features, labels = self._features.array, np.unique(self._labels, return_inverse=True)[1]
        units = Float64View(features.reshape(len(features), -1), as_units=True)
        groups = find_groups(units, labels, self._names, self._times)
        return leave_out(classifier.learned_head_, classifier.vectors(features), labels, groups).accuracy
