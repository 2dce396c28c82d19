"""What looks wrong in labelled features: images of another class, two classes that are one.

Two rankings of suspects, for two kinds of mistakes. An image that is least likely under its own label may be anything:
this finds labels that were mixed up at random. One that is surely of another class finds those confused with a class
that looks alike, where the own label is never out of the question.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import log_softmax

from anyshot.deploy.calibration import estimate_from, fit_scale, leave_one_out
from anyshot.deploy.duplicates import InDouble, Labels, Vectors
from anyshot.deploy.support import support_of
from anyshot.models.law import Reading

UNLIKELY = 0.02  # probability of its own class, below which an image is suspected
SURE = 0.75  # and of another, above which it is
ONE_CLASS = 0.65  # two classes are told apart less often than this


@dataclass(frozen=True)
class Suspect:
    """An image whose label may be wrong. Indices are those of images and classes."""

    image: int
    looks_like: int
    log_own: float
    """The logarithm of the probability of its own class, when it is left out."""
    other: float
    """The probability of the class that it looks like."""


@dataclass(frozen=True)
class Suspects:
    """Indices are those of images and classes."""

    predicted: Labels
    """The class of each image when it is left out; -1 for the only image of a class."""
    log_own: Float[np.ndarray, " image"]
    """The logarithm of the probability of its own class; of the only image of a class, that of chance."""
    unlikely: list[Suspect]
    """Least likely under the own class first."""
    mislabelled: list[Suspect]
    """Most likely of another class first."""
    same_class: list[tuple[int, int, float]]
    """Two classes and how often an image of one is told from the other when only these two are asked for."""


def look(vectors: Vectors, labels: Labels, reading: Reading) -> Suspects:
    """Leave every image out once."""
    order = np.argsort(labels, kind="stable")  # as a support has them
    classes = labels[order]
    estimator = reading.head.estimator
    if estimator is not None:
        rows = vectors.rows if isinstance(vectors, InDouble) else vectors  # read in double some at a time
        rows = rows if np.array_equal(order, np.arange(len(order))) else rows[order]
        support = support_of(rows, classes, has_scatter=True)
        left = estimate_from(estimator, support, rows, np.searchsorted(support.labels, classes))[1]
        scores, owner = left.logits.numpy(), left.owner.numpy()
    else:
        support = support_of(np.asarray(vectors[order], np.float64), classes, order.astype(np.uint64), len(labels))
        scores, owner = leave_one_out(reading, support, most=len(labels) * len(support.labels))
    image = order[support.counts[np.searchsorted(support.labels, classes)] > 1]
    predicted = np.full(len(labels), -1)
    predicted[image] = scores.argmax(1)
    log_own = np.full(len(labels), -np.log(len(support.labels)))
    if len(owner):
        log_own[image] = log_softmax(fit_scale(scores, owner) * scores, axis=1)[np.arange(len(owner)), owner]
    suspects = suspects_of(scores, owner, image)
    return Suspects(
        predicted,
        log_own,
        sorted((one for one in suspects if one.log_own <= np.log(UNLIKELY)), key=lambda one: one.log_own),
        sorted((one for one in suspects if one.other >= SURE), key=lambda one: (-one.other, one.log_own)),
        _same_class(scores, owner),
    )


def suspects_of(scores: np.ndarray, owner: Labels, image: Labels) -> list[Suspect]:
    """All images that are not found in their own class, from scores of images that were left out."""
    if not len(owner) or scores.shape[1] < 2:
        return []
    sure = log_softmax(fit_scale(scores, owner) * scores, axis=1)
    best = sure.argmax(1)
    return [
        Suspect(int(image[i]), int(best[i]), float(sure[i, owner[i]]), float(np.exp(sure[i, best[i]])))
        for i in np.flatnonzero(best != owner)
    ]


def _same_class(scores: np.ndarray, owner: np.ndarray) -> list[tuple[int, int, float]]:
    pairs = []
    for one in range(scores.shape[1]):
        for other in range(one + 1, scores.shape[1]):
            either = (owner == one) | (owner == other)
            if min((owner == one).sum(), (owner == other).sum()) < 4:
                continue
            right = np.where(scores[either, one] > scores[either, other], one, other) == owner[either]
            if right.mean() < ONE_CLASS:
                pairs.append((one, other, float(right.mean())))
    return sorted(pairs, key=lambda pair: pair[2])


def confusions(predicted: Labels, labels: Labels, many: int = 5) -> list[dict[str, Any]]:
    """The most common mistakes: a class, what it is taken for, and how often."""
    judged = predicted >= 0  # all but the only images of their class
    way = int(labels.max()) + 1
    matrix = np.bincount(labels[judged] * way + predicted[judged], minlength=way * way).reshape(way, way)
    share = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    np.fill_diagonal(share, 0)
    order = np.argsort(-share, axis=None, kind="stable")[:many]
    places = [divmod(int(place), way) for place in order]
    return [
        {"class": one, "taken_for": other, "share": float(share[one, other])}
        for one, other in places
        if share[one, other] > 0
    ]
