"""The refinement of FEAT (Ye et al. 2020): prototypes attend to each other, by one head of self-attention."""

from math import sqrt

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from anyshot.models.law import Counts, Features, Parameters, Prototypes
from anyshot.recipe import Recipe

ATTENTION_DROPOUT, OUTPUT_DROPOUT = 0.1, 0.5  # as in the code of FEAT's authors


def attention(prototypes: Prototypes, counts: Counts, parameters: Parameters) -> Prototypes:
    """Return prototypes after self-attention over the classes of an episode, a linear layer and a residual (Sec. 3.2).

    There is no LayerNorm unless the recipe asks for it: the paper removes it, as it would make both scores nearly
    cosine.
    """
    match, value, bias = _attention_maps(parameters)
    weight = _dropout((prototypes @ match @ prototypes.mT).softmax(-1), ATTENTION_DROPOUT, parameters)
    return _add_residual(prototypes, weight @ (prototypes @ value.mT) + bias, parameters)


def attention_folds(
    means: Float[Tensor, "way d"], others: Float[Tensor, "fold d"], counts: Counts, parameters: Parameters
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


def _attention_maps(parameters: Parameters) -> tuple[Tensor, Tensor, Tensor]:
    """Join query and key to one matrix, value and output to another: two products with prototypes instead of four."""
    query, key = parameters["attend_query"], parameters["attend_key"]
    value = parameters["attend_out"] @ parameters["attend_value"]
    return query.mT @ key / sqrt(len(query)), value, parameters["attend_bias"]


def _add_residual(prototypes: Tensor, change: Tensor, parameters: Parameters) -> Tensor:
    refined = prototypes + _dropout(change, OUTPUT_DROPOUT, parameters)
    if "norm_weight" in parameters:
        refined = F.layer_norm(refined, refined.shape[-1:], parameters["norm_weight"], parameters["norm_bias"])
    return refined


def _dropout(x: Tensor, share: float, parameters: Parameters) -> Tensor:
    """Apply dropout while the parameters are learned, from four random numbers of 16 bits per draw.

    On a CPU it takes an eighth of the time of torch's own dropout, and published models were trained with its draws.
    """
    if not (torch.is_grad_enabled() and parameters["attend_out"].requires_grad):
        return x
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
    stays = draws.view(torch.int16)[: x.numel()].view(x.shape) >= round(share * 2**16) - 2**15
    return x * stays.to(x.dtype).mul_(1 / (1 - share))


def attention_parameters(features: Features, recipe: Recipe) -> dict[str, Tensor]:
    """Return starting values of the four matrices, and of the LayerNorm where the recipe asks for it."""
    d = features[0].numel() if recipe.embed == "flatten" else features.shape[-1]
    start = {name: torch.randn(d, d) / sqrt(d) for name in ("attend_query", "attend_key", "attend_value")}
    start["attend_out"] = torch.nn.init.xavier_normal_(torch.empty(d, d))
    start["attend_bias"] = torch.empty(d).uniform_(-1 / sqrt(d), 1 / sqrt(d))
    if recipe.layer_norm:
        start |= {"norm_weight": torch.ones(d), "norm_bias": torch.zeros(d)}
    return start
