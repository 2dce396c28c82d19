"""One Gaussian model of classes: how images vary about the mean of their class, and class means about a centre.

An image is the mean of its class plus noise of covariance W, and class means lie about a centre with covariance B: the
two-covariance model, or PLDA, of speaker verification (Ioffe 2006; Brümmer and de Villiers 2010). Its score knows how
many images a class was learned from. It is used in two ways:

- The **head** ``posterior`` estimates W from the support alone and takes B = r W (`fit`). In coordinates in which W is
  the identity its score depends on one cosine and on the number of images only (`predict_from_cosine`).
- The **readout** ``posterior`` estimates W and B from base classes (`fit_posterior`), in coordinates in which W is the
  identity and B is diagonal (`predict_class`). The head uses the same estimate where it is given a base that helps.

The derivation, what was measured and where it fails: docs/posterior.md.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import minimize_scalar
from scipy.stats import chi2
from scipy.stats import t as student_t
from torch import Tensor

from anyshot.errors import BadInput
from anyshot.models.law import (
    Counts,
    Estimator,
    Features,
    Head,
    LabelledVectors,
    LeaveOneOut,
    Moments,
    Parameters,
    Prototypes,
    Quadratic,
    euclidean,
)
from anyshot.models.readouts import Readout
from anyshot.recipe import Recipe

Vectors = Float[Tensor, "image d"]
Labels = Int[Tensor, " image"]
Covariance = Float[Tensor, "d d"]


@dataclass(frozen=True)
class Prior:
    """What the head assumes where the support says nothing. Every value was chosen on validation classes.

    docs/log/posterior.md has the table of what halving and doubling each of them changes.
    """

    ridge: float = 1.0
    """Weight of the sphere that W is shrunk to, in images: the squared length of so many average residuals is added
    to the scatter in every direction. From 0.25 to 4 were tried; the support may move it (`RIDGES`)."""
    ratio: float = 0.8
    """Variance between classes over variance within them, r. It counts as much as one more class."""
    dimensions: float = 22.0
    """Independent dimensions of an image, whatever the length of its vector: the factor of the logits where nothing
    can be left out. 18 to 32 were likeliest at one image per class on four sets."""
    doubt: float = 0.5
    """Standard deviation of the logarithm of `ridge` and of `dimensions`, before the support is seen."""
    evidence: float = 3.0
    """Nats by which the support must be predicted better without a base to give it up: a Bayes factor of 20."""


PRIOR = Prior()
RIDGES = (1.0, 0.5, 2.0, 4.0)  # multiples of `Prior.ridge` that are tried: octaves, the prior's own first
LEAST_RATIO, MOST_RATIO = 0.02, 100.0  # numerical bounds of r: no class is without any variation
LEAST_REST = 0.05  # numerical bound of 1 - leverage, where one image or class makes up nearly all of W
PART = 512  # images that are left out at once, which bounds the memory
MOST_COMPARED = 2048  # examples that a ridge is chosen on

quadratic = Quadratic("posterior")


# --------------------------------------------------------------------------------------------------------------- scores


def predict_class(
    prototypes: Prototypes, counts: Counts, parameters: Parameters
) -> Float[Tensor, "*batch way weights"]:
    """Return the weights of a query's numbers, of their squares and of 1, where W = I and B = diag(spread).

    A class of mean m over k images predicts the next image by a normal of mean a m and variance v, dimension by
    dimension: a = k b / (k b + 1), v = 1 + b / (k b + 1). The logit is the logarithm of that density.

    Args:
        prototypes: Class means.
        counts: Images behind each; 0 for a class of which none has been seen.
        parameters: `spread`, the variances b of class means.
    """
    spread = parameters["spread"].clamp_min(1e-9)
    evidence = counts.to(spread.dtype)[..., None] * spread
    a, v = evidence / (evidence + 1), 1 + spread / (evidence + 1)
    linear = a / v * prototypes
    constant = -0.5 * (torch.linalg.vecdot(linear, a * prototypes) + v.log().sum(-1))
    return torch.cat([linear, (-0.5 / v).expand_as(linear), constant[..., None]], -1)


def expected_cosine(counts: Tensor, ratio: Tensor) -> Tensor:
    """Return the correlation of a new image with the mean of so many images of its class, where B = ratio * W."""
    return ratio * (counts / ((1 + ratio) * (1 + ratio * counts))).sqrt()


def log_ratio(cosine: Tensor, expected: Tensor, square: Tensor | float = 1.0) -> Tensor:
    """Return the log-likelihood ratio, per dimension, of one class against a class that has not been seen.

    Two normal vectors of correlation `expected` against two independent ones. `cosine` times the query's length and
    `square`, its squared length, are in units of what is expected of any image.
    """
    rest = 1 - expected**2
    return expected * (cosine - 0.5 * expected * (square + 1)) / rest - 0.5 * rest.log()


def predict_from_cosine(
    prototypes: Prototypes, counts: Counts, parameters: Parameters
) -> Float[Tensor, "*batch way weights"]:
    """Return the weights of `log_ratio` for a transformed query, its squares and 1.

    Args:
        prototypes: Class means, of vectors as they are before `transform`.
        counts: Images behind each; 0 for a class of which none has been seen, whose logit is 0.
        parameters: What `fit` has estimated.
    """
    direction = transform(prototypes, parameters)
    expected = expected_cosine(counts.to(direction.dtype), parameters["ratio"])[..., None]
    linear = expected / (1 - expected**2) * direction
    square = -0.5 * expected**2 / (1 - expected**2)
    constant = square - 0.5 * (1 - expected**2).log()
    return torch.cat([linear, square.expand_as(linear), constant.expand(*linear.shape[:-1], 1)], -1)


def predict(prototypes: Prototypes, counts: Counts, parameters: Parameters) -> Float[Tensor, "*batch way weights"]:
    """Return what the score of the head multiplies a query by, for what its parameters hold."""
    if "whitening" in parameters:
        return predict_from_cosine(prototypes, counts, parameters)
    return predict_class(transform(prototypes, parameters), counts, parameters)


def transform(
    vectors: Float[Tensor, "*batch d"], parameters: Parameters, has_length: bool = False
) -> Float[Tensor, "*batch z"]:
    """Return the coordinates in which W is a multiple of the identity.

    Vectors get length one, the expected length, since how long a vector is tells nothing of its class; `has_length`
    keeps the length, which tells images of no known class. Without anything estimated vectors stay as they are.
    """
    if "whitening" not in parameters:
        return (vectors - parameters["mean"]) @ parameters["matrix"] if "matrix" in parameters else vectors
    inside, basis = vectors, parameters.get("basis")
    if basis is not None:
        inside = vectors @ basis
    z = (inside - parameters["centre"]) @ parameters["whitening"]
    if basis is not None:  # all directions outside the span of the support are alike: one number stands for them
        outside = torch.linalg.vector_norm(vectors - inside @ basis.mT, dim=-1, keepdim=True)
        z = torch.cat([z, outside * parameters["outside"]], -1)
    return z if has_length else unit(z)


def unit(vectors: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Return vectors of length one; a vector of zeros stays one."""
    tiny = torch.finfo(vectors.dtype).tiny
    vectors = vectors / vectors.abs().amax(-1, keepdim=True).clamp_min(tiny)  # squares of huge numbers overflow
    length = vectors.norm(dim=-1, keepdim=True).clamp_min(tiny)
    return vectors / length if vectors.requires_grad else vectors.div_(length)


# --------------------------------------------------------------------------------------------- estimating from moments


def moments_of(vectors: Vectors, owner: Labels) -> Moments:
    """Return the moments of vectors whose classes are counted from 0, in their span where they are fewer than d."""
    if len(vectors) >= vectors.shape[1]:
        return _moments_in(vectors, owner)
    vectors = vectors.double()
    values, turn = torch.linalg.eigh(vectors @ vectors.mT)
    is_spanned = values > len(vectors) * torch.finfo(values.dtype).eps * values.max()
    basis = vectors.mT @ (turn[:, is_spanned] / values[is_spanned].sqrt())
    return replace(_moments_in(vectors @ basis, owner), basis=basis)


def _moments_in(vectors: Vectors, owner: Labels) -> Moments:
    counts = torch.bincount(owner)
    means = vectors.new_zeros(len(counts), vectors.shape[1]).index_add_(0, owner, vectors) / counts[:, None]
    residuals = means[owner]
    torch.sub(vectors, residuals, out=residuals)  # in its place: it is as large as the vectors
    return Moments(counts, means, residuals.mT @ residuals, len(owner) - len(counts))


def fit_moments(moments: Moments, ridge: float = PRIOR.ridge, ratio: float | None = None) -> dict[str, Tensor]:
    """Return the Gaussian model of classes, but for the factor of its logits.

    With residuals R about class means m_c of k_c images, w_c = 1 / (r + 1/k_c) and the centre g, the mean of the m_c
    by these weights,

        W ~ ridge |R|^2 I + sum R R' + sum_c s_c (m_c - g)(m_c - g)',    s_c = w_c / (1 + r k_c)

    The first term is an inverse-Wishart prior about a sphere. The last one is what an EM step adds: the share of a
    class mean that is noise within the class, so that single images tell of W too. r is the variance of the class
    means over W, both as if the images (by generalised cross-validation) and the class had been left out of W. Neither
    W nor r has a closed form without the other: two rounds are enough.

    Args:
        moments: Of unit vectors.
        ridge: Average residuals that the sphere is worth.
        ratio: r to begin with; then one round is enough.
    """
    rounds = (1 if ratio is not None else 2) if moments.degrees_of_freedom and len(moments.counts) > 1 else 0
    ratio = PRIOR.ratio if ratio is None else ratio
    for _ in range(rounds):
        ratio = _estimate(moments, ridge, ratio).updated_ratio
    model = _estimate(moments, ridge, ratio)
    size = (model.variance * (1 + ratio)) ** 0.5  # the expected length of an image about the centre
    parameters = {"centre": model.centre, "whitening": model.root / size}
    numbers = {"ratio": ratio, "size": size, "outside": 1 / (model.floor**0.5 * size)}
    parameters |= {name: model.centre.new_tensor(value) for name, value in numbers.items()}
    return parameters if moments.basis is None else parameters | {"basis": moments.basis}


class _Estimate(NamedTuple):
    """W up to a factor, given r: z = (x - centre) @ root has variance `variance` within classes, summed over z."""

    centre: Float[Tensor, " d"]
    root: Float[Tensor, "d d"]
    floor: float
    variance: float
    updated_ratio: float


def _estimate(moments: Moments, ridge: float, ratio: float) -> _Estimate:
    counts, free, way = moments.counts.to(moments.means.dtype), moments.degrees_of_freedom, len(moments.counts)
    weights = 1 / (ratio + 1 / counts)
    centre = weights @ moments.means / weights.sum()
    apart = moments.means - centre
    between = float(weights @ apart.square().sum(1)) / max(way - 1, 1)
    size = max(float(moments.scatter.trace()) / free if free else between, between / MOST_RATIO, 1e-12)
    share = weights / (1 + ratio * counts)
    floor = ridge * size
    matrix = torch.addmm(moments.scatter, (apart * share[:, None]).mT, apart)
    matrix.diagonal().add_(floor)
    eye = torch.eye(len(matrix), dtype=matrix.dtype)
    inverse = torch.linalg.solve_triangular(torch.linalg.cholesky(matrix), eye, upper=False)
    square = (apart @ inverse.mT).square().sum(1)
    left_out = square / (1 - share * square).clamp_min(LEAST_REST)
    if not free:
        variance = float(weights @ left_out) / max(way - 1, 1)
        return _Estimate(centre, inverse.mT, floor, max(variance, 1e-6), ratio)
    inside = max(len(matrix) - floor * float(inverse.square().sum()) - float(share @ square), 0.0) / free
    variance = max(inside / max(1 - inside, LEAST_REST), 1e-6)
    seen = left_out / variance * way / max(way - 1, 1) - 1 / counts
    mean = float(weights.square() @ seen / weights.square().sum())
    updated = (PRIOR.ratio + (way - 1) * mean) / way
    return _Estimate(centre, inverse.mT, floor, variance, min(max(updated, LEAST_RATIO), MOST_RATIO))


# ---------------------------------------------------------------------------------------------------------- leaving out


def leave_one_out(moments: Moments, examples: LabelledVectors, parameters: Parameters) -> LeaveOneOut:
    """Return logits of examples as new images: each left out, with its group, of its class mean and of W.

    The centre, r and the size of W stay. Exact, by a change of low rank (Woodbury). An example is asked where its
    class has an image outside of its group.

    Args:
        moments: Of all images.
        examples: All images, or some of them; those of a group are left out together, within their class.
        parameters: What `fit` has estimated.
    """
    groups = _by_size(moments.counts, examples)
    if not groups:
        nothing = torch.zeros(0, len(moments.counts), dtype=moments.means.dtype)
        return LeaveOneOut(nothing, nothing, torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))
    leave_out = _leave_out_of_w if "whitening" in parameters else _leave_out_of_means
    full = moments.means if moments.basis is None else moments.means @ moments.basis.mT
    means = transform(full, parameters, has_length=True)
    parts, images = [], []
    for rows in groups:
        many = max(1, PART // rows.shape[1])
        for here in rows.split(many):
            vectors = examples.vectors[here.flatten()].to(means.dtype)
            z = transform(vectors, parameters, has_length=True)
            parts.append(leave_out(z.unflatten(0, here.shape), examples.owner[here[:, 0]], means, moments, parameters))
            images.append(here.flatten())
    order = torch.cat(images).argsort()
    logits, evidence = (float(parameters["scale"]) * torch.cat(part)[order] for part in zip(*parts, strict=True))
    image = torch.cat(images)[order]
    return LeaveOneOut(logits, evidence, examples.owner[image], image)


def _by_size(counts: Int[Tensor, " way"], examples: LabelledVectors) -> list[Int[Tensor, "group member"]]:
    """Return the groups of examples that leave something of their class, those of one size together."""
    owner = examples.owner
    if examples.groups is None:
        rows = torch.nonzero(counts[owner] > 1)
        return [rows] if len(rows) else []
    _, group, sizes = torch.stack([owner, examples.groups]).unique(dim=1, return_inverse=True, return_counts=True)
    is_asked = counts[owner] > sizes[group]
    order = group.argsort(stable=True)
    order = order[is_asked[order]]
    each = sizes[group[order]]
    return [order[each == size].unflatten(0, (-1, int(size))) for size in each.unique()]


def _leave_out_of_w(
    z: Float[Tensor, "group member z"],
    owner: Int[Tensor, " group"],
    means: Float[Tensor, "way z"],
    moments: Moments,
    parameters: Parameters,
) -> tuple[Float[Tensor, "image way"], Float[Tensor, "image way"]]:
    """Log-ratios on the sphere and at full length, each group left out of its class mean and of W.

    With residuals e_i of a group of j and the class mean m about the centre, the matrix of W loses U' K U, where the
    rows of U are e_1 ... e_j and m. So inner products grow: <x, y> + (U x)' (I - K H)^-1 K (U y), H = U U'.
    """
    many, ratio, size2 = z.shape[1], parameters["ratio"], parameters["size"] ** 2
    counts = moments.counts.to(z.dtype)
    before, left = counts[owner], counts[owner] - many
    mean = means[owner][:, None]
    residuals = z - mean
    rows = torch.cat([residuals, mean], 1)

    def share(k: Tensor) -> Tensor:
        return 1 / ((ratio + 1 / k) * (1 + ratio * k))

    change = torch.eye(many + 1, dtype=z.dtype).repeat(len(z), 1, 1)
    change[:, :many, :many] += 1 / left[:, None, None]
    change[:, many, many] = share(before)
    moved = torch.cat([-torch.ones(len(z), many, dtype=z.dtype) / left[:, None], torch.ones(len(z), 1).to(z)], 1)
    change -= share(left)[:, None, None] * moved[:, :, None] * moved[:, None, :]
    change = change * size2  # rows are in units of the expected length
    eye = torch.eye(many + 1, dtype=z.dtype)
    middle = torch.linalg.solve(eye - change @ (rows @ rows.mT), change)

    own = moved[:, None] @ rows
    along_query, along_mean, along_own = z @ rows.mT, means @ rows.mT, own @ rows.mT
    query = z.square().sum(2) + ((along_query @ middle) * along_query).sum(2)
    square = means.square().sum(1) + ((along_mean @ middle) * along_mean).sum(2)
    inner = z @ means.mT + along_query @ middle @ along_mean.mT
    own_square = own.square().sum(2) + ((along_own @ middle) * along_own).sum(2)
    own_inner = (z @ own.mT + along_query @ middle @ along_own.mT)[..., 0]

    mine = torch.nn.functional.one_hot(owner, len(counts)).bool()[:, None]
    square = torch.where(mine, own_square[..., None], square[:, None])
    inner = torch.where(mine, own_inner[..., None], inner)
    tiny = torch.finfo(z.dtype).tiny
    projected = inner / square.clamp_min(tiny).sqrt()  # the cosine times the query's length
    expected = expected_cosine(torch.where(mine[:, 0], left[:, None], counts), ratio)[:, None]
    query = query[..., None].clamp_min(tiny)
    on_sphere = log_ratio(projected / query.sqrt(), expected)
    return on_sphere.flatten(0, 1), log_ratio(projected, expected, query).flatten(0, 1)


def _leave_out_of_means(
    z: Float[Tensor, "group member z"],
    owner: Int[Tensor, " group"],
    means: Float[Tensor, "way z"],
    moments: Moments,
    parameters: Parameters,
) -> tuple[Float[Tensor, "image way"], Float[Tensor, "image way"]]:
    """Scores, and scores over those of a new class, each group left out of its class mean: W is of other classes."""
    left = moments.counts[owner] - z.shape[1]
    mine = means[owner] - (z - means[owner][:, None]).sum(1) / left[:, None]
    query, classes = z.flatten(0, 1), owner.repeat_interleave(z.shape[1])
    scores = quadratic(query, predict_class(means, moments.counts, parameters))
    own = predict_class(mine, left, parameters).repeat_interleave(z.shape[1], 0)
    scores[torch.arange(len(query)), classes] = quadratic(query[:, None], own[:, None])[:, 0, 0]
    nothing = predict_class(torch.zeros_like(means[:1]), torch.zeros_like(left[:1]), parameters)
    return scores, scores - quadratic(query, nothing)


# ------------------------------------------------------------------------------------------------ fitting to a support


def fit(moments: Moments, examples: LabelledVectors, base: Parameters | None = None) -> dict[str, Tensor]:
    """Return what the head estimates from a support: the model, and `scale`, the factor of its logits.

    The ridge and the factor are the likeliest of the examples, each left out with its group. A base is used where it
    helped its own classes, the support lies where its classes lie, and the support is not predicted better without it.

    Args:
        moments: Of the unit vectors of all images.
        examples: Unit vectors that are part of the support, all of them or some of each class.
        base: What `fit_base` returned for other classes.
    """
    fewer = examples.first(MOST_COMPARED)
    own, loss = _fit_own(moments, fewer)
    if base is None or not bool(base["helps"]) or is_foreign(moments, base):
        return own
    based, loss_with = _with_scale({name: base[name] for name in ("mean", "matrix", "spread")}, moments, fewer)
    return own if loss_with - loss > PRIOR.evidence else based


def _fit_own(moments: Moments, examples: LabelledVectors) -> tuple[dict[str, Tensor], float]:
    """Return the model of the support alone, with the likeliest ridge and factor, and its loss (`_with_scale`)."""
    inside = moments
    if moments.basis is not None:  # the examples have no part outside of their span
        vectors = examples.vectors.to(moments.basis.dtype) @ moments.basis
        inside, examples = replace(moments, basis=None), replace(examples, vectors=vectors)
    model, loss = _with_scale(fit_moments(inside, PRIOR.ridge), inside, examples)
    if can_calibrate(moments.counts, examples):
        for times in RIDGES[1:]:
            doubt = 0.5 * (np.log(times) / PRIOR.doubt) ** 2
            started = fit_moments(inside, times * PRIOR.ridge, float(model["ratio"]))
            other, other_loss = _with_scale(started, inside, examples)
            if other_loss + doubt < loss:
                model, loss = other, other_loss + doubt
    return (model if moments.basis is None else model | {"basis": moments.basis}), loss


def can_calibrate(counts: Int[Tensor, " way"], examples: LabelledVectors) -> bool:
    """Return whether at least two classes have images that can be left out."""
    asked = [examples.owner[rows[:, 0]] for rows in _by_size(counts, examples)]
    return len(asked) > 0 and len(torch.cat(asked).unique()) > 1


def _with_scale(
    model: dict[str, Tensor], moments: Moments, examples: LabelledVectors
) -> tuple[dict[str, Tensor], float]:
    """Return the model with its likeliest factor, and minus the log-likelihood (in nats) at it, prior included.

    Every class weighs the same, and only classes of which images can be left out are answers: single images are
    never right, and would favour common classes.
    """
    expected = PRIOR.dimensions if "whitening" in model else PRIOR.dimensions / len(model["spread"])
    expected = min(expected, 1.0) if "spread" in model else expected
    if not can_calibrate(moments.counts, examples):
        return model | {"scale": moments.means.new_tensor(expected)}, 0.0
    left_out = leave_one_out(moments, examples, model | {"scale": moments.means.new_tensor(1.0)})
    asked, owner = left_out.owner.unique(return_inverse=True)
    scores, owner = left_out.logits[:, asked].numpy(), owner.numpy()
    weights = 1 / np.bincount(owner)[owner]
    weights *= len(weights) / weights.sum()

    def loss(log: float) -> float:
        losses = log_losses(expected * np.exp(log), scores, owner)
        return float(weights @ losses) + 0.5 * (log / PRIOR.doubt) ** 2

    best = minimize_scalar(loss, bounds=(-5.0, 5.0), method="bounded")
    return model | {"scale": moments.means.new_tensor(expected * np.exp(best.x))}, float(best.fun)


def log_losses(
    factor: float, scores: Float[np.ndarray, "image way"], owner: Int[np.ndarray, " image"]
) -> Float[np.ndarray, " image"]:
    """Return minus the log-probability of each image's class, for the logits factor * scores."""
    losses = np.empty(len(scores))
    for start in range(0, len(scores), PART):
        here = slice(start, start + PART)
        z = scores[here] - scores[here].max(1, keepdims=True)
        z *= factor
        mine = z[np.arange(len(z)), owner[here]]
        losses[here] = np.log(np.exp(z, out=z).sum(1)) - mine
    return losses


# ---------------------------------------------------------------------------------------------------------- with a base


def fit_base(vectors: Vectors, labels: Labels) -> dict[str, Tensor]:
    """Return W and B of other classes, their means, and whether they help to tell apart classes of their kind.

    They help where W and B of one half of them tell single images of the other half apart better than the support
    alone does, beyond the 95 % interval over classes. Fewer than eight classes are too few to tell.

    Args:
        vectors: Unit vectors of the base's images.
        labels: Their classes.
    """
    vectors = unit(vectors.double())
    owner = labels.unique(return_inverse=True)[1]
    counts = torch.bincount(owner)
    several = counts > 1
    keep = several[owner]
    vectors, owner = vectors[keep], owner[keep].unique(return_inverse=True)[1]
    many = int(several.sum())
    if many < 2 * FOLDS:
        return {"helps": torch.tensor(0.0, dtype=torch.float64)}
    gains = torch.cat([_gain(vectors, owner, odd) for odd in (0, 1)])
    half_width = float(student_t.ppf(0.975, len(gains) - 1)) * float(gains.std()) / len(gains) ** 0.5
    moments = _class_moments(vectors, owner, many)
    fitted = diagonalise(moments, *_choose_shrinkage(vectors, owner, many))
    helps = torch.tensor(float(gains.mean() > half_width), dtype=torch.float64)
    return {**fitted, "counts": moments.counts, "means": moments.means, "helps": helps}


def _gain(vectors: Vectors, owner: Labels, odd: int) -> Float[Tensor, " class_"]:
    """Return by how much, class by class, the other half of the classes improves the accuracy with single images."""
    mine = owner % 2 == odd
    u, classes = vectors[~mine], owner[~mine] // 2
    many = int(classes.max()) + 1
    base = diagonalise(_class_moments(u, classes, many), *_choose_shrinkage(u, classes, many))
    u, classes = vectors[mine], owner[mine] // 2
    counts = torch.bincount(classes)
    order = classes.argsort(stable=True)
    first = counts.cumsum(0) - counts
    gains = torch.zeros(len(counts), dtype=u.dtype)
    for turn in range(TURNS):
        single = order[first + turn % counts]
        asked = torch.ones(len(u), dtype=torch.bool)
        asked[single] = False
        query, answer = u[asked], classes[asked]
        ones = torch.ones(len(counts), dtype=torch.long)
        own = fit_moments(moments_of(u[single], torch.arange(len(counts))))
        right = [
            quadratic(transform(query, model), predict(u[single], ones, model)).argmax(1) == answer
            for model in (base, own)
        ]
        gains += torch.bincount(answer, right[0].to(u) - right[1].to(u), len(counts)) / (counts - 1) / TURNS
    return gains


def is_foreign(moments: Moments, base: Parameters) -> bool:
    """Return whether a support lies where classes of the base's kind would hardly lie.

    The mean of the support's class means lies about that of the base with a variance that B and the noise of the means
    give it. Beyond the 95 % quantile of chi-squared, of as many dimensions as are assumed to be independent, it is
    foreign.
    """
    return foreign_distance(moments, base) > float(chi2.ppf(0.95, PRIOR.dimensions)) / PRIOR.dimensions


def foreign_distance(moments: Moments, base: Parameters) -> float:
    """Return the squared distance of the two centres over its expectation, in the mean over directions."""
    full = moments.means if moments.basis is None else moments.means @ moments.basis.mT
    counts = moments.counts.to(full.dtype)
    z, noise, others = transform(full, base).mean(0), (1 / counts).mean(), (1 / base["counts"]).mean()
    expected = (base["spread"] + noise) / len(counts) + (base["spread"] + others) / len(base["counts"])
    return float((z.square() / expected).mean())


def read_base(tensors: Parameters) -> Parameters:
    """Return a base from saved tensors, also from those of before, which hold its scatter within classes."""
    if "scatter" not in tensors:
        return tensors
    _, freedom, *gain = tensors["numbers"].tolist()
    counts, means = tensors["counts"].double(), tensors["means"]
    fitted = diagonalise(_ClassMoments(counts, means, tensors["scatter"] / max(freedom, 1)), *DEFAULT_SHRINKAGE)
    helps = torch.tensor(float(len(counts) >= 2 * FOLDS and (not gain or gain[0] > 0)), dtype=torch.float64)
    return {**fitted, "counts": counts, "means": means, "helps": helps}


# ---------------------------------------------------------------------------------------------------------- the readout

LEAST_SPREAD = 1e-3  # of classes in a direction, in units of the spread within a class
# How far W and B are shrunk to multiples of the identity: what is tried, from what many base classes allow to few.
SHRINKAGES = ((0.3, 0.05), (0.5, 0.1), (0.7, 0.1), (0.7, 0.3), (0.9, 0.7))
DEFAULT_SHRINKAGE = (
    0.5,
    0.1,
)  # where none is chosen: the best single pair for trained models
FOLDS = 4  # parts of the base classes, each of which is told apart with what the others say
TURNS = 8  # images of a base class that are, in turn, its only one
DIRECTIONS = 320  # random directions that long vectors are seen in while the shrinkage is chosen
TRIED_SHOTS = ((1, 1), (4, 4), (16, 16), (1, 16))  # of the one and the other half of the classes


class _ClassMoments(NamedTuple):
    """Of unit vectors by class: counts, means, and the pooled covariance within classes."""

    counts: Float[Tensor, " class_"]
    means: Float[Tensor, "class_ d"]
    within: Covariance


def whiten(vectors: Float[Tensor, "*batch d"], fitted: Parameters) -> Float[Tensor, "*batch d"]:
    """Return the coordinates z of the readout: unit vectors about the base's centre, in the fitted directions."""
    return (unit(vectors - fitted["centre"]) - fitted["mean"]) @ fitted["matrix"]


def fit_posterior(vectors: Vectors, labels: Labels) -> dict[str, Tensor]:
    """Return W and B of base classes; how far they are shrunk is chosen by splitting these classes.

    Raises:
        BadInput: There are fewer than eight base classes, or one of them has a single image.
    """
    classes = labels.unique(return_inverse=True)[1]
    x = vectors.double()
    centre = x.mean(0)
    u = unit(x - centre)
    many = int(classes.max()) + 1
    counts = torch.bincount(classes)
    if many < 2 * FOLDS or int(counts.min()) < 2:
        raise BadInput(
            f"the posterior is fitted on at least {2 * FOLDS} base classes of two images or more; there are {many}, "
            f"the smallest of {int(counts.min())}."
        )
    fitted = diagonalise(_class_moments(u, classes, many), *_choose_shrinkage(u, classes, many))
    return {"centre": centre.to(vectors.dtype), **{name: value.to(vectors.dtype) for name, value in fitted.items()}}


def _class_moments(u: Vectors, classes: Labels, many: int) -> _ClassMoments:
    counts = torch.bincount(classes, minlength=many).to(u)
    means = torch.zeros(many, u.shape[1], dtype=u.dtype).index_add_(0, classes, u) / counts[:, None]
    residuals = u - means[classes]
    return _ClassMoments(counts, means, residuals.mT @ residuals / (counts - 1).sum())


def diagonalise(moments: _ClassMoments, shrink_within: float, shrink_between: float) -> dict[str, Tensor]:
    """Return coordinates in which W is the identity and B diagonal, both shrunk to multiples of the identity."""
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
    """Return the shrinkage that tells a quarter of the classes apart best, fitted on the others, four times over.

    The classes of the test have no part in it. Long vectors are seen in some random directions only: these keep the
    mean variance, which is what both covariances are shrunk to.
    """
    if u.shape[1] > DIRECTIONS:
        chance = torch.Generator().manual_seed(0)
        u = u @ torch.linalg.qr(torch.randn(u.shape[1], DIRECTIONS, generator=chance, dtype=u.dtype))[0]
    folds = [_split(u, classes, many, fold) for fold in range(FOLDS)]
    return max(SHRINKAGES, key=lambda shrinkage: sum(_accuracy(*fold, shrinkage) for fold in folds))


def _split(
    u: Vectors, classes: Labels, many: int, fold: int
) -> tuple[_ClassMoments, Float[Tensor, "held d"], Int[Tensor, " held"]]:
    """Return the moments of most classes, and the images of the others, class by class, with their classes."""
    out = torch.arange(many) % FOLDS == fold
    place = torch.where(out, out.cumsum(0), (~out).cumsum(0)) - 1
    held = out[classes]
    order = classes[held].argsort(stable=True)
    learned = _class_moments(u[~held], place[classes[~held]], int((~out).sum()))
    return learned, u[held][order], place[classes[held]][order]


def _accuracy(learned: _ClassMoments, others: Vectors, theirs: Labels, shrinkage: tuple[float, float]) -> float:
    """Return how many images of the second half of each class are told apart, given some of the first half."""
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
    """Return the head that reads the fitted coordinates in place of another."""
    return replace(
        head,
        refine=predict_class,
        score=quadratic,
        couples=False,
        refine_folds=None,
        refine_rows=None,
        has_onnx=True,
        estimator=None,
    )


POSTERIOR = Readout(fit_posterior, whiten, as_posterior)


# ------------------------------------------------------------------------------------------------------------ the heads


def unit_vectors(features: Features, parameters: Parameters) -> Float[Tensor, "*batch d"]:
    """Return all positions side by side, as a vector of length one."""
    return unit(features.flatten(-2))


def long_units(features: Features, parameters: Parameters) -> Float[Tensor, "*batch d"]:
    """Return all positions side by side, d numbers of length sqrt(d).

    A Euclidean score, which is divided by d, so sees the distance of vectors of length one.
    """
    vectors = features.flatten(-2)
    return unit(vectors) * vectors.shape[-1] ** 0.5


def _assumed(features: Features, recipe: Recipe) -> dict[str, Tensor]:
    """Before there is a support: as if W were the identity and B so many times it."""
    return {"spread": torch.full((features[0].numel(),), PRIOR.ratio)}


POSTERIOR_HEAD = Head(
    unit_vectors,
    quadratic,
    predict,
    _assumed,
    alternative_to="proto",
    estimator=Estimator(fit, transform, leave_one_out, fit_base, can_calibrate, moments_of),
)
# A model to be read with the posterior: trained on what the posterior looks at, the distance between unit vectors.
UNIT_PROTO = Head(long_units, euclidean, alternative_to="proto")
