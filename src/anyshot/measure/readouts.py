"""Readouts: ways to read a trained model at test time, without training.

own       as it was trained
swapped   the other score: cosine for a Euclidean head, Euclidean for a cosine one (Sec. 5, Fig. 5)
pcaN      the N leading principal directions of the training classes' vectors, then the head's score
estN      the N directions that EST keeps
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyshot.errors import BadInput, unknown
from anyshot.measure.engine import Reading, Shots, Vectors, recalls
from anyshot.measure.plan import Plan
from anyshot.models.heads import Head, cosine, euclidean
from anyshot.models.projections import PROJECTIONS

SWAPPED = {id(euclidean): cosine, id(cosine): euclidean}
Base = Callable[[], tuple[Float[Tensor, "image d"], Int[Tensor, " image"]]]


def check_readout(name: str, head_name: str, head: Head) -> None:
    """Say what is wrong with a readout for a head, before any work is done."""
    if name == "swapped":
        if id(head.score) not in SWAPPED:
            raise BadInput(f"the score of {head_name} is neither Euclidean nor cosine: it cannot be swapped.")
    elif projection(name):
        if head.refine is not None:
            raise BadInput(
                f"{name} projects prototypes, and {head_name} refines them: use it with proto or cosine-proto."
            )
    elif name != "own":
        raise BadInput(unknown("readout", name, ["own", "swapped", "pca60", "est60"]))


def read_out(
    asked: Sequence[tuple[Reading, str]],
    vectors: Vectors,
    base: Base,
    plan: Plan,
    shots: Shots,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Float[np.ndarray, "pattern episode way"]]:
    """Recalls of each (reading, readout) over the same episodes and vectors; what reads the same projection shares its
    products. `base` gives the training classes' vectors and labels, and is asked only if a projection has to be fitted.
    `progress` is called with shares of the whole that add up to 1."""
    groups: dict[str, list[int]] = {}
    for index, (_, readout) in enumerate(asked):
        groups.setdefault(readout if projection(readout) else "", []).append(index)
    out: dict[int, np.ndarray] = {}
    for name, members in groups.items():
        bank = _projected(vectors, name, base) if name else vectors
        readings = [swapped(asked[index][0]) if asked[index][1] == "swapped" else asked[index][0] for index in members]
        found = recalls(bank, readings, plan, shots, scaled(progress, 1 / (plan.episodes * len(groups))))
        out |= dict(zip(members, found, strict=True))
    return [out[index] for index in range(len(asked))]


def scaled(progress: Callable[[float], None], by: float) -> Callable[[float], None]:
    """The progress of a part, told to the whole."""
    return lambda amount: progress(amount * by)


def _projected(vectors: Vectors, name: str, base: Base) -> Float[Tensor, "image kept"]:
    match = projection(name)
    assert match is not None
    fit, kept = PROJECTIONS[match[1]], int(match[2])
    if kept >= vectors.shape[1]:
        raise BadInput(f"{name} keeps {kept} dimensions, and the vectors have only {vectors.shape[1]}: keep fewer.")
    basis = fit(*base(), kept)
    return torch.cat([piece @ basis for piece in vectors.split(4096)])


def projection(name: str) -> re.Match[str] | None:
    """The kind and the dimensions of a projection's name, such as pca60."""
    return re.fullmatch(r"(pca|est)([1-9]\d*)", name)


def swapped(reading: Reading) -> Reading:
    """The same with the other score."""
    return replace(reading, head=replace(reading.head, score=SWAPPED[id(reading.head.score)]))
