"""Which figures a report shows: those its data can fill, each with a caption and the table behind it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyshot.errors import BadInput
from anyshot.report import charts, tables
from anyshot.report.answer import EVERYWHERE, Choice, scores, why_no_sensitivity
from anyshot.report.runs import Findings
from anyshot.show import figures
from anyshot.show.grid import Grid
from anyshot.show.summaries import Summary, counterpart, gain_summary


@dataclass(frozen=True)
class Figure:
    id: str
    title: str
    caption: str
    spec: dict[str, Any]
    table: Summary
    broad: bool = False


def drawn_figures(findings: Findings, found: Sequence[Choice]) -> list[Figure]:
    """Every figure that has something to show."""
    out = []
    for id, title, caption, draw, table, broad in _figures(findings, found):
        try:
            spec = draw().to_dict()
        except BadInput:
            continue  # nothing to draw: the figure says so itself
        out.append(Figure(id, title, caption, spec, table(), broad))
    return out


Plan = tuple[str, str, str, Callable[[], Any], Callable[[], Summary], bool]


def _figures(findings: Findings, found: Sequence[Choice]) -> Iterator[Plan]:
    whole = [grid for grid in findings.grids if not np.isnan(grid.accuracy).any()]
    scored = scores(findings)
    trained = [grid for grid in findings.grids if not why_no_sensitivity(grid)]
    single = {(grid.setting, grid.name) for grid in findings.grids if len(grid.train_shots) == 1}
    curves = [choice for choice in found if (choice.setting, choice.name) in single and choice.setting != EVERYWHERE]
    if curves:
        caption = "A line a head; bars are 95 % intervals over episodes."
        yield (
            "curves",
            "Accuracy by test shot",
            caption,
            lambda: charts.curves(curves),
            lambda: tables.curve_table(curves),
            False,
        )
    if len(scored) > 1:
        names = list(dict.fromkeys(choice.name for choice in found))
        many = len({score.grid.setting for score in scored}) > 1
        caption = (
            "A point a grid, its bar the interval of the score. Down and right is better; what the dashed line joins is"
            " beaten by nothing in both."
        )
        yield (
            "frontier",
            "Accuracy against sensitivity",
            caption,
            lambda: charts.frontier(scored, names),
            lambda: tables.frontier_table(scored),
            many,
        )
    pairs = _with_counterparts(whole)
    if pairs:
        caption = "How much more accurate a cosine group is than its Euclidean counterpart, by test shot."
        yield (
            "gains-by-test-shot",
            "Gains by test shot",
            caption,
            lambda: figures.gains_by_test_shot(pairs),
            lambda: gain_summary(pairs),
            False,
        )
    if trained:
        caption = "How far the model of each train shot lies above the mean of its group."
        yield (
            "offsets-by-train-shot",
            "Offsets by train shot",
            caption,
            lambda: figures.offsets_by_train_shot(trained),
            lambda: tables.bias_table(trained),
            False,
        )
    yield from _swapped(findings, found)
    if findings.consistency:
        rows = [row for row in findings.consistency if isinstance(row.get("consistency"), float | int)]
        caption = "Share of predictions that stay when the support is drawn anew."
        yield (
            "consistency",
            "Consistency",
            caption,
            lambda: figures.consistency(rows),
            lambda: tables.consistency_table(rows),
            False,
        )
    panels = len({(row["data"], row["backbone"], row["head"]) for row in findings.history})
    if findings.history:
        for id, title, measures, axis in (
            ("learning-curves", "Learning curves", ("train_accuracy", "val_accuracy"), "accuracy (%)"),
            ("loss-curves", "Loss", ("loss",), "cross-entropy"),
        ):

            def draw(measures: Sequence[str] = measures, axis: str = axis) -> Any:
                return charts.learning_curves(findings.history, measures, axis)

            caption = "By epoch, a panel a head, a line a train shot. Batches of lower train shots hold more classes."
            yield id, title, caption, draw, lambda: tables.history_table(findings.history), panels > 2


def _with_counterparts(whole: Sequence[Grid]) -> list[Grid]:
    """Grids and their Euclidean counterparts, where both have the same test shots."""
    kept: list[Grid] = []
    for grid in whole:
        other = counterpart(grid, whole)
        if other is not None and other.test_shots == grid.test_shots:
            kept += [one for one in (other, grid) if not any(one is k for k in kept)]
    return kept


def _swapped(findings: Findings, found: Sequence[Choice]) -> Iterator[Plan]:
    """A figure a setting: models read with the other head's score."""
    heads = {(row["data"], row["backbone"], row["head"]) for row in findings.rows if row["readout"] == "swapped"}
    for data, backbone in dict.fromkeys((row["data"], row["backbone"]) for row in findings.rows):
        here = {head for d, b, head in heads if (d, b) == (data, backbone)}
        rows = [
            row
            for row in findings.rows
            if (row["data"], row["backbone"]) == (data, backbone)
            and row["head"] in here
            and row["readout"] in ("own", "swapped")
        ]
        if rows:
            names = {grid.name for grid in findings.grids if grid.head in here and grid.readout in ("own", "swapped")}
            setting = next(g.setting for g in findings.grids if (g.data, g.backbone) == (data, backbone))
            lines = [choice for choice in found if choice.setting == setting and choice.name in names]
            caption = f"{setting}: do models follow the score they were trained with, or the one that reads them?"
            id = "swapped" if len({(d, b) for d, b, _ in heads}) == 1 else f"swapped-{data}-{backbone}"

            def draw(rows: list[Any] = rows) -> Any:
                return figures.swapped_predictors(rows)

            def table(lines: list[Choice] = lines) -> Summary:
                return tables.curve_table(lines)

            yield id, "Swapped predictors", caption, draw, table, True
