"""What looks wrong in labelled features: images of another class, images twice, two classes that are one."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.special import softmax

from anyshot.deploy.calibration import adapted, fit_scale, leave_one_out
from anyshot.deploy.support import support_of
from anyshot.models.law import Reading

SURE = 0.8  # of another class, for an image to be suspected
UNLIKELY = 0.05  # its own class
SAME = 1e-3  # squared distance of two images that are one, as a share of the usual one to the nearest
ONE_CLASS = 0.65  # two classes are told apart less often than this
MOST_IMAGES = 20_000  # beyond, pairs of images are not compared

Vectors = Float[np.ndarray, "image d"]
Labels = Int[np.ndarray, " image"]


@dataclass(frozen=True)
class Found:
    """Indices are those of images and classes."""

    predicted: Labels
    """The class of each image when it is left out; -1 for the only image of a class."""
    mislabelled: list[tuple[int, int, float]]
    """Image, the class it looks like, the probability of that; the likeliest first."""
    duplicates: list[tuple[int, int]]
    same_class: list[tuple[int, int, float]]
    """Two classes and how often an image of one is told from the other when only these two are asked for."""


def look(vectors: Vectors, labels: Labels, reading: Reading) -> Found:
    """Leave every image out once, and compare all pairs of images."""
    numbers = np.arange(len(labels)).astype(np.uint64)
    support = support_of(vectors.astype(np.float64), numbers, labels, len(labels), reading.head.adapts)
    if reading.head.adapts:
        left = adapted(support, most=len(labels) * len(support.labels))[1]
        scores, owner = left.logits.numpy(), left.owner.numpy()
    else:
        scores, owner = leave_one_out(reading, support, most=len(labels) * len(support.labels))
    image = support.keys[support.counts[support.owner] > 1].astype(np.int64)
    predicted = np.full(len(labels), -1)
    predicted[image] = scores.argmax(1)
    return Found(predicted, _mislabelled(scores, owner, image), _duplicates(vectors), _same_class(scores, owner))


def _mislabelled(scores: np.ndarray, owner: np.ndarray, image: np.ndarray) -> list[tuple[int, int, float]]:
    if not len(owner) or scores.shape[1] < 2:
        return []
    sure = softmax(fit_scale(scores, owner) * scores, axis=1)
    best = sure.argmax(1)
    odd = (sure.max(1) >= SURE) & (sure[np.arange(len(owner)), owner] <= UNLIKELY)
    suspects = [(int(image[i]), int(best[i]), float(sure[i, best[i]])) for i in np.flatnonzero(odd)]
    return sorted(suspects, key=lambda suspect: -suspect[2])


def _duplicates(vectors: Vectors) -> list[tuple[int, int]]:
    """Pairs that are far nearer to each other than images usually are to their nearest."""
    if not 3 <= len(vectors) <= MOST_IMAGES:
        return []
    x = torch.from_numpy(np.ascontiguousarray(vectors)).double()
    x = x - x.mean(0)
    square = x.square().sum(1)
    near, pairs = torch.empty(len(x), dtype=torch.float64), []
    for start in range(0, len(x), 1024):
        part = x[start : start + 1024]
        apart = (square[start : start + 1024, None] + square - 2 * part @ x.mT).clamp_min(0)
        apart[torch.arange(len(part)), torch.arange(start, start + len(part))] = torch.inf
        near[start : start + 1024] = apart.amin(1)
        closest = apart.argmin(1)
        pairs += [(start + i, int(other)) for i, other in enumerate(closest.tolist())]
    # Rounding leaves about this much between equal vectors; a data set of nothing but twins has no usual distance.
    limit = max(SAME * float(near[near > 1e-12 * square.mean()].median().nan_to_num()), 1e-10 * float(square.mean()))
    return sorted({(min(pair), max(pair)) for pair, apart in zip(pairs, near.tolist(), strict=True) if apart <= limit})


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
