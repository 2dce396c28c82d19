"""What one or several runs' folders hold: rows, sensitivities, recipes, learning curves. Only table.csv is needed.

A reader chooses among its heads and train shots, each a `Choice`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import isfinite
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from anyshot.errors import BadInput
from anyshot.files import read_json
from anyshot.measure.grid import Grid, build_grids, shot_sort_key
from anyshot.measure.recalls import episode_interval, read_recalls
from anyshot.paper import printed
from anyshot.tables import DEFAULTS, CellKey, GridKey, Row, add_head_columns, read_table
from anyshot.text import group_by

AT = " @ "  # between a head and its run, where two runs hold different models of one name
Episodes = dict[CellKey, tuple[str, dict[Any, np.ndarray]]]
"""By model: the id of the episodes, and the accuracy in each by test shot."""
INTERVALS = {"ci95": "over episodes", "ci95_classes": "over new classes"}
Pairs = dict[str, dict[str, dict[Any, float]]]
"""By two labels (in order of the alphabet), then by test shot: half the 95 % interval of the difference."""
NEEDED = ("data", "head", "test_shot", "accuracy")  # columns that a table cannot do without


@dataclass(frozen=True)
class Choice:
    """What a reader may choose in a setting: a head, how it is read, and the shot it was trained for (0: unknown).

    Args:
        setting: Data and backbone.
        head: The head.
        name: The head and its readout.
        train_shot: The shot that it was trained for.
        cells: By test shot: accuracy, its two intervals (None where unknown), episodes and seeds.
        mixed: The shots that it was trained with at random.
    """

    setting: str
    head: str
    name: str
    train_shot: int
    cells: Mapping[int | str, Mapping[str, Any]]
    mixed: str = ""

    @property
    def label(self) -> str:
        """The head, its readout and its train shot."""
        return f"{self.name}, {self.train_shot}-shot" if self.train_shot and not self.mixed else self.name

    def expected(self, weights: Mapping[Any, float]) -> dict[str, Any] | None:
        """Return accuracy and intervals under a distribution of test shots; None where one was not measured.

        Cells of one model share their episodes, so the intervals are averaged like the accuracies: the widest they
        can be, whatever the cells have in common.
        """
        by_shot = {name: {shot: cell[name] for shot, cell in self.cells.items()} for name in ("accuracy", *INTERVALS)}
        means = {name: weighted_mean(values, weights) for name, values in by_shot.items()}
        return means if means["accuracy"] is not None else None


@dataclass(frozen=True)
class Findings:
    """All that a report is made of.

    Args:
        title: The names of the runs.
        rows: The rows of table.csv.
        sensitivities: The rows of sensitivity.csv, by grid.
        differences: By how much a grid is more sensitive than another: the 95 % interval over new classes.
        recipes: The recipe of each model.
        history: The learning curves, one row per model and epoch.
        consistency: The rows of consistency.csv.
        about: Versions and protocol of each run that recorded them.
        episodes: The id of the episodes and the accuracy in each by test shot, of models whose recalls are there.
        printed: Whether these are the paper's numbers rather than ours.
    """

    title: str
    rows: list[Row]
    sensitivities: dict[GridKey, Row] = field(default_factory=dict)
    differences: dict[tuple[GridKey, GridKey], tuple[float, float]] = field(default_factory=dict)
    recipes: dict[str, dict[str, Any]] = field(default_factory=dict)
    history: list[Row] = field(default_factory=list)
    consistency: list[Row] = field(default_factory=list)
    about: list[dict[str, Any]] = field(default_factory=list)
    episodes: Episodes = field(default_factory=dict)
    printed: bool = False

    @cached_property
    def grids(self) -> list[Grid]:
        """The grids of the table."""
        return build_grids(self.rows)

    @property
    def is_evaluation(self) -> bool:
        """Whether no train shot is named: no model was trained, `anyshot evaluate` tested heads on features."""
        return all(grid.train_shots == (0,) for grid in self.grids)

    @cached_property
    def choices(self) -> list[Choice]:
        """Every choice of the table, with seeds averaged."""
        choices = []
        groups = group_by(self.rows, lambda row: (GridKey.of_row(row), row["train_shot"]))
        for (key, train_shot), rows in groups.items():
            by_shot = group_by(sorted(rows, key=lambda row: shot_sort_key(row["test_shot"])), itemgetter("test_shot"))
            cells = {shot: _average(seeds) for shot, seeds in by_shot.items()}
            mixed = add_head_columns(rows[0])["mixed"]
            choices.append(Choice(key.setting, key.head, key.name, train_shot, cells, mixed))
        return choices

    @cached_property
    def paired_intervals(self) -> dict[str, Pairs]:
        """How well differences of choices are known from the episodes that both met, by setting."""
        models = group_by(self.episodes, lambda key: (key.grid.setting, key.grid.name, key.train_shot))
        means = []  # a choice, the id of its episodes, and the accuracy in each by test shot
        for choice in sorted(self.choices, key=lambda choice: choice.label):
            keys = models.get((choice.setting, choice.name, choice.train_shot), [])
            plans, seeds = {self.episodes[key][0] for key in keys}, [self.episodes[key][1] for key in keys]
            if len(plans) == 1:
                shots = set.intersection(*map(set, seeds))
                means.append((choice, plans, {shot: np.mean([cells[shot] for cells in seeds], 0) for shot in shots}))
        pairs: dict[str, Pairs] = {}
        for (one, plan, ours), (other, other_plan, theirs) in combinations(means, 2):
            if (one.setting, plan) == (other.setting, other_plan):
                gaps = {shot: ours[shot] - theirs[shot] for shot in ours if shot in theirs}
                halves = {shot: round(episode_interval(gap), 3) for shot, gap in gaps.items()}
                pairs.setdefault(one.setting, {}).setdefault(one.label, {})[other.label] = halves
        return pairs


def weighted_mean(values: Mapping[Any, float | None], weights: Mapping[Any, float]) -> float | None:
    """Return the mean of values under a distribution of shots; None where a shot that counts has no value."""
    counted = {shot: weight for shot, weight in weights.items() if weight > 0}
    parts = [value * weight for shot, weight in counted.items() if (value := values.get(shot)) is not None]
    return sum(parts) / sum(counted.values()) if 0 < len(parts) == len(counted) else None


def _average(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of cells; also of their intervals, which is the widest the interval of the mean can be."""
    cell: dict[str, Any] = {}
    for name in ("accuracy", *INTERVALS):
        values: list[Any] = [row.get(name) for row in rows]
        are_known = all(isinstance(value, int | float) and isfinite(value) for value in values)
        cell[name] = float(np.mean(values)) if are_known else None
    episodes = [row["episodes"] for row in rows if isinstance(row.get("episodes"), int)]
    return cell | {"episodes": min(episodes, default=None), "seeds": len(rows)}


def read_findings(runs: Sequence[Path], *, paper: bool) -> Findings:
    """Return what these runs hold, named by their folders or tables; without any, the paper's grids if it is named."""
    if not runs and not paper:
        raise BadInput("name at least one run's folder, or give --paper for a report of the paper's own numbers.")
    folders = [path.parent if path.is_file() and path.name in ("table.csv", "recalls.npz") else path for path in runs]
    return read_runs(folders) if runs else paper_findings()


def read_runs(folders: Sequence[Path]) -> Findings:
    """Read the runs in these folders as one; a head that two runs trained differently keeps its run's name."""
    tables = [_read_cells(folder) for folder in folders]
    names = _name_runs(folders)
    cells = group_by((row for table in tables for row in table), _cell_and_shot)
    disputed = {key.grid for (key, _), rows in cells.items() if len({(r["model"], r["accuracy"]) for r in rows}) > 1}
    findings = Findings(", ".join(names), [])
    merged: dict[tuple[CellKey, int | str], Row] = {}
    for folder, name, table in zip(folders, names, tables, strict=True):
        rows = _rename_disputed(table, name, disputed)
        for row in rows:
            merged.setdefault(_cell_and_shot(row), row)
        findings.episodes.update(read_episodes(folder, rows) | findings.episodes)
        _add_grid_tables(findings, folder, name, disputed)
        for model, (recipe, epochs) in _read_records(folder).items():
            if model not in findings.recipes:
                findings.recipes[model] = recipe
                findings.history.extend(_label_history(epochs, recipe))
        if (folder / "about.json").exists():
            findings.about.append(_check_values(read_json(folder / "about.json"), folder / "about.json"))
    findings.rows.extend(merged.values())
    return findings


def _add_grid_tables(findings: Findings, folder: Path, run: str, disputed: set[GridKey]) -> None:
    """Add the tables of a run that have rows of grids: sensitivities, their differences, consistency."""

    def read(name: str) -> list[Row]:
        table = read_table(folder / f"{name}.csv", optional=True)
        rows = [DEFAULTS | row for row in table if {"data", "head"} <= row.keys()]
        return _rename_disputed(rows, run, disputed)

    for row in read("sensitivity"):
        findings.sensitivities.setdefault(GridKey.of_row(row), row)
    for row in read("sensitivity-differences"):
        key = GridKey.of_row(row)
        other = key._replace(head=row["against"], readout=row["against_readout"])
        findings.differences.setdefault((key, other), (row["low_classes"], row["high_classes"]))
    findings.consistency.extend(read("consistency"))


def paper_findings() -> Findings:
    """Return the paper's printed grids as a run of ours; its intervals are those of Sec. 4.2, alike for all models."""
    margins = dict(zip(printed.TEST_SHOTS, map(float, printed.text("confidence interval")), strict=True))
    more = {name: value for name, value in DEFAULTS.items() if name != "data"} | {"queries": 16}
    rows = [add_head_columns(more | {"ci95": margins[row["test_shot"]]} | row) for row in printed.rows()]
    rows.sort(key=lambda row: row["head"] == "frn-old")  # printed in one setting, for comparison: last
    return Findings("The paper's printed grids", rows, consistency=printed.consistency_rows(), printed=True)


def _read_cells(folder: Path) -> list[Row]:
    """Return the usable rows of a run, with a value for each column that a report relies on."""
    if not folder.exists():
        raise BadInput(f"there is no folder {folder}.")
    if not folder.is_dir():
        raise BadInput(f"{folder} is no run: name the folder of a study, or what `anyshot evaluate --out` wrote.")
    path = folder / "table.csv"
    if not path.exists():
        why = "it is empty" if not any(folder.iterdir()) else "it has no table.csv"
        for page in (folder / "advice.html", folder / "test.html"):
            if page.is_file():
                raise BadInput(f"{folder} is not a run: {why}; it has a page of its own, {page}.")
        raise BadInput(
            f"{folder} is not a run: {why}. A study writes its table when its models are tested, and `anyshot evaluate "
            "--out` at its end."
        )
    rows = [_complete_row(row, f"line {number} of {path}") for number, row in enumerate(read_table(path), start=2)]
    usable = [row for row in rows if isfinite(row["accuracy"])]
    if not usable:
        raise BadInput(f"{path} holds no accuracy yet: a report needs at least one tested model.")
    return usable


def _complete_row(row: Row, where: str) -> Row:
    missing = [column for column in NEEDED if row.get(column) in (None, "")]
    if missing:
        raise BadInput(f"{where} has no {missing[0]}: was the file cut short?")
    if isinstance(row["accuracy"], str):
        raise BadInput(f"{where} has {row['accuracy']!r} for accuracy: a number belongs there.")
    defaults = {column: value for column, value in DEFAULTS.items() if row.get(column) in (None, "")}
    return add_head_columns(row | defaults)


TEXTS = ("data", "backbone", "head", "optimiser", "schedule")
NUMBERS = ("train_shot", "way", "seed", "epochs", "batch", "lr", "weight_decay", "episode_seed")


def _read_records(folder: Path) -> dict[str, tuple[dict[str, Any], list[Row]]]:
    """Return the recipe and the history of each model: of a run in a folder each, of a published study in two files."""
    records = {}
    for path in sorted(folder.glob("*/recipe.json")):
        history = read_table(path.with_name("history.csv"), optional=True)
        records[path.parent.name] = _check_values(read_json(path), path), history
    path = folder / "recipes.json"
    if path.exists():
        epochs = group_by(read_table(folder / "histories.csv", optional=True), lambda row: row.pop("model", ""))
        for name, recipe in read_json(path).items():
            records[name] = _check_values(recipe, path), epochs.get(name, [])
    return records


def _check_values(value: Any, path: Path) -> dict[str, Any]:
    """Return a JSON object after a check that what a report counts and sorts by is text or a number."""
    if not isinstance(value, dict):
        raise BadInput(f"{path} has {str(value)[:80]!r} in place of a recipe: was it changed by hand?")
    kinds = dict.fromkeys(TEXTS, str) | dict.fromkeys(NUMBERS, (int, float)) | {"mixed": list, "versions": dict}
    for name, kind in kinds.items():
        one = value.get(name)
        is_finite = not isinstance(one, float) or isfinite(one)
        if name in value and not (isinstance(one, kind) and is_finite) and not (one is None and name == "batch"):
            raise BadInput(f"{path} has {str(value[name])[:80]!r} as {name}: was it changed by hand?")
    return value


def read_episodes(folder: Path, rows: Sequence[Row]) -> Episodes:
    """Return the accuracy of every episode of those models of these rows whose recalls are in the folder.

    A report needs no recalls: without them, or where they are damaged, intervals of differences are wider.
    """
    keys = ((CellKey.of_row(row), row) for row in rows)
    wanted = {(str(row["model"]), key._replace(head=key.head.partition(AT)[0])): row for key, row in keys}
    episodes: Episodes = {}
    for path in [*sorted(folder.glob("*/recalls-*.npz")), *folder.glob("recalls.npz")]:
        try:
            recalls = read_recalls(path)
        except BadInput:
            continue
        for one in recalls:
            row = wanted.get((one.columns.get("model", ""), one.key))
            if row is not None and row.get("episodes") == one.plan["episodes"] > 1:
                cells = dict(zip(one.shots, one.accuracies, strict=True))
                episodes[CellKey.of_row(row)] = one.plan["id"], cells
    return episodes


def _label_history(epochs: Sequence[Row], recipe: dict[str, Any]) -> list[Row]:
    label = {name: recipe.get(name) or "" for name in CellKey._fields if name != "readout"}
    label["head"] += "-mixed" if recipe.get("mixed") else " (pretraining)" if recipe.get("batch") else ""
    return [add_head_columns(label) | row for row in epochs if isinstance(row.get("epoch"), int)]


def _name_runs(folders: Sequence[Path]) -> list[str]:
    """Return the last part of each path, or the paths where two would be alike."""
    resolved = [folder.resolve() for folder in folders]
    names = [path.name for path in resolved]
    return names if len(set(names)) == len(set(resolved)) else list(map(str, folders))


def _cell_and_shot(row: Row) -> tuple[CellKey, int | str]:
    return CellKey.of_row(row), row["test_shot"]


def _rename_disputed(rows: Sequence[Row], run: str, disputed: set[GridKey]) -> list[Row]:
    """Return the rows with the run's name after their head, where another run has a different model of that name."""
    return [
        row | {name: f"{row[name]}{AT}{run}" for name in ("head", "learner") if name in row}
        if GridKey.of_row(row) in disputed
        else row
        for row in rows
    ]
