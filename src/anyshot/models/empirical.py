"""The posterior without training: the data at hand say how images vary, and how far other classes can be trusted.

An image's unit vector u is the mean of its class plus noise of covariance W; the means of classes lie about a centre
with covariance B (`posterior`). Both are estimated in closed form from sums over images, so that data may come in any
order and in parts, and merge exactly:

- from the support alone (`fit_support`): W of the classes of two images or more, shrunk to the identity, and
  B = r W. A rare class learns from the common ones what its images may look like.
- with a base of other classes (`fit_base`, `two_covariances`): W of base and support, B of the base.

`adapt` decides: a base is used if the support lies where the base's own classes lie (`is_foreign`), unless the support,
image by image, is predicted clearly better without it. Only that choice and the scale of the logits look at single
images, each left out of its class, of the centre and of W.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import minimize_scalar
from torch import Tensor

from anyshot.models.law import Features, Head, Parameters, Vectors, normalize
from anyshot.models.posterior import predict_class, quadratic
from anyshot.recipe import Recipe

# What is assumed where the data say nothing; chosen on validation classes of CUB and mini-ImageNet and on groceries.
DIMENSIONS = 32.0  # independent dimensions of an image, whatever the length of its vector: 12 to 60 were seen
DOUBT = 0.5  # standard deviation of the logarithm of that number
RATIO = 0.8  # variation between classes over that within them, in the directions that tell classes apart
UNDERSTATED = 2.0  # that ratio over its mean in all directions, most of which tell nothing apart
LEAST_RATIO, MOST_RATIO = 0.02, 100.0
SHRINK_SUPPORT = 0.8  # of the way to the identity that the estimated shrinkage leaves, where images are few
SHRINK_IMAGES = 800  # images of a support that make it half of that
SHRINK_BASE = 0.5
FOREIGN = 0.03  # a base is foreign where the support's centre is off by so much of the variance of class means
CHANCE = 1.4  # beyond so many times what chance makes of it
AWAY = 1.645  # or is less like the base's centre than 95 % of the centres of the base's kind
AWAY_OF_LITTLE_USE = 0.842  # 80 % where a base brings its own kind little: a mistake would cost more than it gains
LITTLE_USE = 0.04  # share of single images that it tells apart and a cosine does not
EVIDENCE = 3.0  # nats by which the support must be predicted better without its base: a Bayes factor of 20
PART = 512  # examples that are left out together: what is made of them on the way takes several times their memory

# Vectors, their classes and, where some belong together, their groups (counted from 0, none of two classes).
Examples = (
    tuple[Float[Tensor, "image d"], Int[Tensor, " image"]]
    | tuple[Float[Tensor, "image d"], Int[Tensor, " image"], Int[Tensor, " image"]]
)


# ----------------------------------------------------------------------------------------------------------------- sums


@dataclass(frozen=True)
class Moments:
    """What is known of some classes: counts, means, and the scatter within classes with its degrees of freedom."""

    counts: Int[Tensor, " way"]
    means: Float[Tensor, "way d"]
    scatter: Float[Tensor, "d d"]
    """Sum over images of (u - mean of its class)(u - mean of its class)'."""
    freedom: int
    """How many images tell of the variation within classes: all but one of each class."""

    @property
    def centre(self) -> Float[Tensor, " d"]:
        """The mean of the class means: common classes count no more than rare ones."""
        return self.means.mean(0)

    @property
    def noise(self) -> float:
        """The share of W in the covariance of the class means: the mean of 1 / count."""
        return float((1 / self.counts.double()).mean())

    @property
    def within(self) -> Float[Tensor, "d d"]:
        """The pooled covariance within classes (zero where no class has two images)."""
        return self.scatter / max(self.freedom, 1)

    @property
    def between(self) -> float:
        """The variance of the class means about their centre, summed over dimensions. It includes `noise` times W."""
        return float((self.means - self.centre).square().sum()) / max(len(self.means) - 1, 1)


def moments_of(vectors: Float[Tensor, "image d"], owner: Int[Tensor, " image"]) -> Moments:
    """Moments of unit vectors whose classes are counted from 0."""
    counts = torch.bincount(owner)
    means = vectors.new_zeros(len(counts), vectors.shape[1]).index_add_(0, owner, vectors) / counts[:, None]
    inside = means[owner]
    torch.sub(vectors, inside, out=inside)  # in its place: it is as large as the vectors
    return Moments(counts, means, inside.mT @ inside, len(owner) - len(counts))


@dataclass(frozen=True)
class Fit:
    """What is estimated: z = (u - mean) @ matrix varies by 1 within classes and by `spread` between them."""

    mean: Float[Tensor, " d"]
    matrix: Float[Tensor, "d d"]
    spread: Float[Tensor, " d"]
    scale: float
    """Turns the log-likelihood of d dimensions, as if they were independent, into that of as many as there are."""
    share: float | None = None
    """The part that a residual of the support has in W, in z, where W and the mean are the support's own."""

    def coordinates(self, vectors: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """z of unit vectors, or the mean z of a class from the mean of its unit vectors."""
        return (vectors - self.mean) @ self.matrix

    def logits(
        self, query: Float[Tensor, "image d"], means: Float[Tensor, "way d"], counts: Int[Tensor, " way"]
    ) -> Float[Tensor, "image way"]:
        """Logits of queries for classes of so many images, given in the coordinates; a count of 0 is a new class."""
        return self.scale * quadratic(query, predict_class(means, counts, {"spread": self.spread}))

    def new_class(self, query: Float[Tensor, "image d"]) -> Float[Tensor, " image"]:
        """The logit of a class of which no image has been seen; the best logit less this one is the (tempered)
        log-likelihood ratio against "none of these"."""
        return self.logits(query, torch.zeros_like(self.mean)[None], torch.zeros(1, dtype=torch.long))[:, 0]


# ------------------------------------------------------------------------------------------------------- without a base


def fit_support(support: Moments) -> Fit:
    """The support as its own base: W shrunk to the identity, B = r W. Its scale is what is assumed of any images."""
    d, variance, covariance = support.means.shape[1], support.between, support.within
    scale = min(1.0, DIMENSIONS / d)
    within = float(covariance.trace()) if support.freedom else variance / (1 + RATIO)
    least = max(within, variance / MOST_RATIO, torch.finfo(covariance.dtype).eps)  # no class is without any variation
    if not support.freedom or within < least:  # single images or copies: nothing is known but sizes
        ratio = _bounded(variance / least) if support.freedom else RATIO
        matrix = torch.eye(d).to(covariance) * (d / least) ** 0.5
        return Fit(support.centre, matrix, torch.full((d,), ratio).to(covariance), scale, 0.0)
    s = support_shrinkage(covariance, d, support.freedom)
    covariance.mul_(1 - s).diagonal().add_(s * within / d)  # in its place: the matrices here are the largest there are
    root = torch.linalg.cholesky(covariance)
    del covariance
    eye = torch.eye(d, dtype=root.dtype).mT  # column by column, so that it can be solved in its place
    matrix = torch.linalg.solve_triangular(root, eye, upper=False, out=eye).mT
    size = apparent_size(float(matrix.square().sum()), within, d, s, support.freedom)
    matrix /= size**0.5
    means = (support.means - support.centre) @ matrix
    ratio = _ratio(float(means.square().sum()), support.noise, len(means), d)
    share = (1 - s) * size / support.freedom
    return Fit(support.centre, matrix, torch.full((d,), ratio).to(root), scale, share)


def _ratio(square: float, noise: float, way: int, d: int) -> float:
    """r from the squares of the class means in z, about their centre."""
    seen = UNDERSTATED * (square / max(way - 1, 1) / d - noise)
    return _bounded((RATIO + (way - 1) * seen) / way)  # few classes hardly say it: one more has what is assumed


def _bounded(ratio: float) -> float:
    return min(max(ratio, LEAST_RATIO), MOST_RATIO)


def support_shrinkage(covariance: Float[Tensor, "m m"], d: int, freedom: int) -> float:
    """How far a support's W goes to the identity: four fifths of the way for few images and less for many, and of the
    rest as much as is best for normal data (oracle approximating shrinkage, Chen et al., 2010: from the covariance
    alone, without fourth moments)."""
    total, square = float(covariance.trace()), float(covariance.square().sum())
    below = (freedom + 1 - 2 / d) * (square - total**2 / d)
    best = 1.0 if below <= 0 else min(1.0, ((1 - 2 / d) * square + total**2) / below)
    surely = SHRINK_SUPPORT / (1 + freedom / SHRINK_IMAGES)
    return surely + (1 - surely) * best


def apparent_size(trace_of_inverse: float, within: float, d: int, s: float, freedom: int) -> float:
    """How much larger new images' residuals are in z than one, since the support's have shaped W: by generalised
    cross-validation, each image left out with the mean of all leverages."""
    apparent = d if s == 1 else (d - s * within / d * trace_of_inverse) / (1 - s)  # the trace of W^-1 S
    return apparent / d / (1 - (1 - s) * apparent / freedom)


def support_scores(
    support: Float[Tensor, "image d"], owner: Int[Tensor, " image"], query: Float[Tensor, "query d"]
) -> Float[Tensor, "query way"]:
    """Logits of queries after `fit_support`, but for the scale. For many episodes of long vectors: where images are
    fewer than dimensions, only inner products are needed (`scores_of_products`)."""
    if len(support) < support.shape[1]:
        return scores_of_products(
            support @ support.mT, query @ support.mT, query.square().sum(1), owner, support.shape[1]
        )
    moments = moments_of(support, owner)
    del support  # it is as large as the matrices of a fit
    fit = fit_support(moments)
    return fit.logits(fit.coordinates(query), fit.coordinates(moments.means), moments.counts) / fit.scale


def scores_of_products(
    among: Float[Tensor, "image image"],
    across: Float[Tensor, "query image"],
    squares: Float[Tensor, " query"],
    owner: Int[Tensor, " image"],
    d: int,
) -> Float[Tensor, "query way"]:
    """`support_scores` from inner products of the support's vectors, of the queries with them, and of each query with
    itself. With R the support's residuals, W = (1 - s) R'R / freedom + floor: its inverse needs only R R' (Woodbury).

    Args:
        among: Of the support, each with each.
        across: Of the queries with the support.
        squares: Of each query with itself.
        owner: The class of each of the support, counted from 0.
        d: Dimensions of the vectors.
    """
    counts = torch.bincount(owner)
    way, freedom = len(counts), len(owner) - len(counts)
    mean = torch.nn.functional.one_hot(owner, way).to(among).mT / counts[:, None]  # of each class, in its images
    apart = mean - (centre := mean.mean(0))
    with_images = torch.cat([across - centre @ among, apart @ among])  # queries and means, about the centre
    residuals = with_images.mT - (with_images @ mean.mT).mT[owner]  # inner products with R
    own = mean @ among
    inside = among - own[owner] - own[owner].mT + (own @ mean.mT)[owner][:, owner]  # R R'
    squares = squares - 2 * across @ centre + centre @ among @ centre
    products = with_images @ apart.mT  # of queries, then of means, with means
    noise, variance = float((1 / counts).mean()), float(products[-way:].trace()) / max(way - 1, 1)
    within = float(inside.trace()) / freedom if freedom else variance / (1 + RATIO)
    least = max(within, variance / MOST_RATIO, torch.finfo(among.dtype).eps)
    if not freedom or within < least:
        ratio = _bounded(variance / least) if freedom else RATIO
        products, squares = products * (d / least), squares * (d / least)
    else:
        s = support_shrinkage(inside / freedom, d, freedom)
        floor = s * within / d
        inverse = d / floor
        if s < 1:
            ridge = floor * freedom / (1 - s)
            eye = torch.eye(len(owner)).to(among)
            root = torch.linalg.cholesky(inside + ridge * eye)
            solved = torch.linalg.solve_triangular(root, torch.cat([eye, residuals], 1), upper=False)
            inverse = (d - len(owner) + ridge * float(solved[:, : len(owner)].square().sum())) / floor
            along = solved[:, len(owner) :]
            products = products - along.mT @ along[:, -way:]
            squares = squares - along[:, :-way].square().sum(0)
        size = apparent_size(inverse, within, d, s, freedom)
        products, squares = products / (floor * size), squares / (floor * size)
        ratio = _ratio(float(products[-way:].trace()), noise, way, d)
    k = counts * ratio
    a, v = k / (k + 1), 1 + ratio / (k + 1)
    distance = squares[:, None] - 2 * a * products[:-way] + a * a * products[-way:].diagonal()
    return -0.5 * (distance / v + d * v.log())


# ---------------------------------------------------------------------------------------------------------- with a base


@dataclass(frozen=True)
class Base:
    """Classes that are not asked for, but may vary as those that are: their moments, the scale fitted on them, and how
    many single images of its own kind (as a share) a base tells apart that a cosine does not."""

    moments: Moments
    scale: float
    gain: float = 1.0

    @cached_property
    def fit(self) -> Fit:
        """What is estimated from the base alone."""
        return two_covariances(self.moments, self.moments.within, self.scale)

    def tensors(self) -> dict[str, Tensor]:
        """As named tensors, to be kept with a classifier."""
        moments = self.moments
        numbers = torch.tensor([self.scale, float(moments.freedom), self.gain], dtype=torch.float64)
        return {"counts": moments.counts, "means": moments.means, "scatter": moments.scatter, "numbers": numbers}

    @staticmethod
    def of(tensors: Parameters) -> "Base":
        """The base that `tensors` were of."""
        scale, freedom, *gain = tensors["numbers"].tolist()  # files of before have no gain
        moments = Moments(tensors["counts"].long(), tensors["means"], tensors["scatter"], int(freedom))
        return Base(moments, scale, *gain)


def fit_base(vectors: Float[Tensor, "image d"], owner: Int[Tensor, " image"]) -> Base:
    """A base from vectors of other classes, counted from 0. The scale is fitted on one half of the classes with the
    covariances of the other, and so is seen what a base brings."""
    vectors = normalize(vectors.double())
    moments = moments_of(vectors, owner)
    if len(moments.counts) < 4:
        return Base(moments, min(1.0, DIMENSIONS / vectors.shape[1]))
    odd = owner % 2 == 1
    half = moments_of(vectors[~odd], owner[~odd] // 2)
    return Base(moments, *_held_out(two_covariances(half, half.within, 1.0), vectors[odd], owner[odd] // 2))


def two_covariances(base: Moments, covariance: Float[Tensor, "d d"], scale: float) -> Fit:
    """W from a covariance within classes (of the base, or of base and support), B of the base's classes; each shrunk
    half way: W to a multiple of the identity, B to a multiple of W."""
    d, eye = base.means.shape[1], torch.eye(base.means.shape[1], dtype=base.means.dtype)
    within = max(float(covariance.trace()), base.between / MOST_RATIO, torch.finfo(eye.dtype).eps)
    root = torch.linalg.cholesky((1 - SHRINK_BASE) * covariance + SHRINK_BASE * within / d * eye)
    means = torch.linalg.solve_triangular(root, (base.means - base.centre).mT, upper=False).mT
    _, size, directions = torch.linalg.svd(means / max(len(means) - 1, 1) ** 0.5, full_matrices=True)
    b = torch.nn.functional.pad(size.square(), (0, d - len(size))) - base.noise
    spread = ((1 - SHRINK_BASE) * b + SHRINK_BASE * _bounded(float(b.mean()))).clamp_min(LEAST_RATIO**2)
    return Fit(base.centre, torch.linalg.solve_triangular(root.mT, directions.mT, upper=True), spread, scale)


def _held_out(fit: Fit, vectors: Float[Tensor, "image d"], owner: Int[Tensor, " image"]) -> tuple[float, float]:
    """The scale that makes images of held-out classes likeliest, given 1 and 4 images of each class; and the share of
    them that are right with 1 image, beyond that of a cosine."""
    scores, answers, gain = [], [], 1.0
    for shot in (1, 4):
        rows = [row for name in owner.unique() if len(row := torch.nonzero(owner == name)[:, 0]) > shot]
        if len(rows) < 2:
            continue
        means = torch.stack([vectors[row[:shot]].mean(0) for row in rows])
        asked = [row[shot:][-10:] for row in rows]
        query, counts = vectors[torch.cat(asked)], torch.full((len(rows),), shot)
        scores.append(fit.logits(fit.coordinates(query), fit.coordinates(means), counts).numpy())
        answers.append(np.repeat(np.arange(len(rows)), [len(row) for row in asked]))
        if shot == 1:
            right, by_cosine = (best.argmax(1) == answers[-1] for best in (scores[-1], (query @ means.mT).numpy()))
            gain = float(right.mean() - by_cosine.mean())
    return _likeliest_scale(scores, answers, min(1.0, DIMENSIONS / vectors.shape[1])), gain


def is_foreign(support: Moments, base: Moments, gain: float = 1.0) -> bool:
    """Whether a support lies where the base's own classes would hardly lie, told from the two centres, even of a few
    classes of one image: by their distance in all directions (pretrained features tell another kind by it at once), or
    since the support has less of what all of the base's classes share, the direction of its centre. Of a base with
    little to `gain` less is enough."""
    apart = support.centre - base.centre
    chance = 1 / len(support.counts) + 1 / len(base.counts)
    within = base.within
    expected = max(base.between - base.noise * float(within.trace()), 0.0) + support.noise * float(within.trace())
    if float(apart.square().sum()) > (FOREIGN + CHANCE * chance) * expected:
        return True
    shared = base.centre
    noise = float(shared @ within @ shared)
    between = max(float(((base.means - shared) @ shared).var()) - base.noise * noise, 0.0)
    away = AWAY if gain > LITTLE_USE else AWAY_OF_LITTLE_USE
    return float(apart @ shared) < -away * (chance * between + support.noise / len(support.counts) * noise) ** 0.5


# ----------------------------------------------------------------------------------------------------------- the choice


def adapt(support: Moments, examples: Examples, base: Base | None = None) -> Fit:
    """The fit for the classes of a support.

    Args:
        support: Moments of the unit vectors of the classes.
        examples: Unit vectors that are part of the support, all of them or a few of each class, and their classes. They
            are for the scale and for the choice between base and support.
        base: Other classes, if there are any.
    """
    own, loss_without = _settled(fit_support(support), support, examples)
    if base is None or is_foreign(support, base.moments, base.gain):
        return own
    other, loss_with = _settled(base.fit, support, examples)
    if int(support.counts.min()) == 1:  # what a base does for single images is asked of single images
        loss_without, loss_with = _single_images(base.fit, support, *examples)
    if loss_with - loss_without > EVIDENCE:
        return own
    if not support.freedom:
        return other
    scatter = base.moments.scatter + support.scatter
    return two_covariances(base.moments, scatter / (base.moments.freedom + support.freedom), other.scale)


def _settled(fit: Fit, support: Moments, examples: Examples) -> tuple[Fit, float]:
    """With the scale that makes the examples likeliest, each left out, and minus their log-likelihood (in nats)."""
    many = support.counts > 1
    sizes = _group_sizes(*examples[1:])
    many[examples[1][support.counts[examples[1]] <= sizes]] = False  # of a class that is one group nothing is left
    if int(many.sum()) < 2:
        return fit, 0.0
    left = leave_one_out(fit, support, *examples)
    # Only classes of two images or more are answers: single images are never right, and would favour common classes.
    place = many.cumsum(0) - 1
    scores, answers = left.logits[:, many].numpy(), place[left.owner].numpy()
    shares = 1 / torch.bincount(left.owner)[left.owner].double()  # each class weighs the same
    weights = (shares * len(shares) / shares.sum()).numpy()
    factor = _likeliest_scale([scores], [answers], 1.0, weights)
    gain = 1.0
    if fit.share is not None:
        # One more image makes logits grow by more than the model says: the support's own spread is one number for all
        # directions, and too small for those that matter.
        counts = (support.counts[examples[1]] / sizes)[support.counts[examples[1]] > sizes].double()
        gain = float((torch.from_numpy(weights) * (1 + 1 / (counts - 1)) / (1 + 1 / counts)).mean())
    return replace(fit, scale=fit.scale * factor * gain), float((weights * _losses(factor, scores, answers)).sum())


def _single_images(
    base: Fit,
    support: Moments,
    vectors: Float[Tensor, "image d"],
    owner: Int[Tensor, " image"],
    groups: Int[Tensor, " image"] | None = None,
) -> tuple[float, float]:
    """How badly (in nats) one image of each class of two or more predicts the other examples, without and with a base.

    Without one, nothing is known of W from single images: a fit that has seen nothing of the queries."""
    rows = [row for place in range(len(support.counts)) if len(row := torch.nonzero(owner == place)[:, 0]) > 1]
    if len(rows) < 2:
        return 0.0, 0.0
    first = moments_of(vectors[torch.stack([row[0] for row in rows])], torch.arange(len(rows)))
    query = vectors[torch.cat([row[1:] for row in rows])]
    answers = np.repeat(np.arange(len(rows)), [len(row) - 1 for row in rows])
    weights = np.concatenate([np.full(len(row) - 1, 1 / (len(row) - 1)) for row in rows])
    weights *= len(answers) / weights.sum()
    losses = []
    for fit in (fit_support(first), base):
        scores = fit.logits(fit.coordinates(query), fit.coordinates(first.means), first.counts).numpy()
        factor = _likeliest_scale([scores], [answers], 1.0, weights)
        losses.append(float((weights * _losses(factor, scores, answers)).sum()))
    return losses[0], losses[1]


@dataclass(frozen=True)
class LeftOut:
    """Logits of examples as new images, the classes that they are of, and the logit of a class not seen."""

    logits: Float[Tensor, "image way"]
    owner: Int[Tensor, " image"]
    new_class: Float[Tensor, " image"]


def leave_one_out(
    fit: Fit,
    support: Moments,
    vectors: Float[Tensor, "image d"],
    owner: Int[Tensor, " image"],
    groups: Int[Tensor, " image"] | None = None,
) -> LeftOut:
    """Logits of the examples of classes of two images or more, each left out of its class's mean and, where it had a
    part in them, of the centre and of W.

    With `groups`, an example is left out with its whole group; the images of a group, which are nearly the same, are
    taken for as many copies of their mean. A class that is one group has no queries."""
    means, sizes, middles = fit.coordinates(support.means), _group_sizes(owner, groups), vectors
    if groups is not None and len(groups) and int(sizes.max()) > 1:
        sums = vectors.new_zeros(int(groups.max()) + 1, vectors.shape[1]).index_add_(0, groups, vectors)
        middles = sums[groups] / sizes[:, None]
    examples = zip(*(x.split(PART) for x in (vectors, middles, owner, sizes)), strict=True)
    parts = [_leave_out(fit, support, means, *part) for part in examples]
    return LeftOut(*(torch.cat(each) for each in zip(*((p.logits, p.owner, p.new_class) for p in parts), strict=True)))


def _group_sizes(owner: Int[Tensor, " image"], groups: Int[Tensor, " image"] | None = None) -> Int[Tensor, " image"]:
    """How many examples the group of each has."""
    return torch.ones_like(owner) if groups is None else torch.bincount(groups)[groups]


def _leave_out(
    fit: Fit,
    support: Moments,
    means: Float[Tensor, "way d"],
    vectors: Float[Tensor, "image d"],
    middles: Float[Tensor, "image d"],
    owner: Int[Tensor, " image"],
    sizes: Int[Tensor, " image"],
) -> LeftOut:
    several = support.counts[owner] > sizes
    vectors, middles, owner, sizes = vectors[several], middles[several], owner[several], sizes[several]
    query = fit.coordinates(vectors)
    residual = (middles - support.means[owner]) @ fit.matrix
    counts = support.counts[owner] - sizes
    if fit.share is None:
        every, new = fit.logits(query, means, support.counts), fit.new_class(query)
        left = predict_class(means[owner] - residual * (sizes / counts)[:, None], counts, {"spread": fit.spread})
        mine = fit.scale * quadratic(query[:, None], left[:, None])[:, 0, 0]
    else:
        every, mine, new = _without(fit, support, means, query, residual, owner, sizes)
    every[torch.arange(len(owner)), owner] = mine
    return LeftOut(every, owner, new)


def _without(
    fit: Fit, support: Moments, means: Tensor, query: Tensor, residual: Tensor, owner: Tensor, sizes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits where B = r W and the query had a part in W and in the centre: a rank-one change of W (Sherman and
    Morrison), in inner products only. With x the query, c a class and e the query's residual, all about the new
    centre, the squared distance |x - a c|^2 grows by leverage * (e.x - a e.c)^2."""
    assert fit.share is not None
    d, way, ratio = query.shape[1], len(support.counts), fit.spread[0]
    counts = support.counts[owner].double()
    ee = residual.square().sum(1, keepdim=True)
    step = (sizes / (counts - sizes))[:, None]  # the mean of the class moves by -step * residual
    part = fit.share * counts[:, None] * step
    leverage = part / (1 - part * ee).clamp_min(1e-3)
    moved = step / way  # the centre moves by -moved * residual
    x = query + moved * residual
    xx, xe = x.square().sum(1, keepdim=True), (x * residual).sum(1, keepdim=True)

    def score(inner: Tensor, square: Tensor, along: Tensor, k: Tensor) -> Tensor:
        a, v = k * ratio / (k * ratio + 1), 1 + ratio / (k * ratio + 1)
        distance = xx - 2 * a * inner + a * a * square + leverage * (xe - a * along) ** 2
        return -0.5 * fit.scale * (distance / v + d * v.log())

    def against(step: Tensor, inner: Tensor, square: Tensor, along: Tensor, k: Tensor) -> Tensor:
        """Of classes whose mean moves by step * residual."""
        return score(inner + step * xe, square + 2 * step * along + step**2 * ee, along + step * ee, k)

    inner, square, along = x @ means.mT, means.square().sum(1)[None], residual @ means.mT
    every = against(moved, inner, square, along, support.counts[None].double())
    own = owner[:, None]
    mine = against(
        moved - step,
        inner.gather(1, own),
        square.expand(len(x), -1).gather(1, own),
        along.gather(1, own),
        (counts - sizes)[:, None],
    )
    nothing = torch.zeros_like(xx)
    return every, mine[:, 0], score(nothing, nothing, nothing, nothing)[:, 0]


def _likeliest_scale(
    scores: list[np.ndarray], answers: list[np.ndarray], expected: float, weights: np.ndarray | None = None
) -> float:
    """The factor that makes softmax(factor * scores) likeliest, where about `expected` is likely beforehand."""

    def loss(log: float) -> float:
        each = [_losses(expected * np.exp(log), part, answer) for part, answer in zip(scores, answers, strict=True)]
        losses = np.concatenate([np.zeros(0), *each])
        return float((losses if weights is None else losses * weights).sum()) + 0.5 * (log / DOUBT) ** 2

    return expected * float(np.exp(minimize_scalar(loss, bounds=(-5.0, 5.0), method="bounded").x))


def _losses(factor: float, scores: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Minus the log-probability of each answer."""
    losses = np.empty(len(scores))
    for start in range(0, len(scores), PART):
        here = slice(start, start + PART)
        z = scores[here] - scores[here].max(1, keepdims=True)
        z *= factor
        answered = z[np.arange(len(z)), answers[here]]
        losses[here] = np.log(np.exp(z, out=z).sum(1)) - answered
    return losses


# ------------------------------------------------------------------------------------------------------------- the head


def unit_vectors(features: Features, parameters: Parameters) -> Vectors:
    """All positions side by side, of length one."""
    return normalize(features.flatten(-2))


def _assumed(features: Features, recipe: Recipe) -> dict[str, Tensor]:
    """Before there is a support: as if W were the identity and B so many times it."""
    return {"spread": torch.full((features[0].numel(),), RATIO)}


POSTERIOR_HEAD = Head(unit_vectors, quadratic, predict_class, _assumed, alternative_to="proto", adapts=True)
