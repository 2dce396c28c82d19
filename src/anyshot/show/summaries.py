"""Tables for people: sensitivities by setting, gains by test shot, a grid with its biases; as Markdown, LaTeX or CSV.

Every function takes grids, from our own studies or from the paper, and gives a `Summary`: a title, columns and cells of
text, where **two stars** mean bold. (Tables for programs, one row per cell, are in `grid`.)
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anyshot.errors import look_up
from anyshot.measure.grid import Grid, shot_sort_key
from anyshot.tables import to_csv

LATEX_SIGNS = str.maketrans({"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$"})


@dataclass(frozen=True)
class Summary:
    """A table as it is read: the first columns name a row, the others hold its values."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1

    def markdown(self) -> str:
        """A Markdown table, its values aligned to the right."""
        rule = ["---"] * self.names + ["---:"] * (len(self.columns) - self.names)
        lines = [self.columns, rule, *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines) + "\n"

    def latex(self) -> str:
        """A `table` with booktabs rules."""
        head, *body = (" & ".join(_latex(cell) for cell in line) + r" \\" for line in (self.columns, *self.rows))
        layout = "l" * self.names + "r" * (len(self.columns) - self.names)
        begin = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(self.title)}}}"]
        rows = [rf"\begin{{tabular}}{{{layout}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
        return "\n".join([*begin, *rows, r"\end{tabular}", r"\end{table}"]) + "\n"

    def csv(self) -> str:
        """A CSV table, without the stars."""
        return to_csv([self.columns, *([cell.replace("**", "") for cell in row] for row in self.rows)])

    def text(self, format: str) -> str:
        """This table in one of the formats that have an ending."""
        return look_up("table format", format, {"markdown": self.markdown, "latex": self.latex, "csv": self.csv})()


ENDINGS = {"markdown": "md", "latex": "tex", "csv": "csv"}


def find_counterpart(grid: Grid, among: Iterable[Grid]) -> Grid | None:
    """The grid that gains are measured against: the same setting's Euclidean head, read as trained (its mean over train
    shots, also for one model that was trained with mixed shots)."""
    if (grid.head, grid.readout) == (grid.learner, "own"):
        return None
    wanted = (grid.data, grid.backbone, grid.learner, "own")
    return next((other for other in among if other.key == wanted), None)


def sort_grids(grids: Iterable[Grid]) -> list[Grid]:
    """Setting by setting and family by family: the Euclidean head, its other readouts, trained with mixed shots, and
    its cosine alternative likewise."""
    listed = list(grids)
    settings = list(dict.fromkeys(grid.setting for grid in listed))
    learners = list(dict.fromkeys(grid.learner for grid in listed))

    def place(grid: Grid) -> tuple[int, int, bool, bool, bool]:
        kin = settings.index(grid.setting), learners.index(grid.learner)
        is_alternative = grid.head not in (grid.learner, f"{grid.learner}-mixed")
        return *kin, is_alternative, bool(grid.mixed), grid.readout != "own"

    return sorted(listed, key=place)


def grid_summary(grid: Grid) -> Summary:
    """A grid: accuracies, the test bias to the right, the model bias below, the sensitivity in the corner; only the
    accuracies there are, where it has no sensitivity."""
    rows = [
        [str(shot), *("" if math.isnan(cell) else format_decimals(cell) for cell in cells)]
        for shot, cells in zip(grid.test_shots, grid.accuracy, strict=True)
    ]
    title = f"{grid.name} on {grid.setting}: accuracy by test shot (rows) and train shot"
    if not grid.is_scored:
        shots = ["mixed" if grid.mixed else str(shot) if shot else "accuracy" for shot in grid.train_shots]
        return Summary(f"{title} (columns)", ["test shot", *shots], rows)
    means = [*map(format_decimals, grid.parts.test_bias), f"**{_sensitivity(grid)}**"]
    rows.append(["model bias", *(format_decimals(bias, "+") for bias in grid.parts.model_bias)])
    rows = [[*row, mean] for row, mean in zip(rows, means, strict=True)]
    return Summary(f"{title}; sensitivity in the corner", ["test shot", *map(str, grid.train_shots), "mean"], rows)


def sensitivity_summary(grids: Sequence[Grid]) -> Summary:
    """Sensitivity by head (rows) and setting (columns), a dash where a grid has none; the lowest of a family in a
    setting is bold."""
    backbones = list(dict.fromkeys(grid.backbone for grid in grids))
    settings = list(dict.fromkeys(g.setting for g in sorted(grids, key=lambda grid: backbones.index(grid.backbone))))
    cells = {(grid.name, grid.setting): "-" for grid in grids}
    for grid in (grid for grid in grids if grid.is_scored):
        rivals = [other for other in grids if (other.learner, other.setting) == (grid.learner, grid.setting)]
        others = [_sensitivity(other) for other in rivals if other.is_scored and other.name != grid.name]
        is_best = bool(others) and float(_sensitivity(grid)) < min(map(float, others))
        cells[grid.name, grid.setting] = f"**{_sensitivity(grid)}**" if is_best else _sensitivity(grid)
    names = dict.fromkeys(grid.name for grid in sort_grids(grids))
    rows = [[name, *(cells.get((name, setting), "") for setting in settings)] for name in names]
    title = "Shot sensitivity by head and setting; lower is better, the lowest of each learner bold"
    return Summary(title, ["head", *settings], rows)


def gain_summary(grids: Sequence[Grid]) -> Summary:
    """Sensitivity (a dash where there is none) and mean accuracy by test shot, with its gain over the counterpart."""
    shots = sorted({shot for grid in grids for shot in grid.test_shots}, key=shot_sort_key)
    rows = []
    for grid in sort_grids(grids):
        other = find_counterpart(grid, grids)
        base = other.means if other else {}
        cells = [_with_gain(grid.means.get(shot), base.get(shot)) for shot in shots]
        rows.append([grid.setting, grid.name, _sensitivity(grid) if grid.is_scored else "-", *cells])
    title = "Sensitivity, and mean accuracy by test shot with its gain over the Euclidean counterpart"
    return Summary(title, ["setting", "head", "sensitivity", *(f"{shot}-shot" for shot in shots)], rows, names=2)


def _sensitivity(grid: Grid) -> str:
    return format_decimals(grid.parts.sensitivity)


def _with_gain(mean: float | None, base: float | None) -> str:
    if mean is None:
        return ""
    return format_decimals(mean) if base is None else f"{format_decimals(mean)} ({format_decimals(mean - base, '+')})"


def format_decimals(value: float, sign: str = "") -> str:
    """Two decimals; ties go away from zero, however the value is held in binary."""
    return f"{round(value + math.copysign(1e-9, value), 2) + 0.0:{sign}.2f}"  # + 0.0: no minus before a zero


def describe_uncertainties(row: Mapping[str, Any]) -> list[str]:
    """Of a row of sensitivity.csv: the interval of the score over episodes, the one over new classes, and the score of
    each seed; empty where a table has none."""
    over = (interval(row, low, high) for low, high in (("low", "high"), ("low_classes", "high_classes")))
    return [*over, ", ".join(map(format_decimals, scores_by_seed(row)))]


def describe_intervals(row: Mapping[str, Any]) -> list[str]:
    """The intervals that such a row has, each with what it is over."""
    ends = zip(describe_uncertainties(row), ("episodes", "new classes"), strict=False)
    return [f"{interval} over {what}" for interval, what in ends if interval]


def scores_by_seed(row: Mapping[str, Any]) -> list[float]:
    """The score of each seed, of such a row."""
    return [float(seed) for seed in str(row.get("over_seeds", "")).split()]


def interval(row: Mapping[str, Any], low: str, high: str) -> str:
    """Two columns of a row as an interval, or nothing where they are empty."""
    ends = [row.get(name) for name in (low, high)]
    return " to ".join(format_decimals(end) for end in ends if isinstance(end, float))


def _latex(cell: str) -> str:
    return re.sub(r"\*\*(.*?)\*\*", r"\\textbf{\1}", cell.translate(LATEX_SIGNS))
