"""How well the difference of two choices is known where their episodes are at hand: both met the same ones, so what an
episode does to both drops out of the interval. Nothing here imports torch."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from anyshot.errors import BadInput
from anyshot.measure.intervals import episode_interval
from anyshot.measure.recalls import UNKNOWN, read_recalls
from anyshot.rows import Row
from anyshot.show.grid import AT, Key, key

Model = tuple[Key, int, int]  # the grid, train shot, seed
MORE = ("data", "backbone", "readout", "train_shot", "seed")
Pairs = dict[tuple[str, str], dict[Any, float]]
"""By two labels (in order of the alphabet), then by test shot: half the 95 % interval of the difference."""


def read_episodes(folder: Path, rows: Sequence[Row]) -> dict[Model, tuple[str, dict[Any, np.ndarray]]]:
    """The accuracy of every episode by model and test shot, and the id of the episodes, for the models of these rows
    whose recalls lie in the folder. (A report needs no recalls: without them, or where they are damaged, intervals of
    differences are wider.)"""
    wanted = {(str(row["model"]), row["head"].partition(AT)[0], *(row[name] for name in MORE)): row for row in rows}
    episodes: dict[Model, tuple[str, dict[Any, np.ndarray]]] = {}
    for path in [*sorted(folder.glob("*/recalls-*.npz")), *folder.glob("recalls.npz")]:
        try:
            recalls = read_recalls(path)
        except BadInput:
            continue
        for one in recalls:
            of = {**UNKNOWN, **one.of}
            row = wanted.get((of["model"], of["head"], *(of[name] for name in MORE)))
            if row is not None and row.get("episodes") == one.plan["episodes"] > 1:
                where = key(row), row["train_shot"], row["seed"]
                episodes[where] = one.plan["id"], dict(zip(one.shots, one.accuracies, strict=True))
    return episodes


def paired_intervals(choices: Mapping[str, Sequence[tuple[str, Mapping[Any, np.ndarray]]]]) -> Pairs:
    """Of choices by label, each a list of a stamp and accuracies per seed: those of the same episodes in pairs."""
    means = {}
    for label, seeds in choices.items():
        if len({stamp for stamp, _ in seeds}) == 1:
            shots = set.intersection(*(set(cells) for _, cells in seeds))
            means[label] = (seeds[0][0], {shot: np.mean([cells[shot] for _, cells in seeds], 0) for shot in shots})
    pairs: Pairs = {}
    for (one, (stamp, mine)), (other, (same, theirs)) in combinations(sorted(means.items()), 2):
        if stamp == same:
            gaps = {shot: mine[shot] - theirs[shot] for shot in mine if shot in theirs}
            pairs[one, other] = {shot: round(episode_interval(gap), 3) for shot, gap in gaps.items()}
    return pairs


def half_width(pairs: Pairs, one: str, other: str, weights: Mapping[Any, float]) -> float | None:
    """Half the interval of a difference under a distribution of shots: the mean of its shots', the widest it can be."""
    return weighted_mean(pairs.get((min(one, other), max(one, other)), {}), weights)


def weighted_mean(values: Mapping[Any, float | None], weights: Mapping[Any, float]) -> float | None:
    """The mean of values by shot under a distribution of shots; None where a shot that counts has no value."""
    counted = {shot: weight for shot, weight in weights.items() if weight > 0}
    parts = [value * weight for shot, weight in counted.items() if (value := values.get(shot)) is not None]
    return sum(parts) / sum(counted.values()) if 0 < len(parts) == len(counted) else None
