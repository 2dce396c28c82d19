"""What `anyshot fit` says of a classifier's accuracy: on the examples that it learned from, each left out, and where
these are bursts of photos of one moment, with the whole burst left out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from sklearn.base import clone

from anyshot.data.taken import taken
from anyshot.deploy.bursts import MOST_IMAGES, find_bursts, leave_out_bursts
from anyshot.deploy.classifier import FewShotClassifier
from anyshot.deploy.left_out import LeftOut
from anyshot.models.embedders import Embedded, FeatureRows


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


def accuracy_words(classifier: FewShotClassifier, learned: Learned, out: Path) -> str:
    """How accurate a classifier is, as far as its own examples tell; nothing where none can be left out."""
    coverage = classifier.coverage_
    if coverage is None or len(classifier.classes_) < 2:
        return ""
    left_out, error = _left_out(classifier, learned, coverage.accuracy_of_all), classifier.support_calibration_error()
    return f"{left_out.words} Expected calibration error {error:.1%}. To know: anyshot test {out} FOLDER."


def _left_out(classifier: FewShotClassifier, learned: Learned, alone: float) -> LeftOut:
    if not learned.labels:
        return LeftOut(alone)
    features, labels = learned.features.array, np.unique(learned.labels, return_inverse=True)[1]
    vectors = classifier.vectors(features)
    bursts = find_bursts(vectors, labels, learned.names, learned.times)
    if not bursts.told_by:
        return LeftOut(alone)
    alike = vectors if classifier.reading_.head.adapts and classifier.base is None else None
    return leave_out_bursts(lambda: clone(classifier), features, labels, bursts, alone, alike)[1]
