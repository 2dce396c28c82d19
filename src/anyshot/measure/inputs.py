"""Checks of what is given to an evaluation: features, labels, and whether a store fits a model."""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from anyshot.data.store import Store
from anyshot.errors import BadInput
from anyshot.models.embedders import Embedder

LabelledFeatures = tuple[ArrayLike | Tensor, ArrayLike]
Maps = Float[Tensor, "image position channel"]
CHECKED = 512  # images that are checked together for values that are not finite; bounds the memory of the check


def check_features(features: ArrayLike | Tensor) -> Maps:
    """Return features as float32 maps; vectors become maps of one position.

    A memory map of float32 is checked piece by piece, and not copied; a tensor stays on its device.

    Raises:
        BadInput: The features are of another shape or type, or not finite.
    """
    array = features.detach() if isinstance(features, Tensor) else np.asarray(features)
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise BadInput(
            f'features must be vectors "image d" or maps "image position channel", none of them empty; these have '
            f"shape {tuple(array.shape)}."
        )
    if isinstance(array, np.ndarray):
        if array.dtype.kind not in "fiu":
            raise BadInput(f"features must be numbers; these are of type {array.dtype}.")
        with warnings.catch_warnings():  # torch warns of a memory map that must not be written to: nothing here writes
            warnings.simplefilter("ignore", UserWarning)
            array = torch.from_numpy(array if array.dtype == np.float32 else array.astype(np.float32))
    maps = array.float() if array.ndim == 3 else array.float()[:, None]
    for start in range(0, len(maps), CHECKED):
        piece = maps[start : start + CHECKED]
        if not torch.isfinite(piece).all():
            row = start + int((~torch.isfinite(piece.flatten(1)).all(1)).nonzero()[0])
            raise BadInput(f"features must be finite, and row {row} is not: it has NaN or infinite values.")
    return maps


def describe_size(shape: Sequence[int]) -> str:
    """Return how many numbers the features of an example have, of the shape of all: 512, or 25 x 64 by position."""
    return " x ".join(str(side) for side in shape[1:] if side > 1) or "1"


def check_labels(labels: ArrayLike | Tensor, images: int) -> tuple[list[str], Int[np.ndarray, " image"]]:
    """Return the class names, and the labels as indices into them."""
    array = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    if array.shape != (images,):
        raise BadInput(f"there must be one label for each example: {images} examples, labels of shape {array.shape}.")
    names, codes = np.unique(array, return_inverse=True)
    if len(names) < 2:
        raise BadInput(f"an evaluation needs at least 2 classes; all labels are {str(names[0])!r}.")
    return [str(name) for name in names], codes


def check_kind(store: Store, embed: Embedder | None) -> None:
    """Raise BadInput where a store of images comes without a model, or one of features with a model of images."""
    if embed is None and not store.is_features:
        raise BadInput(f"{store.path} holds images: name a trained model to embed them, or pack features instead.")
    if embed is None or not store.is_features:
        return
    content = store.about.get("content", "")
    reads_any = embed.model is not None and embed.model.recipe.frozen and not (content and embed.fingerprint)
    if not reads_any and (not content or content != embed.fingerprint):
        raise BadInput(f"{store.path} holds features already: leave the model out.")
