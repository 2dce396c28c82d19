"""Every grid as the page's explorer shows it: cells for each view, a sentence, a table; charts are shared."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anyshot.measure.grid import Grid, format_shot
from anyshot.report.answer import INTERVALS, Choice, first_pair
from anyshot.report.runs import Findings
from anyshot.report.tables import paper_grids
from anyshot.show.figures import Panel, apply_theme, limit, steps
from anyshot.show.summaries import Summary, describe_intervals, grid_summary
from anyshot.text import format_decimals

VIEWS = ("accuracy", "offsets", "residual")
Cells = Mapping[int, Mapping[Any, Mapping[str, Any]]]  # by train shot and test shot: accuracy, intervals, episodes


class Explorer:
    """Every grid as the page shows it: cells for each view, a sentence, a table; charts without data are shared."""

    def __init__(self, findings: Findings, choices: Sequence[Choice]) -> None:
        self.findings, self.skeletons = findings, dict[str, Any]()
        self.data, self.summaries, self.options = dict[str, Any](), dict[str, Summary](), dict[str, list[Any]]()
        self.ours = findings.grids
        matched = paper_grids(self.ours).values() if not findings.printed else ()
        theirs = {grid.key: grid for grid in matched}.values()
        whole = [grid for grid in (*self.ours, *theirs) if grid.is_complete]
        offsets = [np.abs(grid.accuracy - grid.parts.test_bias[:, None]).max() for grid in whole]
        self.limits = {"offsets": float(max(offsets, default=0.0)) or 1.0, "residual": limit(whole)}
        measured = np.concatenate([grid.accuracy.ravel() for grid in (*self.ours, *theirs)])
        self.lowest, self.highest = float(np.nanmin(measured)), float(np.nanmax(measured))
        cells = {(choice.setting, choice.name, choice.train_shot): choice.cells for choice in choices}
        for grid in self.ours:
            self._add(grid, grid.setting, {s: cells[grid.setting, grid.name, s] for s in grid.train_shots})
        for grid in theirs:
            self._add(grid, f"the paper: {grid.setting}", {})

    def _add(self, grid: Grid, place: str, cells: Cells) -> None:
        is_paper = place.startswith("the paper: ")
        slug = ("paper-" if is_paper else "") + re.sub(r"[^a-z0-9]+", "-", "-".join(grid.key).lower()).strip("-")
        id = slug if slug not in self.summaries else f"{slug}-{len(self.summaries)}"
        row = {} if is_paper else self.findings.sensitivities.get(grid.key, {})
        notes = _cell_notes(grid, cells)
        sensitivity = grid.parts.sensitivity if grid.has_sensitivity else None
        means = zip(grid.test_shots, grid.accuracy.mean(1).tolist(), strict=True)
        self.data[id] = {
            "id": id,
            "name": grid.name,
            "title": f"{grid.name}, {place}",
            "score": "no sensitivity" if sensitivity is None else f"sensitivity {format_decimals(sensitivity)}",
            "about": f"{_describe(grid, row)}.{_precision(cells)}",
            "why": grid.why_no_sensitivity,
            "sensitivity": sensitivity,
            "means": {shot: mean for shot, mean in means if np.isfinite(mean)},
            "views": self._views(grid, notes),
            "notes": list(notes.values()),
        }
        self.summaries[id] = grid_summary(grid)
        self.options.setdefault(place, []).append((id, grid.name))

    def _views(self, grid: Grid, notes: Mapping[tuple[Any, int], str]) -> dict[str, Any]:
        """Return the values of each view, and the name of the chart that draws them."""
        views = {}
        for place, view in enumerate(VIEWS if grid.has_sensitivity else VIEWS[:1]):
            panel = steps(grid, self.limits.get(view), notes)[place]
            views[view] = {**_compact(panel), "skeleton": self._skeleton(panel, view)}
        return views

    def _skeleton(self, panel: Panel, view: str) -> str:
        """Return the name of the chart that draws such a panel, and make it on first use."""
        shots = "mixed" if panel.grid.mixed else panel.grid.train_shots
        name = f"{view} {panel.grid.test_shots} {shots}"
        if name not in self.skeletons:
            spec = apply_theme(panel.chart(named=True)).to_dict()
            if view == "accuracy":  # one scale for all, as the other views have
                spec["layer"][0]["encoding"]["color"]["scale"] |= {"domainMin": self.lowest, "domainMax": self.highest}
            self.skeletons[name] = spec
        return name

    def chosen(self) -> dict[str, str]:
        """Return what to compare first, by side."""
        ids = dict(zip([grid.key for grid in self.ours], self.data, strict=False))
        left, right = (*first_pair(self.ours), self.ours[0], self.ours[-1])[:2]
        return {"a": ids[left.key], "b": ids[right.key]}


def _describe(grid: Grid, row: Mapping[str, Any]) -> str:
    if grid.why_no_sensitivity:
        return f"No sensitivity: {grid.why_no_sensitivity}"
    about = f"Sensitivity {format_decimals(grid.parts.sensitivity)} points"
    if not isinstance(row.get("low"), float):
        return about
    noise = format_decimals(row["noise_floor"])
    return f"{about}, 95 % interval {', '.join(describe_intervals(row))}, noise floor {noise}"


def _compact(panel: Panel) -> dict[str, list[dict[str, Any]]]:
    """Return a panel's values without what page.js adds (edges, middles, notes), which keeps the page small."""
    fields = ("x", "y", "text", "ink")
    return {
        name: [{field: cell[field] for field in fields} | {"value": round(cell["value"], 3)} for cell in cells]
        for name, cells in panel.values.items()
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
