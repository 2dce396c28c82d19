"""What one or several runs' folders hold: rows, sensitivities, recipes, learning curves. Only table.csv is needed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from anyshot.errors import BadInput
from anyshot.files import read_json
from anyshot.measure.grid import AT, Grid, GridKey, add_head_columns, build_grids, grid_key
from anyshot.measure.recalls import UNKNOWN, read_recalls
from anyshot.paper import printed
from anyshot.tables import Row, read_table
from anyshot.text import group_by

Model = tuple[GridKey, int, int]  # the grid, train shot, seed
MORE = ("data", "backbone", "readout", "train_shot", "seed")
NEEDED = ("data", "head", "test_shot", "accuracy")
OPTIONAL = {"backbone": "", "readout": "own", "train_shot": 0, "seed": 0, "model": ""}


@dataclass(frozen=True)
class Findings:
    """All that a report is made of."""

    title: str
    rows: list[Row]
    sensitivities: dict[GridKey, Row] = field(default_factory=dict)
    """Sensitivity with its intervals, by grid: the rows of sensitivity.csv."""
    differences: dict[tuple[GridKey, GridKey], tuple[float, float]] = field(default_factory=dict)
    """By how much a grid is more sensitive than another: the 95 % interval over new classes."""
    recipes: dict[str, dict[str, Any]] = field(default_factory=dict)
    history: list[Row] = field(default_factory=list)
    consistency: list[Row] = field(default_factory=list)
    about: list[dict[str, Any]] = field(default_factory=list)
    """Versions and protocol of each run that recorded them."""
    episodes: dict[Model, tuple[str, dict[Any, np.ndarray]]] = field(default_factory=dict)
    """The accuracy of every episode, by model and test shot, where the runs have the recalls."""
    printed: bool = False
    """Whether these are the paper's numbers rather than ours."""

    @cached_property
    def grids(self) -> list[Grid]:
        return build_grids(self.rows)


def read_runs(folders: Sequence[Path]) -> Findings:
    """Read the runs in these folders as one; a head that two runs trained differently keeps its run's name."""
    tables = [_table(folder) for folder in folders]
    names = _names(folders)
    claimed = group_by((row for table in tables for row in table), _cell)
    disputed = {cell[0] for cell, rows in claimed.items() if len({(row["model"], row["accuracy"]) for row in rows}) > 1}
    everything = Findings(", ".join(names), [])
    cells: dict[tuple[GridKey, int, int, int | str], Row] = {}
    for folder, name, table in zip(folders, names, tables, strict=True):
        signed = _signed(table, name, disputed)
        everything.episodes.update(read_episodes(folder, signed) | everything.episodes)
        for row in signed:
            cells.setdefault(_cell(row), row)
        for row in _signed(_of_grids(folder / "sensitivity.csv"), name, disputed):
            everything.sensitivities.setdefault(grid_key(row), row)
        for row in _signed(_of_grids(folder / "sensitivity-differences.csv"), name, disputed):
            other = row | {"head": row["against"], "readout": row["against_readout"]}
            everything.differences.setdefault(
                (grid_key(row), grid_key(other)), (row["low_classes"], row["high_classes"])
            )
        everything.consistency.extend(_signed(_of_grids(folder / "consistency.csv"), name, disputed))
        for path in sorted(folder.glob("*/recipe.json")):
            model, recipe = path.parent.name, _plain(path)
            if model not in everything.recipes:
                everything.recipes[model] = recipe
                everything.history.extend(_history(path.parent, recipe))
        if (folder / "about.json").exists():
            everything.about.append(_plain(folder / "about.json"))
    everything.rows.extend(cells.values())
    return everything


def paper_findings() -> Findings:
    """The paper's printed grids, read like a run of ours; its intervals are those of Sec. 4.2, alike for all models."""
    margins = dict(zip(printed.TEST_SHOTS, map(float, printed.text("confidence interval")), strict=True))
    rows = [
        add_head_columns(OPTIONAL | {"queries": 16, "ci95": margins[row["test_shot"]]} | row) for row in printed.rows()
    ]
    rows.sort(key=lambda row: row["head"] == "frn-old")  # printed in one setting, for comparison: last
    return Findings("The paper's printed grids", rows, consistency=printed.consistency_rows(), printed=True)


def _table(folder: Path) -> list[Row]:
    """The usable rows of a run, with a value for each column a report relies on."""
    if not folder.exists():
        raise BadInput(f"there is no folder {folder}.")
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder: a report is made from folders that hold a table.csv.")
    path = folder / "table.csv"
    if not path.exists():
        why = "it is empty" if not any(folder.iterdir()) else "it has no table.csv"
        raise BadInput(f"{folder} is not a run: {why}; a study writes its table there when its models are tested.")
    rows = []
    for number, row in enumerate(read_table(path), start=2):
        missing = [column for column in NEEDED if row.get(column) in (None, "")]
        if missing:
            raise BadInput(f"line {number} of {path} has no {missing[0]}: was the file cut short?")
        if isinstance(row["accuracy"], str):
            raise BadInput(f"line {number} of {path} has {row['accuracy']!r} for accuracy: a number belongs there.")
        row |= {column: otherwise for column, otherwise in OPTIONAL.items() if row.get(column) in (None, "")}
        if isfinite(row["accuracy"]):
            rows.append(add_head_columns(row))
    if not rows:
        raise BadInput(f"{path} holds no accuracy yet: a report needs at least one tested model.")
    return rows


def _read(path: Path) -> list[Row]:
    """The rows of a table that may be absent."""
    return read_table(path) if path.exists() else []


def _of_grids(path: Path) -> list[Row]:
    """The rows of a table of grids, which may name no readout."""
    return [OPTIONAL | row for row in _read(path) if {"data", "head"} <= row.keys()]


TEXTS = ("data", "backbone", "head", "optimiser", "schedule")
NUMBERS = ("train_shot", "way", "seed", "epochs", "batch", "lr", "weight_decay", "episode_seed")


def _plain(path: Path) -> dict[str, Any]:
    """A JSON file of a run, once what a report counts and sorts by is text or a number."""
    value = read_json(path)
    kinds = dict.fromkeys(TEXTS, str) | dict.fromkeys(NUMBERS, (int, float)) | {"mixed": list, "versions": dict}
    for name, kind in kinds.items():
        one = value.get(name)
        is_finite = not isinstance(one, float) or isfinite(one)
        if name in value and not (isinstance(one, kind) and is_finite) and not (one is None and name == "batch"):
            raise BadInput(f"{path} has {str(value[name])[:80]!r} as {name}: was it changed by hand?")
    return value


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
                where = grid_key(row), row["train_shot"], row["seed"]
                episodes[where] = one.plan["id"], dict(zip(one.shots, one.accuracies, strict=True))
    return episodes


def _history(folder: Path, recipe: dict[str, Any]) -> list[Row]:
    where = {name: recipe.get(name) or "" for name in ("data", "backbone", "head", "train_shot", "seed")}
    where["head"] += "-mixed" if recipe.get("mixed") else " (pretraining)" if recipe.get("batch") else ""
    rows = [row for row in _read(folder / "history.csv") if isinstance(row.get("epoch"), float)]
    return [add_head_columns(where) | row for row in rows]


def _names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path, longer where two would be alike."""
    resolved = [folder.resolve() for folder in folders]
    for length in range(1, max(len(path.parts) for path in resolved) + 1):
        names = ["/".join(path.parts[-length:]) for path in resolved]
        if len(set(names)) == len(set(resolved)):
            return names
    return names


def _cell(row: Row) -> tuple[GridKey, int, int, int | str]:
    return grid_key(row), row["train_shot"], row["seed"], row["test_shot"]


def _signed(rows: Sequence[Row], run: str, disputed: set[GridKey]) -> list[Row]:
    """The rows, their heads marked with the run where another run has a different model of the same name."""
    names = ("head", "learner")
    return [
        row | {name: f"{row[name]}{AT}{run}" for name in names if name in row and grid_key(row) in disputed}
        for row in rows
    ]
