"""All heads of the package, each the law of `law` with its own slots, and the embeddings that a recipe may name.

To add a head, write its functions here (or in a module beside this one) and add it to one of the dictionaries.

Papers:
    Snell et al. 2017: Prototypical Networks for Few-shot Learning, NeurIPS.
    Ye et al. 2020: Few-Shot Learning via Embedding Adaptation with Set-to-Set Functions (FEAT), CVPR.
    Wertheimer et al. 2021: Few-Shot Classification with Feature Map Reconstruction Networks (FRN), CVPR.
    The paper that this package follows compares these three with heads that score by a cosine.
"""

from functools import partial
from math import sqrt

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from anyshot.models import law
from anyshot.models.gaussian import POSTERIOR_HEAD
from anyshot.models.gram import class_overlap, gram, reconstruct, reconstruct_old, reconstruct_rows
from anyshot.models.law import Head, contrastive_logits, cosine, dot, euclidean, flatten, max_pool, mean_pool, normalize
from anyshot.models.logistic import LOGISTIC_HEAD
from anyshot.recipe import Recipe

ATTENTION_DROPOUT, OUTPUT_DROPOUT = 0.1, 0.5  # as in the code of FEAT's authors
EMBEDS: dict[str, law.Embed] = {"flatten": flatten, "mean": mean_pool, "max": max_pool, "gram": gram}

# A cosine is at most 1, and a short training does not let its temperature grow from 1. Validation classes of cub32,
# 12 epochs at 8 shots, from 1 and from 10: cosine-proto 73.7 and 77.9 %, cosine-frn 76.0 and 79.4 %, cosine-feat 46.6
# and 68.3 %.
COSINE_TEMPERATURE = 10.0

# ---------------------------------------------------------------------------------------------------- attention of FEAT
# FEAT (Ye et al. 2020) refines prototypes by one head of self-attention: they attend to each other.


def attention(prototypes: law.Prototypes, counts: law.Counts, parameters: law.Parameters) -> law.Prototypes:
    """Return prototypes after self-attention over the classes of an episode, a linear layer and a residual (Sec. 3.2).

    There is no LayerNorm unless the recipe asks for it: the paper removes it, as it would make both scores nearly
    cosine.
    """
    match, value, bias = _attention_maps(parameters)
    weight = _dropout((prototypes @ match @ prototypes.mT).softmax(-1), ATTENTION_DROPOUT, parameters)
    return _add_residual(prototypes, weight @ (prototypes @ value.mT) + bias, parameters)


def attention_folds(
    means: Float[Tensor, "way d"], others: Float[Tensor, "fold d"], counts: law.Counts, parameters: law.Parameters
) -> Float[Tensor, "fold way d"]:
    """Return the same as `attention` on the prototypes of every fold of a batch.

    The prototypes of a fold are the class means, but for the class of the query, whose mean is without the query. What
    folds share is computed once: all of the match but a row and a column, all of the values but one.

    Args:
        means: The mean of each class.
        others: For each fold, the mean of the query's class without the query.
        counts: The number of images behind each prototype.
        parameters: What the head has learned.
    """
    match, value, bias = _attention_maps(parameters)
    fold = torch.arange(len(others), device=others.device)
    query_class = fold // (len(others) // len(means))
    shared, row, column = means @ match @ means.mT, others @ match @ means.mT, others @ match.mT @ means.mT
    scores = shared.expand(len(others), -1, -1).clone()
    scores[fold, query_class] = row
    scores[fold, :, query_class] = column
    scores[fold, query_class, query_class] = torch.linalg.vecdot(others @ match, others)
    weight = _dropout(scores.softmax(-1), ATTENTION_DROPOUT, parameters)
    values = means @ value.mT
    shift = others @ value.mT - values[query_class]
    change = torch.baddbmm(weight @ values + bias, weight[fold, :, query_class][..., None], shift[:, None])
    sets = means.expand(len(others), -1, -1).clone()
    sets[fold, query_class] = others
    return _add_residual(sets, change, parameters)


def _attention_maps(parameters: law.Parameters) -> tuple[Tensor, Tensor, Tensor]:
    """Join query and key to one matrix, value and output to another: two products with prototypes instead of four."""
    query, key = parameters["attend_query"], parameters["attend_key"]
    value = parameters["attend_out"] @ parameters["attend_value"]
    return query.mT @ key / sqrt(len(query)), value, parameters["attend_bias"]


def _add_residual(prototypes: Tensor, change: Tensor, parameters: law.Parameters) -> Tensor:
    refined = prototypes + _dropout(change, OUTPUT_DROPOUT, parameters)
    if "norm_weight" in parameters:
        refined = F.layer_norm(refined, refined.shape[-1:], parameters["norm_weight"], parameters["norm_bias"])
    return refined


def _dropout(x: Tensor, share: float, parameters: law.Parameters) -> Tensor:
    """Apply dropout while the parameters are learned, from four random numbers of 16 bits per draw.

    On a CPU it takes an eighth of the time of torch's own dropout, and published models were trained with its draws.
    """
    if not (torch.is_grad_enabled() and parameters["attend_out"].requires_grad):
        return x
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
    stays = draws.view(torch.int16)[: x.numel()].view(x.shape) >= round(share * 2**16) - 2**15
    return x * stays.to(x.dtype).mul_(1 / (1 - share))


def attention_parameters(features: law.Features, recipe: Recipe) -> dict[str, Tensor]:
    """Return starting values of the four matrices, and of the LayerNorm where the recipe asks for it."""
    d = features[0].numel() if recipe.embed == "flatten" else features.shape[-1]
    start = {name: torch.randn(d, d) / sqrt(d) for name in ("attend_query", "attend_key", "attend_value")}
    start["attend_out"] = torch.nn.init.xavier_normal_(torch.empty(d, d))
    start["attend_bias"] = torch.empty(d).uniform_(-1 / sqrt(d), 1 / sqrt(d))
    if recipe.layer_norm:
        start |= {"norm_weight": torch.ones(d), "norm_bias": torch.zeros(d)}
    return start


# ---------------------------------------------------------------------------------------------------- the paper's heads


def _unit_vectors_for_euclidean(features: law.Features, parameters: law.Parameters) -> law.Vectors:
    """Concatenate all positions and scale the d numbers to length sqrt(d).

    A Euclidean score, which divides by d, then sees the distance between vectors of length one.
    """
    vectors = features.flatten(-2)
    return normalize(vectors) * vectors.shape[-1] ** 0.5


def contrastive_loss(
    head: Head, parameters: law.Parameters, classes: Float[Tensor, "way shot d"], recipe: Recipe
) -> Tensor | None:
    """Return FEAT's auxiliary term (Ye et al. 2020), weighted by `recipe.contrastive`."""
    if not recipe.contrastive:
        return None
    way, shot, _ = classes.shape
    target = torch.arange(way, device=classes.device).repeat_interleave(shot)
    return recipe.contrastive * F.cross_entropy(contrastive_logits(head, parameters, classes), target)


def overlap_loss(
    head: Head, parameters: law.Parameters, classes: Float[Tensor, "way shot d"], recipe: Recipe
) -> Tensor | None:
    """Return the auxiliary term of FRN's authors (Wertheimer et al. 2021), weighted by `recipe.overlap`."""
    return recipe.overlap * class_overlap(classes.mean(1)) if recipe.overlap else None


def _ridge_parameters(features: law.Features, recipe: Recipe) -> dict[str, Tensor]:
    return {"alpha": torch.tensor(recipe.alpha)}


def _old_ridge_parameters(features: law.Features, recipe: Recipe) -> dict[str, Tensor]:
    return {"alpha": torch.tensor(0.0), "beta": torch.tensor(0.0)}


_feat = partial(
    Head,
    max_pool,
    refine=attention,
    refine_folds=attention_folds,
    couples=True,
    parameters=attention_parameters,
    needs_training=True,
    auxiliary=contrastive_loss,
    lr=0.01,  # FEAT diverges at 0.1 with Conv-4; the paper divides its learning rate by 10 too
)
_frn = partial(Head, gram, auxiliary=overlap_loss)

HEADS: dict[str, Head] = {
    # ProtoNet: the nearest class mean by squared Euclidean distance (Snell et al. 2017).
    "proto": Head(flatten, euclidean),
    # ProtoNet with a cosine in place of the distance.
    "cosine-proto": Head(flatten, cosine, alternative_to="proto", temperature=COSINE_TEMPERATURE),
    # FEAT: prototypes attend to each other before the distance is taken (Ye et al. 2020).
    "feat": _feat(score=euclidean),
    # FEAT with a cosine.
    "cosine-feat": _feat(score=cosine, alternative_to="feat", temperature=COSINE_TEMPERATURE),
    # FRN: how well the support reconstructs the query by ridge regression, with a ridge that is a share of the norm of
    # the support's Gram matrix (after Wertheimer et al. 2021, simplified by the paper, Eq. 5).
    "frn": _frn(dot, reconstruct, _ridge_parameters, refine_rows=reconstruct_rows, has_onnx=False),
    # FRN as its authors published it: the error of the scaled reconstruction (Wertheimer et al. 2021).
    "frn-old": _frn(dot, reconstruct_old, _old_ridge_parameters, has_onnx=False),
    # The cosine of the mean Gram matrices of query and support.
    "cosine-frn": _frn(cosine, alternative_to="frn", temperature=COSINE_TEMPERATURE),
}

# ------------------------------------------------------------------------------------- heads on features of any network


def _project(features: law.Features, parameters: law.Parameters) -> law.Vectors:
    """Concatenate all positions and apply a learned linear map."""
    return features.flatten(-2) @ parameters["map"]


def _map_parameters(features: law.Features, recipe: Recipe) -> dict[str, Tensor]:
    """Return a random map to `recipe.width` numbers, which about preserves distances."""
    d = features[0].numel()
    return {"map": torch.randn(d, recipe.width) / d**0.5}


_linear = partial(Head, _project, parameters=_map_parameters, needs_training=True)
FEATURE_HEADS: dict[str, Head] = {
    # ProtoNet on a learned linear map: what can be learned on the features of a frozen backbone (Snell et al. 2017).
    "linear-proto": _linear(euclidean),
    # The same with a cosine.
    "cosine-linear-proto": _linear(cosine, alternative_to="linear-proto", temperature=COSINE_TEMPERATURE),
    # ProtoNet on vectors of length one: what a model is trained with that the posterior reads.
    "unit-proto": Head(_unit_vectors_for_euclidean, euclidean, alternative_to="proto", temperature=COSINE_TEMPERATURE),
    # A Gaussian model of each class, estimated from the support; scores by the log predictive density.
    "posterior": POSTERIOR_HEAD,
    # The posterior, refined by logistic regression on the kept examples: for classes that have many.
    "logistic": LOGISTIC_HEAD,
}

# ---------------------------------------------------------------------------------------------------------- pretraining
# In pretraining every image is classified among all training classes. It is the law with one word changed: a prototype
# is not the mean of a support, it is learned. For validation both are read as few-shot heads.


def _linear_parameters(features: law.Features, recipe: Recipe) -> dict[str, Tensor]:
    d = features.shape[-1]
    classes = torch.empty(recipe.way, d).uniform_(-1 / sqrt(d), 1 / sqrt(d))
    return {"classes": classes, "bias": torch.zeros(recipe.way)}


def _linear_logits(parameters: law.Parameters, vectors: Float[Tensor, "image d"]) -> Float[Tensor, "image way"]:
    return parameters["scale"] * F.linear(vectors, parameters["classes"], parameters["bias"])


def _matrix_parameters(features: law.Features, recipe: Recipe) -> dict[str, Tensor]:
    return {"classes": torch.randn(recipe.way, *features.shape[1:])}


def _reconstruct_fixed(prototypes: law.Prototypes, counts: law.Counts, parameters: law.Parameters) -> law.Prototypes:
    """Reconstruct as `frn-old` does with lambda = rho = 1 (alpha = beta = 0)."""
    zero = prototypes.new_zeros(())
    return reconstruct_old(prototypes, counts, {"alpha": zero, "beta": zero})


def _matrix_logits(parameters: law.Parameters, vectors: Float[Tensor, "image d"]) -> Float[Tensor, "image way"]:
    classes = gram(parameters["classes"], parameters)
    counts = torch.ones(len(classes), dtype=torch.long, device=classes.device)
    return parameters["scale"] * dot(vectors, _reconstruct_fixed(classes, counts, parameters))


PRETRAINING: dict[str, Head] = {
    # A linear classifier of the pooled features (FEAT's pretraining, Ye et al. 2020).
    "linear": Head(mean_pool, euclidean, parameters=_linear_parameters, class_logits=_linear_logits),
    # One learned matrix of features per class takes the place of its support (FRN's, Wertheimer et al. 2021).
    "class-matrix": Head(gram, dot, _reconstruct_fixed, _matrix_parameters, class_logits=_matrix_logits),
}
