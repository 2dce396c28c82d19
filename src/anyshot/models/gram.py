"""Gram matrices as vectors, and the ridge reconstruction of the FRNs (Sec. 3.3) as a refinement of their mean."""

from functools import cache, partial
from math import isqrt, sqrt
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from anyshot.models.law import Counts, Features, Parameters, Prototypes, Vectors

SAFE = 0.05  # ridge over the norm of a Gram, from where inverting by halves is as exact as by Cholesky


def gram(features: Features, parameters: Parameters) -> Vectors:
    """Upper triangle of X^T X / positions, off-diagonal times sqrt 2: an inner product of two such vectors is the trace
    inner product of the matrices (the paper's elementwise product summed, Eq. 5), at half the size."""
    matrix = features.mT @ features / features.shape[-2]
    return pack_symmetric(matrix)


def pack_symmetric(matrix: Float[Tensor, "*batch channel channel"]) -> Vectors:
    """A symmetric matrix as a vector with the same inner products; `unpack` undoes it."""
    return _Pack.apply(matrix)


def unpack_symmetric(vectors: Vectors) -> Float[Tensor, "*batch channel channel"]:
    """The matrix of a packed one."""
    return _Unpack.apply(vectors)


def class_overlap(classes: Float[Tensor, "way d"]) -> Float[Tensor, ""]:
    """The auxiliary term that FRN's authors train with: how much the features of different classes lie in the same
    directions. With S_i the features of class i, all divided by the norm of all of them, it is the sum over pairs of
    |S_i S_j^T|^2, which is the inner product of their Grams.

    Args:
        classes: The packed Gram of each class; a mean, a sum, any multiple of it gives the same.
    """
    together = classes.sum(0)
    pairs = (together.square().sum() - classes.square().sum()) / 2
    return pairs / torch.einsum("ii->", unpack_symmetric(together)).square()


class _Pack(torch.autograd.Function):
    """Packing keeps inner products, so each direction is the other's gradient: gathers both ways, never a scatter."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        triangle = _triangle(matrix.shape[-1], matrix.device, matrix.dtype)
        return _gather(matrix.flatten(-2), triangle.take).mul_(triangle.weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return unpack_symmetric(gradient)


class _Unpack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        channel = _channel(vectors.shape[-1])
        triangle = _triangle(channel, vectors.device, vectors.dtype)
        return _gather(vectors / triangle.weight, triangle.put).unflatten(-1, (channel, channel))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return pack_symmetric((gradient + gradient.mT) / 2)


def _gather(x: Float[Tensor, "*batch d"], places: Tensor) -> Float[Tensor, "*batch taken"]:
    """x[..., places], by the one form of it that is fast on a CPU."""
    return x.reshape(-1, x.shape[-1]).index_select(1, places).view(*x.shape[:-1], len(places))


def _channel(d: int) -> int:
    """The side of a matrix with d entries in its triangle."""
    return (isqrt(8 * d + 1) - 1) // 2


class _Triangle(NamedTuple):
    take: Tensor  # where the triangle's entries lie in the flat matrix
    put: Tensor  # which entry of the triangle each place of the flat matrix shows
    weight: Tensor


@cache
def _triangle(channel: int, device: torch.device, dtype: torch.dtype) -> _Triangle:
    row, column = torch.triu_indices(channel, channel, device=device)
    number = torch.arange(len(row), device=device)
    put = torch.empty(channel, channel, dtype=torch.long, device=device)
    put[row, column] = number
    put[column, row] = number
    weight = torch.where(row == column, 1.0, torch.tensor(sqrt(2.0), dtype=dtype, device=device))
    return _Triangle(row * channel + column, put.flatten(), weight.to(dtype))


def ridge_hat_matrix(grams: Vectors, ridge: Float[Tensor, "*batch"], share: Float[Tensor, ""] | None = None) -> Vectors:
    """(S + r I)^-1 S = I - r (S + r I)^-1, what reconstructs a query from the support's features; packed.

    Args:
        grams: S.
        ridge: r.
        share: What part of the norm of S the ridge is, where that is known: no norm is taken then.
    """
    if grams.requires_grad or ridge.requires_grad:
        inverse = _RidgeInverse.apply(grams, ridge)
        return _eye_like(inverse) - ridge[..., None] * inverse
    eye, size = _eye_like(grams), ridge[..., None]
    # (vecdot is cheaper than `norm`)
    shares = ridge / torch.linalg.vecdot(grams, grams).sqrt() if share is None else share
    invert = _inverse_by_halves if bool((shares >= SAFE).all()) else partial(_inverse, ridge=ridge.reshape(-1))
    # The matrices have no name here: they are gone before others as large are made.
    inverse = invert(unpack_symmetric(torch.addcmul(grams, size, eye).view(-1, len(eye))))
    return torch.addcmul(eye, size, pack_symmetric(inverse).view(grams.shape), value=-1)


def _inverse(
    matrix: Float[Tensor, "*batch channel channel"], ridge: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch channel channel"]:
    """Of Grams with so much added to their diagonal, by Cholesky; in 64 bits where what was added is lost in 32; and
    where it is less than the rounding of the Gram itself, which may then be far from positive definite, by eigenvalues
    that are at least as large."""
    for precision in (matrix.dtype, torch.float64):
        factor, failed = torch.linalg.cholesky_ex(matrix.to(precision), upper=True)
        if not failed.any():  # LAPACK's matrices lie column by column: this way round, packing needs no copy
            return torch.cholesky_inverse(factor, upper=True).mT.to(matrix.dtype)
    values, vectors = torch.linalg.eigh(matrix.double())
    values = values.maximum(ridge.double()[..., None])
    return ((vectors / values[..., None, :]) @ vectors.mT).to(matrix.dtype)


def _inverse_by_halves(matrix: Float[Tensor, "batch channel channel"]) -> Float[Tensor, "batch channel channel"]:
    """Of symmetric positive definite matrices (Schur's complement), down to where a factorisation has little to do: up
    to a quarter faster, as most of it is products, and no less exact where they are well conditioned (`SAFE`). Not for
    training: its gradient would be slow."""
    if (channel := matrix.shape[-1]) <= 16:
        return torch.cholesky_inverse(torch.linalg.cholesky(matrix, upper=True), upper=True).mT
    first, last = slice(channel // 2), slice(channel // 2, None)
    corner, side = _inverse_by_halves(matrix[:, first, first]), matrix[:, last, first]
    across = side @ corner
    other = _inverse_by_halves(torch.baddbmm(matrix[:, last, last], across, side.mT, alpha=-1))
    below = other @ across
    corner = torch.baddbmm(corner, across.mT, below)
    return torch.cat([torch.cat([corner, -below.mT], 2), torch.cat([-below, other], 2)], 1)


class _RidgeInverse(torch.autograd.Function):
    """(S + r I)^-1 by Cholesky, from and to packed matrices; its gradient is two products, not a way back."""

    @staticmethod
    def forward(ctx: Any, grams: Tensor, ridge: Tensor) -> Tensor:
        matrix = unpack_symmetric(grams)
        matrix.diagonal(dim1=-2, dim2=-1).add_(ridge[..., None])
        inverse = _inverse(matrix, ridge)
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
    """FRN (Eq. 5): ridge = lambda |S|_F, so the reconstruction ignores shot, scale and width."""
    share = parameters["alpha"].exp()
    return ridge_hat_matrix(prototypes, share * _norm(prototypes), share)


def reconstruct_rows(rows: Float[Tensor, "*batch row channel"], parameters: Parameters) -> Vectors:
    """`reconstruct` from the features of the support instead of their mean Gram: S^T (S S^T + r I)^-1 S. Its systems
    are as large as there are features, so it is cheaper where these are few and channels many."""
    s = rows / sqrt(rows.shape[-2])
    small = s @ s.mT
    ridge = parameters["alpha"].exp() * small.flatten(-2).norm(dim=-1).clamp_min(1e-12)
    small.diagonal(dim1=-2, dim2=-1).add_(ridge[..., None])
    half = torch.linalg.solve_triangular(torch.linalg.cholesky(small), s, upper=False)
    return pack_symmetric(half.mT @ half)


def reconstruct_old(prototypes: Prototypes, counts: Counts, parameters: Parameters) -> Prototypes:
    """The original FRN: the mean squared error of the scaled reconstruction, -<(I - rho H)^2, query Gram>.

    Its ridge is lambda n / d for n support features; for a mean of Grams per feature n cancels and lambda / d remains.
    (The original adds 1e-6 once a pool, we once a feature: the law then holds to the last digit.)"""
    eye = _eye_like(prototypes)
    channel = _channel(len(eye))
    ridge = (parameters["alpha"].exp() / channel + 1e-6).expand(prototypes.shape[:-1])
    error = unpack_symmetric(eye - parameters["beta"].exp() * ridge_hat_matrix(prototypes, ridge))
    return pack_symmetric(-error @ error)


def _norm(vectors: Vectors) -> Float[Tensor, "*batch"]:
    return vectors.norm(dim=-1).clamp_min(1e-12)  # blank features: their ridge must still be invertible
