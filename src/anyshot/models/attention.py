"""FEAT: prototypes that look at each other, by one head of self-attention (Sec. 3.2)."""

from math import sqrt

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from anyshot.models.law import Counts, Features, Parameters, Prototypes
from anyshot.recipe import Recipe


def attention(prototypes: Prototypes, counts: Counts, parameters: Parameters) -> Prototypes:
    """FEAT: one-head self-attention over the prototypes of an episode, a linear layer, a residual; no LayerNorm unless
    the recipe asks for it (the paper removes it: it would make both scores nearly cosine)."""
    match, value, bias = _attention_maps(parameters)
    weight = _dropout((prototypes @ match @ prototypes.mT).softmax(-1), 0.1, parameters)
    return _attended(prototypes, weight @ (prototypes @ value.mT) + bias, parameters)


def attention_folds(
    everyone: Float[Tensor, "way d"], others: Float[Tensor, "fold d"], counts: Counts, parameters: Parameters
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
    weight = _dropout(scores.softmax(-1), 0.1, parameters)
    values = everyone @ value.mT
    moved = others @ value.mT - values[mine]
    change = torch.baddbmm(weight @ values + bias, weight[fold, :, mine][..., None], moved[:, None])
    sets = everyone.expand(len(others), -1, -1).clone()
    sets[fold, mine] = others
    return _attended(sets, change, parameters)


def _attention_maps(parameters: Parameters) -> tuple[Tensor, Tensor, Tensor]:
    """Query and key are one matrix, value and output another: two products with prototypes instead of four."""
    query, key = parameters["attend_query"], parameters["attend_key"]
    value = parameters["attend_out"] @ parameters["attend_value"]
    return query.mT @ key / sqrt(len(query)), value, parameters["attend_bias"]


def _attended(prototypes: Tensor, change: Tensor, parameters: Parameters) -> Tensor:
    refined = prototypes + _dropout(change, 0.5, parameters)
    if "norm_weight" in parameters:
        refined = F.layer_norm(refined, refined.shape[-1:], parameters["norm_weight"], parameters["norm_bias"])
    return refined


def _dropout(x: Tensor, share: float, parameters: Parameters) -> Tensor:
    """Dropout while the parameters are learned, from four random numbers of 16 bits per draw: on a CPU an eighth of the
    time of torch's own."""
    if not (torch.is_grad_enabled() and parameters["attend_out"].requires_grad):
        return x
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
    stays = draws.view(torch.int16)[: x.numel()].view(x.shape) >= round(share * 2**16) - 2**15
    return x * stays.to(x.dtype).mul_(1 / (1 - share))


def attention_parameters(features: Features, recipe: Recipe) -> dict[str, Tensor]:
    """Starting values of the four matrices, and of the LayerNorm where the recipe asks for it."""
    d = features[0].numel() if recipe.embed == "flatten" else features.shape[-1]
    start = {name: torch.randn(d, d) / sqrt(d) for name in ("attend_query", "attend_key", "attend_value")}
    start["attend_out"] = torch.nn.init.xavier_normal_(torch.empty(d, d))
    start["attend_bias"] = torch.empty(d).uniform_(-1 / sqrt(d), 1 / sqrt(d))
    if recipe.layer_norm:
        start |= {"norm_weight": torch.ones(d), "norm_bias": torch.zeros(d)}
    return start
