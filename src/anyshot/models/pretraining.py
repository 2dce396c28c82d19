"""Pretraining: every image is told apart among all training classes, and each class is a learned vector.

It is the same law as batch folding with one word changed: a prototype is not the mean of a support, it is learned.

    linear         FEAT's: a linear classifier of the pooled features
    class-matrix   FRN's: one learnable matrix of features a class plays its support, in the original reconstruction
                   error with lambda = rho = 1 (alpha = beta = 0, fixed)

Both are read as few-shot heads for validation: the nearest mean, and the same reconstruction from real support.
"""

from math import isqrt, sqrt

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from anyshot.models.heads import Head, Parameters, Prototypes, dot, euclidean, gram, reconstruct_old
from anyshot.recipe import Recipe


def _linear_parameters(d: int, recipe: Recipe) -> dict[str, Tensor]:
    classes = torch.empty(recipe.way, d).uniform_(-1 / sqrt(d), 1 / sqrt(d))
    return {"classes": classes, "bias": torch.zeros(recipe.way)}


def _matrix_parameters(d: int, recipe: Recipe) -> dict[str, Tensor]:
    channels = (isqrt(8 * d + 1) - 1) // 2
    return {"classes": torch.randn(recipe.way, (recipe.size // 16) ** 2, channels)}


def _reconstruct_fixed(prototypes: Prototypes, parameters: Parameters, train: bool) -> Prototypes:
    zero = prototypes.new_zeros(())
    return reconstruct_old(prototypes, {"alpha": zero, "beta": zero}, train)


PRETRAINING: dict[str, Head] = {
    "linear": Head("mean", euclidean, parameters=_linear_parameters),
    "class-matrix": Head("gram", dot, _reconstruct_fixed, _matrix_parameters),
}


def class_logits(head: Head, parameters: Parameters, vectors: Float[Tensor, "image d"]) -> Float[Tensor, "image way"]:
    """Logits of images among all training classes."""
    if head.refine is None:
        return parameters["scale"] * F.linear(vectors, parameters["classes"], parameters["bias"])
    return parameters["scale"] * head.score(vectors, head.refine(gram(parameters["classes"]), parameters, True))
