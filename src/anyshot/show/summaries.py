"""Tables for people: sensitivities by setting, gains by test shot, a grid with its biases; as Markdown, LaTeX or CSV.

Every function takes grids, from our own studies or from the paper, and gives a `Summary`: a title, columns and cells of
text, where **two stars** mean bold. (Tables for programs, one row per cell, are in `grid`.)
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from anyshot.errors import look_up
from anyshot.measure.grid import Grid, shot_sort_key
from anyshot.tables import to_csv
from anyshot.text import format_decimals, group_by

if TYPE_CHECKING:
    from rich.table import Table

LATEX_SIGNS = str.maketrans({"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$"})


@dataclass(frozen=True)
class Summary:
    """A table as it is read: the first columns name a row, the others hold its values."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1

    @classmethod
    def from_rows(cls, title: str, rows: Sequence[Mapping[str, Any]]) -> "Summary":
        """Return the rows of a table as they are read: names come first, and numbers with a fraction follow.

        An unknown number is None or NaN. A column without any cell is left out.
        """
        columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(chain(*rows))}
        columns = {name: column for name, column in columns.items() if any(cell not in (None, "") for cell in column)}
        texts = [map(_format_cell, column) for column in columns.values()]
        are_names = [not any(isinstance(cell, float) for cell in column) for column in columns.values()]
        names = [*are_names, False].index(False)
        return cls(title, [name.replace("_", " ") for name in columns], [*map(list, zip(*texts, strict=True))], names)

    def markdown(self) -> str:
        """Return a Markdown table, its values aligned to the right."""
        rule = ["---"] * self.names + ["---:"] * (len(self.columns) - self.names)
        lines = [self.columns, rule, *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines) + "\n"

    def latex(self) -> str:
        """Return a LaTeX `table` with booktabs rules."""
        head, *body = (" & ".join(_latex(cell) for cell in line) + r" \\" for line in (self.columns, *self.rows))
        layout = "l" * self.names + "r" * (len(self.columns) - self.names)
        begin = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(self.title)}}}"]
        rows = [rf"\begin{{tabular}}{{{layout}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
        return "\n".join([*begin, *rows, r"\end{tabular}", r"\end{table}"]) + "\n"

    def csv(self) -> str:
        """Return a CSV table, without the stars."""
        return to_csv([self.columns, *([cell.replace("**", "") for cell in row] for row in self.rows)])

    def terminal(self) -> "Table":
        """Return a table for a terminal: headings and names break between words rather than numbers."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        layout: Any = {"title_justify": "left", "padding": (0, 1, 0, 0), "show_edge": False, "pad_edge": False}
        table = Table(title=Text(self.title), box=box.SIMPLE_HEAD, **layout)
        for i, column in enumerate(self.columns):
            pieces = [piece for row in self.rows for piece in (row[i].split() if i < self.names else [row[i]])]
            justify: Any = "left" if i < self.names else "right"
            table.add_column(Text(column), justify=justify, overflow="fold", min_width=max(map(len, pieces), default=0))
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def text(self, format: str) -> str:
        """Return the table in one of the formats of ENDINGS."""
        return look_up("table format", format, {"markdown": self.markdown, "latex": self.latex, "csv": self.csv})()


ENDINGS = {"markdown": "md", "latex": "tex", "csv": "csv"}


def sort_grids(grids: Iterable[Grid]) -> list[Grid]:
    """Return grids by setting and learner: the Euclidean head, its readouts, mixed shots, then its alternatives."""
    listed = list(grids)
    settings = list(dict.fromkeys(grid.setting for grid in listed))
    learners = list(dict.fromkeys(grid.learner for grid in listed))

    def place(grid: Grid) -> tuple[int, int, bool, bool, bool]:
        kin = settings.index(grid.setting), learners.index(grid.learner)
        is_alternative = grid.head not in (grid.learner, f"{grid.learner}-mixed")
        return *kin, is_alternative, bool(grid.mixed), grid.readout != "own"

    return sorted(listed, key=place)


def grid_summary(grid: Grid) -> Summary:
    """Return a grid with the test bias to the right, the model bias below, the sensitivity in the corner.

    A grid without a sensitivity has only its accuracies.
    """
    rows = [
        [str(shot), *("" if math.isnan(cell) else format_decimals(cell) for cell in cells)]
        for shot, cells in zip(grid.test_shots, grid.accuracy, strict=True)
    ]
    title = f"{grid.name} on {grid.setting}: accuracy by test shot (rows) and train shot"
    if not grid.has_sensitivity:
        shots = ["mixed" if grid.mixed else str(shot) if shot else "accuracy" for shot in grid.train_shots]
        return Summary(f"{title} (columns)", ["test shot", *shots], rows)
    means = [*map(format_decimals, grid.parts.test_bias), f"**{_sensitivity(grid)}**"]
    rows.append(["model bias", *(format_decimals(bias, "+") for bias in grid.parts.model_bias)])
    rows = [[*row, mean] for row, mean in zip(rows, means, strict=True)]
    return Summary(f"{title}; sensitivity in the corner", ["test shot", *map(str, grid.train_shots), "mean"], rows)


def sensitivity_summary(grids: Sequence[Grid]) -> Summary:
    """Return sensitivity by head (rows) and setting (columns), with the lowest of each learner in a setting bold."""
    backbones = list(dict.fromkeys(grid.backbone for grid in grids))
    settings = list(dict.fromkeys(g.setting for g in sorted(grids, key=lambda grid: backbones.index(grid.backbone))))
    cells = {(grid.name, grid.setting): _sensitivity(grid) for grid in grids}
    families = group_by((g for g in grids if g.has_sensitivity), lambda grid: (grid.learner, grid.setting))
    for family in families.values():
        lowest = min(map(_sensitivity, family), key=float)
        best = [grid for grid in family if _sensitivity(grid) == lowest]
        if len(best) == 1 < len(family):
            cells[best[0].name, best[0].setting] = f"**{lowest}**"
    names = dict.fromkeys(grid.name for grid in sort_grids(grids))
    rows = [[name, *(cells.get((name, setting), "") for setting in settings)] for name in names]
    title = "Shot sensitivity by head and setting; lower is better, the lowest of each learner bold"
    return Summary(title, ["head", *settings], rows)


def gain_summary(grids: Sequence[Grid]) -> Summary:
    """Return sensitivity and mean accuracy by test shot, with its gain over the Euclidean counterpart."""
    shots = sorted({shot for grid in grids for shot in grid.test_shots}, key=shot_sort_key)
    rows = []
    for grid in sort_grids(grids):
        other = grid.find_counterpart(grids)
        means, gains = grid.means, grid.gains_over(other) if other else {}
        cells = []
        for shot in shots:
            gain = f" ({format_decimals(gains[shot], '+')})" if shot in gains else ""
            cells.append(format_decimals(means[shot]) + gain if shot in means else "")
        rows.append([grid.setting, grid.name, _sensitivity(grid), *cells])
    columns = ["setting", "head", "sensitivity", *(f"{shot}-shot" for shot in shots)]
    gain = "by test shot with its gain over the Euclidean counterpart"
    if grids and all(grid.train_shots == (0,) for grid in grids):  # no model was trained: `anyshot evaluate`
        shown = [[*row[:2], *row[3:]] for row in (columns, *rows)]
        return Summary(f"Accuracy {gain}", shown[0], shown[1:], names=2)
    return Summary(f"Sensitivity, and mean accuracy {gain}", columns, rows, names=2)


def _sensitivity(grid: Grid) -> str:
    """Return the sensitivity of a grid, or a dash where it has none."""
    return format_decimals(grid.parts.sensitivity) if grid.has_sensitivity else "-"


def describe_uncertainties(row: Mapping[str, Any]) -> dict[str, str]:
    """Return both intervals and the score of each seed, of a row of sensitivity.csv; empty where the row has none."""
    return {
        "over episodes": format_interval(row, "low", "high"),
        "over new classes": format_interval(row, "low_classes", "high_classes"),
        "by seed": ", ".join(map(format_decimals, scores_by_seed(row))),
    }


def describe_intervals(row: Mapping[str, Any]) -> str:
    """Return the intervals that a row of sensitivity.csv has, each with what it is over."""
    known = describe_uncertainties(row)
    return ", ".join(f"{known[over]} {over}" for over in ("over episodes", "over new classes") if known[over])


def scores_by_seed(row: Mapping[str, Any]) -> list[float]:
    """Return the score of each seed, of a row of sensitivity.csv."""
    return [float(seed) for seed in str(row.get("over_seeds", "")).split()]


def format_interval(row: Mapping[str, Any], low: str, high: str) -> str:
    """Return two columns of a row as an interval, or nothing where they are empty."""
    ends = [row.get(name) for name in (low, high)]
    return " to ".join(format_decimals(end) for end in ends if isinstance(end, float))


def _format_cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else format_decimals(value)
    return "" if value is None else str(value)


def _latex(cell: str) -> str:
    return re.sub(r"\*\*(.*?)\*\*", r"\\textbf{\1}", cell.translate(LATEX_SIGNS))
