"""The tables behind the report's figures, each a `Summary`: shown, and taken away as CSV, Markdown or LaTeX."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from anyshot.measure.grid import Grid, build_grids, format_shot, format_train_shot, shot_sort_key
from anyshot.paper import printed
from anyshot.report.answer import Ranking, list_sensitivities
from anyshot.report.runs import AT, Findings
from anyshot.show.summaries import Summary, describe_uncertainties, format_interval
from anyshot.tables import GridKey, Row
from anyshot.text import format_decimals, group_by


def sensitivity_table(findings: Findings, printed: Sequence[Grid] = ()) -> Summary:
    """Return every grid's sensitivity and what is known of it, the most robust first; or why a grid has none.

    Args:
        findings: What the runs hold.
        printed: Grids of the paper to list below them.
    """
    rows = []
    for grid, known in (*list_sensitivities(findings), *((grid, {}) for grid in printed)):
        row: Row = {"setting": grid.setting, "head": grid.name, "sensitivity": grid.parts.sensitivity}
        row |= describe_uncertainties(known) | {"noise floor": known.get("noise_floor")}
        row |= {"deviation": _statistic(known, "deviation"), "trend": _statistic(known, "trend", "+")}
        rows.append(row | {"mean accuracy": grid.accuracy.mean()})
    for grid in findings.grids:
        if why := grid.why_no_sensitivity:
            row = {"setting": grid.setting, "head": grid.name, "mean accuracy": np.nanmean(grid.accuracy)}
            rows.append(row | {"remark": f"no sensitivity: {why}"})
    return Summary.from_rows("Shot sensitivity, lower is better, with its two 95 % intervals", rows)


def _statistic(row: Row, name: str, sign: str = "") -> str:
    """Return another statistic of the residual and its interval over new classes, where the run's table has them."""
    if not isinstance(row.get(name), float):
        return ""
    ends = format_interval(row, f"{name}_low_classes", f"{name}_high_classes")
    return format_decimals(row[name], sign) + (f" ({ends})" if ends else "")


def ranking_table(ranked: Ranking) -> Summary:
    """Return choices by expected accuracy where every test shot counts alike."""
    columns = {"accuracy": "expected accuracy", "ci95": "± episodes", "ci95_classes": "± new classes"}
    rows = []
    for choice, value in ranked:
        train_shot = "mixed" if choice.mixed else choice.train_shot or ""
        row: Row = {"setting": choice.setting, "head": choice.name, "train shot": train_shot}
        rows.append(row | {column: value[name] for name, column in columns.items()})
    return Summary.from_rows("Expected accuracy where every test shot counts alike", rows)


def history_table(history: Sequence[Row]) -> Summary:
    """Return where each model's training ended, and the best of its validations."""
    columns = ("data", "backbone", "head", "train_shot", "seed")
    rows = []
    for model, epochs in group_by(history, itemgetter(*columns)).items():
        validated = [row["val_accuracy"] for row in epochs if isinstance(row.get("val_accuracy"), float)]
        row = dict(zip(columns, model, strict=True))
        row |= {"train_shot": format_train_shot(epochs[0]), "epochs": len(epochs)}
        row |= {f"last {name.replace('_', ' ')}": epochs[-1].get(name) for name in ("loss", "train_accuracy")}
        rows.append(row | {"best validation accuracy": max(validated, default=None)})
    return Summary.from_rows("Training of each model", rows)


def recipe_tables(recipes: Mapping[str, Mapping[str, Any]]) -> list[Summary]:
    """Return the fields that all recipes share, and a table of the others with one row per model."""
    fields = list(dict.fromkeys(name for recipe in recipes.values() for name in recipe))
    seen = {name: {_value(recipe.get(name)) for recipe in recipes.values()} for name in fields}
    shared = [[name, values.pop()] for name, values in seen.items() if len(values) == 1]
    varied = [name for name in fields if name not in dict(shared)]
    rows = [[model, *(_value(recipe.get(name)) for name in varied)] for model, recipe in recipes.items()]
    alike = Summary("What the recipes of all models share", ["field", "value"], shared, names=2)
    return [alike] + ([Summary("What tells the recipes apart", ["model", *varied], rows)] if varied else [])


def paper_grids(ours: Sequence[Grid]) -> dict[GridKey, Grid]:
    """Return the paper's grids of the same setting, head and readout, by the keys of ours."""
    theirs = {grid.key: grid for grid in build_grids(printed.rows())}
    keys = {grid.key: grid.key._replace(head=grid.head.split(AT)[0]) for grid in ours}
    return {key: theirs[same] for key, same in keys.items() if same in theirs}


def comparison_with_paper(ours: Sequence[Grid]) -> Summary:
    """Compare our grids with the paper's: sensitivity, and mean accuracy by test shot over the train shots of both."""
    rows, theirs = [], paper_grids(ours)
    shots = sorted({shot for grid in ours if grid.key in theirs for shot in grid.test_shots}, key=shot_sort_key)
    for our_grid in ours:
        printed_grid = theirs.get(our_grid.key)
        common = [shot for shot in our_grid.train_shots if printed_grid and shot in printed_grid.train_shots]
        for whose, grid in (("ours", our_grid), ("paper", printed_grid)):
            if grid is None or not common:
                continue
            columns = [grid.train_shots.index(shot) for shot in common]
            means = dict(zip(grid.test_shots, grid.accuracy[:, columns].mean(1).tolist(), strict=True))
            row: Row = {"setting": our_grid.setting, "head": our_grid.name, "whose": whose}
            row |= {"sensitivity": grid.parts.sensitivity if grid.has_sensitivity else None}
            rows.append(row | {format_shot(shot): means.get(shot) for shot in shots})
    title = "Ours and the paper's: sensitivity, and mean accuracy by test shot over the train shots both have"
    return Summary.from_rows(title, rows)


def _value(value: Any) -> str:
    """Return a field of a recipe as text; a recipe within it (its pretraining) is described in a few words."""
    if isinstance(value, dict):
        return f"{value.get('head')}, {value.get('epochs')} epochs, batch {value.get('batch')}, lr {value.get('lr')}"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
