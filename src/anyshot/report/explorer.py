"""Every grid as the page's explorer shows it: cells for each view, a sentence, a table; charts are shared."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt
import numpy as np

from anyshot.measure.grid import Grid, format_shot
from anyshot.report.answer import INTERVALS, Choice, first_pair
from anyshot.report.runs import Findings
from anyshot.report.tables import paper_grids
from anyshot.show.figures import apply_theme, draw_view, largest_residual, list_cells, list_views, name_train_shots
from anyshot.show.summaries import Summary, describe_intervals, grid_summary
from anyshot.text import format_decimals

Cells = Mapping[int, Mapping[Any, Mapping[str, Any]]]  # by train shot and test shot: accuracy, intervals, episodes


@dataclass(frozen=True)
class Explorer:
    """Every grid as the page shows it.

    Args:
        options: The id and the name of each grid, by setting.
        summaries: Each grid as a table, by id.
        data: What page.js needs of each grid, by id: its cells in each view, and what is said of it.
        charts: Vega-Lite without data, by view and shots: grids of the same shots share them.
        chosen: The ids of the two grids that are compared first, by side.
    """

    options: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    summaries: dict[str, Summary] = field(default_factory=dict)
    data: dict[str, dict[str, Any]] = field(default_factory=dict)
    charts: dict[str, Any] = field(default_factory=dict)
    chosen: dict[str, str] = field(default_factory=dict)


def explore(findings: Findings, choices: Sequence[Choice]) -> Explorer:
    """Return the grids of a report, and beside them the paper's of the same setting, head and readout."""
    ours, explorer = findings.grids, Explorer()
    theirs = {} if findings.printed else {grid.key: grid for grid in paper_grids(ours).values()}
    limits, ends = _find_limits([*ours, *theirs.values()])
    known = {(choice.setting, choice.name, choice.train_shot): choice.cells for choice in choices}
    pair = (*first_pair(ours), ours[0], ours[-1])[:2]
    for number, grid in enumerate((*ours, *theirs.values())):
        slug = re.sub(r"[^a-z0-9]+", "-", "-".join(grid.key).lower()).strip("-")
        if number < len(ours):
            place, id = grid.setting, slug if slug not in explorer.data else f"{slug}-{number}"
            row = findings.sensitivities.get(grid.key, {})
            cells: Cells = {shot: known[grid.setting, grid.name, shot] for shot in grid.train_shots}
        else:
            place, id, row, cells = f"the paper: {grid.setting}", f"paper-{slug}", {}, {}
        explorer.options.setdefault(place, []).append((id, grid.name))
        explorer.summaries[id] = grid_summary(grid)
        explorer.data[id] = _describe(grid, row, cells) | {"id": id, "title": f"{grid.name}, {place}", "views": {}}
        explorer.chosen.update({side: id for side, first in zip("ab", pair, strict=True) if first is grid})
        for view in list_views(grid):
            listed = list_cells(grid, view, limits[view], _cell_notes(grid, cells))
            explorer.data[id]["views"][view] = [cell | {"value": round(cell["value"], 3)} for cell in listed]
            name = f"{view} {explorer.data[id]['shots']}"
            if name not in explorer.charts:
                chart = draw_view(grid, view, limits[view], data=alt.NamedData(name="cells"), **ends)
                explorer.charts[name] = apply_theme(chart).to_dict()
    return explorer


def _find_limits(grids: Sequence[Grid]) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the largest number of each view, for one colour scale, and the ends of the scale of accuracies."""
    accuracies = np.concatenate([grid.accuracy.ravel() for grid in grids])
    ends = {"domainMin": float(np.nanmin(accuracies)), "domainMax": float(np.nanmax(accuracies))}
    offsets = max((np.abs(list_views(grid)["offsets"]).max() for grid in grids if grid.has_sensitivity), default=0.0)
    residual = largest_residual([grid for grid in grids if grid.is_complete])
    return {"accuracy": 0.0, "offsets": float(offsets) or 1.0, "residual": residual}, ends


def _describe(grid: Grid, row: Mapping[str, Any], cells: Cells) -> dict[str, Any]:
    """Return what the page says of a grid."""
    sensitivity = grid.parts.sensitivity if grid.has_sensitivity else None
    score = "no sensitivity" if sensitivity is None else f"sensitivity {format_decimals(sensitivity)}"
    about = f"{score} points" if grid.has_sensitivity else f"{score}: {grid.why_no_sensitivity}"
    if grid.has_sensitivity and isinstance(row.get("low"), float):
        about += f", 95 % interval {', '.join(describe_intervals(row))}"
        about += f", noise floor {format_decimals(row['noise_floor'])}"
    means = zip(grid.test_shots, grid.accuracy.mean(1).tolist(), strict=True)
    return {
        "name": grid.name,
        "shots": f"{grid.test_shots} {name_train_shots(grid)}",
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
