"""Every grid as the page's explorer shows it: cells for each view, a sentence, a table; charts are shared."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anyshot.measure.grid import Grid
from anyshot.report.answer import INTERVALS, Choice, describe_shot, first_pair, why_no_sensitivity
from anyshot.report.runs import Findings
from anyshot.report.tables import paper_grids
from anyshot.show.figures import Panel, apply_theme, limit, steps
from anyshot.show.summaries import Summary, describe_intervals, format_decimals, grid_summary

VIEWS = ("accuracy", "offsets", "residual")


class Explorer:
    """Every grid as the page shows it: cells for each view, a sentence, a table; charts without data are shared."""

    def __init__(self, findings: Findings, choices: Sequence[Choice]) -> None:
        self.findings, self.skeletons = findings, dict[str, Any]()
        self.data, self.summaries, self.options = dict[str, Any](), dict[str, Summary](), dict[str, list[Any]]()
        self.ours = findings.grids
        matched = paper_grids(self.ours).values() if not findings.printed else ()
        theirs = {grid.key: grid for grid in matched}.values()
        whole = [grid for grid in (*self.ours, *theirs) if grid.is_whole]
        offsets = [np.abs(grid.accuracy - grid.parts.test_bias[:, None]).max() for grid in whole]
        self.limits = {"offsets": float(max(offsets, default=0.0)) or 1.0, "residual": limit(whole)}
        measured = np.concatenate([grid.accuracy.ravel() for grid in (*self.ours, *theirs)])
        self.lowest, self.highest = float(np.nanmin(measured)), float(np.nanmax(measured))
        cells = {(choice.setting, choice.name, choice.train_shot): choice.cells for choice in choices}
        for grid in self.ours:
            self._add(grid, grid.setting, {s: cells[grid.setting, grid.name, s] for s in grid.train_shots})
        for grid in theirs:
            self._add(grid, f"the paper: {grid.setting}", {})

    def _add(self, grid: Grid, place: str, cells: Mapping[int, Mapping[Any, Mapping[str, Any]]]) -> None:
        prefix = "paper-" if place.startswith("the paper: ") else ""
        slug = prefix + re.sub(r"[^a-z0-9]+", "-", "-".join(grid.key).lower()).strip("-")
        id = slug if slug not in self.summaries else f"{slug}-{len(self.summaries)}"
        why = why_no_sensitivity(grid)
        row = self.findings.sensitivities.get(grid.key, {}) if not prefix else {}
        views, notes = {}, _cell_notes(grid, cells)
        for view in VIEWS:
            panels = dict(zip(VIEWS, steps(grid, self.limits.get(view), notes), strict=False))
            if view in panels and not (why and view != "accuracy"):
                views[view] = {**_compact(panels[view]), "skeleton": self._skeleton(panels[view], view)}
        parts = None if why else grid.parts
        means = np.where(np.isnan(grid.accuracy).any(1), np.nan, grid.accuracy.mean(1))
        sensitivity = f"sensitivity {format_decimals(parts.sensitivity)}" if parts else "no sensitivity"
        about = f"{sensitivity.capitalize()} points" if parts else f"No sensitivity: {why}"
        if parts and isinstance(row.get("low"), float):
            about += f", 95 % interval {', '.join(describe_intervals(row))}, noise floor {row['noise_floor']:.2f}"
        self.data[id] = {
            "id": id,
            "name": grid.name,
            "title": f"{grid.name}, {place}",
            "score": sensitivity,
            "about": f"{about}.{_precision(cells)}",
            "why": why,
            "sensitivity": parts.sensitivity if parts else None,
            "means": {s: float(m) for s, m in zip(grid.test_shots, means, strict=True) if np.isfinite(m)},
            "views": views,
            "notes": [notes[t, s] for t in grid.test_shots for s in grid.train_shots if (t, s) in notes],
        }
        self.summaries[id] = grid_summary(grid)
        self.options.setdefault(place, []).append((id, grid.name))

    def _skeleton(self, panel: Panel, view: str) -> str:
        """The name of the chart that draws such a panel, made when first asked for."""
        shots = "mixed" if panel.grid.mixed else panel.grid.train_shots
        name = f"{view} {panel.grid.test_shots} {shots}"
        if name not in self.skeletons:
            spec = apply_theme(panel.chart(named=True)).to_dict()
            if view == "accuracy":  # one scale for all, as the other views have
                spec["layer"][0]["encoding"]["color"]["scale"] |= {"domainMin": self.lowest, "domainMax": self.highest}
            self.skeletons[name] = spec
        return name

    def chosen(self) -> dict[str, str]:
        """What to compare first."""
        ids = dict(zip([grid.key for grid in self.ours], self.data, strict=False))
        left, right = (*first_pair(self.ours), self.ours[0], self.ours[-1])[:2]
        return {"a": ids[left.key], "b": ids[right.key]}


def _compact(panel: Panel) -> dict[str, list[dict[str, Any]]]:
    """A panel's values without what page.js puts back (edges, middles, notes): the page stays small."""
    fields = ("x", "y", "text", "ink")
    return {
        name: [{field: cell[field] for field in fields} | {"value": round(cell["value"], 3)} for cell in cells]
        for name, cells in panel.values.items()
    }


def _precision(cells: Mapping[int, Mapping[Any, Mapping[str, Any]]]) -> str:
    """How well the cells of a grid are known, for a reader who sees no single cell's note."""
    every = [cell for column in cells.values() for cell in column.values()]
    halves = {over: [cell[name] for cell in every if cell[name] is not None] for name, over in INTERVALS.items()}
    parts = [f"± {max(some):.2f} {over}" for over, some in halves.items() if some]
    return f" No cell's interval is wider than {' or '.join(parts)}." if parts else ""


def _cell_notes(grid: Grid, cells: Mapping[int, Mapping[Any, Mapping[str, Any]]]) -> dict[tuple[Any, int], str]:
    """What stands over a cell: its accuracy, intervals, episodes and seeds."""
    notes = {}
    for y, test in enumerate(grid.test_shots):
        for x, train in enumerate(grid.train_shots):
            if np.isnan(grid.accuracy[y, x]):
                continue
            model = f"{train}-shot model" if train and not grid.mixed else "model"
            note = f"{model} at {describe_shot(test)} test: {grid.accuracy[y, x]:.2f} %"
            cell = cells.get(train, {}).get(test, {})
            for name, over in INTERVALS.items():
                note += f"\n± {cell[name]:.2f} {over}" if cell.get(name) is not None else ""
            note += f"\n{cell['episodes']:,} episodes" if cell.get("episodes") else ""
            notes[test, train] = note + (f", {cell['seeds']} seeds" if cell.get("seeds", 1) > 1 else "")
    return notes
