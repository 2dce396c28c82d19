"""Pretraining: every image is told apart among all training classes, and each class is a learned vector.

It is the same law as batch folding with one word changed: a prototype is not the mean of a support, it is learned.

    linear         FEAT's: a linear classifier of the pooled features
    class-matrix   FRN's: one learnable matrix of features a class plays its support, in the original reconstruction
                   error with lambda = rho = 1 (alpha = beta = 0, fixed)

Both are read as few-shot heads for validation: the nearest mean, and the same reconstruction from real support.
"""

from math import sqrt

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from anyshot.models.gram import gram, reconstruct_old
from anyshot.models.law import Counts, Features, Head, Parameters, Prototypes, dot, euclidean, mean
from anyshot.recipe import Recipe


def _linear_parameters(features: Features, recipe: Recipe) -> dict[str, Tensor]:
    d = features.shape[-1]
    classes = torch.empty(recipe.way, d).uniform_(-1 / sqrt(d), 1 / sqrt(d))
    return {"classes": classes, "bias": torch.zeros(recipe.way)}


def _matrix_parameters(features: Features, recipe: Recipe) -> dict[str, Tensor]:
    return {"classes": torch.randn(recipe.way, *features.shape[1:])}


def _reconstruct_fixed(prototypes: Prototypes, counts: Counts, parameters: Parameters) -> Prototypes:
    zero = prototypes.new_zeros(())
    return reconstruct_old(prototypes, counts, {"alpha": zero, "beta": zero})


PRETRAINING: dict[str, Head] = {
    "linear": Head(mean, euclidean, parameters=_linear_parameters),
    "class-matrix": Head(gram, dot, _reconstruct_fixed, _matrix_parameters),
}


def class_logits(head: Head, parameters: Parameters, vectors: Float[Tensor, "image d"]) -> Float[Tensor, "image way"]:
    """Logits of images among all training classes."""
    if head.refine is None:
        return parameters["scale"] * F.linear(vectors, parameters["classes"], parameters["bias"])
    classes = gram(parameters["classes"], parameters)
    many = torch.ones(len(classes), dtype=torch.long, device=classes.device)
    return parameters["scale"] * head.score(vectors, head.refine(classes, many, parameters))
