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
from jaxtyping import Float, Int
from torch import Tensor

from anyshot.episodes import Plan
from anyshot.errors import BadInput, unknown
from anyshot.evaluation import Reading, Shots, recalls
from anyshot.heads import Head, Parameters, cosine, euclidean
from anyshot.projections import PROJECTIONS

SWAPPED = {id(euclidean): cosine, id(cosine): euclidean}
Base = Callable[[], tuple[Float[Tensor, "image d"], Int[Tensor, " image"]]]


def check_readout(name: str, head_name: str, head: Head) -> None:
    """Say what is wrong with a readout for a head, before any work is done."""
    if name == "swapped":
        if id(head.score) not in SWAPPED:
            raise BadInput(f"the score of {head_name} is neither Euclidean nor cosine: it cannot be swapped.")
    elif _projection(name):
        if head.refine is not None:
            raise BadInput(
                f"{name} projects prototypes, and {head_name} refines them: use it with proto or cosine-proto."
            )
    elif name != "own":
        raise BadInput(unknown("readout", name, ["own", "swapped", "pca60", "est60"]))


def read_out(
    names: Sequence[str],
    head: Head,
    parameters: Parameters,
    vectors: Float[Tensor, "image d"],
    base: Base,
    plan: Plan,
    shots: Shots,
    progress: Callable[[int], None] = lambda episodes: None,
) -> dict[str, Float[np.ndarray, "pattern episode way"]]:
    """Recalls of each readout over the same episodes. `base` gives the training classes' vectors and labels, and is
    asked only if a projection has to be fitted. Readouts of the same vectors share their products."""
    out: dict[str, np.ndarray] = {}
    unprojected = [name for name in names if not _projection(name)]
    if unprojected:
        readings = [Reading(_swap(head) if name == "swapped" else head, parameters) for name in unprojected]
        found = recalls(vectors, readings, plan, shots, progress)
        out |= {name: found[index] for index, name in enumerate(unprojected)}
    for name in names:
        if match := _projection(name):
            fit, kept = PROJECTIONS[match[1]], int(match[2])
            if kept >= vectors.shape[1]:
                raise BadInput(
                    f"{name} keeps {kept} dimensions, and the vectors have only {vectors.shape[1]}: keep fewer."
                )
            bank = vectors @ fit(*base(), kept)
            out[name] = recalls(bank, [Reading(head, parameters)], plan, shots, progress)[0]
    return {name: out[name] for name in names}


def _projection(name: str) -> re.Match[str] | None:
    return re.fullmatch(r"(pca|est)([1-9]\d*)", name)


def _swap(head: Head) -> Head:
    return replace(head, score=SWAPPED[id(head.score)])
