"""From vectors and a plan to the recalls of every head and readout that was asked for."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyshot.measure.engine import Shots, Vectors, recalls
from anyshot.measure.plan import Plan
from anyshot.models.law import Parameters, Reading
from anyshot.models.registry import PACKAGE, Registry
from anyshot.progress import Done, unwatched
from anyshot.rows import grouped

Base = Callable[[], tuple[Float[Tensor, "image d"], Int[Tensor, " image"]]]
Fitted = Callable[[str], Parameters]
"""What a readout has learned from base classes, by the readout's name."""


def read_out(
    asked: Sequence[tuple[Reading, str]],
    vectors: Vectors,
    fitted: Fitted,
    plan: Plan,
    shots: Shots,
    registry: Registry = PACKAGE,
    progress: Done = unwatched,
) -> list[Float[np.ndarray, "pattern episode way"]]:
    """Recalls of each (reading, name of a readout) over the same episodes and vectors; what reads the same vectors
    shares its products. `fitted` is asked only for readouts that have something to fit (see `fit_on`). `progress` is
    called with shares of the whole that add up to 1."""
    names = [name if registry.readout(name).apply else "" for _, name in asked]
    groups = grouped(range(len(asked)), lambda index: names[index])
    out: dict[int, np.ndarray] = {}
    for name, members in groups.items():
        readout = registry.readout(name or "own")
        learned = fitted(name) if readout.fit else {}
        bank = torch.cat([readout.applied(piece, learned) for piece in vectors.split(4096)]) if name else vectors
        readings = [registry.readout(asked[index][1]).reading(asked[index][0], learned) for index in members]
        share = scaled(progress, 1 / (plan.episodes * len(groups)))
        out |= dict(zip(members, recalls(bank, readings, plan, shots, share), strict=True))
    return [out[index] for index in range(len(asked))]


def fit_on(base: Base, registry: Registry = PACKAGE) -> Fitted:
    """Fits a readout when it is asked for, on the vectors and labels that `base` gives."""
    base = cache(base)

    def fitted(name: str) -> Parameters:
        fit = registry.readout(name).fit
        return {} if fit is None else fit(*base())

    return fitted


def scaled(progress: Done, by: float) -> Done:
    """The progress of a part, told to the whole."""
    return lambda amount: progress(amount * by)
