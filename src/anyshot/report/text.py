"""The report in a terminal: the answer, the sensitivities, and two grids as coloured heatmaps."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from anyshot.measure.grid import Grid
from anyshot.paper import audit
from anyshot.report import answer
from anyshot.report.runs import Findings, read_findings
from anyshot.report.tables import sensitivity_table
from anyshot.show.summaries import Summary, gain_summary
from anyshot.text import format_decimals, group_by

BLUE, WHITE, ORANGE = np.array([11, 83, 148]), np.array([247, 247, 247]), np.array([180, 83, 9])


def show_report(runs: Sequence[Path], paper: bool = False) -> None:
    """Print the report of these runs (or of the paper alone) to the terminal."""
    print_report(read_findings(runs, paper=paper))
    if paper:
        audit.print_audit(audit.run_checks())


def print_report(findings: Findings, console: Console | None = None) -> None:
    """Print a report. Names come from files: they are printed as they are, never read as markup."""
    console = console or Console()
    answers = answer.list_answers(findings, "shots that all count alike")
    for setting, one in answers.items():
        if len(answers) > 1:
            console.print(Text(f"{setting}:"))
        accurate = one.accurate["best"], f"{one.accurate['accuracy']}{one.accurate['margin']}."
        for name, rest in (one.robust, accurate):
            console.print(Text.assemble((name, "bold"), rest))
    if findings.is_evaluation:
        console.print(gain_summary([grid for grid in findings.grids if grid.is_complete]).terminal())
        return
    _print_sensitivities(findings, console)
    pair = answer.first_pair(findings.grids)
    limit = max((float(np.abs(grid.parts.residual).max()) for grid in pair), default=0.0)
    for grid in pair:
        console.print(_heatmap(grid, limit or 1.0))


def _print_sensitivities(findings: Findings, console: Console) -> None:
    """Print them as they fit a terminal: a setting that all share stands in the title, each remark once below."""
    table, settings = sensitivity_table(findings), {grid.setting for grid in findings.grids}
    hidden = {"remark"} | ({"setting"} if len(settings) == 1 else set())
    shown = [place for place, column in enumerate(table.columns) if column not in hidden]
    title = table.title + (f"; {settings.pop()}" if "setting" in hidden else "")
    columns, *rows = ([line[place] for place in shown] for line in (table.columns, *table.rows))
    console.print(Summary(title, columns, rows, names=2 - ("setting" in hidden)).terminal())
    remarks = group_by(
        (grid for grid in findings.grids if not grid.has_sensitivity), lambda grid: grid.why_no_sensitivity
    )
    for why, grids in remarks.items():
        console.print(Text(f"{', '.join(dict.fromkeys(grid.name for grid in grids))}: no sensitivity: {why}."))


def _heatmap(grid: Grid, limit: float) -> Table:
    """Return the residual, blue below zero and orange above, with test bias (right) and model bias (first row)."""
    parts, name = grid.parts, f"{grid.name}, {grid.setting}"
    title = f"{name}: residual by test shot (rows) and train shot, sensitivity {format_decimals(parts.sensitivity)}"
    table = Table(title=Text(title), box=None, title_justify="left", padding=(0, 1, 0, 0))
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
