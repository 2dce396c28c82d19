"""The table: one tidy row a cell, and the grids it holds.

A row says where an accuracy comes from (data, backbone, head, readout, train shot, seed), how it was measured (test
shot, way, queries, episodes) and what it is (accuracy in percent, and its interval). Every figure, report and audit
starts from such rows, whether we measured them or the paper prints them. Nothing here imports torch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

AT = " @ "  # between a head and its run, where two runs hold different models of one name


@dataclass(frozen=True)
class Grid:
    """Accuracies of one head and readout in one setting: a row a test shot, a column a train shot."""

    data: str
    backbone: str
    head: str
    readout: str
    test_shots: tuple[int | str, ...]
    train_shots: tuple[int, ...]
    accuracy: Float[np.ndarray, "test_shot train_shot"]

    @property
    def setting(self) -> str:
        return f"{self.data}/{self.backbone}" if self.backbone else self.data

    @property
    def name(self) -> str:
        """The head, and the readout where it is not the head's own."""
        return self.head if self.readout == "own" else f"{self.head} ({self.readout})"

    @property
    def is_scored(self) -> bool:
        """Whether it has a sensitivity: that compares at least two train shots at two test shots, no cell missing."""
        return min(self.accuracy.shape) > 1 and bool(np.isfinite(self.accuracy).all())

    def cells(self) -> dict[tuple[int, int | str], float]:
        """The accuracy by train shot and test shot, where there is one."""
        by_train = zip(self.train_shots, self.accuracy.T.tolist(), strict=True)
        cells = {(s, t): cell for s, row in by_train for t, cell in zip(self.test_shots, row, strict=True)}
        return {shots: cell for shots, cell in cells.items() if np.isfinite(cell)}


def family(head: str) -> str:
    """The Euclidean head, trained for one shot, that a head is an alternative of."""
    name, at, run = head.partition(AT)
    return name.removeprefix("cosine-").removesuffix("-mixed") + at + run


def is_mixed(head: str) -> bool:
    """Whether a head was trained with mixed shots: one model for all shots, whatever train shot its rows name."""
    return head.partition(AT)[0].endswith("-mixed")


def trained_at(row: Mapping[str, Any]) -> int | str:
    """The train shot of a row, as it is shown."""
    return "mixed" if is_mixed(row["head"]) else row["train_shot"]


def shot_order(shot: int | str) -> tuple[bool, int | str]:
    """How shots are sorted: numbers, then the names of patterns of unequal shots."""
    return isinstance(shot, str), shot


def grids(rows: Iterable[Mapping[str, Any]]) -> list[Grid]:
    """All grids of a table, in the order of first appearance; several seeds are averaged; a missing cell is NaN."""
    found: dict[tuple[str, str, str, str], dict[tuple[int, int], list[float]]] = {}
    for row in rows:
        cells = found.setdefault((row["data"], row["backbone"], row["head"], row["readout"]), {})
        cells.setdefault((row["test_shot"], row["train_shot"]), []).append(row["accuracy"])
    out = []
    for key, cells in found.items():
        test, train = (tuple(sorted({cell[axis] for cell in cells}, key=shot_order)) for axis in (0, 1))
        accuracy = np.array([[np.mean(cells.get((t, s), [np.nan])) for s in train] for t in test])
        out.append(Grid(*key, test, train, accuracy))
    return out
