"""One Gaussian model of classes: images vary about the mean of their class, and class means about a centre.

An image is the mean of its class plus noise of covariance W, and class means have covariance B: the two-covariance
model, or PLDA, of speaker verification (Ioffe 2006; Brümmer and de Villiers 2010). Its score knows how many images a
class was learned from. In coordinates in which W is the identity and B is diagonal, b, a class of mean m over k images
predicts the next image by a normal of mean a m and variance v, dimension by dimension:

    a = k b / (k b + 1),   v = 1 + b / (k b + 1)
    logit = sum over dimensions of  z a m / v  -  z^2 / (2 v)  -  (a m)^2 / (2 v)  -  log(v) / 2

The **readout** `posterior` estimates W and B on base classes. The **head** `posterior` estimates W from the support
alone and takes B = r W, or uses W and B of a base that helps. Derivation, constants, limits: docs/posterior.md.
"""

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.optimize import minimize_scalar
from scipy.stats import chi2
from scipy.stats import t as student_t
from torch import Tensor

from anyshot.errors import BadInput
from anyshot.models.law import (
    Counts,
    Estimator,
    Examples,
    Features,
    Head,
    LeaveOneOut,
    Moments,
    Parameters,
    Prototypes,
    QuadraticScore,
    normalize,
)
from anyshot.models.readouts import Readout
from anyshot.recipe import Recipe

# What the head assumes where the support says nothing; docs/log/posterior.md has what halving and doubling each does.
RIDGE = 1.0  # W is shrunk to a sphere, which counts as much as so many images
RATIO = 0.8  # r, the variance of class means over W; it counts as much as one more class
DIMENSIONS = 22.0  # independent dimensions of an image, whatever the length of its vector: the factor of the logits
DOUBT = 0.5  # standard deviation of the logarithm of the ridge and of the dimensions, before the support is seen
EVIDENCE = 3.0  # nats by which a support must be predicted better without its base: a Bayes factor of 20

RIDGES = (0.5, 2.0, 4.0, 8.0, 16.0)  # multiples of the ridge that the support may prefer: octaves
LEAST_RATIO, MOST_RATIO = 0.02, 100.0  # numerical bounds of r: no class is without any variation
LEAST_REST = 0.05  # numerical bound of 1 - leverage, where one image or class makes up nearly all of W
PART = 512  # images that are left out at once, which bounds the memory
MOST_COMPARED = 2048  # examples that ridge and factor are chosen on

Vectors = Float[Tensor, "image d"]
Labels = Int[Tensor, " image"]
Groups = Float[Tensor, "group image d"]  # the images of groups that have as many images each
Owners = Int[Tensor, " group"]
Covariance = Float[Tensor, "d d"]
Shrinkage = tuple[float, float]  # of W and of B
Fold = tuple[Moments, Tensor, Tensor]  # the moments of most classes; the images of the others, and their classes

quadratic = QuadraticScore("posterior")


# ------------------------------------------------------------------------------------------------------------ the score


def predict_class(
    prototypes: Prototypes, counts: Counts, parameters: Parameters
) -> Float[Tensor, "*batch way weights"]:
    """Return the weights of a query's numbers, of their squares and of 1, where W = I and B = diag(spread).

    Args:
        prototypes: Class means m.
        counts: Images k behind each; 0 for a class of which none has been seen.
        parameters: `spread`, the variances b of class means.
    """
    spread = parameters["spread"].clamp_min(1e-9)
    evidence = counts.to(spread.dtype)[..., None] * spread
    a, v = evidence / (evidence + 1), 1 + spread / (evidence + 1)
    linear = a / v * prototypes
    constant = -0.5 * (torch.linalg.vecdot(linear, a * prototypes) + v.log().sum(-1))
    return torch.cat([linear, (-0.5 / v).expand_as(linear), constant[..., None]], -1)


def transform(vectors: Float[Tensor, "*batch d"], parameters: Parameters) -> Float[Tensor, "*batch z"]:
    """Return coordinates in which W is the identity, scaled to the length that is expected of an image."""
    z = _whiten(vectors, parameters)
    return _at_expected_length(z, torch.ones(1).to(z), parameters["spread"])


def predict(prototypes: Prototypes, counts: Counts, parameters: Parameters) -> Float[Tensor, "*batch way weights"]:
    """Return the weights of `predict_class` over the number of dimensions, for means of vectors before `transform`.

    How long a vector is tells little of its class. Queries and class means are scaled to the length that is expected of
    an image and of the mean of so many images (length normalisation, Garcia-Romero and Espy-Wilson 2011). Where B = r W
    their cosine is then all that counts. The score is a log-likelihood ratio over a class of which nothing was seen,
    times `_dimensions`.
    """
    z, spread = _whiten(prototypes, parameters), parameters["spread"]
    z = _at_expected_length(z, counts.to(z)[..., None], spread)
    unseen = predict_class(torch.zeros_like(z[..., :1, :]), torch.zeros_like(counts[..., :1]), parameters)
    weights = predict_class(z, counts, parameters) - unseen
    return weights * _dimensions(counts.to(z), parameters)[..., None] / z.shape[-1]


def _dimensions(counts: Tensor, parameters: Parameters) -> Tensor:
    """Return how many independent dimensions tell of a class of so many images, in units of the factor of the logits.

    What tells classes apart lies in few directions; what single images have besides lies in many, and averages out. So
    the cosine with a class of few images strays less, and is worth more dimensions: in inverse proportion to the cosine
    that is expected. The factor is for classes of one image, where r is as assumed; with a base it is for the average
    class of the support, so that nothing changes where all have as many images.
    """
    if "cosine" not in parameters:  # in training, before there is a support
        return torch.ones_like(counts)
    return parameters["cosine"] / _expected_cosine(counts, parameters["spread"])


def _expected_cosine(counts: Tensor, spread: Tensor) -> Tensor:
    """Return the cosine that is expected between an image and the mean of so many other images of its class."""
    return spread.sum() / ((1 + spread).sum() * (spread + 1 / counts[..., None]).sum(-1)).sqrt()


def evidence(
    vectors: Float[Tensor, "*#batch image d"],
    means: Float[Tensor, "*#batch way d"],
    counts: Int[Tensor, "*#batch way"],
    parameters: Parameters,
) -> Float[Tensor, "*batch image way"]:
    """Return the log-likelihood ratio of each class over a class of which nothing was seen, per dimension.

    Here lengths count: they tell images of no known class.
    """
    z, m = _whiten(vectors, parameters), _whiten(means, parameters)
    unseen = predict_class(torch.zeros_like(m[..., :1, :]), torch.zeros_like(counts[..., :1]), parameters)
    return (quadratic(z, predict_class(m, counts, parameters)) - quadratic(z, unseen)) / z.shape[-1]


def _whiten(vectors: Float[Tensor, "*batch d"], parameters: Parameters) -> Float[Tensor, "*batch z"]:
    """Return coordinates in which W is the identity.

    All directions outside the span of the support are alike: one number, a length, stands for them.
    """
    if "matrix" not in parameters:  # nothing has been estimated yet
        return vectors
    if (basis := parameters.get("basis")) is not None:
        inside = vectors @ basis
        outside = torch.linalg.vector_norm(vectors - inside @ basis.mT, dim=-1, keepdim=True)
        vectors = torch.cat([inside, outside], -1)
    return (vectors - parameters["mean"]) @ parameters["matrix"]


def _at_expected_length(z: Tensor, counts: Tensor, spread: Tensor) -> Tensor:
    """Return means of so many images, scaled so that the mean of z^2 over its expectation is 1."""
    square = (z.square() / (spread + 1 / counts)).mean(-1, keepdim=True)
    return z / square.clamp_min(torch.finfo(z.dtype).tiny).sqrt()


# ------------------------------------------------------------------------------------------------- W and r of a support


def moments_of(vectors: Vectors, owner: Labels, others: Float[Tensor, "other d"] | None = None) -> Moments:
    """Return the moments of vectors whose classes are counted from 0: in their span where they are fewer than d.

    Args:
        vectors: Of all images.
        owner: Their classes.
        others: Further vectors that the span shall hold.
    """
    spanning = vectors if others is None else torch.cat([vectors, others])
    if len(spanning) >= vectors.shape[1]:
        return _sum_images(vectors, owner)
    basis = torch.linalg.qr(spanning.mT)[0]
    return _sum_images(_in_span(vectors, basis), owner)._replace(basis=basis)


def _in_span(vectors: Vectors, basis: Float[Tensor, "d m"]) -> Float[Tensor, "image m+1"]:
    """Return the coordinates of examples in their own span; the last is their length outside of it, none."""
    return torch.nn.functional.pad(vectors @ basis, (0, 1))


def _sum_images(vectors: Vectors, owner: Labels) -> Moments:
    counts = torch.bincount(owner)
    means = vectors.new_zeros(len(counts), vectors.shape[1]).index_add_(0, owner, vectors) / counts[:, None]
    residuals = means[owner]
    torch.sub(vectors, residuals, out=residuals)  # in its place: it is as large as the vectors
    return Moments(counts, means, residuals.mT @ residuals, len(owner) - len(counts))


def fit_moments(moments: Moments, ridge: float = RIDGE, ratio: float = RATIO, rounds: int = 1) -> dict[str, Tensor]:
    """Return the model of a support, but for the factor of its logits.

    With residuals R about class means m_c of k_c images, w_c = 1 / (r + 1/k_c) and the centre g, the mean of the m_c
    by these weights,

        W ~ ridge |R|^2 / freedom I + sum R R' + sum_c s_c (m_c - g)(m_c - g)',    s_c = w_c / (1 + r k_c)

    The first term is an inverse-Wishart prior about a sphere. The last one is what an EM step adds: the share of a
    class mean that is noise within the class, so that single images tell of W too. r is the variance of the class
    means over W, both as if the images (by generalised cross-validation) and the class had been left out of W.

    Args:
        moments: Of unit vectors.
        ridge: Average residuals that the sphere is worth.
        ratio: r to begin with.
        rounds: How often r is estimated again.
    """
    counts, free, way = moments.counts.to(moments.means.dtype), moments.degrees_of_freedom, len(moments.counts)
    weights = 1 / (ratio + 1 / counts)
    centre = weights @ moments.means / weights.sum()
    about = moments.means - centre
    between = float(weights @ about.square().sum(1)) / max(way - 1, 1)
    floor = ridge * max(float(moments.scatter.trace()) / free if free else between, between / MOST_RATIO, 1e-12)
    share = _share(counts, ratio)
    matrix = torch.addmm(moments.scatter, (about * share[:, None]).mT, about)
    matrix.diagonal().add_(floor)
    size, eye = len(matrix), torch.eye(len(matrix), dtype=matrix.dtype)
    inverse = torch.linalg.solve_triangular(torch.linalg.cholesky(matrix), eye, upper=False)
    square = (about @ inverse.mT).square().sum(1)
    left_out = square / (1 - share * square).clamp_min(LEAST_REST)
    if free:  # the variance within classes, summed over coordinates
        inside = max(size - floor * float(inverse.square().sum()) - float(share @ square), 0.0) / free
        variance = max(inside / max(1 - inside, LEAST_REST), 1e-6)
    else:
        variance = max(float(weights @ left_out) / max(way - 1, 1), 1e-6)
    if rounds and free and way > 1:
        raw = float(weights.square() @ (left_out / variance * way / (way - 1) - 1 / counts) / weights.square().sum())
        ratio = min(max((RATIO + (way - 1) * raw) / way, LEAST_RATIO), MOST_RATIO)
        return fit_moments(moments, ridge, ratio, rounds - 1)
    return {
        "mean": centre,
        "matrix": inverse.mT * (size / variance) ** 0.5,
        "spread": torch.full_like(centre, ratio),
        "share": centre.new_tensor(variance / size),  # of an image's outer product in W
        "cosine": centre.new_tensor(
            RATIO / (1 + RATIO)
        ),  # expected of one image, for which the factor of the logits is
    }


def _share(counts: Tensor, ratio: Tensor | float) -> Tensor:
    """Return the weight in W of the outer product of a class mean of so many images."""
    return counts / (1 + ratio * counts) ** 2


# ---------------------------------------------------------------------------------------------------------- leaving out


def leave_one_out(moments: Moments, examples: Examples, parameters: Parameters) -> LeaveOneOut:
    """Return logits of examples as new images: each left out, with its group, of class mean, centre and W.

    Every class is scored as if it had lost as many images, as in batch folding: a class of fewer images expects lower
    cosines, and otherwise the class that lost some would stand out. r and the factor stay. Examples are scored whose
    class has an image outside their group.

    Args:
        moments: Of all images.
        examples: All images, or some of them. No group has images of two classes.
        parameters: What `fit` has estimated.
    """
    vectors, owner, groups = examples
    groups = torch.arange(len(owner)) if groups is None else groups
    sizes = torch.bincount(groups)[groups]
    is_scored = moments.counts[owner] > sizes
    means = _whiten(moments.prototypes, parameters)
    leave_out = _leave_out_of_w if "share" in parameters else _leave_out_of_means
    logits, evidences = means.new_zeros(2, int(is_scored.sum()), len(means))
    row, order = is_scored.cumsum(0) - 1, groups.argsort(stable=True)
    for size in sizes[is_scored].unique().tolist():
        places = order[(is_scored & (sizes == size))[order]].view(-1, size)  # a row for each group
        for here in places.split(max(1, PART // size)):
            members = _whiten(vectors[here].to(means), parameters)
            scores = leave_out(members, owner[here[:, 0]], means, moments.counts, parameters)
            logits[row[here]], evidences[row[here]] = (parameters["scale"] * score for score in scores)
    return LeaveOneOut(logits, evidences, owner[is_scored])


def _leave_out_of_w(
    members: Groups, owner: Owners, means: Tensor, counts: Tensor, parameters: Parameters
) -> tuple[Tensor, Tensor]:
    """Return scores and evidence where B = r W and the images of a group had a part in W and in the centre.

    The groups have as many images each. With e the residual of a group's mean about the class mean, m that mean and
    F the residuals of the images about their group's mean, the matrix of W loses U' K U, where the rows of U are e, m
    and F. So inner products grow (Woodbury): <x, y> + (U x)' (I - K H)^-1 K (U y), with H = U U'.
    """
    size, d = members.shape[1:]
    ratio, counts = parameters["spread"][0], counts.to(members)
    before, rest = counts[owner], counts[owner] - size
    group_means, class_means = members.mean(1), means[owner]
    # Vectors, their weights in what W loses, and the class mean afterwards as a sum of them.
    rows = torch.stack([group_means - class_means, class_means], 1)
    lost = torch.stack([size * before / rest, _share(before, ratio)], 1)
    shift = torch.stack([-size / rest, torch.ones_like(rest)], 1)
    if size > 1:
        inside = members - group_means[:, None]
        inside = torch.linalg.qr(inside, mode="r").R if size > d else inside  # the same products in fewer rows
        rows = torch.cat([rows, inside], 1)
        lost = torch.nn.functional.pad(lost, (0, inside.shape[1]), value=1.0)
        shift = torch.nn.functional.pad(shift, (0, inside.shape[1]))
    change = torch.diag_embed(lost)
    change = parameters["share"] * (change - _share(rest, ratio)[:, None, None] * shift[:, :, None] * shift[:, None, :])
    growth = torch.linalg.solve(torch.eye(rows.shape[1]).to(rows) - change @ (rows @ rows.mT), change)
    own_mean = (shift[:, None] @ rows)[:, 0]
    weights, weight_before, weight_rest = (1 / (ratio + 1 / k)[:, None] for k in (counts, before, rest))
    centre = (weight_rest * own_mean - weight_before * class_means) / (weights.sum() - weight_before + weight_rest)
    query, own_mean = members - centre[:, None], own_mean - centre
    own_along, centre_along = ((rows @ x[:, :, None])[..., 0] for x in (own_mean, centre))
    query_along, class_along = query @ rows.mT, (rows @ means.mT).mT - centre_along[:, None]
    to_query, to_own = query_along @ growth, (own_along[:, None] @ growth)[:, 0]
    length = query.square().sum(2) + (to_query * query_along).sum(2)
    inner = query @ means.mT - query @ centre[:, :, None] + to_query @ class_along.mT
    square = means.square().sum(1) - 2 * centre @ means.mT + centre.square().sum(1, keepdim=True)
    square = square + ((class_along @ growth) * class_along).sum(2)
    each = torch.arange(len(owner))
    inner[each, :, owner] = (query @ own_mean[:, :, None] + to_query @ own_along[:, :, None])[..., 0]
    square[each, owner] = own_mean.square().sum(1) + (to_own * own_along).sum(1)
    fewer = (counts - size).clamp_min(1)
    tiny = torch.finfo(members.dtype).tiny
    a, v = fewer * ratio / (fewer * ratio + 1), 1 + ratio / (fewer * ratio + 1)
    inner, square, length = inner / d, (square / d).clamp_min(tiny)[:, None], (length / d).clamp_min(tiny)[..., None]

    def score(inner: Tensor, square: Tensor, length: Tensor) -> Tensor:
        return (a * inner - 0.5 * length - 0.5 * a**2 * square) / v - 0.5 * v.log()

    class_length, image_length = ratio + 1 / fewer, 1 + ratio  # what is expected of them
    factor = (class_length / square * image_length / length).sqrt()

    def unseen(length: Tensor) -> Tensor:
        return -0.5 * length / image_length - 0.5 * image_length.log()

    scores = score(inner * factor, class_length, image_length) - unseen(image_length)
    return scores * _dimensions(fewer, parameters), score(inner, square, length) - unseen(length)


def _leave_out_of_means(
    members: Groups, owner: Owners, means: Tensor, counts: Tensor, parameters: Parameters
) -> tuple[Tensor, Tensor]:
    """Return scores and evidence where W and B are of other classes: a group is left out of its class mean only."""
    size, spread = members.shape[1], parameters["spread"]
    rest, fewer = counts[owner] - size, (counts - size).clamp_min(1)
    whitened = {"spread": spread, "cosine": _expected_cosine(fewer.to(spread), spread).mean()}
    own_mean = means[owner] - (members.mean(1) - means[owner]) * (size / rest)[:, None]
    query, each = transform(members, whitened), torch.arange(len(owner))
    scores = quadratic(query, predict(means, fewer, whitened))
    evidences = evidence(members, means, fewer, whitened)
    scores[each, :, owner] = quadratic(query, predict(own_mean, rest, whitened)[:, None])[..., 0]
    evidences[each, :, owner] = evidence(members, own_mean[:, None], rest[:, None], whitened)[..., 0]
    return scores, evidences


# ------------------------------------------------------------------------------------------------ fitting to a support


def fit(moments: Moments, examples: Examples, base: Parameters | None = None) -> dict[str, Tensor]:
    """Return what the head estimates from a support: the model, and `scale`, the factor of its logits.

    Ridge and factor are those that make the examples likeliest, each left out with its group. A base is used where it
    helped its own classes, the support lies where its classes lie, and the support is not predicted better without it.

    Args:
        moments: Of the unit vectors of all images.
        examples: Unit vectors that are part of the support, all of them or some of each class.
        base: What `fit_base` returned for other classes.
    """
    vectors, owner, groups = examples
    groups = torch.arange(len(owner)) if groups is None else groups
    some = groups % max(1, len(owner) // MOST_COMPARED) == 0
    examples = Examples(vectors[some], owner[some], groups[some].unique(return_inverse=True)[1])
    inside, basis, expected = (moments, examples), moments.basis, float(min(DIMENSIONS, vectors.shape[1]))
    if basis is not None:
        inside = moments._replace(basis=None), examples._replace(vectors=_in_span(examples.vectors.to(basis), basis))
    model, loss = _with_scale(fit_moments(moments, rounds=2), *inside, expected)
    for times in RIDGES if loss else ():
        other = fit_moments(moments, times * RIDGE, float(model["spread"][0]))
        other, other_loss = _with_scale(other, *inside, expected)
        other_loss += 0.5 * (np.log(times) / DOUBT) ** 2
        if other_loss < loss:
            model, loss = other, other_loss
    if basis is not None:
        model["basis"] = basis
    if base is None or not base["helps"] or is_foreign(moments, base):
        return model
    based = {name: base[name] for name in ("mean", "matrix", "spread")}
    based["cosine"] = _expected_cosine(moments.counts.to(based["spread"]), based["spread"]).mean()
    based, based_loss = _with_scale(based, moments, examples, float(base["dimensions"]))
    return model if based_loss - loss > EVIDENCE else based


def _with_scale(
    model: dict[str, Tensor], moments: Moments, examples: Examples, expected: float
) -> tuple[dict[str, Tensor], float]:
    """Return the model with its likeliest factor, and minus the log-likelihood (in nats) at it, prior included.

    Every class weighs the same, and only classes of which images can be left out are answers: single images are never
    right, and would favour common classes. The loss is 0 where fewer than two classes have such images.
    """
    left_out = leave_one_out(moments, examples, model | {"scale": moments.means.new_tensor(1.0)})
    classes, owner = left_out.owner.unique(return_inverse=True)
    factor, loss = expected, 0.0
    if len(classes) > 1:
        weights = 1 / torch.bincount(owner)[owner].to(left_out.logits)
        weights *= len(weights) / weights.sum()
        factor, loss = likeliest_factor(left_out.logits[:, classes], owner, weights, expected)
    return model | {"scale": moments.means.new_tensor(factor)}, loss


def likeliest_factor(scores: Tensor, owner: Labels, weights: Tensor, expected: float) -> tuple[float, float]:
    """Return the factor of scores that makes these classes likeliest, and minus the log-likelihood, prior included."""

    def loss(log: float) -> float:
        losses = torch.nn.functional.cross_entropy(expected * np.exp(log) * scores, owner, reduction="none")
        return float(weights @ losses) + 0.5 * (log / DOUBT) ** 2

    best = minimize_scalar(loss, bounds=(-5.0, 5.0), method="bounded")
    return expected * float(np.exp(best.x)), float(best.fun)


# ---------------------------------------------------------------------------------------------------------- with a base


def fit_base(vectors: Vectors, labels: Labels) -> dict[str, Tensor]:
    """Return W and B of other classes, and whether they help to tell apart classes of their kind.

    They help where W and B of three quarters of them tell single images of the others apart better than a cosine does,
    beyond the 95 % interval over classes. Fewer than eight classes of two images are too few to tell.
    """
    vectors, owner = normalize(vectors.double()), labels.unique(return_inverse=True)[1]
    has_several = (torch.bincount(owner) > 1)[owner]
    vectors, owner = vectors[has_several], owner[has_several].unique(return_inverse=True)[1]
    counts = torch.bincount(owner).double()
    if len(counts) < 2 * FOLDS:
        return {"helps": torch.zeros((), dtype=torch.float64)}
    shrinkage, folds = _choose_shrinkage(vectors, owner)
    gains, factors = zip(*(_try_single_images(*fold, shrinkage) for fold in folds), strict=True)
    gain = torch.cat(gains)
    half_width = float(student_t.ppf(0.975, len(gain) - 1) * gain.std()) / len(gain) ** 0.5
    return {
        **diagonalise_images(vectors, owner, shrinkage),
        "counts": counts,
        "helps": (gain.mean() > half_width).double(),
        "dimensions": counts.new_tensor(sum(factors) / len(factors)),
    }


def _try_single_images(
    moments: Moments, others: Vectors, owner: Labels, shrinkage: Shrinkage
) -> tuple[Float[Tensor, " class_"], float]:
    """Return what W and B of some classes gain single images of others over a cosine, and the likeliest factor."""
    fitted = diagonalise(moments, *shrinkage)
    fitted["cosine"] = _expected_cosine(fitted["spread"].new_ones(()), fitted["spread"])
    rank, is_query = _halves(owner)
    query, answer = others[is_query], owner[is_query]
    counts = torch.bincount(answer)
    gains, scores = others.new_zeros(len(counts)), []
    for turn in range(TURNS):
        single = others[rank == turn % torch.bincount(owner, ~is_query)[owner].long()]
        scores.append(quadratic(transform(query, fitted), predict(single, torch.ones_like(counts), fitted)))
        by_cosine = normalize(query) @ normalize(single).mT
        is_right, is_right_by_cosine = ((one.argmax(1) == answer).double() for one in (scores[-1], by_cosine))
        gains += torch.bincount(answer, is_right - is_right_by_cosine) / counts / TURNS
    weights = (1 / counts.double())[answer].repeat(TURNS)
    return gains, likeliest_factor(torch.cat(scores), answer.repeat(TURNS), weights, DIMENSIONS)[0]


def is_foreign(moments: Moments, base: Parameters) -> bool:
    """Return whether a support lies where classes of the base's kind would hardly lie.

    The mean of the support's class means lies about that of the base with a variance that B and the noise of the means
    give it. Beyond the 95 % quantile of chi-squared, of as many dimensions as are taken for independent, it is foreign.
    """
    z = _whiten(moments.prototypes, base).mean(0)
    variances = [(base["spread"] + (1 / counts).mean()) / len(counts) for counts in (moments.counts, base["counts"])]
    return float((z.square() / sum(variances)).mean()) > float(chi2.ppf(0.95, DIMENSIONS)) / DIMENSIONS


def read_base(tensors: Parameters) -> Parameters:
    """Return a base from saved tensors, also from those of version 0.1, which hold its scatter within classes."""
    if "scatter" not in tensors:
        return tensors
    numbers, counts = tensors["numbers"].tolist(), tensors["counts"]
    helps = len(counts) >= 2 * FOLDS and (len(numbers) < 3 or numbers[2] > 0)
    moments = Moments(counts, tensors["means"], tensors["scatter"], max(int(numbers[1]), 1))
    fitted = diagonalise(moments, *DEFAULT_SHRINKAGE)
    values = {"helps": float(helps), "dimensions": numbers[0] * tensors["means"].shape[1]}
    return {**fitted, "counts": counts, **{name: counts.double().new_tensor(value) for name, value in values.items()}}


# ---------------------------------------------------------------------------------------------------------- the readout

LEAST_SPREAD = 1e-3  # of classes in a direction, in units of the spread within a class
# How far W and B are shrunk to multiples of the identity: what is tried, from what many base classes allow to few.
SHRINKAGES = ((0.3, 0.05), (0.5, 0.1), (0.7, 0.1), (0.7, 0.3), (0.9, 0.7))
DEFAULT_SHRINKAGE = (0.5, 0.1)  # where none can be chosen: the best single pair for trained models
FOLDS = 4  # parts of the base classes, each of which is told apart with what the others say
DIRECTIONS = 320  # random directions that long vectors are seen in while the shrinkage is chosen
TURNS = 8  # images of a base class that are, in turn, its only one
TRIED_SHOTS = ((1, 1), (4, 4), (16, 16), (1, 16))  # of the one and the other half of the classes


def whiten(vectors: Float[Tensor, "*batch d"], fitted: Parameters) -> Float[Tensor, "*batch d"]:
    """Return the coordinates z of the readout: unit vectors about the base's centre, in the fitted directions."""
    return (normalize(vectors - fitted["centre"]) - fitted["mean"]) @ fitted["matrix"]


def fit_posterior(vectors: Vectors, labels: Labels) -> dict[str, Tensor]:
    """Return W and B of base classes; how far they are shrunk is chosen by splitting these classes.

    Raises:
        BadInput: There are fewer than eight base classes, or one of them has a single image.
    """
    classes = labels.unique(return_inverse=True)[1]
    x = vectors.double()
    centre = x.mean(0)
    counts = torch.bincount(classes)
    if len(counts) < 2 * FOLDS or int(counts.min()) < 2:
        raise BadInput(
            f"the posterior is fitted on at least {2 * FOLDS} base classes of two images or more; there are "
            f"{len(counts)}, the smallest of {int(counts.min())}."
        )
    u = normalize(x - centre)
    fitted = {"centre": centre, **diagonalise_images(u, classes, _choose_shrinkage(u, classes)[0])}
    return {name: value.to(vectors.dtype) for name, value in fitted.items()}


def _choose_shrinkage(u: Vectors, classes: Labels) -> tuple[Shrinkage, list[Fold]]:
    """Return the shrinkage that tells a quarter of the classes apart best, fitted on the others, and these folds.

    Long vectors are seen in some random directions only: these keep the mean variance, which is what both covariances
    are shrunk to.
    """
    if u.shape[1] > DIRECTIONS:
        chance = torch.Generator().manual_seed(0)
        u = u @ torch.linalg.qr(torch.randn(u.shape[1], DIRECTIONS, generator=chance, dtype=u.dtype))[0]
    folds = [_split(u, classes, fold) for fold in range(FOLDS)]
    return max(SHRINKAGES, key=lambda shrinkage: sum(_accuracy(*fold, shrinkage) for fold in folds)), folds


def diagonalise(
    moments: Moments, shrink_within: float, shrink_between: float, dimensions: int | None = None
) -> dict[str, Tensor]:
    """Return coordinates in which W is the identity and B diagonal, both shrunk to multiples of the identity.

    Args:
        moments: Of base classes.
        shrink_within: How far W is shrunk, from 0 to 1.
        shrink_between: How far B is shrunk.
        dimensions: The number of dimensions, if the moments are in a part of these outside of which nothing varies.
    """
    within, between = _estimate_covariances(moments)
    factor = torch.linalg.cholesky(_shrink(within, shrink_within, dimensions))
    half = torch.linalg.solve_triangular(factor, _shrink(between, shrink_between, dimensions), upper=False)
    spread, turn = torch.linalg.eigh(torch.linalg.solve_triangular(factor, half.mT, upper=False))
    matrix = torch.linalg.solve_triangular(factor.mT, turn, upper=True)
    return {"mean": moments.means.mean(0), "matrix": matrix, "spread": spread.clamp_min(LEAST_SPREAD)}


def diagonalise_images(vectors: Vectors, owner: Labels, shrinkage: Shrinkage) -> dict[str, Tensor]:
    """Return what `diagonalise` does for images; where these are fewer than dimensions, from matrices of their number.

    Outside the span of the images both covariances are the multiples of the identity that they are shrunk to.
    """
    n, d = vectors.shape
    if n >= d:
        return diagonalise(_sum_images(vectors, owner), *shrinkage)
    inside, outside = torch.linalg.qr(vectors.mT, mode="complete")[0].split([n, d - n], 1)
    moments = _sum_images(vectors @ inside, owner)
    fitted = diagonalise(moments, *shrinkage, d)
    within, between = (
        share * _mean_variance(covariance, d)
        for covariance, share in zip(_estimate_covariances(moments), shrinkage, strict=True)
    )
    rest = (between / within).clamp_min(LEAST_SPREAD)
    return {
        "mean": inside @ fitted["mean"],
        "matrix": torch.cat([inside @ fitted["matrix"], outside / within.sqrt()], 1),
        "spread": torch.cat([fitted["spread"], rest.expand(d - n)]),
    }


def _estimate_covariances(moments: Moments) -> tuple[Covariance, Covariance]:
    """Return the covariances W within classes and B of class means, neither of which is shrunk."""
    within = moments.scatter / moments.degrees_of_freedom
    return within, torch.cov(moments.means.mT) - within * (1 / moments.counts.to(within)).mean()


def _shrink(covariance: Covariance, share: float, dimensions: int | None) -> Covariance:
    size = _mean_variance(covariance, dimensions or len(covariance))
    return (1 - share) * covariance + share * size * torch.eye(len(covariance), dtype=covariance.dtype)


def _mean_variance(covariance: Covariance, dimensions: int) -> Tensor:
    """Return the mean variance over so many dimensions, of which the covariance has all that vary."""
    return (covariance.trace() / dimensions).clamp_min(torch.finfo(covariance.dtype).tiny)


def _split(u: Vectors, classes: Labels, fold: int) -> Fold:
    """Return the moments of most classes, and the images of the others, class by class, with their classes."""
    is_fold = torch.arange(int(classes.max()) + 1) % FOLDS == fold
    place = torch.where(is_fold, is_fold.cumsum(0), (~is_fold).cumsum(0)) - 1
    is_out = is_fold[classes]  # by image
    order = classes[is_out].argsort(stable=True)
    return _sum_images(u[~is_out], place[classes[~is_out]]), u[is_out][order], place[classes[is_out]][order]


def _halves(owner: Labels) -> tuple[Labels, Bool[Tensor, " image"]]:
    """Return the rank of each image in its class, and whether it is in the second half."""
    rank = rank_in_class(owner)
    return rank, rank >= torch.bincount(owner)[owner] // 2


def rank_in_class(owner: Labels) -> Labels:
    """Return the number of each image among those of its class, from 0."""
    order, counts = owner.argsort(stable=True), torch.bincount(owner)
    rank = torch.arange(len(owner)) - (counts.cumsum(0) - counts)[owner[order]]
    return torch.empty_like(owner).index_copy_(0, order, rank)


def _accuracy(moments: Moments, others: Vectors, owner: Labels, shrinkage: Shrinkage) -> float:
    """Return how many images of the second half of each class are told apart, given some of the first half."""
    fitted = diagonalise(moments, *shrinkage)
    z = (others - fitted["mean"]) @ fitted["matrix"]
    rank, is_query = _halves(owner)
    right = 0.0
    for few, more in TRIED_SHOTS:
        here = ~is_query & (rank < torch.where(owner % 2 == 0, few, more))
        support = _sum_images(z[here], owner[here])
        weights = predict_class(support.means, support.counts, fitted)
        right += float((quadratic(z[is_query], weights).argmax(1) == owner[is_query]).double().mean())
    return right


def as_posterior(head: Head) -> Head | None:
    """Return the head that reads the fitted coordinates in place of another."""
    head = replace(head, couples=False, refine_folds=None, refine_rows=None, has_onnx=True, estimator=None)
    return replace(head, refine=predict_class, score=quadratic)


POSTERIOR = Readout(fit_posterior, whiten, as_posterior)


# ------------------------------------------------------------------------------------------------------------- the head


def unit_vectors(features: Features, parameters: Parameters) -> Float[Tensor, "*batch d"]:
    """Return all positions side by side, as a vector of length one."""
    return normalize(features.flatten(-2))


def _assumed(features: Features, recipe: Recipe) -> dict[str, Tensor]:
    """Return the parameters before there is a support: as if W were the identity and B so many times it."""
    return {"spread": torch.full((features[0].numel(),), RATIO)}


POSTERIOR_HEAD = Head(
    unit_vectors,
    quadratic,
    predict,
    _assumed,
    alternative_to="proto",
    estimator=Estimator(fit, transform, evidence, leave_one_out, fit_base),
    temperature=30.0,
)
