"""The posterior: a score that knows how many images a class was learned from.

The mean of k images lies about its class's true mean with variance W / k. Model both kinds of variation, between
classes (B) and within a class (W), both normal, and the score of a query follows with k in it: the two-covariance
model, or PLDA, of speaker verification. In coordinates z in which W is the identity and B is diagonal, b, a class of
mean m over k images predicts a query by a normal of mean a m and variance v, dimension by dimension:

    a = k b / (k b + 1),   v = 1 + b / (k b + 1)
    logit = sum over dimensions of  z a m / v  -  z^2 / (2 v)  -  (a m)^2 / (2 v)  -  log(v) / 2

For k to infinity this is LDA with the base's covariance; with W = I and B large it is the Euclidean score
(docs/posterior.md).
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyshot.errors import BadInput
from anyshot.models.law import Counts, Head, Parameters, Prototypes, QuadraticScore, normalize
from anyshot.models.readouts import Readout

Vectors = Float[Tensor, "image d"]
Labels = Int[Tensor, " image"]
Covariance = Float[Tensor, "d d"]

LEAST_SPREAD = 1e-3  # of classes in a direction, in units of the spread within a class
# How far W and B are shrunk to multiples of the identity: what is tried, from what many base classes allow to few.
SHRINKAGES = ((0.3, 0.05), (0.5, 0.1), (0.7, 0.1), (0.7, 0.3), (0.9, 0.7))
FOLDS = 4
DIRECTIONS = 320
TRIED_SHOTS = ((1, 1), (4, 4), (16, 16), (1, 16))  # of the one and the other half of the classes

quadratic = QuadraticScore("posterior")


def predict_class(
    prototypes: Prototypes, counts: Counts, parameters: Parameters
) -> Float[Tensor, "*batch way weights"]:
    """What z, z^2 and 1 of a query are multiplied by: (a m / v, -1 / 2v, -1/2 sum of (a m)^2 / v + log v)."""
    spread = parameters["spread"].clamp_min(1e-9)
    evidence = counts.to(spread.dtype)[..., None] * spread
    a, v = evidence / (evidence + 1), 1 + spread / (evidence + 1)
    linear = a / v * prototypes
    constant = -0.5 * (torch.linalg.vecdot(linear, a * prototypes) + v.log().sum(-1))
    return torch.cat([linear, (-0.5 / v).expand_as(linear), constant[..., None]], -1)


def whiten(vectors: Float[Tensor, "*batch d"], fitted: Parameters) -> Float[Tensor, "*batch d"]:
    """The coordinates z: unit vectors about the base's centre, in the directions that were fitted."""
    return (normalize(vectors - fitted["centre"]) - fitted["mean"]) @ fitted["matrix"]


class _Moments(NamedTuple):
    """Of unit vectors by class: counts, means, and the pooled covariance within classes."""

    counts: Float[Tensor, " class_"]
    means: Float[Tensor, "class_ d"]
    within: Covariance


def fit_posterior(vectors: Vectors, labels: Labels) -> dict[str, Tensor]:
    """W, B and what follows from them, of base classes; how far to shrink is chosen by splitting these classes."""
    classes = labels.unique(return_inverse=True)[1]
    x = vectors.double()
    centre = x.mean(0)
    u = normalize(x - centre)
    many = int(classes.max()) + 1
    counts = torch.bincount(classes)
    if many < 2 * FOLDS or int(counts.min()) < 2:
        raise BadInput(
            f"the posterior is fitted on at least {2 * FOLDS} base classes of two images or more; there are {many}, "
            f"the smallest of {int(counts.min())}."
        )
    fitted = diagonalise(_moments(u, classes, many), *_choose_shrinkage(u, classes, many))
    return {"centre": centre.to(vectors.dtype), **{name: value.to(vectors.dtype) for name, value in fitted.items()}}


def _moments(u: Vectors, classes: Labels, many: int) -> _Moments:
    counts = torch.bincount(classes, minlength=many).to(u)
    means = torch.zeros(many, u.shape[1], dtype=u.dtype).index_add_(0, classes, u) / counts[:, None]
    inside = u - means[classes]
    return _Moments(counts, means, inside.mT @ inside / (counts - 1).sum())


def diagonalise(moments: _Moments, shrink_within: float, shrink_between: float) -> dict[str, Tensor]:
    """The coordinates in which W is the identity and B diagonal, both shrunk to multiples of the identity."""
    counts, means, within = moments
    between = torch.cov(means.mT) - within * (1 / counts).mean()
    factor = torch.linalg.cholesky(_shrunk(within, shrink_within))
    half = torch.linalg.solve_triangular(factor, _shrunk(between, shrink_between), upper=False)
    spread, turn = torch.linalg.eigh(torch.linalg.solve_triangular(factor, half.mT, upper=False))
    matrix = torch.linalg.solve_triangular(factor.mT, turn, upper=True)
    return {"mean": means.mean(0), "matrix": matrix, "spread": spread.clamp_min(LEAST_SPREAD)}


def _shrunk(covariance: Covariance, share: float) -> Covariance:
    size = (covariance.trace() / len(covariance)).clamp_min(torch.finfo(covariance.dtype).tiny)
    return (1 - share) * covariance + share * size * torch.eye(len(covariance), dtype=covariance.dtype)


def _choose_shrinkage(u: Vectors, classes: Labels, many: int) -> tuple[float, float]:
    """Fit on three quarters of the classes, tell the others apart from few images of each, and so four times: the
    shrinkage that does it best. The classes that it will be tested on have no part in it.

    Long vectors are looked at in some random directions only: these keep the mean variance, which is what both
    covariances are shrunk to."""
    if u.shape[1] > DIRECTIONS:
        chance = torch.Generator().manual_seed(0)
        u = u @ torch.linalg.qr(torch.randn(u.shape[1], DIRECTIONS, generator=chance, dtype=u.dtype))[0]
    folds = [_split(u, classes, many, fold) for fold in range(FOLDS)]
    return max(SHRINKAGES, key=lambda shrinkage: sum(_accuracy(*fold, shrinkage) for fold in folds))


def _split(
    u: Vectors, classes: Labels, many: int, fold: int
) -> tuple[_Moments, Float[Tensor, "held d"], Int[Tensor, " held"]]:
    """The moments of most classes; the images of the others, class by class, with their classes counted from 0."""
    out = torch.arange(many) % FOLDS == fold
    place = torch.where(out, out.cumsum(0), (~out).cumsum(0)) - 1
    held = out[classes]
    order = classes[held].argsort(stable=True)
    learned = _moments(u[~held], place[classes[~held]], int((~out).sum()))
    return learned, u[held][order], place[classes[held]][order]


def _accuracy(learned: _Moments, others: Vectors, theirs: Labels, shrinkage: tuple[float, float]) -> float:
    """How many images of the second half of each class are told apart, given some of the first."""
    fitted = diagonalise(learned, *shrinkage)
    z = (others - fitted["mean"]) @ fitted["matrix"]
    counts = torch.bincount(theirs)
    rank = torch.arange(len(theirs)) - (counts.cumsum(0) - counts)[theirs]
    query = rank >= counts[theirs] // 2
    right = 0.0
    for few, more in TRIED_SHOTS:
        here = ~query & (rank < torch.where(theirs % 2 == 0, few, more))
        support = torch.bincount(theirs[here], minlength=len(counts)).clamp_min(1)
        sums = torch.zeros(len(counts), z.shape[1], dtype=z.dtype).index_add_(0, theirs[here], z[here])
        weights = predict_class(sums / support[:, None], support, fitted)
        right += float((quadratic(z[query], weights).argmax(1) == theirs[query]).double().mean())
    return right


def as_posterior(head: Head) -> Head | None:
    """The head that reads the fitted coordinates in place of another."""
    return replace(
        head,
        refine=predict_class,
        score=quadratic,
        couples=False,
        refine_folds=None,
        refine_rows=None,
        has_onnx=True,
        adapts=False,
    )


POSTERIOR = Readout(fit_posterior, whiten, as_posterior)
