"""Pairs of examples that are one: the same example twice, or a cropped, turned, mirrored or brighter copy of a picture.

Features suggest pairs; where the pictures are at hand, these decide (`anyshot.inspect.likeness`). Without pictures a
pair is reported only if it is nearer than chance would bring two examples of one class.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from jaxtyping import Float
from threadpoolctl import threadpool_limits

from anyshot.classify.groups import MOST_EXAMPLES, Labels, Vectors, WithinClassDistance, blocks
from anyshot.inspect.likeness import COPY_SIMILARITY, PictureSketch, compare_pictures

NEIGHBOURS = 3  # nearest examples of each that are considered; not tuned
NEAR = 0.9  # squared distance of a possible copy, as a share of the usual one within a class: a crop to 70 % moves
# features by 0.63 of it (docs/log/advice.md)
CHANCE = 0.05  # expected number of pairs, over all examples, that are reported by chance
ROUNDING = 1e-10  # squared distance of equal vectors after rounding, as a share of the mean square about the mean
MOST_PAIRS = 600  # pairs compared as pictures, at about 20 ms each (docs/log/advice.md)


def find_copies(
    vectors: Vectors,
    labels: Labels,
    sketch: Callable[[int], PictureSketch] | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> list[tuple[int, int, float]]:
    """Return pairs of examples that are one, and how alike they are, from 0 to 1; the most alike first.

    Args:
        vectors: A vector per example.
        labels: Their classes, counted from 0.
        sketch: Returns the picture of an example, where pictures are at hand.
        progress: Called with shares of the work that add up to 1.
    """
    if not 3 <= len(vectors) <= MOST_EXAMPLES:
        progress(1.0)
        return []
    usual = WithinClassDistance.estimate(vectors, labels)
    pairs, neighbourhood, variance = _nearest(vectors)
    rounding = ROUNDING * variance
    if sketch is None:
        progress(1.0)
        limit = max(usual.quantile(2 * CHANCE / len(vectors) ** 2), rounding)
        copies = [(*pair, 1 - far / max(usual.distance, limit)) for pair, far in pairs.items() if far <= limit]
    else:
        limit = max(NEAR * usual.distance, rounding)
        # Those first that are nearest compared with the other neighbours of either.
        relative = {
            (a, b): far / max(neighbourhood[a], neighbourhood[b], rounding)
            for (a, b), far in pairs.items()
            if far <= limit
        }
        candidates = sorted(relative, key=lambda pair: relative[pair])[:MOST_PAIRS]
        equal = {pair for pair in candidates if pairs[pair] <= rounding}
        copies = _compare(candidates, equal, cache(sketch), progress)
    return sorted(copies, key=lambda pair: (-pair[2], pair[:2]))


def _compare(
    candidates: list[tuple[int, int]],
    equal: set[tuple[int, int]],
    sketch: Callable[[int], PictureSketch],
    progress: Callable[[float], None],
) -> list[tuple[int, int, float]]:
    if not candidates:
        progress(1.0)
    copies = []
    with threadpool_limits(1):  # the products are small: threads would only wait for each other
        for one, other in candidates:
            # `replace` makes new sketches, so that what they cache, ten times as large, is not kept.
            similarity = compare_pictures(replace(sketch(one)), replace(sketch(other)))
            if (one, other) in equal or similarity >= COPY_SIMILARITY:
                copies.append((one, other, 1.0 if (one, other) in equal else similarity))
            progress(1 / len(candidates))
    return copies


def _nearest(vectors: Vectors) -> tuple[dict[tuple[int, int], float], Float[np.ndarray, " example"], float]:
    """Return pairs of nearest neighbours with their squared distance, and two measures of scale.

    These are each example's squared distance to the farthest of its neighbours, and the mean square about the mean.
    """
    count = len(vectors)
    centre = sum(vectors[part].sum(0) for part in blocks(count)) / count

    def centred(part: slice) -> Float[torch.Tensor, "some d"]:
        return torch.from_numpy(vectors[part] - centre)

    squares = torch.cat([centred(part).square().sum(1) for part in blocks(count)])
    pairs: dict[tuple[int, int], float] = {}
    farthest = []
    for part in blocks(count):
        rows = centred(part)
        distances = torch.cat([rows @ centred(other).mT for other in blocks(count)], 1).mul_(-2)
        distances.add_(squares).add_(squares[part, None]).clamp_min_(0)
        distances[torch.arange(len(rows)), torch.arange(part.start, part.stop)] = torch.inf
        near, place = distances.topk(min(NEIGHBOURS, count - 1), largest=False)
        farthest.append(near[:, -1].numpy())
        for a, (others, far) in enumerate(zip(place.tolist(), near.tolist(), strict=True), part.start):
            pairs |= {(min(a, b), max(a, b)): distance for b, distance in zip(others, far, strict=True)}
    return pairs, np.concatenate(farthest), float(squares.mean())
