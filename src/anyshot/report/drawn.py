"""Which figures a report shows: those its data can fill, each with a caption and the table behind it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from anyshot.errors import BadInput
from anyshot.report import charts, tables
from anyshot.report.answer import EVERYWHERE, Choice, list_sensitivities
from anyshot.report.runs import Findings
from anyshot.rows import Row
from anyshot.show import figures
from anyshot.show.grid import Grid
from anyshot.show.summaries import Summary, counterpart, gain_summary


@dataclass(frozen=True)
class Figure:
    """A figure of the report: its Vega-Lite specification, a caption, and the table behind it."""

    id: str
    title: str
    caption: str
    spec: dict[str, Any]
    table: Summary
    broad: bool = False


class Sketch(NamedTuple):
    """A figure before it is drawn: how to draw it, and how to make the table behind it."""

    id: str
    title: str
    caption: str
    draw: Callable[[], Any]
    table: Callable[[], Summary]
    broad: bool = False


def drawn_figures(findings: Findings, choices: Sequence[Choice]) -> list[Figure]:
    """Every figure that has something to show."""
    drawn = []
    for sketch in _sketches(findings, choices):
        try:
            spec = sketch.draw().to_dict()
        except BadInput:
            continue  # nothing to draw: the figure says so itself
        drawn.append(Figure(sketch.id, sketch.title, sketch.caption, spec, sketch.table(), sketch.broad))
    return drawn


def _sketches(findings: Findings, choices: Sequence[Choice]) -> Iterator[Sketch]:
    draw: Callable[[], Any]
    single = {(grid.setting, grid.name) for grid in findings.grids if len(grid.train_shots) == 1}
    curves = [choice for choice in choices if (choice.setting, choice.name) in single and choice.setting != EVERYWHERE]
    if curves:
        caption = "One line per head; bars are 95 % intervals over episodes."
        draw, table = partial(charts.curves, curves), partial(tables.curve_table, curves)
        yield Sketch("curves", "Accuracy by test shot", caption, draw, table)
    sensitivities = list_sensitivities(findings)
    if len(sensitivities) > 1:
        caption = (
            "One point per grid; of its sensitivity the thick bar is the interval over episodes, the thin one over new"
            " classes, and a short stroke one training. Down and right is better; what the dashed line joins is beaten"
            " by nothing in both."
        )
        names = list(dict.fromkeys(choice.name for choice in choices))
        draw, table = partial(charts.frontier, sensitivities, names), partial(tables.frontier_table, sensitivities)
        many = len({one.grid.setting for one in sensitivities}) > 1
        yield Sketch("frontier", "Accuracy against sensitivity", caption, draw, table, broad=many)
    pairs = _with_counterparts([grid for grid in findings.grids if grid.is_whole])
    if pairs:
        caption = "How much more accurate a cosine group is than its Euclidean counterpart, by test shot."
        draw, table = partial(figures.gains_by_test_shot, pairs), partial(gain_summary, pairs)
        yield Sketch("gains-by-test-shot", "Gains by test shot", caption, draw, table)
    trained = [grid for grid in findings.grids if grid.is_scored]
    if trained:
        caption = "How far the model of each train shot lies above the mean of its group."
        draw, table = partial(figures.offsets_by_train_shot, trained), partial(tables.bias_table, trained)
        yield Sketch("offsets-by-train-shot", "Offsets by train shot", caption, draw, table)
    yield from _swapped(findings, choices)
    if findings.consistency:
        rows = [row for row in findings.consistency if isinstance(row.get("consistency"), float | int)]
        caption = "Share of predictions that stay when the support is drawn anew."
        draw, table = partial(figures.consistency, rows), partial(tables.consistency_table, rows)
        yield Sketch("consistency", "Consistency", caption, draw, table)
    if findings.history:
        yield from _learning(findings.history)


def _learning(history: Sequence[Row]) -> Iterator[Sketch]:
    caption = "By epoch, one panel per head, one line per train shot. Batches of lower train shots hold more classes."
    many = len({(row["data"], row["backbone"], row["head"]) for row in history}) > 2
    for id, title, measures, axis in (
        ("learning-curves", "Learning curves", ("train_accuracy", "val_accuracy"), "accuracy (%)"),
        ("loss-curves", "Loss", ("loss",), "cross-entropy"),
    ):
        draw = partial(charts.learning_curves, history, measures, axis)
        yield Sketch(id, title, caption, draw, partial(tables.history_table, history), broad=many)


def _with_counterparts(whole: Sequence[Grid]) -> list[Grid]:
    """Grids and their Euclidean counterparts, where both have the same test shots."""
    paired: list[Grid] = []
    for grid in whole:
        other = counterpart(grid, whole)
        if other is not None and other.test_shots == grid.test_shots:
            paired += [one for one in (other, grid) if not any(one is listed for listed in paired)]
    return paired


def _swapped(findings: Findings, choices: Sequence[Choice]) -> Iterator[Sketch]:
    """One figure per setting: models read with the other head's score."""
    read = ("own", "swapped")
    places = {(row["data"], row["backbone"], row["head"]) for row in findings.rows if row["readout"] == "swapped"}
    settings = {(data, backbone) for data, backbone, _ in places}
    for data, backbone in dict.fromkeys((row["data"], row["backbone"]) for row in findings.rows):
        rows = [
            row
            for row in findings.rows
            if (row["data"], row["backbone"]) == (data, backbone)
            and (data, backbone, row["head"]) in places
            and row["readout"] in read
        ]
        if rows:
            heads = {head for *where, head in places if where == [data, backbone]}
            names = {grid.name for grid in findings.grids if grid.head in heads and grid.readout in read}
            setting = next(g.setting for g in findings.grids if (g.data, g.backbone) == (data, backbone))
            lines = [choice for choice in choices if choice.setting == setting and choice.name in names]
            caption = f"{setting}: do models follow the score they were trained with, or the one that reads them?"
            id = "swapped" if len(settings) == 1 else f"swapped-{data}-{backbone}"
            draw, table = partial(figures.swapped_predictors, rows), partial(tables.curve_table, lines)
            yield Sketch(id, "Swapped predictors", caption, draw, table, broad=True)
