"""The heads of the paper, each the law with its own slots, and the names of embeds that a recipe may choose; ProtoNets
on a learned linear map, which is what can be learned on features that a frozen backbone gives."""

from functools import partial

import torch
from torch import Tensor

from anyshot.models.attention import attention, attention_folds, attention_parameters
from anyshot.models.gram import gram, reconstruct, reconstruct_old, reconstruct_rows
from anyshot.models.law import (
    Embed,
    Features,
    Head,
    Parameters,
    Vectors,
    cosine,
    dot,
    euclidean,
    flatten,
    mean,
    peak,
)
from anyshot.recipe import Recipe

EMBEDS: dict[str, Embed] = {"flatten": flatten, "mean": mean, "max": peak, "gram": gram}


def _ridge_parameters(features: Features, recipe: Recipe) -> dict[str, Tensor]:
    return {"alpha": torch.tensor(recipe.alpha)}


def _old_ridge_parameters(features: Features, recipe: Recipe) -> dict[str, Tensor]:
    return {"alpha": torch.tensor(0.0), "beta": torch.tensor(0.0)}


_attends = partial(Head, peak, refine=attention, refine_folds=attention_folds, couples=True)
_feat = partial(_attends, parameters=attention_parameters, needs_training=True)

HEADS: dict[str, Head] = {
    "proto": Head(flatten, euclidean),
    "cosine-proto": Head(flatten, cosine, alternative_to="proto"),
    "feat": _feat(euclidean),
    "cosine-feat": _feat(cosine, alternative_to="feat"),
    "frn": Head(gram, dot, reconstruct, _ridge_parameters, refine_rows=reconstruct_rows, has_onnx=False),
    "frn-old": Head(gram, dot, reconstruct_old, _old_ridge_parameters, has_onnx=False),
    "cosine-frn": Head(gram, cosine, alternative_to="frn"),
}


def _mapped(features: Features, parameters: Parameters) -> Vectors:
    """All positions side by side, through a learned linear map."""
    return features.flatten(-2) @ parameters["map"]


def _map_parameters(features: Features, recipe: Recipe) -> dict[str, Tensor]:
    """A random map to as many numbers as the recipe is wide; it leaves distances about as they are."""
    d = features[0].numel()
    return {"map": torch.randn(d, recipe.width) / d**0.5}


_linear = partial(Head, _mapped, parameters=_map_parameters, needs_training=True)
LINEAR: dict[str, Head] = {
    "linear-proto": _linear(euclidean),
    "cosine-linear-proto": _linear(cosine, alternative_to="linear-proto"),
}
