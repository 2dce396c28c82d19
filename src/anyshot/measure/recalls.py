"""Recalls: the share of right answers of every class in every episode, and the file that keeps them.

Everything measured is computed from recalls: table rows, sensitivities, paired gains and the report's intervals are
functions of a list of them (see `comparisons`). A file of recalls describes itself: what was tested, on which episodes,
at which shots, with which classes. Nothing here imports torch.

How well an accuracy is known is told by two intervals, which answer two questions. `episode_interval`: were the same
images drawn into more episodes, how far could the mean move? Ten thousand episodes of one data set make it small, and
it says nothing about other data. `class_interval`: on new classes of the same kind, where would the accuracy lie?
Episodes share classes and images, so they are not independent; the classes are. It is a jackknife over classes,
corrected for the noise of the episodes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import stdtrit

from anyshot.data.archives import read_npz
from anyshot.errors import BadInput, as_bad_input
from anyshot.files import atomic_write
from anyshot.tables import DEFAULTS, CellKey, Row, round_row

FORMAT = 1
Accuracies = Float[np.ndarray, " episode"]
LEAST_WITHOUT = 20  # episodes without a class, to know the accuracy without it


@dataclass(frozen=True, eq=False)
class Recalls:
    """One readout of one model (or of features), tested on a plan of episodes.

    Args:
        columns: What was tested, by column of the table: those of `CellKey`, the model's id, and those that describe
            its head (learner, score, mixed).
        plan: The episodes: way, queries, episodes, seed, and the id that equal episodes share.
        shots: What each pattern of shots is called: the shot, or the kind of unequal shots.
        classes: The classes of each episode.
        recall: The share of each class's queries that are classified rightly, from 0 to 1.
        patterns: The shot of every class of every episode, where they are unequal.
        dirichlet: Unequal queries: each episode weighs its classes by a draw from this symmetric Dirichlet.
    """

    columns: Mapping[str, Any]
    plan: Mapping[str, Any]
    shots: tuple[int | str, ...]
    classes: Int[np.ndarray, "episode way"]
    recall: Float[np.ndarray, "pattern episode way"]
    patterns: Int[np.ndarray, "pattern episode way"] | None = None
    dirichlet: float | None = None

    @property
    def of(self) -> Mapping[str, Any]:
        """The name of `columns` in version 0.1."""
        return self.columns

    @property
    def key(self) -> CellKey:
        """What names the tested model and its readout."""
        return CellKey.of_row(self.columns)

    @cached_property
    def accuracies(self) -> Float[np.ndarray, "pattern episode"]:
        """Accuracy of each episode in percent: the mean over its classes, weighted where queries are unequal."""
        if self.dirichlet is None:
            return 100 * self.recall.mean(-1, dtype=np.float64)
        rng = np.random.default_rng([self.plan["seed"], 11])
        weights = rng.dirichlet(np.full(self.classes.shape[1], self.dirichlet), len(self.classes))
        return (100 * self.recall.astype(np.float64) * weights).sum(-1)

    def rows(self) -> list[Row]:
        """Return the table's rows, one per test shot: accuracy in percent, with intervals over episodes and classes."""
        key = self.key._asdict()
        protocol = {name: self.plan[name] for name in ("way", "queries", "episodes")}
        more = {name: value for name, value in {**DEFAULTS, **self.columns}.items() if name not in key}
        return [
            {**key, "test_shot": shot, **protocol, **summarise_accuracies(accuracy, self.classes), **more}
            for shot, accuracy in zip(self.shots, self.accuracies, strict=True)
        ]

    def by_own_shot(self) -> list[Row]:
        """Return the recall of classes by the shot that they had themselves: a row per pattern of unequal shots."""
        assert self.patterns is not None
        names = ("data", "backbone", "train_shot", "seed", "head", "readout")
        key = {name: getattr(self.key, name) for name in names}
        rows = []
        for pattern, shots, recall in zip(self.shots, self.patterns, self.recall, strict=True):
            for shot in np.unique(shots):
                percent = 100 * float(recall[shots == shot].mean(dtype=np.float64))
                rows.append(key | {"test_shot": pattern, "own_shot": int(shot), "recall": percent})
        return rows


def episode_interval(accuracies: Accuracies) -> float:
    """Return the half-width of the 95 % interval over draws of episodes of the same data: 1.96 std / sqrt(n)."""
    return 1.96 * float(accuracies.std(ddof=1)) / len(accuracies) ** 0.5 if len(accuracies) > 1 else float("nan")


def class_interval(accuracies: Accuracies, classes: Int[np.ndarray, "episode way"]) -> float:
    """Return the half-width of the 95 % interval over new classes, by a jackknife (Efron and Tibshirani 1993).

    It is NaN where every episode holds nearly all classes.
    """
    parts = episodes_without_class(classes)
    if parts is None:
        return float("nan")
    inside, without = parts
    n, noise = len(accuracies), accuracies.var(ddof=1)
    means = (accuracies @ ~inside) / without  # of the episodes without each class
    spread = ((means - means.mean()) ** 2).sum()
    # Part of the spread is the episodes' own noise: a mean over fewer episodes moves even if the class did not matter.
    chance = (noise * (n - without) / (n * without)).sum()
    share = (len(without) - 1) / len(without)
    variance = max(0.0, share * (spread - chance)) + noise / n
    return float(stdtrit(len(without) - 1, 0.975) * variance**0.5)


def episodes_without_class(
    classes: Int[np.ndarray, "episode way"],
) -> tuple[Bool[np.ndarray, "episode class_"], Int[np.ndarray, " class_"]] | None:
    """Return which classes each episode holds, and how many episodes are without each class.

    Returns:
        None where too few episodes are without some class to know an accuracy without it.
    """
    names, inverse = np.unique(classes, return_inverse=True)
    inside = np.zeros((len(classes), len(names)), bool)
    inside[np.arange(len(classes))[:, None], inverse.reshape(classes.shape)] = True
    without = (~inside).sum(0)
    return None if len(names) < 3 or without.min() < LEAST_WITHOUT else (inside, without)


def summarise_accuracies(
    accuracies: Float[np.ndarray, " episode"], classes: Int[np.ndarray, "episode way"], name: str = "accuracy"
) -> Row:
    """Return the mean of accuracies (or of gains) over episodes, and the half-widths of its two 95 % intervals."""
    new_classes = class_interval(accuracies, classes)
    return round_row(
        {name: float(accuracies.mean()), "ci95": episode_interval(accuracies), "ci95_classes": new_classes}
    )


def write_recalls(path: Path, recalls: Sequence[Recalls]) -> None:
    """Write recalls of the same episodes and shots as one file, whole or not at all."""
    first = recalls[0]
    about = {"format": FORMAT, "plan": dict(first.plan), "shots": first.shots, "dirichlet": first.dirichlet}
    about["of"] = [dict(one.columns) for one in recalls]
    arrays: dict[str, np.ndarray] = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
    arrays["classes"] = first.classes.astype(np.int32)
    if first.patterns is not None:
        arrays["patterns"] = first.patterns.astype(np.int32)
    arrays |= {f"recall{number}": one.recall for number, one in enumerate(recalls)}
    write_npz(path, **arrays)


def write_npz(path: Path, **arrays: np.ndarray) -> None:
    """Write arrays as a compressed .npz file, whole or not at all."""
    with atomic_write(path) as aside, aside.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_recalls(path: Path) -> list[Recalls]:
    """Read the recalls in a file, one for each readout.

    Args:
        path: What `write_recalls` wrote (`recalls-*.npz` in a run's folder).

    Raises:
        BadInput: There is no such file, it is damaged, or it is another kind of file.
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
        Recalls(columns, about["plan"], shots, classes, array, patterns, about["dirichlet"])
        for columns, array in zip(about["of"], arrays, strict=True)
    ]


def _check(
    about: Mapping[str, Any], classes: np.ndarray, patterns: np.ndarray | None, arrays: Sequence[np.ndarray]
) -> None:
    """Raise ValueError where what every reader of recalls relies on does not hold."""
    shapes = {array.shape for array in (*arrays, *([] if patterns is None else [patterns]))}
    if classes.ndim != 2 or classes.dtype.kind not in "iu" or shapes != {(len(about["shots"]), *classes.shape)}:
        raise ValueError("its arrays do not fit together")
    if any(array.dtype.kind != "f" or not np.isfinite(array).all() for array in arrays):
        raise ValueError("its recalls are not numbers")
    _check_description(about)


def _check_description(about: Mapping[str, Any]) -> None:
    plan = about["plan"]
    if not all(type(plan[name]) is int for name in ("way", "queries", "episodes", "seed")) or not plan["id"]:
        raise ValueError("its plan does not say which episodes")
    names = all(isinstance(shot, int | str) for shot in about["shots"])
    if not names or not isinstance(about["dirichlet"], int | float | None):
        raise ValueError("its shots are neither numbers nor names")
    for columns in about["of"]:
        values = columns.values()
        if not isinstance(columns["head"], str) or not all(isinstance(value, str | int | float) for value in values):
            raise ValueError("it does not say what was tested")
