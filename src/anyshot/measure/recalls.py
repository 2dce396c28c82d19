"""Recalls: the share of right answers of every class in every episode, and all that says what they are of.

They are what everything measured is computed from: table rows, sensitivities, paired gains, the report's intervals are
functions of a list of recalls. A file of them describes itself: what was read, which episodes, which shots, which
classes. Nothing here imports torch.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from anyshot.data.arrays import read_npz
from anyshot.errors import BadInput, as_bad_input
from anyshot.files import atomic_write
from anyshot.measure.intervals import class_interval, episode_interval
from anyshot.measure.sensitivity import bootstrap_sensitivity, jackknife_classes
from anyshot.tables import Row, round_row

FORMAT = 1
SETTING = ("data", "backbone")
GRID = (*SETTING, "head", "readout")
KIND = ("learner", "score", "mixed")
"""What figures and gains ask of a head: the head it is an alternative of, the score it is trained with, the shots that
it was trained with at random."""
UNKNOWN = {"data": "", "backbone": "", "readout": "own", "train_shot": 0, "seed": 0, "model": ""}


@dataclass(frozen=True, eq=False)
class Recalls:
    """One way of reading one model (or features), tested on a plan of episodes.

    Args:
        of: What was read, by column: data, backbone, head, readout, train_shot, seed, model, and those of `KIND`.
        plan: Of the episodes: way, queries, episodes, seed, and the id that equal episodes share.
        shots: What each pattern of shots is called: the shot, or the kind of unequal shots.
        classes: The classes of each episode.
        recall: The share of each class's queries that are classified rightly, from 0 to 1.
        patterns: The shot of every class of every episode, where they are unequal.
        dirichlet: Unequal queries: each episode weighs its classes by a draw from this symmetric Dirichlet.
    """

    of: Mapping[str, Any]
    plan: Mapping[str, Any]
    shots: tuple[int | str, ...]
    classes: Int[np.ndarray, "episode way"]
    recall: Float[np.ndarray, "pattern episode way"]
    patterns: Int[np.ndarray, "pattern episode way"] | None = None
    dirichlet: float | None = None

    @cached_property
    def accuracies(self) -> Float[np.ndarray, "pattern episode"]:
        """Accuracy of each episode, in percent: the mean over its classes, or over classes as common among the queries
        as `dirichlet` makes them."""
        if self.dirichlet is None:
            return 100 * self.recall.mean(-1, dtype=np.float64)
        rng = np.random.default_rng([self.plan["seed"], 11])
        weights = rng.dirichlet(np.full(self.classes.shape[1], self.dirichlet), len(self.classes))
        return (100 * self.recall.astype(np.float64) * weights).sum(-1)

    def rows(self) -> list[Row]:
        """The table's rows, one per test shot: accuracy in percent, and its intervals over episodes and new classes."""
        of = {**UNKNOWN, **self.of}
        about = {name: of.pop(name) for name in ("data", "backbone", "head", "readout", "train_shot", "seed")}
        protocol = {name: self.plan[name] for name in ("way", "queries", "episodes")}
        return [
            {**about, "test_shot": shot, **protocol, **summarise_accuracies(accuracy, self.classes), **of}
            for shot, accuracy in zip(self.shots, self.accuracies, strict=True)
        ]

    def by_own_shot(self) -> list[Row]:
        """Unequal shots: the recall of classes by the shot they had themselves, one row per pattern and shot."""
        assert self.patterns is not None
        names = ("data", "backbone", "train_shot", "seed", "head", "readout")
        about = {name: self.of.get(name, UNKNOWN.get(name)) for name in names}
        rows = []
        for name, shots, recall in zip(self.shots, self.patterns, self.recall, strict=True):
            for shot in np.unique(shots):
                percent = 100 * float(recall[shots == shot].mean(dtype=np.float64))
                rows.append(about | {"test_shot": name, "own_shot": int(shot), "recall": percent})
        return rows


def summarise_accuracies(
    accuracies: Float[np.ndarray, " episode"], classes: Int[np.ndarray, "episode way"], name: str = "accuracy"
) -> Row:
    """The mean of accuracies (or of gains) over episodes, and half of its two 95 % intervals."""
    new_classes = class_interval(accuracies, classes)
    return round_row(
        {name: float(accuracies.mean()), "ci95": episode_interval(accuracies), "ci95_classes": new_classes}
    )


def paired_difference(one: Recalls, other: Recalls) -> list[Row]:
    """How much more accurate one is than the other on the same episodes, one row per test shot."""
    if one.plan["id"] != other.plan["id"] or one.shots != other.shots:
        raise BadInput("a paired difference needs the same episodes and shots on both sides.")
    label = {"head": head_title(one.of), "against": head_title(other.of)}
    return _by_shot(label, one.shots, one.accuracies - other.accuracies, one.classes)


def _by_shot(
    about: Row, shots: Sequence[int | str], gains: Iterable[np.ndarray], classes: np.ndarray, **more: Any
) -> list[Row]:
    """Gains of every episode as one row per test shot."""
    rows = zip(shots, gains, strict=True)
    return [{**about, "test_shot": shot, **more, **summarise_accuracies(gain, classes, "gain")} for shot, gain in rows]


def head_title(of: Mapping[str, Any]) -> str:
    """The head, and the readout where it is not the head's own."""
    return of["head"] if of["readout"] == "own" else f"{of['head']} ({of['readout']})"


def study_tables(recalls: Sequence[Recalls]) -> dict[str, list[Row]]:
    """What the recalls of a study's models say, by the name of each table."""
    return {
        "table": [row for one in recalls for row in one.rows()],
        "sensitivity": sensitivities(recalls),
        "sensitivity-differences": sensitivity_differences(recalls),
    }


def sensitivities(recalls: Iterable[Recalls]) -> list[Row]:
    """The sensitivity of each head and readout in each setting, with what is known of it: one row per grid. `low` to
    `high` is over episodes, `low_classes` to `high_classes` over new classes; `bias` is how much of the score the noise
    of the episodes has added to it, by estimate."""
    rows = []
    for grids in _grids(recalls).values():
        over = jackknife_classes([grid.cells for grid in grids], grids[0].classes)
        for number, grid in enumerate(grids):
            score = bootstrap_sensitivity(grid.cells)
            row: Row = {name: grid.of[name] for name in GRID} | {"seeds": len(grid.cells)}
            low, high = over[number].interval if over else (math.nan, math.nan)
            measures = {name: getattr(score, name) for name in ("sensitivity", "low", "high", "noise_floor", "bias")}
            row |= round_row({**measures, "low_classes": low, "high_classes": high})
            rows.append(row | {"over_seeds": " ".join(f"{seed:.4f}" for seed in score.over_seeds)})
    return rows


def sensitivity_differences(recalls: Iterable[Recalls]) -> list[Row]:
    """How much more sensitive each head and readout is than each head of the same learner as trained or read alike, on
    the same episodes, with the 95 % interval over new classes: one row per pair."""
    rows = []
    for grids in _grids(recalls).values():
        over = jackknife_classes([grid.cells for grid in grids], grids[0].classes)
        if over is None:
            continue
        for one, other in _rivals(grids):
            ours, theirs = over[one], over[other]
            low, high = ours.difference(theirs)
            difference = {"difference": ours.sensitivity - theirs.sensitivity, "low_classes": low, "high_classes": high}
            rows.append(_against(grids[one], grids[other]) | round_row(difference))
    return rows


def accuracy_differences(recalls: Iterable[Recalls]) -> list[Row]:
    """How much more accurate each head and readout is than each head of the same learner as trained or read alike, on
    the same episodes; the mean over train shots and seeds: one row per pair and test shot, and one for all."""
    rows = []
    for grids in _grids(recalls).values():
        means = [grid.cells.mean((0, 2)) for grid in grids]
        for one, other in _rivals(grids):
            gain, about = means[one] - means[other], _against(grids[one], grids[other])
            rows += _by_shot(about, [*grids[one].shots, "all"], [*gain, gain.mean(0)], grids[one].classes)
    return rows


def _rivals(grids: Sequence["_Cells"]) -> list[tuple[int, int]]:
    """The places of each head and readout, and of each head of the same learner as trained or read alike."""
    return [
        (one, other)
        for (one, ours), (other, theirs) in product(enumerate(grids), repeat=2)
        if one != other
        and theirs.of["readout"] in ("own", ours.of["readout"])
        and ours.of["learner"] == theirs.of["learner"]
    ]


def _against(ours: "_Cells", theirs: "_Cells") -> Row:
    seeds = {"seeds": min(len(ours.cells), len(theirs.cells))}
    other = {"against": theirs.of["head"], "against_readout": theirs.of["readout"]}
    return {name: ours.of[name] for name in GRID} | other | seeds


class _Cells(NamedTuple):
    """The accuracies of a whole grid, episode by episode."""

    of: Mapping[str, Any]
    shots: tuple[int | str, ...]
    cells: Float[np.ndarray, "seed test_shot train_shot episode"]
    classes: Int[np.ndarray, "episode way"]


def _grids(recalls: Iterable[Recalls]) -> dict[tuple[Any, ...], list[_Cells]]:
    """Grids that are whole, by setting and episodes; no sensitivity without at least two train shots, each with every
    seed."""
    groups: dict[tuple[Any, ...], dict[tuple[int, int], Recalls]] = {}
    for one in recalls:
        key = (*(one.of[name] for name in GRID), one.plan["id"])
        groups.setdefault(key, {})[one.of["seed"], one.of["train_shot"]] = one
    grids: dict[tuple[Any, ...], list[_Cells]] = {}
    for key, by_cell in groups.items():
        seeds, shots = (sorted({cell[axis] for cell in by_cell}) for axis in (0, 1))
        if len(shots) < 2 or len(by_cell) < len(seeds) * len(shots):
            continue
        cells = np.stack([np.stack([by_cell[seed, shot].accuracies for shot in shots], 1) for seed in seeds])
        first = by_cell[seeds[0], shots[0]]
        grids.setdefault((*key[: len(SETTING)], key[-1]), []).append(
            _Cells(first.of, first.shots, cells, first.classes)
        )
    return grids


def paired_gains(recalls: Sequence[Recalls]) -> list[Row]:
    """Each head above the one that it is an alternative of, on the same episodes, as trained; in each setting averaged
    over the train shots and seeds that both have: one row per test shot and one for all, and as many per train shot."""
    own = {
        tuple(one.of[name] for name in (*SETTING, "head", "train_shot", "seed")): one
        for one in recalls
        if one.of["readout"] == "own"
    }
    kinds = {key[:3]: one.of for key, one in own.items()}
    rows = []
    for (*setting, head), of in kinds.items():
        other = next(
            (key[2] for key, their in kinds.items() if key[:2] == tuple(setting) and _is_counterpart(their, of)), None
        )
        both = sorted(key[3:] for key in own if key[:3] == (*setting, head) and (*setting, other, *key[3:]) in own)
        by_shot = [(shot, [key for key in both if key[0] == shot]) for shot in sorted({shot for shot, _ in both})]
        for train_shot, keys in [("all", both), *by_shot] if both else []:
            pairs = [(own[*setting, head, *key], own[*setting, other, *key]) for key in keys]
            gain, first = np.mean([a.accuracies - b.accuracies for a, b in pairs], axis=0), pairs[0][0]
            about = {"head": head, "against": other, "train_shot": train_shot}
            row = dict(zip(SETTING, setting, strict=True)) | about
            every = [*first.shots, "all"], [*gain, gain.mean(0)], first.classes
            rows += _by_shot(row, *every, models=len(pairs))
    return rows


def _is_counterpart(their: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Whether one head is what the other is an alternative of, trained with the same mixture of shots."""
    if their["head"] == ours["head"] or their["mixed"] != ours["mixed"] or their["learner"] != ours["learner"]:
        return False
    return their["head"] == their["learner"] + ("-mixed" if their["mixed"] else "")


# ---------------------------------------------------------------------------------------------------------------- files


def write_recalls(path: Path, recalls: Sequence[Recalls]) -> None:
    """Write recalls of the same episodes and shots as one file, whole or not at all."""
    first = recalls[0]
    about = {"format": FORMAT, "plan": dict(first.plan), "shots": first.shots, "dirichlet": first.dirichlet}
    about["of"] = [dict(one.of) for one in recalls]
    arrays: dict[str, np.ndarray] = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
    arrays["classes"] = first.classes.astype(np.int32)
    if first.patterns is not None:
        arrays["patterns"] = first.patterns.astype(np.int32)
    arrays |= {f"recall{number}": one.recall for number, one in enumerate(recalls)}
    with atomic_write(path) as aside, aside.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_recalls(path: Path) -> list[Recalls]:
    """The recalls in a file, one for each readout.

    Args:
        path: What `write_recalls` wrote (`recalls-*.npz` in a run's folder); one that is damaged, or another kind of
            file, gets a sentence.
    """
    if not path.is_file():
        raise BadInput(f"there are no recalls {path}.")
    unreadable = (BadInput, ValueError, KeyError, TypeError, AttributeError, RecursionError)
    with as_bad_input(unreadable, f"{path} holds no recalls that can be read", ": run the same command again."):
        file = read_npz(path)
        about = json.loads(file["about"].tobytes())
        if about["format"] != FORMAT:
            raise ValueError(f"format {about['format']}")
        shots, classes, patterns = tuple(about["shots"]), file["classes"], file.get("patterns")
        arrays = [file[f"recall{number}"] for number in range(len(about["of"]))]
        _check(about, classes, patterns, arrays)
    return [
        Recalls(of, about["plan"], shots, classes, array, patterns, about["dirichlet"])
        for of, array in zip(about["of"], arrays, strict=True)
    ]


def _check(
    about: Mapping[str, Any], classes: np.ndarray, patterns: np.ndarray | None, arrays: Sequence[np.ndarray]
) -> None:
    """What everyone who reads recalls relies on."""
    shapes = {array.shape for array in (*arrays, *([] if patterns is None else [patterns]))}
    if classes.ndim != 2 or classes.dtype.kind not in "iu" or shapes != {(len(about["shots"]), *classes.shape)}:
        raise ValueError("its arrays do not fit together")
    if any(array.dtype.kind != "f" or not np.isfinite(array).all() for array in arrays):
        raise ValueError("its recalls are not numbers")
    plan = about["plan"]
    if not all(type(plan[name]) is int for name in ("way", "queries", "episodes", "seed")) or not plan["id"]:
        raise ValueError("its plan does not say of which episodes")
    if not all(isinstance(shot, int | str) for shot in about["shots"]) or not isinstance(
        about["dirichlet"], int | float | None
    ):
        raise ValueError("its shots are neither numbers nor names")
    for of in about["of"]:
        if not isinstance(of["head"], str) or not all(isinstance(value, str | int | float) for value in of.values()):
            raise ValueError("it does not say of what")
