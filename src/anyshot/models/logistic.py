"""The posterior, refined by logistic regression: a head for classes that have many examples.

The posterior assumes that the images of all classes vary alike, which fails for loose classes of several kinds each.
Logistic regression looks only at what tells classes apart, but needs many examples of each class. So the posterior
decides first, and logistic regression corrects it among the classes that have several examples:

    logit = logit of the posterior + weights (x - centre) / |x - centre|

These logits are shifted together, so that the classes that are refined keep their common probability: rare classes,
which have no weights, are neither favoured nor put behind. The weights are fitted with the posterior's leave-one-out
logits as an offset. How little they are penalised is chosen by the likelihood of examples that were left out of all of
it; where no weights help, the head is the posterior. docs/log/posterior.md compares it with the posterior, with
support vector machines and with plain logistic regression; `anyshot advise` does so on your own examples.

The weights are fitted to the examples that the classifier keeps (`keep`, 256 of a class by default). The evidence
against "none of these" is that of the posterior.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.optimize import minimize
from torch import Tensor

from anyshot.errors import BadInput
from anyshot.models import gaussian
from anyshot.models.law import (
    Counts,
    Estimator,
    Examples,
    Head,
    LeaveOneOut,
    Moments,
    Parameters,
    Prototypes,
    normalize,
)

LEAST_GROUPS = 3  # groups of examples in a class that gets weights: of two, none is left to choose a strength by
STRENGTHS = (1.0, 3.0, 10.0)  # of the weights, C in scikit-learn's words; beside 0, which leaves the posterior as it is
FOLDS = 3  # parts of the examples, each of which is left out once; groups are left out whole
ITERATIONS = 300  # at most, for each strength
TOLERANCE = 1e-3  # of the gradient: the weights do not depend on the order of the examples, to some digits
EXCLUDED = -1e30  # logit of a class that is left out of a sum; with minus infinity a sum over no class would be NaN

Vectors = Float[Tensor, "image d"]
Labels = Int[Tensor, " image"]
ClassMask = Bool[Tensor, " way"]


def fit(moments: Moments, examples: Examples, base: Parameters | None = None) -> dict[str, Tensor]:
    """Return the posterior's parameters, the weights of each class, and `scale`, the factor of the refined logits.

    The strength of the weights and the factor are those that make examples likeliest which were left out by folds.
    Every class counts the same there.

    Args:
        moments: Of the unit vectors of all images.
        examples: Unit vectors that are part of the support, some of each class.
        base: Not used: `fit_base` refuses it.
    """
    with_means = _add_means(moments, examples)
    is_refined, fold = _assign_folds(with_means, len(moments.counts))
    strength, scale = 0.0, 1.0
    if is_refined.sum() > 1:
        strengths = (0.0, *STRENGTHS)
        classes, targets = with_means.owner[fold >= 0].unique(return_inverse=True)
        weights = 1 / torch.bincount(targets)[targets].double()
        weights *= len(weights) / weights.sum()
        scores = _leave_folds_out(with_means, is_refined, fold, strengths)[:, fold >= 0][:, :, classes]
        choices = [gaussian.likeliest_factor(values, targets, weights, 1.0) for values in scores]
        _, strength, factor = min((loss, s, factor) for (factor, loss), s in zip(choices, strengths, strict=True))
        scale = factor if strength else 1.0  # without weights the posterior's own factor is the better one
    model = _fit_models(moments, examples, is_refined, (strength,))[0]
    return model | {name: moments.means.new_tensor(value) for name, value in (("scale", scale), ("strength", strength))}


def leave_one_out(moments: Moments, examples: Examples, parameters: Parameters) -> LeaveOneOut:
    """Return logits of examples that were left out by folds, and the evidence of each left out with its group.

    Where there are no weights, and for classes of a single group, the logits are the posterior's, as the evidence is.
    """
    posterior = gaussian.leave_one_out(moments, examples, parameters)
    logits, evidences = (values * parameters["factor"] for values in posterior[:2])
    strength = float(parameters["strength"])
    if strength:
        with_means = _add_means(moments, examples)
        is_refined, fold = _assign_folds(with_means, len(moments.counts))
        scores = _leave_folds_out(with_means, is_refined, fold, (strength,))[0, : len(examples.owner)]
        is_scored = _has_others(moments, examples)
        is_in_fold = fold[: len(examples.owner)][is_scored] >= 0
        logits[is_in_fold] = parameters["scale"] * scores[is_scored][is_in_fold]
    return LeaveOneOut(logits, evidences, posterior.owner)


def _add_means(moments: Moments, examples: Examples) -> Examples:
    """Return the examples and, for each class that has none among them, its mean as an example and group of its own."""
    missing = torch.nonzero(torch.bincount(examples.owner, minlength=len(moments.counts)) == 0)[:, 0]
    groups = torch.arange(len(examples.owner)) if examples.groups is None else examples.groups
    new_groups = int(groups.max()) + 1 + torch.arange(len(missing)) if len(groups) else torch.arange(len(missing))
    vectors = normalize(moments.prototypes[missing].to(examples.vectors))
    return Examples(*map(torch.cat, ((examples.vectors, vectors), (examples.owner, missing), (groups, new_groups))))


def _has_others(moments: Moments, examples: Examples) -> Bool[Tensor, " image"]:
    """Return for each example whether its class has images outside of the example's group."""
    sizes = torch.ones_like(examples.owner) if examples.groups is None else examples.groups.bincount()[examples.groups]
    return moments.counts[examples.owner] > sizes


def _assign_folds(examples: Examples, way: int) -> tuple[ClassMask, Int[Tensor, " image"]]:
    """Return which classes get weights, and the fold of each example; -1 where a class is a single group."""
    _, owner, groups = examples
    assert groups is not None
    first = torch.full((int(groups.max()) + 1,), -1)
    first[groups.flip(0)] = torch.arange(len(groups)).flip(0)  # the first example of each group
    n_groups = torch.bincount(owner[first], minlength=way)
    fold = torch.where(n_groups[owner] > 1, gaussian.rank_in_class(owner[first])[groups] % FOLDS, -1)
    return n_groups >= LEAST_GROUPS, fold


def _leave_folds_out(
    examples: Examples, is_refined: ClassMask, fold: Int[Tensor, " image"], strengths: Sequence[float]
) -> Float[Tensor, "strength image way"]:
    """Return the scores of examples by models that were fitted without their fold; 0 for examples without a fold."""
    vectors, owner, groups = examples
    assert groups is not None
    scores = torch.zeros(len(strengths), len(owner), len(is_refined), dtype=torch.float64)
    for number in range(int(fold.max()) + 1):
        is_query, is_support = fold == number, fold != number
        support_groups = groups[is_support].unique(return_inverse=True)[1]
        support = Examples(vectors[is_support].double(), owner[is_support], support_groups)
        moments = gaussian.moments_of(support.vectors, support.owner)
        for row, model in enumerate(_fit_models(moments, support, is_refined, strengths)):
            prototypes = refine(moments.prototypes, moments.counts, model)
            scores[row, is_query] = refined_posterior(transform(vectors[is_query].double(), model), prototypes, model)
    return scores


def _fit_models(
    moments: Moments, examples: Examples, is_refined: ClassMask, strengths: Sequence[float]
) -> list[dict[str, Tensor]]:
    """Return the parameters of the posterior and the weights, once for each strength of the weights."""
    posterior = gaussian.fit(moments, examples)
    left_out = gaussian.leave_one_out(moments, examples, posterior)
    vectors, centre = examples.vectors.to(moments.means), moments.prototypes.mean(0)
    directions = normalize(vectors[_has_others(moments, examples)] - centre)
    weights = fit_weights(directions, left_out.logits, left_out.owner, is_refined, strengths)
    shared = posterior | {"factor": posterior["scale"], "centre": centre, "is_refined": is_refined}
    return [shared | {"weights": rows} for rows in weights]


def fit_weights(
    directions: Vectors,
    offset: Float[Tensor, "image way"],
    owner: Labels,
    is_refined: ClassMask,
    strengths: Sequence[float],
) -> Float[Tensor, "strength way d"]:
    """Return weights that make the classes of images likeliest, among the refined classes, when added to an offset.

    Half the sum of squares of all weights over the strength is added to minus the log-likelihood. The weights are 0 for
    a strength of 0, and for classes that are not refined.
    """
    weights = directions.new_zeros(len(strengths), len(is_refined), directions.shape[1])
    is_used = is_refined[owner]
    if not is_used.any():
        return weights
    directions, offset, owner = directions[is_used], offset[is_used][:, is_refined], owner[is_used]
    targets = (is_refined.cumsum(0) - 1)[owner][:, None]
    # The best weights lie in the span of the directions: where these are few, only coordinates in it are fitted.
    basis = torch.linalg.qr(directions.mT)[0] if len(directions) < directions.shape[1] else None
    coordinates = directions if basis is None else directions @ basis
    start = np.zeros(int(is_refined.sum()) * coordinates.shape[1])

    def loss(flat: np.ndarray, strength: float) -> tuple[float, np.ndarray]:
        """Return the loss, times the strength, and its gradient."""
        rows = torch.from_numpy(flat).view(-1, coordinates.shape[1])
        logs = torch.log_softmax(offset + coordinates @ rows.mT, 1)
        errors = logs.exp().scatter_add_(1, targets, -torch.ones_like(targets, dtype=logs.dtype))
        value = 0.5 * rows.square().sum() - strength * logs.gather(1, targets).sum()
        return float(value), (rows + strength * (errors.mT @ coordinates)).flatten().numpy()

    for place, strength in enumerate(strengths):
        if strength:  # each fit starts from the weights of the strength before
            options = {"maxiter": ITERATIONS, "gtol": TOLERANCE * strength}
            start = minimize(loss, start, (strength,), "L-BFGS-B", jac=True, options=options).x
            rows = torch.from_numpy(start).view(-1, coordinates.shape[1])
            weights[place, is_refined] = rows if basis is None else rows @ basis.mT
    return weights


def transform(vectors: Float[Tensor, "*batch d"], parameters: Parameters) -> Float[Tensor, "*batch z_and_d"]:
    """Return what the posterior sees of queries, followed by their directions from the centre."""
    if "weights" not in parameters:
        return vectors
    directions = normalize(vectors - parameters["centre"])
    return torch.cat([gaussian.transform(vectors, parameters), directions], -1)


def refine(prototypes: Prototypes, counts: Counts, parameters: Parameters) -> Float[Tensor, "*batch way refined"]:
    """Return for each class the posterior's weights, those of logistic regression, and whether it is refined."""
    if "weights" not in parameters:  # nothing has been fitted yet
        return prototypes
    posterior = gaussian.predict(prototypes, counts, parameters) * parameters["factor"]
    return torch.cat([posterior, parameters["weights"], parameters["is_refined"].to(posterior)[:, None]], -1)


def refined_posterior(query: Tensor, prototypes: Tensor, parameters: Parameters) -> Tensor:
    """Return the posterior's logits, of which those of the classes that have weights are refined."""
    if "weights" not in parameters:
        return query @ prototypes.mT
    d = parameters["weights"].shape[-1]
    z, directions = query.split([query.shape[-1] - d, d], -1)
    posterior, weights, mask = prototypes.split([prototypes.shape[-1] - d - 1, d, 1], -1)
    logits, is_refined = gaussian.quadratic(z, posterior), mask.mT > 0
    refined = logits + directions @ weights.mT
    before = torch.where(is_refined, logits, EXCLUDED).logsumexp(-1, keepdim=True)
    after = torch.where(is_refined, refined, EXCLUDED).logsumexp(-1, keepdim=True)
    return torch.where(is_refined, refined + before - after, logits)


def evidence(vectors: Tensor, means: Tensor, counts: Tensor, parameters: Parameters) -> Tensor:
    """Return the posterior's evidence for each class over a class of which nothing was seen."""
    return gaussian.evidence(vectors, means, counts, parameters) * parameters["factor"]


def _refuse_base(vectors: Tensor, labels: Tensor) -> Parameters:
    """Raise BadInput: the head learns nothing from other classes."""
    raise BadInput("the head logistic takes no base: it learns from the support alone. The head posterior takes one.")


LOGISTIC_HEAD = Head(
    gaussian.unit_vectors,
    refined_posterior,
    refine,
    couples=True,
    has_onnx=False,
    alternative_to="posterior",
    estimator=Estimator(fit, transform, evidence, leave_one_out, _refuse_base),
)
