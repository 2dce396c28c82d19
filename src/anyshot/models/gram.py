"""Gram matrices as vectors, and the ridge reconstruction of FRN as a refinement of their mean.

FRN (Wertheimer et al. 2021) reconstructs the features of a query from those of a class's support by ridge regression.
The reconstruction depends on the support through its Gram matrix alone, so a class is the mean of Gram matrices
(Sec. 3.3 of the paper). With S that mean and r the ridge, the hat matrix H = (S + r I)^-1 S rebuilds a query.
"""

from functools import cache
from math import isqrt, sqrt
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from anyshot.models.law import Counts, Features, Parameters, Prototypes, Vectors

MIN_NORM = 1e-12  # of a Gram matrix: the ridge of blank features must still be invertible


def gram(features: Features, parameters: Parameters) -> Vectors:
    """Return the packed Gram matrix X^T X / positions of each image.

    An inner product of two such vectors is the trace inner product of the matrices (the sum of the elementwise product
    of Eq. 5), at half the size.
    """
    matrix = features.mT @ features / features.shape[-2]
    return pack_symmetric(matrix)


def pack_symmetric(matrix: Float[Tensor, "*batch channel channel"]) -> Vectors:
    """Return the upper triangles of symmetric matrices, off-diagonal entries times sqrt 2, to keep inner products."""
    triangle = _triangle(matrix.shape[-1], matrix.device, matrix.dtype)
    return _gather(matrix.flatten(-2), triangle.sources) * triangle.weight


def unpack_symmetric(vectors: Vectors) -> Float[Tensor, "*batch channel channel"]:
    """Return the matrices that `pack_symmetric` packed."""
    channel = _channel(vectors.shape[-1])
    triangle = _triangle(channel, vectors.device, vectors.dtype)
    return _gather(vectors / triangle.weight, triangle.places).unflatten(-1, (channel, channel))


def class_overlap(classes: Float[Tensor, "way d"]) -> Float[Tensor, ""]:
    """Return how much the features of different classes share directions (Wertheimer et al. 2021).

    With S_i the features of class i, all divided by the norm of all of them, it is the sum over pairs of classes of
    |S_i S_j^T|^2, which is the inner product of their Gram matrices.

    Args:
        classes: The packed Gram matrix of each class; a mean, a sum or any common multiple gives the same.
    """
    total = classes.sum(0)
    pairs = (total.square().sum() - classes.square().sum()) / 2
    return pairs / torch.einsum("ii->", unpack_symmetric(total)).square()


def _gather(x: Float[Tensor, "*batch d"], places: Tensor) -> Float[Tensor, "*batch taken"]:
    """Return x[..., places]; `index_select` on two axes is the one form of it that is fast on a CPU."""
    return x.reshape(-1, x.shape[-1]).index_select(1, places).view(*x.shape[:-1], len(places))


def _channel(d: int) -> int:
    """Return the side of a matrix with d entries in its triangle."""
    return (isqrt(8 * d + 1) - 1) // 2


class _Triangle(NamedTuple):
    sources: Tensor  # the place in the flat matrix of each entry of the triangle
    places: Tensor  # the entry of the triangle that each place of the flat matrix shows
    weight: Tensor


def _triangle(channel: int, device: torch.device, dtype: torch.dtype) -> _Triangle:
    """Return the triangle, from a cache except while a network is exported, when tensors hold no numbers."""
    make = _make_triangle.__wrapped__ if torch.compiler.is_compiling() else _make_triangle
    return make(channel, device, dtype)


@cache
def _make_triangle(channel: int, device: torch.device, dtype: torch.dtype) -> _Triangle:
    row, column = torch.triu_indices(channel, channel, device=device)
    number = torch.arange(len(row), device=device)
    places = torch.empty(channel, channel, dtype=torch.long, device=device)
    places[row, column] = number
    places[column, row] = number
    weight = torch.where(row == column, 1.0, torch.tensor(sqrt(2.0), dtype=dtype, device=device))
    return _Triangle(row * channel + column, places.flatten(), weight.to(dtype))


def ridge_hat_matrix(grams: Vectors, ridge: Float[Tensor, "*batch"]) -> Vectors:
    """Return the packed hat matrices (S + r I)^-1 S = I - r (S + r I)^-1 of packed matrices S and ridges r."""
    inverse = _RidgeInverse.apply(grams, ridge)
    return _eye_like(inverse) - ridge[..., None] * inverse


def _invert(
    matrix: Float[Tensor, "*batch channel channel"], ridge: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch channel channel"]:
    """Return the inverses of Gram matrices whose diagonal already has the ridge added, by Cholesky.

    Where the ridge is lost in 32 bits they are inverted in 64; where it is less than the rounding of the matrix, which
    may then be far from positive definite, by its eigenvalues, none smaller than the ridge.
    """
    for precision in (matrix.dtype, torch.float64):
        factor, failed = torch.linalg.cholesky_ex(matrix.to(precision), upper=True)
        if not failed.any():  # LAPACK stores matrices column by column: transposed, packing needs no copy
            return torch.cholesky_inverse(factor, upper=True).mT.to(matrix.dtype)
    values, vectors = torch.linalg.eigh(matrix.double())
    values = values.maximum(ridge.double()[..., None])
    return ((vectors / values[..., None, :]) @ vectors.mT).to(matrix.dtype)


class _RidgeInverse(torch.autograd.Function):
    """(S + r I)^-1 of packed matrices by Cholesky; its gradient is two products.

    Packing keeps inner products, so the gradient of a packed matrix is the packed gradient of the matrix.
    """

    @staticmethod
    def forward(ctx: Any, grams: Tensor, ridge: Tensor) -> Tensor:
        matrix = unpack_symmetric(grams)
        matrix.diagonal(dim1=-2, dim2=-1).add_(ridge[..., None])
        inverse = _invert(matrix, ridge)
        ctx.save_for_backward(inverse.mT)
        return pack_symmetric(inverse)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (inverse,) = ctx.saved_tensors
        change = -inverse @ unpack_symmetric(gradient) @ inverse
        return pack_symmetric(change), change.diagonal(dim1=-2, dim2=-1).sum(-1)


def _eye_like(packed: Vectors) -> Float[Tensor, " d"]:
    return pack_symmetric(torch.eye(_channel(packed.shape[-1]), dtype=packed.dtype, device=packed.device))


def reconstruct(prototypes: Prototypes, counts: Counts, parameters: Parameters) -> Prototypes:
    """Return the hat matrices of FRN (Eq. 5), with a ridge of lambda |S|_F.

    Thus the reconstruction does not depend on shot, scale and width.
    """
    return ridge_hat_matrix(prototypes, parameters["alpha"].exp() * prototypes.norm(dim=-1).clamp_min(MIN_NORM))


def reconstruct_rows(rows: Float[Tensor, "*batch row channel"], parameters: Parameters) -> Vectors:
    """Return the same as `reconstruct`, from the features of the support: S^T (S S^T + r I)^-1 S.

    Its systems are as large as there are features, so it is cheaper where features are few and channels many.
    """
    s = rows / sqrt(rows.shape[-2])
    small = s @ s.mT
    ridge = parameters["alpha"].exp() * small.flatten(-2).norm(dim=-1).clamp_min(MIN_NORM)
    small.diagonal(dim1=-2, dim2=-1).add_(ridge[..., None])
    half = torch.linalg.solve_triangular(torch.linalg.cholesky(small), s, upper=False)
    return pack_symmetric(half.mT @ half)


def reconstruct_old(prototypes: Prototypes, counts: Counts, parameters: Parameters) -> Prototypes:
    """Return what scores a query by the mean squared error of its scaled reconstruction, -<(I - rho H)^2, query Gram>.

    This is FRN as its authors published it (Wertheimer et al. 2021). Their ridge is lambda n / d for n features; for a
    mean of Gram matrices per feature n cancels and lambda / d remains. They add 1e-6 once per support, we once
    per feature, so that a support given twice changes nothing.
    """
    eye = _eye_like(prototypes)
    channel = _channel(len(eye))
    ridge = (parameters["alpha"].exp() / channel + 1e-6).expand(prototypes.shape[:-1])
    error = unpack_symmetric(eye - parameters["beta"].exp() * ridge_hat_matrix(prototypes, ridge))
    return pack_symmetric(-error @ error)
