"""The heads of the paper, each the law with its own slots, and the names of embeds that a recipe may choose; ProtoNets
on a learned linear map, which is what can be learned on features that a frozen backbone gives; and pretraining.

In pretraining every image is told apart among all training classes, and each class is a learned vector. It is the same
law as batch folding with one word changed: a prototype is not the mean of a support, it is learned.

    linear         FEAT's: a linear classifier of the pooled features
    class-matrix   FRN's: one learnable matrix of features a class plays its support, in the original reconstruction
                   error with lambda = rho = 1 (alpha = beta = 0, fixed)

Both are read as few-shot heads for validation: the nearest mean, and the same reconstruction from real support.
"""

from functools import partial
from math import sqrt

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from anyshot.models import law
from anyshot.models.attention import attention, attention_folds, attention_parameters
from anyshot.models.gram import gram, reconstruct, reconstruct_old, reconstruct_rows
from anyshot.models.law import Head, cosine, dot, euclidean, flatten, max_pool, mean_pool
from anyshot.recipe import Recipe

EMBEDS: dict[str, law.Embed] = {"flatten": flatten, "mean": mean_pool, "max": max_pool, "gram": gram}


def _ridge_parameters(features: law.Features, recipe: Recipe) -> dict[str, Tensor]:
    return {"alpha": torch.tensor(recipe.alpha)}


def _old_ridge_parameters(features: law.Features, recipe: Recipe) -> dict[str, Tensor]:
    return {"alpha": torch.tensor(0.0), "beta": torch.tensor(0.0)}


_attends = partial(Head, max_pool, refine=attention, refine_folds=attention_folds, couples=True)
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


def _mapped(features: law.Features, parameters: law.Parameters) -> law.Vectors:
    """All positions side by side, through a learned linear map."""
    return features.flatten(-2) @ parameters["map"]


def _map_parameters(features: law.Features, recipe: Recipe) -> dict[str, Tensor]:
    """A random map to as many numbers as the recipe is wide; it leaves distances about as they are."""
    d = features[0].numel()
    return {"map": torch.randn(d, recipe.width) / d**0.5}


_linear = partial(Head, _mapped, parameters=_map_parameters, needs_training=True)
LINEAR: dict[str, Head] = {
    "linear-proto": _linear(euclidean),
    "cosine-linear-proto": _linear(cosine, alternative_to="linear-proto"),
}


def _linear_parameters(features: law.Features, recipe: Recipe) -> dict[str, Tensor]:
    d = features.shape[-1]
    classes = torch.empty(recipe.way, d).uniform_(-1 / sqrt(d), 1 / sqrt(d))
    return {"classes": classes, "bias": torch.zeros(recipe.way)}


def _matrix_parameters(features: law.Features, recipe: Recipe) -> dict[str, Tensor]:
    return {"classes": torch.randn(recipe.way, *features.shape[1:])}


def _reconstruct_fixed(prototypes: law.Prototypes, counts: law.Counts, parameters: law.Parameters) -> law.Prototypes:
    zero = prototypes.new_zeros(())
    return reconstruct_old(prototypes, counts, {"alpha": zero, "beta": zero})


PRETRAINING: dict[str, Head] = {
    "linear": Head(mean_pool, euclidean, parameters=_linear_parameters),
    "class-matrix": Head(gram, dot, _reconstruct_fixed, _matrix_parameters),
}


def class_logits(
    head: Head, parameters: law.Parameters, vectors: Float[Tensor, "image d"]
) -> Float[Tensor, "image way"]:
    """Logits of images among all training classes."""
    if head.refine is None:
        return parameters["scale"] * F.linear(vectors, parameters["classes"], parameters["bias"])
    classes = gram(parameters["classes"], parameters)
    many = torch.ones(len(classes), dtype=torch.long, device=classes.device)
    return parameters["scale"] * head.score(vectors, head.refine(classes, many, parameters))
