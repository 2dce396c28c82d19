"""The figures of a report, each with a caption and the table behind it, and its grids for two to be compared.

`show.figures` draws them.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from anyshot.errors import BadInput
from anyshot.measure.comparisons import offsets_by_train_shot, swapped_scores
from anyshot.measure.grid import Grid, format_shot, format_train_shot
from anyshot.report import tables
from anyshot.report.answer import first_pair, grids_of_paper, list_sensitivities
from anyshot.report.runs import INTERVALS, Findings
from anyshot.show import figures
from anyshot.show.summaries import Summary, describe_intervals, gain_summary, grid_summary, scores_by_seed
from anyshot.tables import GridKey, Row
from anyshot.text import format_decimals, group_by

Cells = Mapping[int, Mapping[Any, Mapping[str, Any]]]  # by train shot and test shot: accuracy, intervals, episodes
POINTS = 2000  # of all learning curves together: a page of many models stays small


class Figure(NamedTuple):
    """A figure of the report: what draws it, a caption, and the table behind it."""

    id: str
    title: str
    caption: str
    draw: Callable[[], figures.Chart]
    table: Summary


def draw_figures(findings: Findings) -> tuple[list[Figure], dict[str, Any]]:
    """Return every figure that has something to show, and their Vega-Lite specifications by id."""
    specs = {}
    listed = [*_list_figures(findings), *_list_swapped(findings), *_list_learning(findings.history)]
    for figure in listed:
        with suppress(BadInput):  # a figure says itself that there is nothing to draw
            specs[figure.id] = figure.draw().to_dict()
    return [figure for figure in listed if figure.id in specs], specs


def _list_figures(findings: Findings) -> Iterator[Figure]:
    grids = [grid for grid in findings.grids if grid.is_complete]
    single = {(grid.setting, grid.name) for grid in findings.grids if len(grid.train_shots) == 1}
    points = [
        {"choice": f"{choice.label}, {choice.setting}", "test_shot": shot, "accuracy": cell["accuracy"]}
        | {end: cell["accuracy"] + sign * (cell["ci95"] or 0.0) for end, sign in (("low", -1), ("high", 1))}
        for choice in findings.choices
        if (choice.setting, choice.name) in single
        for shot, cell in choice.cells.items()
    ]
    caption = "One line per head; bars are 95 % intervals over episodes."
    table = Summary.from_rows("Accuracy by test shot, with its 95 % interval over episodes", points)
    yield Figure("curves", "Accuracy by test shot", caption, partial(figures.curves, points), table)
    yield from _list_frontier(findings)
    group = "head" if findings.is_evaluation else "cosine group"
    caption = f"How much more accurate a {group} is than its Euclidean counterpart, by test shot."
    draw = partial(figures.gains_by_test_shot, grids)
    yield Figure("gains-by-test-shot", "Gains by test shot", caption, draw, gain_summary(grids))
    caption = "How far the model of each train shot lies above the mean of its group."
    title = "Model bias: mean distance of each model to its group, in points"
    table = Summary.from_rows(title, offsets_by_train_shot(findings.rows))
    draw = partial(figures.offsets_by_train_shot, grids)
    yield Figure("offsets-by-train-shot", "Offsets by train shot", caption, draw, table)
    columns = ("data", "backbone", "head", "score", "train_shot", "consistency")
    shares = [row for row in findings.consistency if isinstance(row.get("consistency"), float)]
    listed = [{name: row.get(name, "") for name in columns} for row in shares]
    table = Summary.from_rows("Predictions that survive a new support, in percent", listed)
    caption = "Share of predictions that stay when the support is drawn anew."
    yield Figure("consistency", "Consistency", caption, partial(figures.consistency, shares), table)


def _list_frontier(findings: Findings) -> Iterator[Figure]:
    scored = list_sensitivities(findings)
    if len(scored) < 2:
        return
    caption = (
        "One point per grid; of its sensitivity the thick bar is the interval over episodes, the thin one over new"
        " classes, and a short stroke one training. Down and right is better; what the dashed line joins is beaten by"
        " nothing in both."
    )
    printed = [] if findings.printed else grids_of_paper(grid for grid, _ in scored)
    caption += " The paper's printed grids of the same images are beside ours." if printed else ""
    names = [choice.name for choice in findings.choices] + [grid.name for grid in printed]
    points = frontier_points([*scored, *((grid, {}) for grid in printed)])
    draw = partial(figures.frontier, points, list(dict.fromkeys(names)))
    table = tables.sensitivity_table(findings, printed)
    yield Figure("frontier", "Accuracy against sensitivity", caption, draw, table)


def frontier_points(sensitivities: Sequence[tuple[Grid, Row]]) -> list[Row]:
    """Return a row for each training of each grid, with what the frontier shows of the grid.

    A grid without known trainings counts as one; unknown ends of intervals are at the point itself.

    Args:
        sensitivities: Grids, and their rows of sensitivity.csv.
    """
    points: list[Row] = []
    for grid, row in sensitivities:
        score = grid.parts.sensitivity
        point: Row = {"method": grid.name, "head": grid.head, "readout": grid.readout, "setting": grid.setting}
        point |= {"accuracy": float(grid.accuracy.mean()), "sensitivity": score}
        ends = {name: row.get(name) for name in ("low", "high", "low_classes", "high_classes")}
        points.append(point | {name: end if isinstance(end, float) else score for name, end in ends.items()})
    for point in points:
        point["frontier"] = not any(_beats(other, point) for other in points)
    return [
        point | {"training": training, "has_trainings": bool(scores_by_seed(row))}
        for (_, row), point in zip(sensitivities, points, strict=True)
        for training in scores_by_seed(row) or [point["sensitivity"]]
    ]


def _beats(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether one is better in accuracy or sensitivity and worse in neither, in the same setting."""
    gain, loss = one["accuracy"] - other["accuracy"], one["sensitivity"] - other["sensitivity"]
    return one["setting"] == other["setting"] and gain >= 0 and loss <= 0 and (gain, loss) != (0, 0)


def _list_swapped(findings: Findings) -> Iterator[Figure]:
    """Return a figure for each setting with models that were also read with the other head's score."""
    swapped = group_by((grid.key for grid in findings.grids if grid.readout == "swapped"), lambda key: key.setting)
    for setting, keys in swapped.items():
        keys += [key._replace(readout="own") for key in keys]
        rows = [row for row in findings.rows if GridKey.of_row(row) in keys]
        caption = f"{setting}: do models follow the score they were trained with, or the one that reads them?"
        id = "-".join(("swapped", *keys[0][:2])) if len(swapped) > 1 else "swapped"
        table = Summary.from_rows("Accuracy with a model's own score and with the other", swapped_scores(rows))
        yield Figure(id, "Swapped predictors", caption, partial(figures.swapped_predictors, rows), table)


def _list_learning(history: Sequence[Row]) -> Iterator[Figure]:
    caption = "By epoch, one panel per head, one line per train shot. Batches of lower train shots hold more classes."
    table = tables.history_table(history)
    accuracy = partial(learning_curves, history, ("train_accuracy", "val_accuracy"), "accuracy (%)")
    yield Figure("learning-curves", "Learning curves", caption, accuracy, table)
    yield Figure("loss-curves", "Loss", caption, partial(learning_curves, history, ("loss",), "cross-entropy"), table)


def learning_curves(history: Sequence[Row], measures: Sequence[str], title: str) -> figures.Chart:
    """Draw measures by epoch."""
    rows = [
        {"head": f"{row['head']}, {row['data']}/{row['backbone']}", "train_shot": format_train_shot(row)}
        | {"seed": row["seed"], "epoch": row["epoch"], "measure": name.replace("_", " "), "value": row[name]}
        for name in measures
        for row in thin_history(history, name)
    ]
    return figures.learning_curves(rows, title)


def thin_history(history: Sequence[Row], measure: str) -> list[Row]:
    """Return epochs of each model at which something was measured, evenly thinned to what a small panel can show."""
    measured = [row for row in history if isinstance(row.get(measure), float)]
    models = group_by(measured, itemgetter("data", "backbone", "head", "train_shot", "seed")).values()
    most = int(np.clip(POINTS // max(1, len(models)), 10, 60))
    places = {len(rows): np.unique(np.linspace(0, len(rows) - 1, most).round().astype(int)) for rows in models}
    return [rows[place] for rows in models for place in places[len(rows)]]


# ---------------------------------------------------------------------------------------- two grids side by side


def explore(findings: Findings) -> dict[str, dict[str, Any]]:
    """Return the grids of a report, and beside them the paper's of the same setting, head and readout.

    Returns:
        options: The id and the name of each grid, by setting.
        summaries: Each grid as a table, by id.
        data: What page.js needs of each grid, by id: its cells in each view, and what is said of it.
        charts: Vega-Lite without data, by view and shots: grids of the same shots share them.
        chosen: The ids of the two grids that are compared first, by side.
    """
    ours = findings.grids
    options, summaries, data, charts, chosen = dict[str, Any](), {}, dict[str, Any](), {}, {}
    theirs = {} if findings.printed else {grid.key: grid for grid in tables.paper_grids(ours).values()}
    limits, ends = _find_limits([*ours, *theirs.values()])
    known = {(choice.setting, choice.name, choice.train_shot): choice.cells for choice in findings.choices}
    pair = (*first_pair(ours), ours[0], ours[-1])[:2]
    for number, grid in enumerate((*ours, *theirs.values())):
        slug = re.sub(r"[^a-z0-9]+", "-", "-".join(grid.key).lower()).strip("-")
        if number < len(ours):
            place, id = grid.setting, slug if slug not in data else f"{slug}-{number}"
            row = findings.sensitivities.get(grid.key, {})
            cells: Cells = {shot: known[grid.setting, grid.name, shot] for shot in grid.train_shots}
        else:
            place, id, row, cells = f"the paper: {grid.setting}", f"paper-{slug}", {}, {}
        options.setdefault(place, []).append((id, grid.name))
        summaries[id] = grid_summary(grid)
        data[id] = _describe(grid, row, cells) | {"id": id, "title": f"{grid.name}, {place}", "views": {}}
        chosen.update({side: id for side, first in zip("ab", pair, strict=True) if first is grid})
        for view in figures.list_views(grid):
            listed = figures.list_cells(grid, view, limits[view], _cell_notes(grid, cells))
            data[id]["views"][view] = [cell | {"value": round(cell["value"], 3)} for cell in listed]
            name = f"{view} {data[id]['shots']}"
            if name not in charts:
                chart = figures.draw_view(grid, view, limits[view], data=alt.NamedData(name="cells"), **ends)
                charts[name] = figures.apply_theme(chart).to_dict()
    return {"options": options, "summaries": summaries, "data": data, "charts": charts, "chosen": chosen}


def _find_limits(grids: Sequence[Grid]) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the largest number of each view, for one colour scale, and the ends of the scale of accuracies."""
    accuracies = np.concatenate([grid.accuracy.ravel() for grid in grids])
    ends = {"domainMin": float(np.nanmin(accuracies)), "domainMax": float(np.nanmax(accuracies))}
    offsets = [figures.list_views(grid)["offsets"] for grid in grids if grid.has_sensitivity]
    largest = max((float(np.abs(one).max()) for one in offsets), default=0.0)
    residual = figures.largest_residual([grid for grid in grids if grid.is_complete])
    return {"accuracy": 0.0, "offsets": largest or 1.0, "residual": residual}, ends


def _describe(grid: Grid, row: Mapping[str, Any], cells: Cells) -> dict[str, Any]:
    """Return what the page says of a grid."""
    sensitivity = grid.parts.sensitivity if grid.has_sensitivity else None
    score = "no sensitivity" if sensitivity is None else f"sensitivity {format_decimals(sensitivity)}"
    about = f"{score} points" if grid.has_sensitivity else f"{score}: {grid.why_no_sensitivity}"
    if grid.has_sensitivity and isinstance(row.get("low"), float):
        about += f", 95 % interval {describe_intervals(row)}"
        about += f", noise floor {format_decimals(row['noise_floor'])}"
    means = zip(grid.test_shots, grid.accuracy.mean(1).tolist(), strict=True)
    return {
        "name": grid.name,
        "shots": f"{grid.test_shots} {figures.name_train_shots(grid)}",
        "score": score,
        "about": f"{about[0].upper()}{about[1:]}.{_precision(cells)}",
        "why": grid.why_no_sensitivity,
        "sensitivity": sensitivity,
        "means": {shot: mean for shot, mean in means if np.isfinite(mean)},
    }


def _precision(cells: Cells) -> str:
    """Return how well the cells of a grid are known, for a reader who sees no single cell's note."""
    every = [cell for column in cells.values() for cell in column.values()]
    halves = {over: [cell[name] for cell in every if cell[name] is not None] for name, over in INTERVALS.items()}
    parts = [f"± {format_decimals(max(some))} {over}" for over, some in halves.items() if some]
    return f" No cell's interval is wider than {' or '.join(parts)}." if parts else ""


def _cell_notes(grid: Grid, cells: Cells) -> dict[tuple[Any, int], str]:
    """Return what a reader sees over each cell: its accuracy, intervals, episodes and seeds."""
    notes = {}
    for y, test in enumerate(grid.test_shots):
        for x, train in enumerate(grid.train_shots):
            if np.isnan(grid.accuracy[y, x]):
                continue
            model = f"{train}-shot model" if train and not grid.mixed else "model"
            note = f"{model} at {format_shot(test)} test: {format_decimals(grid.accuracy[y, x])} %"
            cell = cells.get(train, {}).get(test, {})
            for name, over in INTERVALS.items():
                note += f"\n± {format_decimals(cell[name])} {over}" if cell.get(name) is not None else ""
            note += f"\n{cell['episodes']:,} episodes" if cell.get("episodes") else ""
            notes[test, train] = note + (f", {cell['seeds']} seeds" if cell.get("seeds", 1) > 1 else "")
    return notes
