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
from anyshot.models.readouts import Readout
from anyshot.models.registry import PACKAGE, Registry

Base = Callable[[], tuple[Float[Tensor, "image d"], Int[Tensor, " image"]]]


def read_out(
    asked: Sequence[tuple[Reading, str]],
    vectors: Vectors,
    base: Base,
    plan: Plan,
    shots: Shots,
    registry: Registry = PACKAGE,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Float[np.ndarray, "pattern episode way"]]:
    """Recalls of each (reading, name of a readout) over the same episodes and vectors; what reads the same vectors
    shares its products. `base` gives the vectors and labels of base classes, and is asked only if a readout has to be
    fitted. `progress` is called with shares of the whole that add up to 1."""
    base = cache(base)
    groups: dict[str, list[int]] = {}
    for index, (_, name) in enumerate(asked):
        groups.setdefault(name if registry.readout(name).apply else "", []).append(index)
    out: dict[int, np.ndarray] = {}
    for name, members in groups.items():
        fitted: Parameters = {}
        if name:
            readout = registry.readout(name)
            fitted = fit_readout(readout, base)
            bank = torch.cat([readout.applied(piece, fitted) for piece in vectors.split(4096)])
        readings = [registry.readout(asked[index][1]).reading(asked[index][0], fitted) for index in members]
        share = scaled(progress, 1 / (plan.episodes * len(groups)))
        out |= dict(zip(members, recalls(bank if name else vectors, readings, plan, shots, share), strict=True))
    return [out[index] for index in range(len(asked))]


def fit_readout(readout: Readout, base: Base) -> Parameters:
    """What a readout learns from base classes; nothing where it has nothing to fit."""
    return {} if readout.fit is None else readout.fit(*base())


def scaled(progress: Callable[[float], None], by: float) -> Callable[[float], None]:
    """The progress of a part, told to the whole."""
    return lambda amount: progress(amount * by)
