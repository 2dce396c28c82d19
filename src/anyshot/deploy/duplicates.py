"""Pairs of images that are one: the same picture twice, or a cropped, turned, mirrored or brighter copy of it.

Features bring together what may be a copy; where the pictures are at hand, these decide (`anyshot.data.likeness`).
Without them a pair is named only if it is nearer than chance would ever bring two images of one class.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.stats import chi2
from threadpoolctl import threadpool_limits

from anyshot.data.likeness import COPY, Sketch, likeness
from anyshot.models.gaussian import unit

NEIGHBOURS = 3  # of an image, that are looked at
NEAR = 0.9  # squared distance of a pair that may be a copy, as a share of the usual one within a class
CHANCE = 0.05  # pairs that chance may bring so near, in all
MOST_IMAGES = 20_000  # beyond, pairs of images are not compared
MOST_PAIRS = 600  # that are looked at as pictures, at some 20 ms each
SAMPLE = 2_000
PART = 512  # images that are looked at together: vectors of all of them are not copied
NEAREST = 256  # and that are compared with all others


@dataclass(frozen=True)
class InDouble:
    """Vectors in single precision that are read in double, some at a time: all of them would take twice the memory.

    Args:
        rows: The vectors.
        as_units: Whether they are read as vectors of length one.
    """

    rows: Float[np.ndarray, "image d"]
    as_units: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.shape

    def __getitem__(self, images: Any) -> Float[np.ndarray, "some d"]:
        rows = self.rows[images]
        return (unit(torch.from_numpy(rows)).numpy() if self.as_units else rows).astype(np.float64)


Vectors = Float[np.ndarray, "image d"] | InDouble
Labels = Int[np.ndarray, " image"]


@dataclass(frozen=True)
class Usual:
    """How far two images of one class usually are from each other, and in how many dimensions they differ."""

    distance: float
    """The median of squared distances, as far as the distances to the means of the classes tell."""
    dimensions: float

    @staticmethod
    def of(vectors: Vectors, labels: Labels) -> "Usual":
        """From the images about the means of their classes."""
        counts = np.bincount(labels)
        sums = np.zeros((len(counts), vectors.shape[1]))
        for part in _parts(len(labels)):
            np.add.at(sums, labels[part], vectors[part])
        several = np.flatnonzero(counts[labels] > 1)
        if not len(several):
            return Usual(0.0, 1.0)

        def about(images: Labels) -> Float[np.ndarray, "some d"]:
            n = counts[labels[images], None]
            return (vectors[images] - sums[labels[images]] / n) * np.sqrt(n / (n - 1))

        squares = [(about(several[part]) ** 2).sum(1) for part in _parts(len(several))]
        distance = 2 * float(np.median(np.concatenate(squares)))
        apart = about(several[np.random.default_rng(0).permutation(len(several))[:SAMPLE]])
        inner = apart @ apart.T
        own, many = np.diagonal(inner), len(inner)
        trace, others = float(own.mean()), float(np.vdot(inner, inner) - np.vdot(own, own))  # of all pairs
        square = others / (many * (many - 1)) if many > 1 else 0.0
        most = float(min(vectors.shape[1], len(labels)))
        return Usual(distance, min(max(trace**2 / square, 1.0), most) if square else most)

    def by_chance(self, chance: float) -> float:
        """The squared distance below which two images of a class lie with so small a chance, were they independent."""
        return self.distance * float(chi2.ppf(chance, self.dimensions)) / self.dimensions


def near_duplicates(
    vectors: Vectors,
    labels: Labels,
    sketch: Callable[[int], Sketch] | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> list[tuple[int, int, float]]:
    """Pairs of images that look like one, and how alike they are, from 0 to 1; the most alike first.

    Args:
        vectors: A vector per image.
        labels: Their classes, counted from 0.
        sketch: The picture of an image, where pictures are at hand.
        progress: Called with shares of the whole that add up to 1.
    """
    if not 3 <= len(vectors) <= MOST_IMAGES:
        progress(1.0)
        return []
    usual = Usual.of(vectors, labels)
    pairs, beside, variance = _nearest(vectors)
    equal = 1e-10 * variance  # rounding leaves about this much between equal vectors
    if sketch is None:
        progress(1.0)
        limit = max(usual.by_chance(2 * CHANCE / len(vectors) ** 2), equal)
        near = [(a, b, 1 - apart / max(usual.distance, limit)) for (a, b), apart in pairs.items() if apart <= limit]
        return sorted(near, key=lambda pair: (-pair[2], pair[:2]))
    pairs = {pair: apart for pair, apart in pairs.items() if apart <= max(NEAR * usual.distance, equal)}
    order = sorted(pairs, key=lambda pair: pairs[pair] / max(beside[pair[0]], beside[pair[1]], equal))[:MOST_PAIRS]
    if not order:
        progress(1.0)
    sketches: dict[int, Sketch] = {}
    copies = []
    with threadpool_limits(1):  # small products: threads would only wait for each other
        for one, other in order:
            for image in (one, other):
                if image not in sketches:
                    sketches[image] = sketch(image)
            # copies of them: what is worked out of a sketch is some ten times as large, and not kept
            alike = likeness(replace(sketches[one]), replace(sketches[other]))
            if pairs[one, other] <= equal or alike >= COPY:
                copies.append((one, other, 1.0 if pairs[one, other] <= equal else alike))
            progress(1 / len(order))
    return sorted(copies, key=lambda pair: (-pair[2], pair[:2]))


def _parts(many: int) -> list[slice]:
    return [slice(start, start + PART) for start in range(0, many, PART)]


def _nearest(vectors: Vectors) -> tuple[dict[tuple[int, int], float], Float[np.ndarray, " image"], float]:
    """Each image with its nearest ones, as pairs and their squared distances; of each image the distance to the last of
    these; and the variance of all."""
    centre = sum(vectors[part].sum(0) for part in _parts(len(vectors))) / len(vectors)

    def about(images: slice) -> Float[torch.Tensor, "some d"]:
        return torch.from_numpy(vectors[images] - centre)

    square = torch.cat([about(part).square().sum(1) for part in _parts(len(vectors))])
    many = min(NEIGHBOURS, len(vectors) - 1)
    pairs: dict[tuple[int, int], float] = {}
    last = np.empty(len(vectors))
    for start in range(0, len(vectors), NEAREST):
        some = about(slice(start, start + NEAREST))
        apart = torch.cat([some @ about(part).mT for part in _parts(len(vectors))], 1).mul_(-2)
        apart.add_(square).add_(square[start : start + NEAREST, None]).clamp_min_(0)
        apart[torch.arange(len(some)), torch.arange(start, start + len(some))] = torch.inf
        near, place = apart.topk(many, largest=False)
        last[start : start + NEAREST] = near[:, -1].numpy()
        for one, (others, distances) in enumerate(zip(place.tolist(), near.tolist(), strict=True), start):
            pairs |= {(min(one, b), max(one, b)): apart for b, apart in zip(others, distances, strict=True)}
    return pairs, last, float(square.mean())
