"""Logistic regression on the support: a head for classes that all have many examples.

The posterior assumes that the images of all classes vary alike. Logistic regression assumes nothing of the kind and
looks only at what tells classes apart, which needs more examples. So it can be ahead where every class has twenty or
more, and falls behind where some have few (docs/posterior.md has the numbers; `anyshot advise` measures it on your own
examples).

The weights are fitted by scikit-learn to the examples that the classifier keeps (`keep`, 256 of a class by default). A
class of which none is kept is learned from its mean. The evidence against "none of these" is that of the posterior.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from threadpoolctl import threadpool_limits
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
    keep_vectors,
    normalize,
)

STRENGTHS = (1.0, 10.0, 100.0, 1000.0)  # scikit-learn's C; the one that makes left-out examples likeliest is chosen
FOLDS = 3  # parts of the examples, each of which is left out once; groups are left out whole
ITERATIONS = 300  # at most, for each strength
TOLERANCE = 1e-5  # of the gradient: the weights do not depend on the order of the examples, to some digits


def fit(moments: Moments, examples: Examples, base: Parameters | None = None) -> dict[str, Tensor]:
    """Return the weights of each class, what the evidence needs, and `scale`, the factor of the logits.

    The strength of the weights (how little they are penalised) and the factor are those that make examples likeliest
    which were left out by folds.

    Args:
        moments: Of the unit vectors of all images.
        examples: Unit vectors that are part of the support, some of each class.
        base: Not used: `fit_base` refuses it.
    """
    way, choices, known = len(moments.counts), [], _add_means(moments, examples)
    scores, is_scored = _leave_folds_out(known, way, STRENGTHS)
    answers = known.owner[is_scored]
    for strength, score in zip(STRENGTHS, scores[:, is_scored], strict=True):
        factor, loss = gaussian.likeliest_factor(score, answers, torch.ones(len(answers)).double(), 1.0)
        choices.append((loss, strength, factor))
    _, strength, factor = min(choices)
    weights = _fit_weights(known.vectors, known.owner, way, _up_to(strength))[-1]
    model = {"weights": weights, "strength": weights.new_tensor(strength), "scale": weights.new_tensor(factor)}
    return gaussian.fit(moments, examples) | model


def _up_to(strength: float) -> tuple[float, ...]:
    """Return the strengths up to one: each fit starts from the weights of the one before, and so ends the same."""
    return STRENGTHS[: STRENGTHS.index(strength) + 1]


def leave_one_out(moments: Moments, examples: Examples, parameters: Parameters) -> LeaveOneOut:
    """Return logits of examples that were left out by folds, with the evidence of each left out by itself."""
    strengths = _up_to(float(parameters["strength"]))
    scores, is_scored = _leave_folds_out(_add_means(moments, examples), len(moments.counts), strengths)
    scores, is_scored = scores[:, : len(examples.owner)], is_scored[: len(examples.owner)]
    evidence = gaussian.leave_one_out(moments, examples, parameters).evidence
    evidence = evidence[is_scored[moments.counts[examples.owner] > _group_sizes(examples)]]
    return LeaveOneOut(parameters["scale"] * scores[-1][is_scored], evidence, examples.owner[is_scored])


def _add_means(moments: Moments, examples: Examples) -> Examples:
    """Return the examples, followed by the mean of each class that has none, which counts as one group."""
    missing = torch.nonzero(torch.bincount(examples.owner, minlength=len(moments.counts)) == 0)[:, 0]
    groups = torch.arange(len(examples.owner)) if examples.groups is None else examples.groups
    new_groups = int(groups.max()) + 1 + torch.arange(len(missing)) if len(groups) else torch.arange(len(missing))
    vectors = normalize(moments.prototypes[missing].to(examples.vectors))
    return Examples(*map(torch.cat, ((examples.vectors, vectors), (examples.owner, missing), (groups, new_groups))))


def _group_sizes(examples: Examples) -> Int[Tensor, " image"]:
    """Return how many examples the group of each has."""
    return torch.ones_like(examples.owner) if examples.groups is None else examples.groups.bincount()[examples.groups]


def _leave_folds_out(
    examples: Examples, way: int, strengths: Sequence[float]
) -> tuple[Float[Tensor, "strength image way"], Bool[Tensor, " image"]]:
    """Return the scores of examples by weights that were fitted without their fold, and whether each was left out.

    Classes whose examples are a single group are in every fold.
    """
    vectors, owner, groups = examples
    assert groups is not None
    first = torch.full((int(groups.max()) + 1,), -1)
    first[groups.flip(0)] = torch.arange(len(groups)).flip(0)  # the first example of each group
    is_scored = (torch.bincount(owner[first], minlength=way) > 1)[owner]
    fold = torch.where(is_scored, gaussian.rank_in_class(owner[first])[groups] % FOLDS, -1)
    scores = torch.zeros(len(strengths), len(owner), way, dtype=torch.float64)
    for one in range(int(fold.max()) + 1):
        weights = _fit_weights(vectors[fold != one], owner[fold != one], way, strengths)
        scores[:, fold == one] = linear(vectors[fold == one].double(), weights)
    return scores, is_scored


def _fit_weights(
    vectors: Float[Tensor, "image d"], owner: Int[Tensor, " image"], way: int, strengths: Sequence[float]
) -> Float[Tensor, "strength way d+1"]:
    """Return the weights of each class and, last, its constant, for each strength; every class counts the same."""
    from sklearn.linear_model import LogisticRegression  # here, as it takes a second to import

    if way < 2:
        return torch.zeros(len(strengths), way, vectors.shape[1] + 1, dtype=torch.float64)
    vectors = vectors.double()
    basis = torch.linalg.qr(vectors.mT)[0] if len(vectors) < vectors.shape[1] else None  # the weights lie in the span
    inside = vectors if basis is None else vectors @ basis
    model = LogisticRegression(class_weight="balanced", max_iter=ITERATIONS, tol=TOLERANCE, warm_start=True)
    rows = []
    for strength in strengths:
        with threadpool_limits(1):  # the products are small: threads would wait for each other most of the time
            model.set_params(C=strength).fit(inside.numpy(), owner.numpy())
        weights, constant = torch.tensor(model.coef_), torch.tensor(model.intercept_)
        if way == 2:  # scikit-learn keeps one row, the logit of the second class
            weights, constant = torch.cat([-weights, weights]) / 2, torch.cat([-constant, constant]) / 2
        weights = weights if basis is None else weights @ basis.mT
        rows.append(torch.cat([weights, constant[:, None]], 1))
    return torch.stack(rows)


def linear(query: Tensor, prototypes: Tensor) -> Tensor:
    """Return inner products with all but the last number of a prototype, which is added to them."""
    return query @ prototypes[..., :-1].mT + prototypes[..., -1][..., None, :]


def _weights(prototypes: Prototypes, counts: Counts, parameters: Parameters) -> Float[Tensor, "*batch way d+1"]:
    """Return the weights of the classes; their means where nothing has been fitted."""
    if "weights" in parameters:
        return parameters["weights"]
    return torch.nn.functional.pad(prototypes, (0, 1))


def _refuse_base(vectors: Tensor, labels: Tensor) -> Parameters:
    raise BadInput("the head logistic takes no base: it learns from the support alone. The head posterior takes one.")


LOGISTIC_HEAD = Head(
    gaussian.unit_vectors,
    linear,
    _weights,
    couples=True,
    has_onnx=False,
    alternative_to="posterior",
    estimator=Estimator(fit, keep_vectors, gaussian.evidence, leave_one_out, _refuse_base),
)
