"""From vectors and a plan to the recalls of every head and readout of a list."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyshot.measure.engine import Shots, Vectors, compute_recalls
from anyshot.measure.plan import Plan
from anyshot.models.law import BoundHead, Parameters, move_parameters
from anyshot.models.registry import BUILTIN, Registry
from anyshot.progress import OnProgress, no_progress
from anyshot.text import group_by

Base = Callable[[], tuple[Float[Tensor, "image d"], Int[Tensor, " image"]]]
FitReadout = Callable[[str], Parameters]
"""What a readout has learned from base classes, by the readout's name."""


def compute_readout_recalls(
    pairs: Sequence[tuple[BoundHead, str]],
    vectors: Vectors,
    fitted: FitReadout,
    plan: Plan,
    shots: Shots,
    registry: Registry = BUILTIN,
    progress: OnProgress = no_progress,
) -> list[Float[np.ndarray, "pattern episode way"]]:
    """Return the recalls of each head and readout; those that read the same vectors share their inner products.

    Args:
        pairs: Heads, each with the name of a readout.
        vectors: The vector of every image.
        fitted: Returns what a readout has learned; called only for readouts that have something to fit.
        plan: The episodes.
        shots: As in `engine.compute_recalls`.
        registry: What readouts are looked up in.
        progress: Called with shares of the whole that add up to 1.
    """
    names = [name if registry.readout(name).apply else "" for _, name in pairs]
    groups = group_by(range(len(pairs)), lambda index: names[index])
    out: dict[int, np.ndarray] = {}
    for name, members in groups.items():
        readout = registry.readout(name or "own")
        learned = move_parameters(fitted(name), vectors.device) if readout.fit else {}
        bank = torch.cat([readout.applied(piece, learned) for piece in vectors.split(4096)]) if name else vectors
        readings = [registry.readout(pairs[index][1]).bind(pairs[index][0], learned) for index in members]
        share = scale_progress(progress, 1 / (plan.episodes * len(groups)))
        out |= dict(zip(members, compute_recalls(bank, readings, plan, shots, share), strict=True))
    return [out[index] for index in range(len(pairs))]


def lazy_readout_fits(base: Base, registry: Registry = BUILTIN) -> FitReadout:
    """Return a function that fits a readout on first use, on the vectors and labels that `base` returns."""
    base = cache(base)

    def fitted(name: str) -> Parameters:
        fit = registry.readout(name).fit
        return {} if fit is None else fit(*base())

    return fitted


def scale_progress(progress: OnProgress, by: float) -> OnProgress:
    """Return a callback for a part of the work, which reports its progress as a share of the whole."""
    return lambda amount: progress(amount * by)
