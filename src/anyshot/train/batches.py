"""Training batches: arrays of image indices, drawn from a seed; an epoch uses each image at most once."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from anyshot.errors import BadInput


def training_batches(
    labels: Int[np.ndarray, " image"], way: int, shot: int, seed: int, epoch: int, mixed: Sequence[int] = ()
) -> list[Int[np.ndarray, "way shot"]]:
    """Return one epoch of batches for batch folding.

    A batch draws `way` classes with probability proportional to their remaining images and `shot` images of each. It
    ends when fewer than `way` classes have as many images left.

    Args:
        labels: The class of each image.
        way: Classes of a batch.
        shot: Images per class.
        seed: Seed of all epochs.
        epoch: Number of the epoch.
        mixed: Shots of which each batch draws one, with as many classes as keep the number of images.

    Raises:
        BadInput: Where too few classes have enough images for one batch.
    """
    rng = np.random.default_rng([seed, epoch])
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(labels.max() + 1)]
    remaining = np.array([len(pool) for pool in pools])
    images, batches = way * shot, []
    while feasible := [size for size in mixed or (shot,) if (remaining >= size).sum() >= images // size]:
        size = feasible[rng.integers(len(feasible))] if mixed else shot
        weight = np.where(remaining >= size, remaining, 0)
        classes = rng.choice(len(remaining), images // size, replace=False, p=weight / weight.sum())
        batches.append(np.array([pools[c][remaining[c] - size : remaining[c]] for c in classes]))
        remaining[classes] -= size
    if not batches:
        enough = int((np.bincount(labels) >= shot).sum())
        raise BadInput(f"a batch takes {way} classes with {shot} images each, and only {enough} classes have as many.")
    return batches


def pretraining_batches(
    labels: Int[np.ndarray, " image"], images: int, seed: int, epoch: int
) -> list[Int[np.ndarray, " drawn"]]:
    """Return one epoch of batches of `images` images of any classes; a last batch that is not full is left out."""
    if len(labels) < images:
        raise BadInput(f"a batch takes {images} images, and there are only {len(labels)}.")
    order = np.random.default_rng([seed, epoch]).permutation(len(labels))
    return np.split(order[: len(order) // images * images], len(order) // images)
