"""The tables behind the report's figures, each a `Summary`: shown, and taken away as CSV, Markdown or LaTeX."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anyshot.measure.grid import Grid, build_grids, format_shot, format_train_shot, shot_sort_key
from anyshot.paper import printed
from anyshot.report.answer import Choice, Sensitivity, list_sensitivities
from anyshot.report.runs import AT, Findings
from anyshot.show.summaries import Summary, describe_uncertainties, format_interval
from anyshot.tables import Row
from anyshot.text import format_decimals, group_by


def sensitivity_table(findings: Findings) -> Summary:
    """Return every grid's sensitivity and what is known of it, the most robust first; or why a grid has none."""
    rows = []
    for one in list_sensitivities(findings):
        uncertain = *describe_uncertainties(one.row), _number(one.number("noise_floor"))
        others = [_statistic(one, name) for name in ("deviation", "trend")]
        mean = format_decimals(one.grid.accuracy.mean())
        rows.append([one.grid.setting, one.grid.name, format_decimals(one.points), *uncertain, *others, mean, ""])
    for grid in findings.grids:
        if why := grid.why_no_sensitivity:
            mean = format_decimals(np.nanmean(grid.accuracy))
            rows.append([grid.setting, grid.name, *[""] * 7, mean, f"no sensitivity: {why}"])
    columns = ["setting", "head", "sensitivity", "over episodes", "over new classes", "by seed", "noise floor"]
    columns, rows = _without_empty([*columns, "deviation", "trend", "mean accuracy", "remark"], rows)
    return Summary("Shot sensitivity, lower is better, with its two 95 % intervals", columns, rows, names=2)


def _statistic(one: Sensitivity, name: str) -> str:
    """Return another statistic of the residual and its interval over new classes, where the run's table has them."""
    value = one.number(name)
    if value is None:
        return ""
    ends = format_interval(one.row, f"{name}_low_classes", f"{name}_high_classes")
    return format_decimals(value, "+" if name == "trend" else "") + (f" ({ends})" if ends else "")


def ranking_table(ranked: Sequence[tuple[Choice, Mapping[str, Any]]]) -> Summary:
    """Choices by expected accuracy, all test shots alike."""
    rows = [
        [choice.setting, choice.name, "mixed" if choice.mixed else str(choice.train_shot or "")]
        + [_number(value[name]) for name in ("accuracy", "ci95", "ci95_classes")]
        for choice, value in ranked
    ]
    columns = ["setting", "head", "train shot", "expected accuracy", "± episodes", "± new classes"]
    title = "Expected accuracy where every test shot counts alike"
    return Summary(title, *_without_empty(columns, rows), names=2)


def bias_table(trained: Sequence[Grid]) -> Summary:
    """Model bias by train shot."""
    shots = sorted({shot for grid in trained for shot in grid.train_shots})
    rows = []
    for grid in trained:
        bias = dict(zip(grid.train_shots, grid.parts.model_bias, strict=True))
        rows.append(
            [grid.setting, grid.name, *(format_decimals(bias[shot], "+") if shot in bias else "" for shot in shots)]
        )
    columns = ["setting", "head", *(f"{shot}-shot model" for shot in shots)]
    return Summary("Model bias: mean distance of each model to its group, in points", columns, rows, names=2)


def curve_table(choices: Sequence[Choice]) -> Summary:
    """Accuracy by test shot, with its interval over episodes."""
    shots = sorted({shot for choice in choices for shot in choice.cells}, key=shot_sort_key)
    rows = [[choice.setting, choice.label, *(_cell(choice.cells.get(shot)) for shot in shots)] for choice in choices]
    columns = ["setting", "head", *(format_shot(shot) for shot in shots)]
    return Summary("Accuracy by test shot, ± 95 % interval over episodes", columns, rows, names=2)


def frontier_table(sensitivities: Sequence[Sensitivity]) -> Summary:
    """Mean accuracy and sensitivity of every grid."""
    rows = [
        [one.grid.setting, one.grid.name, format_decimals(one.grid.accuracy.mean()), format_decimals(one.points)]
        for one in sensitivities
    ]
    columns = ["setting", "head", "mean accuracy", "sensitivity"]
    return Summary("Mean accuracy over the grid, and sensitivity", columns, rows, names=2)


def history_table(history: Sequence[Row]) -> Summary:
    """Where each model's training ended, and the best of its validations."""
    models = group_by(
        history, lambda row: (row["data"], row["backbone"], row["head"], format_train_shot(row), row["seed"])
    )
    rows = []
    for where, epochs in models.items():
        validated = [row["val_accuracy"] for row in epochs if isinstance(row.get("val_accuracy"), float)]
        end = [_number(epochs[-1].get(name)) for name in ("loss", "train_accuracy")]
        rows.append([*map(str, where), str(len(epochs)), *end, _number(max(validated, default=None))])
    columns = ["data", "backbone", "head", "train shot", "seed", "epochs", "last loss", "last train accuracy"]
    return Summary("Training of each model", [*columns, "best validation accuracy"], rows, names=3)


def consistency_table(shares: Sequence[Row]) -> Summary:
    """The share of predictions that survive a new support, by model and score."""
    names = ("data", "backbone", "head", "score", "train_shot")
    rows = [[*(str(row.get(name, "")) for name in names), f"{float(row['consistency']):.1f}"] for row in shares]
    columns = [name.replace("_", " ") for name in names]
    return Summary("Predictions that survive a new support, in percent", [*columns, "consistency"], rows, names=4)


def recipe_tables(recipes: Mapping[str, Mapping[str, Any]]) -> list[Summary]:
    """What all models share, once; and what tells them apart, one row per model."""
    fields = list(dict.fromkeys(name for recipe in recipes.values() for name in recipe))
    seen = {name: {_value(recipe.get(name)) for recipe in recipes.values()} for name in fields}
    shared = [[name, values.pop()] for name, values in seen.items() if len(values) == 1]
    varied = [name for name in fields if name not in dict(shared)]
    rows = [[model, *(_value(recipe.get(name)) for name in varied)] for model, recipe in recipes.items()]
    alike = Summary("What the recipes of all models share", ["field", "value"], shared, names=2)
    return [alike] + ([Summary("What tells the recipes apart", ["model", *varied], rows)] if varied else [])


def paper_grids(ours: Sequence[Grid]) -> dict[int, Grid]:
    """The paper's grid of the same setting, head and readout, by the place of ours."""
    theirs = {grid.key: grid for grid in build_grids(printed.rows())}
    places = {i: (g.data, g.backbone, g.head.split(AT)[0], g.readout) for i, g in enumerate(ours)}
    return {i: theirs[where] for i, where in places.items() if where in theirs}


def comparison_with_paper(ours: Sequence[Grid]) -> Summary:
    """Ours and theirs: sensitivity, and mean accuracy by test shot over the train shots both have."""
    rows = []
    shots = sorted({shot for i in paper_grids(ours) for shot in ours[i].test_shots}, key=shot_sort_key)
    for i, theirs in paper_grids(ours).items():
        own = ours[i]
        both = [s for s in own.train_shots if s in theirs.train_shots]
        if not both:
            continue
        for who, grid in (("ours", own), ("paper", theirs)):
            sensitivity = format_decimals(grid.parts.sensitivity) if grid.has_sensitivity else ""
            columns = [grid.train_shots.index(s) for s in both]
            means = dict(zip(grid.test_shots, grid.accuracy[:, columns].mean(1), strict=True))
            rows.append([own.setting, own.name, who, sensitivity, *(_number(means.get(shot)) for shot in shots)])
    header = ["setting", "head", "whose", "sensitivity", *(format_shot(shot) for shot in shots)]
    title = "Ours and the paper's: sensitivity, and mean accuracy by test shot over the train shots both have"
    return Summary(title, header, rows, names=3)


def _value(value: Any) -> str:
    """A field of a recipe; a recipe within it (its pretraining) by what tells it apart."""
    if isinstance(value, dict):
        return f"{value.get('head')}, {value.get('epochs')} epochs, batch {value.get('batch')}, lr {value.get('lr')}"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _number(value: Any) -> str:
    return format_decimals(float(value)) if isinstance(value, int | float) and np.isfinite(value) else ""


def _cell(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return ""
    return " ± ".join(format_decimals(cell[name]) for name in ("accuracy", "ci95") if cell[name] is not None)


def _without_empty(columns: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """The table without columns that hold nothing."""
    filled = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    return [columns[i] for i in filled], [[row[i] for i in filled] for row in rows]
