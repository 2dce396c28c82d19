"""What `anyshot fit` and `add` say of the examples that were learned: which are the same picture twice, and how many
are recognised when left out, each alone, and where these are bursts of photos of one moment, with the whole burst."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

import numpy as np
from sklearn.base import clone

from anyshot.data.taken import taken
from anyshot.deploy.bursts import MOST_IMAGES, find_bursts, leave_out_bursts
from anyshot.deploy.classifier import FewShotClassifier
from anyshot.deploy.left_out import LeftOut
from anyshot.deploy.support import keys_of
from anyshot.models.embedders import Embedded, FeatureRows

MOST_COPIES = 1_000_000  # examples among which the same ones are looked for


@dataclass
class Learned:
    """The pictures that were learned, as far as bursts are looked for among so many.

    Args:
        most: How many will be learned, at most; of too many nothing is kept.
    """

    most: int = 0
    labels: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    times: list[float | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.features = FeatureRows(self.most)

    def see(self, examples: Sequence[Embedded], labels: np.ndarray) -> None:
        """Keep what is needed of some more pictures."""
        if self.most > MOST_IMAGES:
            return
        for example in examples:
            if example.features is not None:
                self.features.add(example.features)
        self.labels += [str(label) for label in labels]
        self.names += [example.item.name for example in examples]
        self.times += [taken(example.item.read) for example in examples]


class Copies:
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
            labels = support.labels[support.owner].tolist()
            self._first = {key: ("", str(label)) for key, label in zip(support.keys.tolist(), labels, strict=True)}

    def see(self, examples: Sequence[Embedded], labels: np.ndarray) -> None:
        """Look at some more pictures."""
        read = [
            (example, label) for example, label in zip(examples, labels, strict=True) if example.features is not None
        ]
        features = [example.features for example, _ in read if example.features is not None]
        self.look(np.stack(features), [str(label) for _, label in read], [example.item.name for example, _ in read])

    def look(self, features: np.ndarray, labels: Sequence[str], names: Sequence[str]) -> None:
        """Look at some more features."""
        for key, label, name in zip(keys_of(features.reshape(len(features), -1)).tolist(), labels, names, strict=True):
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
            words.append(f"{what} learned twice, and so counted: {_some_pairs(self.pairs)}.")
        return " ".join(words)


def _some_pairs(pairs: Sequence[tuple[str, str]], most: int = 3) -> str:
    more = f" and {len(pairs) - most} more" if len(pairs) > most else ""
    return ", ".join(f"{one} is {other}" for one, other in pairs[:most]) + more


def accuracy_words(classifier: FewShotClassifier, learned: Learned, out: Path) -> str:
    """How accurate a classifier is, as far as its own examples tell; nothing where none can be left out."""
    coverage = classifier.coverage_
    if coverage is None or len(classifier.classes_) < 2:
        return ""
    left_out, error = _left_out(classifier, learned, coverage.accuracy_of_all), classifier.support_calibration_error()
    how = f"To know how much harder: anyshot test {quote(str(out))} FOLDER."
    return f"{left_out.words} {how} Expected calibration error {error:.1%}."


def _left_out(classifier: FewShotClassifier, learned: Learned, alone: float) -> LeftOut:
    if not learned.labels:
        return LeftOut(alone)
    features, labels = learned.features.array, np.unique(learned.labels, return_inverse=True)[1]
    vectors = classifier.vectors(features)
    bursts = find_bursts(vectors, labels, learned.names, learned.times)
    if not bursts.told_by:
        return LeftOut(alone)
    head = classifier.reading_.head
    alike = vectors if head.estimator and classifier.base is None else None
    return leave_out_bursts(lambda: clone(classifier), features, labels, bursts, alone, alike, head)[1]
