"""How well the difference of two choices is known where their episodes are at hand: both met the same ones, so what an
episode does to both drops out of the interval. Nothing here imports torch."""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from anyshot.measure.intervals import episode_interval
from anyshot.rows import Row
from anyshot.show.grid import AT

Model = tuple[str, str, str, str, int, int]  # data, backbone, head, readout, train shot, seed
Pairs = dict[str, dict[str, dict[Any, float]]]
"""By label and label (in order of the alphabet), then by test shot: half the 95 % interval of the difference."""


def read_episodes(folder: Path, rows: Sequence[Row]) -> dict[Model, tuple[str, dict[Any, np.ndarray]]]:
    """The accuracy of every episode by model and test shot, and a stamp that models tested on the same episodes share.

    A recall file tells neither shots nor head: it is used where its means are the accuracies of the table."""
    models: dict[Model, list[Row]] = {}
    for row in rows:
        where = (row["data"], row["backbone"], row["head"], row["readout"], row["train_shot"], row["seed"])
        models.setdefault(where, []).append(row)
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*/recall-*.npz")):
        files.setdefault(path.parent.name.rpartition("-")[2], []).append(path)
    evaluated = [folder / "recall.npz"] if (folder / "recall.npz").is_file() else []
    out = {}
    for where, cells in models.items():
        head, readout = where[2:4]
        for path in files.get(str(cells[0]["model"]), evaluated):
            found = _accuracies(path, (readout, f"{head.partition(AT)[0]} {readout}"))
            if found is not None and _are(found[1], cells):
                out[where] = (found[0], {row["test_shot"]: found[1][i] for i, row in enumerate(cells)})
    return out


def _accuracies(path: Path, names: Sequence[str]) -> tuple[str, Float[np.ndarray, "test_shot episode"]] | None:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            recall = next((file[name] for name in names if name in file.files), None)
            drawn = file["classes"].tobytes() if "classes" in file.files else str(path).encode()
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error):
        return None  # a report needs no recalls: without them intervals are wider
    if recall is None or recall.ndim != 3:
        return None
    return sha256(drawn).hexdigest(), 100 * recall.mean(-1)


def _are(accuracies: Float[np.ndarray, "test_shot episode"], cells: Sequence[Row]) -> bool:
    if len(accuracies) != len(cells) or accuracies.shape[1] < 2:
        return False
    means = accuracies.mean(1, dtype=np.float64)
    return bool(np.allclose(means, [row["accuracy"] for row in cells], rtol=0, atol=0.001))


def paired_intervals(choices: Mapping[str, Sequence[tuple[str, Mapping[Any, np.ndarray]]]]) -> Pairs:
    """Of choices by label, each a list (a seed each) of a stamp and accuracies: those of the same episodes in pairs."""
    means = {}
    for label, seeds in choices.items():
        if len({stamp for stamp, _ in seeds}) == 1:
            shots = set.intersection(*(set(cells) for _, cells in seeds))
            means[label] = (seeds[0][0], {shot: np.mean([cells[shot] for _, cells in seeds], 0) for shot in shots})
    out: Pairs = {}
    for (one, (stamp, mine)), (other, (same, theirs)) in combinations(sorted(means.items()), 2):
        if stamp == same:
            both = {shot: mine[shot] - theirs[shot] for shot in mine if shot in theirs}
            half = {shot: round(episode_interval(gap), 3) for shot, gap in both.items()}
            out.setdefault(one, {})[other] = half
    return out


def half_width(pairs: Pairs, one: str, other: str, weights: Mapping[Any, float]) -> float | None:
    """Half the interval of a difference under a distribution of shots: the mean of its shots', the widest it can be."""
    first, second = sorted((one, other))
    known = pairs.get(first, {}).get(second, {})
    counted = {shot: weight for shot, weight in weights.items() if weight > 0}
    if not counted or not counted.keys() <= known.keys():
        return None
    return sum(known[shot] * weight for shot, weight in counted.items()) / sum(counted.values())
