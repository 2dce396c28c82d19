"""The figures of a report, each with a caption and the table behind it.

Those that only a report has are drawn here: ranking, curves by test shot, frontier, learning curves. The others are
in `show.figures`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import altair as alt
import numpy as np

from anyshot.errors import BadInput
from anyshot.measure.grid import Grid, format_train_shot, shot_sort_key
from anyshot.report import tables
from anyshot.report.answer import Choice, Sensitivity, grids_of_paper, list_sensitivities
from anyshot.report.runs import Findings
from anyshot.show import figures
from anyshot.show.figures import BLUE, GREEN, ORANGE, PINK, SHAPES, apply_theme, inline_data
from anyshot.show.summaries import Summary, gain_summary, scores_by_seed
from anyshot.tables import GridKey, Row
from anyshot.text import group_by

COLOURS = [BLUE, ORANGE, GREEN, PINK, "#56B4E9", "#C99700", "#8B6BC4", "#A0624F", "#2CA6A4", "#8DB600"]
SHOT_COLOURS = ["#56B4E9", BLUE, "#8B6BC4", ORANGE, "#C99700", GREEN, PINK, "#A0624F"]
T = TypeVar("T")
POINTS = 2000  # of all learning curves together: a page of many models stays small


@dataclass(frozen=True)
class Figure:
    """A figure of the report: its Vega-Lite specification, a caption, and the table behind it."""

    id: str
    title: str
    caption: str
    spec: dict[str, Any]
    table: Summary
    broad: bool = False


def draw_figures(findings: Findings, choices: Sequence[Choice]) -> list[Figure]:
    """Return every figure that has something to show."""
    single = {(grid.setting, grid.name) for grid in findings.grids if len(grid.train_shots) == 1}
    lines = [choice for choice in choices if (choice.setting, choice.name) in single]
    caption = "One line per head; bars are 95 % intervals over episodes."
    drawn = _draw_if_possible("curves", "Accuracy by test shot", caption, curves, lines, tables.curve_table(lines))
    drawn += _frontier(findings, choices)
    pairs = _with_counterparts([grid for grid in findings.grids if grid.is_complete])
    caption = "How much more accurate a cosine group is than its Euclidean counterpart, by test shot."
    gains = figures.gains_by_test_shot, pairs, gain_summary(pairs)
    drawn += _draw_if_possible("gains-by-test-shot", "Gains by test shot", caption, *gains)
    trained = [grid for grid in findings.grids if grid.has_sensitivity]
    caption = "How far the model of each train shot lies above the mean of its group."
    offsets = figures.offsets_by_train_shot, trained, tables.bias_table(trained)
    drawn += _draw_if_possible("offsets-by-train-shot", "Offsets by train shot", caption, *offsets)
    drawn += _swapped(findings, choices)
    shares = [row for row in findings.consistency if isinstance(row.get("consistency"), float | int)]
    caption = "Share of predictions that stay when the support is drawn anew."
    drawn += _draw_if_possible(
        "consistency", "Consistency", caption, figures.consistency, shares, tables.consistency_table(shares)
    )
    return drawn + _learning(findings.history)


def _draw_if_possible(
    id: str,
    title: str,
    caption: str,
    draw: Callable[[Sequence[T]], Any],
    values: Sequence[T],
    table: Summary,
    broad: bool = False,
) -> list[Figure]:
    """Return one figure, or none where there is nothing to draw."""
    try:
        return [Figure(id, title, caption, draw(values).to_dict(), table, broad)] if values else []
    except BadInput:  # the figure says so itself
        return []


def _frontier(findings: Findings, choices: Sequence[Choice]) -> list[Figure]:
    sensitivities = list_sensitivities(findings)
    if len(sensitivities) < 2:
        return []
    caption = (
        "One point per grid; of its sensitivity the thick bar is the interval over episodes, the thin one over new"
        " classes, and a short stroke one training. Down and right is better; what the dashed line joins is beaten by"
        " nothing in both."
    )
    if not findings.printed and (printed := grids_of_paper(sensitivities)):
        sensitivities += printed
        caption += " The paper's printed grids of the same images are beside ours."
    methods = [choice.name for choice in choices] + [one.grid.name for one in sensitivities]
    draw = partial(frontier, names=list(dict.fromkeys(methods)))
    points = draw, sensitivities, tables.frontier_table(sensitivities)
    broad = len({one.grid.setting for one in sensitivities}) > 1
    return _draw_if_possible("frontier", "Accuracy against sensitivity", caption, *points, broad)


def _learning(history: Sequence[Row]) -> list[Figure]:
    caption = "By epoch, one panel per head, one line per train shot. Batches of lower train shots hold more classes."
    broad = len({(row["data"], row["backbone"], row["head"]) for row in history}) > 2
    table = tables.history_table(history)
    accuracy = partial(learning_curves, measures=("train_accuracy", "val_accuracy"), title="accuracy (%)")
    loss = partial(learning_curves, measures=("loss",), title="cross-entropy")
    drawn = _draw_if_possible("learning-curves", "Learning curves", caption, accuracy, history, table, broad)
    return drawn + _draw_if_possible("loss-curves", "Loss", caption, loss, history, table, broad)


def _with_counterparts(whole: Sequence[Grid]) -> list[Grid]:
    """Return grids and their Euclidean counterparts, where both have the same test shots."""
    paired: dict[GridKey, Grid] = {}
    for grid in whole:
        other = grid.find_counterpart(whole)
        if other is not None and other.test_shots == grid.test_shots:
            paired |= {one.key: one for one in (other, grid)}
    return list(paired.values())


def _swapped(findings: Findings, choices: Sequence[Choice]) -> list[Figure]:
    """Return a figure per setting of models that were also read with the other head's score."""
    swapped = group_by((grid for grid in findings.grids if grid.readout == "swapped"), lambda grid: grid.setting)
    drawn = []
    for setting, grids in swapped.items():
        keys = {key for grid in grids for key in (grid.key, grid.key._replace(readout="own"))}
        names = {key.name for key in keys}
        rows = [row for row in findings.rows if GridKey.of_row(row) in keys]
        lines = [choice for choice in choices if choice.setting == setting and choice.name in names]
        caption = f"{setting}: do models follow the score they were trained with, or the one that reads them?"
        id = "-".join(("swapped", *grids[0].key[:2])) if len(swapped) > 1 else "swapped"
        figure = figures.swapped_predictors, rows, tables.curve_table(lines)
        drawn += _draw_if_possible(id, "Swapped predictors", caption, *figure, broad=True)
    return drawn


def colour(field: str, names: Sequence[Any], title: str | None = None, colours: Sequence[str] = COLOURS) -> alt.Color:
    """Return the encoding that gives each name a colour, in the order given."""
    chosen = [colours[i % len(colours)] for i in range(len(names))]
    scale = alt.Scale(domain=list(names), range=chosen)
    return alt.Color(f"{field}:N", title=title, scale=scale, legend=alt.Legend(symbolOpacity=1))


def _two_decimals(*names: str) -> list[Any]:
    return [alt.Tooltip(f"{name}:Q", format=".2f") for name in names]


def ranking(names: Sequence[str], lines: int) -> alt.LayerChart:
    """Draw choices from the most to the least accurate with intervals; the page supplies the data "ranking"."""
    data = alt.NamedData(name="ranking")
    best = alt.EncodingSortField("accuracy", op="max", order="descending")
    y = alt.Y("label:N", sort=best, title=None, axis=alt.Axis(labelLimit=260, ticks=False, domain=False))
    axis = alt.Axis(tickCount=6, labelFlush=False, labelOverlap="greedy", labelSeparation=10)
    x = alt.X("accuracy:Q", title="expected accuracy (%)", scale=alt.Scale(zero=False, nice=True), axis=axis)
    tint = colour("name", names).legend(None)
    tooltip = [alt.Tooltip("label:N", title="choice"), *_two_decimals("accuracy", "low", "high")]
    bar = (
        alt.Chart(data)
        .mark_rule(strokeWidth=3, opacity=0.55)
        .encode(alt.X("low:Q", axis=axis), y, tint, alt.X2("high"))
    )
    point = alt.Chart(data).mark_point(filled=True, size=70, opacity=1).encode(x, y, tint, tooltip=tooltip)
    fit = alt.AutoSizeParams(type="fit-x", contains="padding")
    return apply_theme((bar + point).properties(width="container", height=24 * lines + 10, autosize=fit))


def curves(choices: Sequence[Choice]) -> alt.LayerChart:
    """Draw accuracy by test shot with its interval over episodes, one line per choice."""
    values = [
        {"choice": f"{choice.label}, {choice.setting}", "test shot": shot, "accuracy": cell["accuracy"]}
        | {"low": cell["accuracy"] - (cell["ci95"] or 0), "high": cell["accuracy"] + (cell["ci95"] or 0)}
        for choice in choices
        for shot, cell in choice.cells.items()
    ]
    names = list(dict.fromkeys(value["choice"] for value in values))
    tooltip = ["choice:N", "test shot:O", *_two_decimals("accuracy", "low", "high")]
    x = alt.X("test shot:O", axis=alt.Axis(labelAngle=0))
    chart = alt.Chart(inline_data(values)).encode(x, colour("choice", names), tooltip=tooltip)
    y = alt.Y("accuracy:Q", title="accuracy (%)", scale=alt.Scale(zero=False))
    line = chart.mark_line(point=True).encode(y)
    bar = chart.mark_rule(strokeWidth=3, opacity=0.5).encode(alt.Y("low:Q"), alt.Y2("high"))
    return apply_theme((bar + line).properties(width=380, height=280))


def frontier(sensitivities: Sequence[Sensitivity], names: Sequence[str], by: str = "method") -> alt.FacetChart:
    """Draw mean accuracy over test shots against sensitivity, one panel per setting; down and right is better.

    A thick bar is the interval over episodes, a thin one the interval over new classes, a short stroke one training.
    The line joins what nothing else beats in both: the choices that a reader has to weigh.

    Args:
        sensitivities: The grids.
        names: Those that have a colour: methods (a head and its readout), or heads, with a shape for each readout.
        by: What the names are of: method or head.
    """
    values = _trainings(sensitivities)
    x = alt.X("accuracy:Q", title="mean accuracy over the grid (%)", scale=alt.Scale(zero=False, nice=True, padding=12))
    y = alt.Y("sensitivity:Q", title="sensitivity (points)", scale=alt.Scale(zero=True))
    tint = colour(by, names)
    line = alt.Chart().mark_line(color="#888", strokeDash=[4, 3]).transform_filter("datum.frontier").encode(x, y)
    wide = alt.Chart().mark_rule(strokeWidth=1, opacity=0.7).encode(x, alt.Y("low_classes:Q"), tint)
    bars = alt.Chart().mark_rule(strokeWidth=4, opacity=0.4).encode(x, alt.Y("low:Q"), tint)
    strokes = alt.Chart().mark_tick(thickness=1.5, size=16, orient="horizontal").encode(x, alt.Y("training:Q"), tint)
    # Not drawn rather than filtered out: Vega warns of a panel in which nothing is left.
    strokes = strokes.encode(opacity=alt.condition("datum.has_trainings", alt.value(1), alt.value(0)))
    shown = ("accuracy", "sensitivity", "low", "high", "low_classes", "high_classes")
    tooltip = ["method:N", "setting:N", *_two_decimals(*shown)]
    points = alt.Chart().mark_point(filled=True, size=80, opacity=1).encode(x, y, tint, tooltip=tooltip)
    if by != "method":
        readouts = sorted({value["readout"] for value in values}, key=lambda readout: (readout != "own", readout))
        shapes = [SHAPES[i % len(SHAPES)] for i in range(len(readouts))]
        points = points.encode(shape=alt.Shape("readout:N", scale=alt.Scale(domain=readouts, range=shapes)))
    layers = line, wide.encode(alt.Y2("high_classes")), bars.encode(alt.Y2("high")), strokes, points
    panel = alt.layer(*layers).properties(width=260, height=240)
    settings = list(dict.fromkeys(value["setting"] for value in values))
    facet = panel.facet(alt.Facet("setting:N", title=None, sort=settings), data=inline_data(values), columns=3)
    return apply_theme(facet.resolve_scale(x="independent", y="independent"))


def _trainings(sensitivities: Sequence[Sensitivity]) -> list[Row]:
    """Return a row for each training of each grid, with what the frontier shows of the grid.

    A grid without known trainings counts as one; unknown ends of intervals are at the point itself.
    """
    points: list[Row] = []
    for one in sensitivities:
        grid = one.grid
        point: Row = {"method": grid.name, "head": grid.head, "readout": grid.readout, "setting": grid.setting}
        point |= {"accuracy": float(grid.accuracy.mean()), "sensitivity": one.points}
        ends = {name: one.number(name) for name in ("low", "high", "low_classes", "high_classes")}
        points.append(point | {name: one.points if end is None else end for name, end in ends.items()})
    for point in points:
        point["frontier"] = not any(_beats(other, point) for other in points)
    return [
        point | {"training": training, "has_trainings": bool(scores_by_seed(one.row))}
        for one, point in zip(sensitivities, points, strict=True)
        for training in scores_by_seed(one.row) or [one.points]
    ]


def _beats(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether one is better in accuracy or sensitivity and in neither worse, in the same setting."""
    gain, loss = one["accuracy"] - other["accuracy"], one["sensitivity"] - other["sensitivity"]
    return one["setting"] == other["setting"] and gain >= 0 and loss <= 0 and (gain, loss) != (0, 0)


def learning_curves(history: Sequence[Row], measures: Sequence[str], title: str) -> alt.FacetChart:
    """Draw a measure or two by epoch: one panel per setting and head, one colour per train shot."""
    values = [
        {
            "head": f"{row['head']}, {row['data']}/{row['backbone']}",
            "train shot": format_train_shot(row),
            "seed": row["seed"],
        }
        | {"epoch": row["epoch"], "of": name.replace("_", " "), "value": row[name]}
        for name in measures
        for row in thin_history(history, name)
    ]
    shots = sorted({value["train shot"] for value in values}, key=shot_sort_key)
    key = alt.Legend(symbolType="stroke", symbolSize=400, symbolStrokeColor="#777") if len(measures) > 1 else None
    base = alt.Chart().encode(
        alt.X("epoch:Q", axis=alt.Axis(tickMinStep=1, grid=False)),
        alt.Y("value:Q", title=title, scale=alt.Scale(zero=False), axis=alt.Axis(titlePadding=12)),
        colour("train shot", shots, "train shot", SHOT_COLOURS),
        tooltip=["head:N", "train shot:O", "epoch:Q", "of:N", alt.Tooltip("value:Q", format=".3f")],
    )
    lines = base.mark_line(strokeWidth=1.8).encode(alt.StrokeDash("of:N", title=None, legend=key), alt.Detail("seed:N"))
    panel = (lines + base.mark_point(filled=True, size=16)).properties(width=210, height=190)
    return apply_theme(panel.facet(alt.Facet("head:N", title=None, sort=None), data=inline_data(values), columns=3))


def thin_history(history: Sequence[Row], measure: str) -> list[Row]:
    """Return epochs of each model at which something was measured, evenly thinned to what a small panel can show."""
    measured = [row for row in history if isinstance(row.get(measure), float)]
    models = group_by(measured, itemgetter("data", "backbone", "head", "train_shot", "seed")).values()
    most = int(np.clip(POINTS // max(1, len(models)), 10, 60))
    places = {len(rows): np.unique(np.linspace(0, len(rows) - 1, most).round().astype(int)) for rows in models}
    return [rows[place] for rows in models for place in places[len(rows)]]
