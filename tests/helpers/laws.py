"""The law spelled out slowly, one class and one query at a time: what every fast path is compared with."""

import torch
from torch import Tensor

from anyshot.models.heads import HEADS
from anyshot.models.law import Head
from anyshot.recipe import Recipe

RECIPE = Recipe(data="none", head="proto", train_shot=4, way=5, alpha=-2.0)
ALL_HEADS = sorted(HEADS)


def parameters(head: Head, features: Tensor, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Starting values for such features, moved a little so that none is special."""
    start = {"scale": torch.tensor(1.7), **head.parameters(torch.zeros(1, *features.shape[-2:]), RECIPE)}
    return {name: value.to(dtype) + (0.1 if name in ("alpha", "beta") else 0.0) for name, value in start.items()}


def embed(head: Head, features: Tensor) -> Tensor:
    return head.embed(features, {})


def logits(head: Head, learned: dict[str, Tensor], query: Tensor, supports: list[Tensor]) -> Tensor:
    """Logits of one query vector, given each class's support vectors."""
    prototypes = torch.stack([support.mean(0) for support in supports])
    if head.refine is not None:
        prototypes = head.refine(prototypes, torch.tensor([len(support) for support in supports]), learned)
    return learned["scale"] * torch.stack([head.score(query[None], p[None])[0, 0] for p in prototypes])
