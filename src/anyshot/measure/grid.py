"""The table: one tidy row per cell, and the grids it holds.

A row says where an accuracy comes from (data, backbone, head, readout, train shot, seed), how it was measured (test
shot, way, queries, episodes) and what it is (accuracy in percent, and its interval). Every figure, report and audit
starts from such rows, whether we measured them or the paper prints them. Nothing here imports torch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from anyshot.measure.sensitivity import Decomposition, decompose
from anyshot.tables import Row
from anyshot.text import group_by

GridKey = tuple[str, str, str, str]
AT = " @ "  # between a head and its run, where two runs hold different models of one name


# Tables that were written before they had these columns, and the paper's, only name the head.
KINDS = {
    "proto": ("proto", "Euclidean"),
    "cosine-proto": ("proto", "cosine"),
    "feat": ("feat", "Euclidean"),
    "cosine-feat": ("feat", "cosine"),
    "frn": ("frn", "dot"),
    "frn-old": ("frn-old", "dot"),
    "cosine-frn": ("frn", "cosine"),
}


def add_head_columns(row: Mapping[str, Any]) -> Row:
    """The row with the columns that say what kind of head it is: the head it is an alternative of (`learner`), the
    `score` it is trained with, and the shots that it was trained with at random (`mixed`)."""
    if "learner" in row:
        return dict(row)
    plain = row["head"].removesuffix("-mixed")
    learner, score = KINDS.get(plain, (plain, ""))
    return {"score": score, **row, "learner": learner, "mixed": "" if plain == row["head"] else "mixed"}


@dataclass(frozen=True)
class Grid:
    """Accuracies of one head and readout in one setting: one row per test shot, one column per train shot."""

    data: str
    backbone: str
    head: str
    readout: str
    test_shots: tuple[int | str, ...]
    train_shots: tuple[int, ...]
    accuracy: Float[np.ndarray, "test_shot train_shot"]
    learner: str = ""
    """The head that this one is an alternative of, or itself."""
    score: str = ""
    """The score that it is trained with."""
    mixed: str = ""
    """The shots that it was trained with at random: one model for all shots, whatever train shot its rows name."""

    def __post_init__(self) -> None:
        if not self.learner:
            for name, value in add_head_columns({"head": self.head}).items():
                object.__setattr__(self, name, value)

    @property
    def key(self) -> GridKey:
        """What names it, as `key` does for a row."""
        return self.data, self.backbone, self.head, self.readout

    @property
    def setting(self) -> str:
        return f"{self.data}/{self.backbone}" if self.backbone else self.data

    @property
    def name(self) -> str:
        """The head, and the readout where it is not the head's own."""
        return self.head if self.readout == "own" else f"{self.head} ({self.readout})"

    @property
    def is_whole(self) -> bool:
        """Whether no cell is missing; one with a hole cannot be taken apart."""
        return self.accuracy.size > 0 and bool(np.isfinite(self.accuracy).all())

    @property
    def is_scored(self) -> bool:
        """Whether it has a sensitivity: that compares at least two train shots at two test shots, no cell missing."""
        return min(self.accuracy.shape) > 1 and self.is_whole

    @cached_property
    def parts(self) -> Decomposition:
        """Test bias, model bias, residual and sensitivity, of a grid that is whole."""
        return decompose(self.accuracy)

    @property
    def means(self) -> dict[int | str, float]:
        """The test bias by test shot: the mean accuracy of its models."""
        return dict(zip(self.test_shots, self.parts.test_bias.tolist(), strict=True))

    def cells(self) -> dict[tuple[int, int | str], float]:
        """The accuracy by train shot and test shot, where there is one."""
        by_train = zip(self.train_shots, self.accuracy.T.tolist(), strict=True)
        cells = {(s, t): cell for s, row in by_train for t, cell in zip(self.test_shots, row, strict=True)}
        return {shots: cell for shots, cell in cells.items() if np.isfinite(cell)}


def grid_key(row: Mapping[str, Any]) -> GridKey:
    """The grid that a row belongs to: data, backbone, head and readout."""
    return row["data"], row["backbone"], row["head"], row["readout"]


def format_train_shot(row: Mapping[str, Any]) -> int | str:
    """The train shot of a row, as it is shown."""
    return "mixed" if add_head_columns(row)["mixed"] else row["train_shot"]


def shot_sort_key(shot: int | str) -> tuple[bool, int | str]:
    """How shots are sorted: numbers, then the names of patterns of unequal shots."""
    return isinstance(shot, str), shot


def build_grids(rows: Iterable[Mapping[str, Any]]) -> list[Grid]:
    """All grids of a table, in the order of first appearance; several seeds are averaged; a missing cell is NaN."""
    listed = []
    for where, group in group_by(rows, grid_key).items():
        test, train = (
            tuple(sorted({row[of] for row in group}, key=shot_sort_key)) for of in ("test_shot", "train_shot")
        )
        cells = group_by(group, lambda row: (row["test_shot"], row["train_shot"]))
        seeds = [[[row["accuracy"] for row in cells.get((t, s), [])] or [np.nan] for s in train] for t in test]
        accuracy = np.array([[np.mean(cell) for cell in line] for line in seeds])
        kind = add_head_columns(group[0])
        listed.append(Grid(*where, test, train, accuracy, kind["learner"], kind["score"], kind["mixed"]))
    return listed
