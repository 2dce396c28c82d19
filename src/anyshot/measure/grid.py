"""The grid: accuracies of one head and readout by test shot and train shot, from a table or from recalls.

Every figure, report and audit starts from grids, whether we measured them or the paper prints them. Nothing here
imports torch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from anyshot.measure.recalls import Recalls
from anyshot.measure.sensitivity import Decomposition, decompose
from anyshot.tables import GridKey, Row, add_head_columns
from anyshot.text import group_by


@dataclass(frozen=True)
class Grid:
    """Accuracies of one head and readout in one setting: one row per test shot, one column per train shot.

    Args:
        data: The data, as in `GridKey`; likewise `backbone`, `head` and `readout`.
        test_shots: Numbers of shots, or the names of patterns of unequal shots.
        train_shots: The shots that its models were trained for.
        accuracy: In percent; the mean over seeds, NaN where a cell is missing.
        learner: The head that this one is an alternative of, or itself.
        score: The score that it is trained with.
        mixed: The shots that it was trained with at random: one model for all shots, whatever train shot its rows name.
    """

    data: str
    backbone: str
    head: str
    readout: str
    test_shots: tuple[int | str, ...]
    train_shots: tuple[int, ...]
    accuracy: Float[np.ndarray, "test_shot train_shot"]
    learner: str = ""
    score: str = ""
    mixed: str = ""

    def __post_init__(self) -> None:
        if not self.learner:
            for name, value in add_head_columns({"head": self.head}).items():
                object.__setattr__(self, name, value)

    @property
    def key(self) -> GridKey:
        """What names the grid."""
        return GridKey(self.data, self.backbone, self.head, self.readout)

    @property
    def setting(self) -> str:
        """The data and the backbone."""
        return self.key.setting

    @property
    def name(self) -> str:
        """The head, and the readout where it is not the head's own."""
        return self.key.name

    @property
    def is_complete(self) -> bool:
        """Whether no cell is missing."""
        return self.accuracy.size > 0 and bool(np.isfinite(self.accuracy).all())

    @property
    def why_no_sensitivity(self) -> str:
        """Why it has no sensitivity, as the end of a sentence; empty where it has one."""
        if self.train_shots == (0,):
            return "its rows name no train shot, and sensitivity compares models trained at different shots"
        if len(self.train_shots) < 2 and self.mixed:
            return "it is one model of all train shots, and sensitivity compares models trained at different shots"
        if len(self.train_shots) < 2:
            shot = self.train_shots[0]
            return f"it was trained at {shot} shots only, and sensitivity compares at least two train shots"
        if len(self.test_shots) < 2:
            tested = format_shot(self.test_shots[0])
            return f"it was tested at {tested} only, and sensitivity compares at least two test shots"
        missing = int(np.isnan(self.accuracy).sum())
        return f"{missing} of its {self.accuracy.size} cells are missing" if missing else ""

    @property
    def has_sensitivity(self) -> bool:
        """Whether it compares at least two train shots at two test shots, with no cell missing."""
        return not self.why_no_sensitivity

    @cached_property
    def parts(self) -> Decomposition:
        """Test bias, model bias, residual and sensitivity of a complete grid."""
        return decompose(self.accuracy, self.test_shots, self.train_shots)

    @property
    def means(self) -> dict[int | str, float]:
        """The test bias by test shot: the mean accuracy of its models."""
        return dict(zip(self.test_shots, self.parts.test_bias.tolist(), strict=True))

    def gains_over(self, other: "Grid") -> dict[int | str, float]:
        """Return by how much the mean accuracy is above another grid's, at the test shots that both have."""
        theirs = other.means
        return {shot: mean - theirs[shot] for shot, mean in self.means.items() if shot in theirs}

    def find_counterpart(self, among: Iterable["Grid"]) -> "Grid | None":
        """Return the grid that gains are measured against: the Euclidean head of the same setting, read as trained.

        It is the counterpart also of one model that was trained with mixed shots.
        """
        wanted = GridKey(self.data, self.backbone, self.learner)
        return next((other for other in among if other.key == wanted), None) if self.key != wanted else None


@dataclass(frozen=True, kw_only=True)
class PairedGrid(Grid):
    """A grid with the accuracy of every episode, which is compared with others on the same episodes.

    Args:
        episodes: The accuracy of every episode.
        classes: The classes of these episodes.
    """

    episodes: Float[np.ndarray, "seed test_shot train_shot episode"]
    classes: Int[np.ndarray, "episode way"]


def format_shot(shot: int | str) -> str:
    """Return a test shot for a sentence: a number of shots, or the name of a pattern of unequal shots."""
    return f"{shot}-shot" if isinstance(shot, int) else shot


def format_train_shot(row: Mapping[str, Any]) -> int | str:
    """Return the train shot of a row as it is shown."""
    return "mixed" if add_head_columns(row)["mixed"] else row["train_shot"]


def shot_sort_key(shot: int | str) -> tuple[bool, int | str]:
    """Return what shots are sorted by: numbers first, then the names of patterns of unequal shots."""
    return isinstance(shot, str), shot


def build_grids(rows: Iterable[Mapping[str, Any]]) -> list[Grid]:
    """Return all grids of a table in the order of first appearance; several seeds are averaged."""
    grids = []
    for key, group in group_by(rows, GridKey.of_row).items():
        test = tuple(sorted({row["test_shot"] for row in group}, key=shot_sort_key))
        train = tuple(sorted({row["train_shot"] for row in group}))
        cells = group_by(group, lambda row: (row["test_shot"], row["train_shot"]))
        means = {cell: np.mean([row["accuracy"] for row in seeds]) for cell, seeds in cells.items()}
        accuracy = np.array([[means.get((test_shot, shot), np.nan) for shot in train] for test_shot in test])
        grids.append(Grid(*key, test, train, accuracy, **_head_columns(group[0])))
    return grids


def build_paired_grids(recalls: Iterable[Recalls]) -> list[list[PairedGrid]]:
    """Return grids with the accuracy of every episode, those of one setting and the same episodes together.

    A grid whose train shots were not all trained with every seed is left out: its cells could not be paired.
    """
    settings: dict[tuple[str, str], list[PairedGrid]] = {}
    for (key, plan), group in group_by(recalls, lambda one: (one.key.grid, one.plan["id"])).items():
        models = {(one.key.seed, one.key.train_shot): one for one in group}
        seeds, train = (sorted({model[axis] for model in models}) for axis in (0, 1))
        if len(models) < len(seeds) * len(train):
            continue
        episodes = np.stack([np.stack([models[seed, shot].accuracies for shot in train], 1) for seed in seeds])
        first, accuracy = group[0], episodes.mean((0, 3))
        about = _head_columns(first.columns) | {"episodes": episodes, "classes": first.classes}
        grid = PairedGrid(*key, first.shots, tuple(train), accuracy, **about)
        settings.setdefault((key.setting, plan), []).append(grid)
    return list(settings.values())


def _head_columns(row: Mapping[str, Any]) -> Row:
    described = add_head_columns(row)
    return {name: described[name] for name in ("learner", "score", "mixed")}
