"""The law, its three slots, the heads of the paper, and batch folding.

A class is the mean, over its support images, of one vector per image. Every learner is that law with three slots:

    logits = scale * score(embed(query), refine(mean over the support of embed(image)))

`embed` takes features to a vector, `refine` takes prototypes to prototypes, `score` takes a query and a prototype to a
logit (higher = likelier). A new head is three small functions and a row in HEADS; nothing else has to know of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isqrt, sqrt
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from anyshot.recipe import Recipe

Features = Float[Tensor, "*batch position channel"]
Vectors = Float[Tensor, "*batch d"]
Prototypes = Float[Tensor, "*batch way d"]
Parameters = Mapping[str, Tensor]

# ---------------------------------------------------------------------------------------------------------------- embed


def flatten(features: Features) -> Vectors:
    """All positions side by side: 1600 numbers for Conv-4 at 84x84."""
    return features.flatten(-2)


def mean(features: Features) -> Vectors:
    """Global average pool."""
    return features.mean(-2)


def peak(features: Features) -> Vectors:
    """Global max pool."""
    return features.amax(-2)


def gram(features: Features) -> Vectors:
    """Upper triangle of X^T X / positions, off-diagonal times sqrt 2: an inner product of two such vectors is the trace
    inner product of the matrices (the paper's elementwise product summed, Eq. 5), at half the size."""
    matrix = features.mT @ features / features.shape[-2]
    return pack(matrix)


def pack(matrix: Float[Tensor, "*batch channel channel"]) -> Vectors:
    """A symmetric matrix as a vector with the same inner products; `unpack` undoes it."""
    return _Pack.apply(matrix)


def unpack(vectors: Vectors) -> Float[Tensor, "*batch channel channel"]:
    """The matrix of a packed one."""
    return _Unpack.apply(vectors)


class _Pack(torch.autograd.Function):
    """Packing keeps inner products, so each direction is the other's gradient: gathers both ways, never a scatter."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        triangle = _triangle(matrix.shape[-1], matrix.device)
        return _gather(matrix.flatten(-2), triangle.take).mul_(triangle.weight.to(matrix.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return unpack(gradient)


class _Unpack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        channel = _channel(vectors.shape[-1])
        triangle = _triangle(channel, vectors.device)
        scaled = vectors / triangle.weight.to(vectors.dtype)
        return _gather(scaled, triangle.put).unflatten(-1, (channel, channel))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return pack((gradient + gradient.mT) / 2)


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


_TRIANGLES: dict[tuple[int, torch.device], _Triangle] = {}


def _triangle(channel: int, device: torch.device) -> _Triangle:
    if (channel, device) not in _TRIANGLES:
        row, column = torch.triu_indices(channel, channel, device=device)
        count = torch.arange(len(row), device=device)
        put = torch.empty(channel, channel, dtype=torch.long, device=device)
        put[row, column] = count
        put[column, row] = count
        weight = torch.where(row == column, 1.0, sqrt(2.0))
        _TRIANGLES[channel, device] = _Triangle(row * channel + column, put.flatten(), weight)
    return _TRIANGLES[channel, device]


EMBEDS: dict[str, Callable[[Tensor], Tensor]] = {"flatten": flatten, "mean": mean, "max": peak, "gram": gram}

# --------------------------------------------------------------------------------------------------------------- refine


def attention(prototypes: Prototypes, parameters: Parameters, train: bool) -> Prototypes:
    """FEAT: one-head self-attention over the prototypes of an episode, a linear layer, a residual; no LayerNorm unless
    the recipe asks for it (the paper removes it: it would make both scores nearly cosine)."""
    match, value, bias = _attention_maps(parameters)
    weight = _dropout((prototypes @ match @ prototypes.mT).softmax(-1), 0.1, train)
    return _attended(prototypes, weight @ (prototypes @ value.mT) + bias, parameters, train)


def attention_folds(
    everyone: Float[Tensor, "way d"], others: Float[Tensor, "fold d"], parameters: Parameters, train: bool
) -> Float[Tensor, "fold way d"]:
    """`attention` on the prototypes of every fold: everyone's, but for the one class whose query is left out. What
    folds share is computed once: all of the match but a row and a column, all of the values but one."""
    match, value, bias = _attention_maps(parameters)
    fold = torch.arange(len(others), device=others.device)
    mine = fold // (len(others) // len(everyone))  # the class of each fold's query
    shared, row, column = everyone @ match @ everyone.mT, others @ match @ everyone.mT, others @ match.mT @ everyone.mT
    scores = shared.expand(len(others), -1, -1).clone()
    scores[fold, mine] = row
    scores[fold, :, mine] = column
    scores[fold, mine, mine] = torch.linalg.vecdot(others @ match, others)
    weight = _dropout(scores.softmax(-1), 0.1, train)
    values = everyone @ value.mT
    moved = others @ value.mT - values[mine]
    change = torch.baddbmm(weight @ values + bias, weight[fold, :, mine][..., None], moved[:, None])
    sets = everyone.expand(len(others), -1, -1).clone()
    sets[fold, mine] = others
    return _attended(sets, change, parameters, train)


def _attention_maps(parameters: Parameters) -> tuple[Tensor, Tensor, Tensor]:
    """Query and key are one matrix, value and output another: two products with prototypes instead of four."""
    query, key = parameters["attend_query"], parameters["attend_key"]
    value = parameters["attend_out"] @ parameters["attend_value"]
    return query.mT @ key / sqrt(len(query)), value, parameters["attend_bias"]


def _attended(prototypes: Tensor, change: Tensor, parameters: Parameters, train: bool) -> Tensor:
    refined = prototypes + _dropout(change, 0.5, train)
    if "norm_weight" in parameters:
        refined = F.layer_norm(refined, refined.shape[-1:], parameters["norm_weight"], parameters["norm_bias"])
    return refined


def _dropout(x: Tensor, share: float, train: bool) -> Tensor:
    """Dropout from four random numbers of 16 bits a draw: on a CPU an eighth of the time of torch's own."""
    if not train:
        return x
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
    kept = draws.view(torch.int16)[: x.numel()].view(x.shape) >= round(share * 2**16) - 2**15
    return x * kept.to(x.dtype).mul_(1 / (1 - share))


def attention_parameters(d: int, recipe: Recipe) -> dict[str, Tensor]:
    start = {name: torch.randn(d, d) / sqrt(d) for name in ("attend_query", "attend_key", "attend_value")}
    start["attend_out"] = torch.nn.init.xavier_normal_(torch.empty(d, d))
    start["attend_bias"] = torch.empty(d).uniform_(-1 / sqrt(d), 1 / sqrt(d))
    if recipe.layer_norm:
        start |= {"norm_weight": torch.ones(d), "norm_bias": torch.zeros(d)}
    return start


def hat(grams: Vectors, ridge: Float[Tensor, "*batch"], train: bool = False) -> Vectors:
    """(S + r I)^-1 S = I - r (S + r I)^-1, what reconstructs a query from the support's features; packed."""
    if train:
        inverse = _RidgeInverse.apply(grams, ridge)
        return _eye_like(inverse) - ridge[..., None] * inverse
    eye, size = _eye_like(grams), ridge[..., None]
    inverse = _inverse(unpack(torch.addcmul(grams, size, eye).view(-1, len(eye))))
    return torch.addcmul(eye, size, pack(inverse).view(grams.shape), value=-1)


def _inverse(matrix: Float[Tensor, "batch channel channel"]) -> Float[Tensor, "batch channel channel"]:
    """Of symmetric positive definite matrices, by halves (Schur's complement) down to where a factorisation has little
    to do: a quarter faster at 64 channels, as most of it is products. Not for training: its gradient would be slow."""
    if (channel := matrix.shape[-1]) <= 16:
        return torch.cholesky_inverse(torch.linalg.cholesky(matrix, upper=True), upper=True).mT
    first, last = slice(channel // 2), slice(channel // 2, None)
    corner, side = _inverse(matrix[:, first, first]), matrix[:, last, first]
    across = side @ corner
    other = _inverse(torch.baddbmm(matrix[:, last, last], across, side.mT, alpha=-1))
    below = other @ across
    corner = torch.baddbmm(corner, across.mT, below)
    return torch.cat([torch.cat([corner, -below.mT], 2), torch.cat([-below, other], 2)], 1)


class _RidgeInverse(torch.autograd.Function):
    """(S + r I)^-1 by Cholesky, from and to packed matrices; its gradient is two products, not a way back."""

    @staticmethod
    def forward(ctx: Any, grams: Tensor, ridge: Tensor) -> Tensor:
        matrix = unpack(grams)
        matrix.diagonal(dim1=-2, dim2=-1).add_(ridge[..., None])
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(matrix, upper=True), upper=True)
        ctx.save_for_backward(inverse)
        return pack(inverse.mT)  # LAPACK's matrices lie column by column: this way round, packing needs no copy

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (inverse,) = ctx.saved_tensors
        change = -inverse @ unpack(gradient) @ inverse
        return pack(change), change.diagonal(dim1=-2, dim2=-1).sum(-1)


def _eye_like(packed: Vectors) -> Float[Tensor, " d"]:
    return pack(torch.eye(_channel(packed.shape[-1]), dtype=packed.dtype, device=packed.device))


def reconstruct(prototypes: Prototypes, parameters: Parameters, train: bool) -> Prototypes:
    """FRN (Eq. 5): ridge = lambda |S|_F, so the reconstruction ignores shot, scale and width."""
    return hat(prototypes, parameters["alpha"].exp() * _norm(prototypes), train)


def reconstruct_rows(rows: Float[Tensor, "*batch row channel"], parameters: Parameters) -> Vectors:
    """`reconstruct` from the features of the support instead of their mean Gram: S^T (S S^T + r I)^-1 S. Its systems
    are as large as there are features, so it is cheaper where these are few and channels many."""
    s = rows / sqrt(rows.shape[-2])
    small = s @ s.mT
    ridge = parameters["alpha"].exp() * small.flatten(-2).norm(dim=-1).clamp_min(1e-12)
    small.diagonal(dim1=-2, dim2=-1).add_(ridge[..., None])
    half = torch.linalg.solve_triangular(torch.linalg.cholesky(small), s, upper=False)
    return pack(half.mT @ half)


def reconstruct_old(prototypes: Prototypes, parameters: Parameters, train: bool) -> Prototypes:
    """The original FRN: the mean squared error of the scaled reconstruction, -<(I - rho H)^2, query Gram>.

    Its ridge is lambda n / d for n support features; for a mean of Grams per feature n cancels and lambda / d remains.
    (The original adds 1e-6 once a pool, we once a feature: the law then holds to the last digit.)"""
    eye = _eye_like(prototypes)
    channel = _channel(len(eye))
    ridge = (parameters["alpha"].exp() / channel + 1e-6).expand(prototypes.shape[:-1])
    error = unpack(eye - parameters["beta"].exp() * hat(prototypes, ridge, train))
    return pack(-error @ error)


def _norm(vectors: Vectors) -> Float[Tensor, "*batch"]:
    return vectors.norm(dim=-1).clamp_min(1e-12)  # blank features: their ridge must still be invertible


# ---------------------------------------------------------------------------------------------------------------- score


@dataclass(frozen=True)
class Inner:
    """A score that needs only the inner products of query and prototype (qp) and of each with itself (qq, pp): many
    heads and shots can be answered from one matrix product. `centred`: the score does not change when all vectors move
    together, so it is computed about their centre, where it loses no digits. `norms`: it looks at qq and pp at all."""

    of: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    centred: bool = False
    norms: bool = True

    def __call__(
        self, query: Float[Tensor, "*#batch query d"], prototypes: Float[Tensor, "*#batch way d"]
    ) -> Float[Tensor, "*#batch query way"]:
        query, prototypes = self._about_centre(query, prototypes)
        if not self.norms:
            qp = query @ prototypes.mT
            return self.of(qp, qp, qp, query.shape[-1])
        # The product comes last: gradients are added in the order of operations, and published models depend on it.
        qq, pp = query.square().sum(-1), prototypes.square().sum(-1)
        return self.of(query @ prototypes.mT, qq[..., :, None], pp[..., None, :], query.shape[-1])

    def by_prototype(
        self, query: Float[Tensor, "*#batch query d"], prototypes: Float[Tensor, "*#batch way d"]
    ) -> Float[Tensor, "*#batch way query"]:
        """The same, a row a prototype: the product is faster that way round when prototypes are fewer than queries."""
        query, prototypes = self._about_centre(query, prototypes)
        qp = prototypes @ query.mT
        if not self.norms:
            return self.of(qp, qp, qp, query.shape[-1])
        qq, pp = query.square().sum(-1), prototypes.square().sum(-1)
        return self.of(qp, qq[..., None, :], pp[..., :, None], query.shape[-1])

    def _about_centre(self, query: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
        if not self.centred:
            return query, prototypes
        centre = prototypes.mean(-2, keepdim=True).detach()
        return query - centre, prototypes - centre


def _euclidean(qp: Tensor, qq: Tensor, pp: Tensor, d: int) -> Tensor:
    return (2 * qp - qq - pp) / d


def _cosine(qp: Tensor, qq: Tensor, pp: Tensor, d: int) -> Tensor:
    # A vector of zeros has no direction: the floor makes its cosine 0 and its gradient finite.
    return qp * (qq.clamp_min(1e-24).rsqrt() * pp.clamp_min(1e-24).rsqrt())


def _dot(qp: Tensor, qq: Tensor, pp: Tensor, d: int) -> Tensor:
    return qp


euclidean = Inner(_euclidean, centred=True)  # Eq. 1: -|q - p|^2 / d
cosine = Inner(_cosine)  # Eq. 2
dot = Inner(_dot, norms=False)  # Eq. 5

# ---------------------------------------------------------------------------------------------------------------- heads


def _no_parameters(d: int, recipe: Recipe) -> dict[str, Tensor]:
    return {}


@dataclass(frozen=True)
class Head:
    """Three slots. `embed` is the default of a recipe's own field. `couples`: refining one prototype looks at the other
    classes of the episode; such a head may say with `refine_folds(prototypes, prototypes without the query, ...)` how
    to do it for all folds at once. `refine_rows` refines from the features of the support where that is cheaper than
    from their mean Gram. `parameters(d, recipe)` gives the starting values of what `refine` learns; every
    head also learns a temperature, `scale`."""

    embed: str
    score: Callable[[Tensor, Tensor], Tensor]
    refine: Callable[[Tensor, Parameters, bool], Tensor] | None = None
    parameters: Callable[[int, Recipe], dict[str, Tensor]] = _no_parameters
    couples: bool = False
    refine_folds: Callable[[Tensor, Tensor, Parameters, bool], Tensor] | None = None
    refine_rows: Callable[[Tensor, Parameters], Tensor] | None = None


def _ridge_parameters(d: int, recipe: Recipe) -> dict[str, Tensor]:
    return {"alpha": torch.tensor(recipe.alpha)}


def _old_ridge_parameters(d: int, recipe: Recipe) -> dict[str, Tensor]:
    return {"alpha": torch.tensor(0.0), "beta": torch.tensor(0.0)}


HEADS: dict[str, Head] = {
    "proto": Head("flatten", euclidean),
    "cosine-proto": Head("flatten", cosine),
    "feat": Head("max", euclidean, attention, attention_parameters, True, attention_folds),
    "cosine-feat": Head("max", cosine, attention, attention_parameters, True, attention_folds),
    "frn": Head("gram", dot, reconstruct, _ridge_parameters, refine_rows=reconstruct_rows),
    "frn-old": Head("gram", dot, reconstruct_old, _old_ridge_parameters),
    "cosine-frn": Head("gram", cosine),
}

# ----------------------------------------------------------------------------------------------------------------- fold


def fold(
    head: Head, parameters: Parameters, vectors: Float[Tensor, "way shot d"], train: bool = True
) -> Float[Tensor, "way*shot way"]:
    """Logits of batch folding: every image is a query once; its own class is the mean of the other shot - 1 images,
    every other class the mean of all its shot images. Exact for every head; gradients flow through both roles."""
    way, shot, _ = vectors.shape
    total = vectors.sum(1)
    everyone = total / shot
    others = ((total[:, None] - vectors) / (shot - 1)).flatten(0, 1)  # the own class, without the query
    query = vectors.flatten(0, 1)
    own = torch.eye(way, dtype=torch.bool, device=vectors.device).repeat_interleave(shot, 0)
    refine = head.refine or (lambda prototypes, parameters, train: prototypes)
    if head.couples:  # each fold has its own set of prototypes: refining once would show the query to its own class
        if head.refine_folds is None:
            sets = refine(torch.where(own[..., None], others[:, None], everyone), parameters, train)
        else:
            sets = head.refine_folds(everyone, others, parameters, train)
        return parameters["scale"] * head.score(query[:, None], sets)[:, 0]
    logits = head.score(query, refine(everyone, parameters, train))
    mine = head.score(query[:, None], refine(others, parameters, train)[:, None])[:, 0]
    return parameters["scale"] * torch.where(own, mine, logits)


def contrastive(
    head: Head, parameters: Parameters, vectors: Float[Tensor, "way shot d"]
) -> Float[Tensor, "way*shot way"]:
    """Logits of FEAT's auxiliary term: the images of a class refine each other, and each image should find the mean of
    its own refined class."""
    assert head.refine is not None
    centres = head.refine(vectors, parameters, True).mean(1)
    return parameters["scale"] * head.score(vectors.flatten(0, 1), centres)
