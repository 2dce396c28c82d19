"""The report in a terminal: the answer, the sensitivities, and two grids as coloured heatmaps."""

from typing import Any

import numpy as np
from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from anyshot.measure.grid import Grid
from anyshot.report import answer
from anyshot.report.runs import Findings
from anyshot.report.tables import sensitivity_table
from anyshot.show.summaries import Summary
from anyshot.text import format_decimals

BLUE, WHITE, ORANGE = np.array([11, 83, 148]), np.array([247, 247, 247]), np.array([180, 83, 9])

LAYOUT: dict[str, Any] = {"title_justify": "left", "padding": (0, 1, 0, 0)}


def print_report(findings: Findings, console: Console | None = None) -> None:
    """Print a report. Names come from files: they are printed as they are, never read as markup."""
    console = console or Console()
    choices = answer.list_choices(findings)
    settings = list(dict.fromkeys(choice.setting for choice in choices))
    intervals, sensitivities = answer.list_paired_intervals(findings, choices), answer.list_sensitivities(findings)
    for setting in settings:
        shots = {shot: 1.0 for choice in choices if choice.setting == setting for shot in choice.cells}
        ranked = answer.rank(choices, setting, shots)
        slots = answer.accurate_slots(ranked, shots, intervals.get(setting, {}), "shots that all count alike")
        if len(settings) > 1:
            console.print(Text(f"{setting}:"))
        accurate = slots["best"], f"{slots['accuracy']}{slots['margin']}."
        for name, rest in (answer.robust_sentence(sensitivities, setting), accurate):
            console.print(Text.assemble((name, "bold"), rest))
    console.print(_table(sensitivity_table(findings)))
    pair = answer.first_pair(findings.grids)
    limit = max((float(np.abs(grid.parts.residual).max()) for grid in pair), default=0.0)
    for grid in pair:
        console.print(_heatmap(grid, limit or 1.0))


def _table(summary: Summary) -> Group:
    """A summary as it fits a terminal: a setting that all rows share stands in the title, each remark once below."""
    settings = {row[0] for row in summary.rows}
    first = 1 if len(settings) == 1 else 0
    title = f"{summary.title}; {settings.pop()}" if first else summary.title
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, **LAYOUT)
    last = len(summary.columns) - (summary.columns[-1] == "remark")
    for i, column in enumerate(summary.columns[first:last], first):
        words = i < summary.names
        # Headings and names break between words rather than numbers.
        pieces = [piece for row in summary.rows for piece in (row[i].split() if words else [row[i]])]
        widest = max(map(len, pieces), default=0)
        table.add_column(Text(column), justify="left" if words else "right", overflow="fold", min_width=widest)
    remarks: dict[str, list[str]] = {}
    for row in summary.rows:
        table.add_row(*(Text(cell) for cell in row[first:last]))
        for remark in filter(None, row[last:]):
            remarks.setdefault(remark, []).append(row[1])
    return Group(table, *(Text(f"{', '.join(dict.fromkeys(names))}: {remark}.") for remark, names in remarks.items()))


def _heatmap(grid: Grid, limit: float) -> Table:
    """The residual, blue below zero and orange above; the test bias to the right, the model bias in the first row."""
    parts, which = grid.parts, f"{grid.name}, {grid.setting}"
    title = f"{which}: residual by test shot (rows) and train shot, sensitivity {format_decimals(parts.sensitivity)}"
    table = Table(title=Text(title), box=None, **LAYOUT)
    for column in ("", *map(str, grid.train_shots), "mean"):
        table.add_column(Text(column), justify="right")
    table.add_row("model bias", *(format_decimals(bias, "+") for bias in parts.model_bias), "")
    for shot, cells, mean in zip(grid.test_shots, parts.residual, parts.test_bias, strict=True):
        table.add_row(f"{shot}-shot", *(_cell(value, limit) for value in cells), format_decimals(mean))
    return table


def _cell(value: float, limit: float) -> Text:
    share = min(1.0, abs(value) / limit)
    red, green, blue = (WHITE + share * ((ORANGE if value > 0 else BLUE) - WHITE)).astype(int)
    ink = "white" if share > 0.6 else "black"
    return Text(f"{format_decimals(value, '+'):>7}", style=f"{ink} on rgb({red},{green},{blue})")
