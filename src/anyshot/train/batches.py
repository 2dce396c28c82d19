"""Training batches: index arrays drawn from a seed, passing over the images once an epoch without replacement."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from anyshot.errors import BadInput


def training_batches(
    labels: Int[np.ndarray, " image"], way: int, shot: int, seed: int, epoch: int, mixed: Sequence[int] = ()
) -> list[Int[np.ndarray, "way shot"]]:
    """One epoch of batches: draw `way` classes with probability proportional to their remaining images, take `shot`
    from each, drop classes with fewer left, until fewer than `way` classes remain. With `mixed` shots each batch draws
    one of those that still fill a batch of way x shot images."""
    rng = np.random.default_rng([seed, epoch])
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(labels.max() + 1)]
    left = np.array([len(pool) for pool in pools])
    images, batches = way * shot, []
    while feasible := [take for take in mixed or (shot,) if (left >= take).sum() >= images // take]:
        take = feasible[rng.integers(len(feasible))] if mixed else shot
        weight = np.where(left >= take, left, 0)
        classes = rng.choice(len(left), images // take, replace=False, p=weight / weight.sum())
        batches.append(np.array([pools[c][left[c] - take : left[c]] for c in classes]))
        left[classes] -= take
    if not batches:
        enough = int((np.bincount(labels) >= shot).sum())
        raise BadInput(f"a batch takes {way} classes with {shot} images each, and only {enough} classes have as many.")
    return batches


def pretraining_batches(
    labels: Int[np.ndarray, " image"], images: int, seed: int, epoch: int
) -> list[Int[np.ndarray, " drawn"]]:
    """One epoch of batches of `images` images of any classes, each image once; what does not fill a batch is left."""
    if len(labels) < images:
        raise BadInput(f"a batch takes {images} images, and there are only {len(labels)}.")
    order = np.random.default_rng([seed, epoch]).permutation(len(labels))
    return np.split(order[: len(order) // images * images], len(order) // images)
