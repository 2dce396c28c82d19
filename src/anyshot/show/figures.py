"""Every figure of the project: a function takes grids or table rows, ours or the paper's, and returns an Altair chart.

The residual is drawn in blue and orange, centred at zero, with the test bias to the right and the model bias above, as
in the paper's heatmaps. Colours are told apart by colour-blind readers (Okabe and Ito). Nothing here imports torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, islice, repeat
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from jaxtyping import Float

from anyshot.errors import BadInput, look_up
from anyshot.files import atomic_write
from anyshot.measure.grid import Grid, format_train_shot, shot_sort_key
from anyshot.tables import add_head_columns
from anyshot.text import format_decimals

Chart = alt.Chart | alt.LayerChart | alt.ConcatChart | alt.HConcatChart | alt.FacetChart
FORMATS = {"svg": 1, "png": 2, "pdf": 1, "json": 1}  # and how much larger than life to draw
BLUE, ORANGE, GREEN, PINK, BLACK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000"
DIVERGING = ["#0b5394", "#6fa8dc", "#f7f7f7", "#f0a35e", "#b45309"]
SEQUENTIAL = ["#f7fbff", "#9ecae1", "#3182bd"]
COLOURS = [BLUE, ORANGE, GREEN, PINK, "#56B4E9", "#C99700", "#8B6BC4", "#A0624F", "#2CA6A4", "#8DB600"]
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"]
_DASH = alt.Legend(symbolType="stroke", symbolSize=400, symbolStrokeColor="#555")
CELL = 46  # pixels
Notes = Mapping[tuple[int | str, int], str]
NO_NOTES: Notes = {}


def save_chart(chart: Chart, path: Path) -> None:
    """Write a chart as its file's ending says: .svg, .png, .pdf, or .json for the Vega-Lite specification."""
    format = path.suffix.removeprefix(".")
    scale = look_up("figure format", format, FORMATS)
    with atomic_write(path) as temporary:
        chart.save(str(temporary), format=format, scale_factor=scale)  # type: ignore[arg-type]  # one of FORMATS


def draw_heatmaps(grids: Sequence[Grid]) -> alt.ConcatChart:
    """Draw the residuals of grids on one colour scale, test bias to the right, model bias above, score in the title."""
    limit = largest_residual(grids)
    return apply_theme(alt.concat(*(_heatmap(grid, limit) for grid in grids), columns=2, spacing=30))


def _heatmap(grid: Grid, limit: float) -> alt.LayerChart:
    view, subtitle = "accuracy", "accuracy; one train shot or test shot has no sensitivity"
    if grid.has_sensitivity:
        view, subtitle = "residual", f"sensitivity {format_decimals(grid.parts.sensitivity)}"
    return draw_view(grid, view, limit, [f"{grid.name}, {grid.setting}", subtitle])


def calculation(grid: Grid) -> alt.HConcatChart:
    """Draw how the residual comes about: accuracies, offsets to the group, offsets without the model bias."""
    views = list_views(grid)
    titles = {"accuracy": ["accuracy", f"{grid.name}, {grid.setting}"]}
    if "residual" in views:
        titles["offsets"] = ["minus test bias", "offsets to the group"]
        sensitivity = format_decimals(grid.parts.sensitivity)
        titles["residual"] = ["minus model bias", f"residual, sensitivity {sensitivity}"]
    limit = float(np.abs(views.get("offsets", 0)).max()) or 1.0
    return apply_theme(alt.hconcat(*(draw_view(grid, view, limit, titles[view]) for view in views), spacing=30))


def largest_residual(grids: Sequence[Grid]) -> float:
    """Return the largest residual or model bias, for one symmetric scale for all."""
    parts = [part for grid in grids for part in (grid.parts.residual, grid.parts.model_bias)]
    return max((float(np.abs(part).max()) for part in parts), default=0.0) or 1.0


def list_views(grid: Grid) -> dict[str, Float[np.ndarray, "test_shot train_shot"]]:
    """Return what a heatmap can show: accuracies and, of a grid with a sensitivity, offsets and residual."""
    views = {"accuracy": grid.accuracy}
    if grid.has_sensitivity:
        views |= {"offsets": grid.accuracy - grid.parts.test_bias[:, None], "residual": grid.parts.residual}
    return views


def list_cells(grid: Grid, view: str, limit: float, notes: Notes = NO_NOTES) -> list[dict[str, Any]]:
    """Return the cells of a heatmap, those of its margins included; a missing cell is left out.

    Args:
        grid: The grid.
        view: accuracy, offsets or residual.
        limit: The end of the colour scale.
        notes: What a reader sees over a cell, by test shot and train shot.
    """
    trains, inside = name_train_shots(grid), list_views(grid)[view]
    limit = 0.0 if view == "accuracy" else limit
    cells = [
        _cell(name, str(test), inside[y, x], limit) | {"note": notes.get((test, train), "")}
        for y, test in enumerate(grid.test_shots)
        for x, (name, train) in enumerate(zip(trains, grid.train_shots, strict=True))
        if np.isfinite(inside[y, x])
    ]
    if view == "residual":
        cells += [_cell(*place, limit) for place in zip(trains, repeat("model bias"), grid.parts.model_bias)]
    if view != "accuracy":
        cells += [_cell("mean", str(test), mean) | {"margin": True} for test, mean in grid.means.items()]
    return cells


def name_train_shots(grid: Grid) -> list[str]:
    """Return the names of the columns of a heatmap."""
    return ["mixed"] if grid.mixed and len(grid.train_shots) == 1 else [*map(str, grid.train_shots)]


def _cell(train: str, test: str, value: float, limit: float = 0.0) -> dict[str, Any]:
    """Return a box and its number, which is white where the box is dark."""
    text = format_decimals(value, "+" if limit else "").replace("-", "\N{MINUS SIGN}")
    ink = "white" if limit and abs(value) > 0.6 * limit else BLACK
    return {"train": train, "test": test, "value": float(value), "text": text, "ink": ink, "note": ""}


def draw_view(
    grid: Grid, view: str, limit: float, title: Sequence[str] = ("",), data: alt.Data | None = None, **ends: float
) -> alt.LayerChart:
    """Draw a view of a grid as a heatmap.

    Args:
        grid: The grid.
        view: accuracy, offsets or residual.
        limit: The end of the colour scale of offsets and residuals.
        title: The title and lines below it.
        data: What `list_cells` returns, where a page supplies it for many grids of the same shots.
        ends: Of the colour scale of accuracies: domainMin and domainMax.
    """
    colours: dict[str, Any] = {"range": DIVERGING, "domainMin": -limit, "domainMax": limit, "domainMid": 0}
    if view == "accuracy":
        colours = {"range": SEQUENTIAL, "zero": False, **ends}
    # An empty first row leaves room for the model bias, so that the views of a grid stand level.
    above, right = "model bias" if view == "residual" else " ", [] if view == "accuracy" else ["mean"]
    bare = alt.Axis(labelAngle=0, ticks=False, domain=False, labelPadding=6)
    x = alt.X("train:O", title="train shot", axis=bare, scale=alt.Scale(domain=[*name_train_shots(grid), *right]))
    y = alt.Y("test:O", title="test shot", axis=bare, scale=alt.Scale(domain=[above, *map(str, grid.test_shots)]))
    colour = alt.Color("value:Q", scale=alt.Scale(interpolate="rgb", **colours), legend=None)
    fill = alt.condition("datum.margin", alt.value("#eeeeee"), colour)
    base = alt.Chart().encode(x, y, tooltip=alt.Tooltip("note:N")) if data else alt.Chart().encode(x, y)
    boxes = base.mark_rect(stroke="white", strokeWidth=1).encode(color=fill)
    numbers = base.mark_text(fontSize=12).encode(text="text:N", color=alt.Color("ink:N", scale=None, legend=None))
    heading = alt.TitleParams(title[0], subtitle=list(title[1:]), anchor="start", fontSize=13)
    data = data or inline_data(list_cells(grid, view, limit))
    size = {"width": alt.Step(CELL), "height": alt.Step(0.7 * CELL)}
    return alt.layer(boxes, numbers, data=data, title=heading, **size).resolve_scale(color="independent")


def gains_by_test_shot(grids: Sequence[Grid]) -> alt.LayerChart:
    """Draw how far each group is above its Euclidean counterpart, by test shot, and the mean of all.

    Models of mixed shots are lines too, but not in the mean.
    """
    pairs = [(grid, grid.find_counterpart(grids)) for grid in grids if grid.readout == "own"]
    values = [
        value for grid, other in pairs if other for value in _line(grid, "test shot", "gain", grid.gains_over(other))
    ]
    _require_values(values, "no cosine head has its Euclidean counterpart among these grids")
    single = [value for value in values if not value["mixed"]]
    words = "mean of all" if len(single) in (0, len(values)) else "mean of all but mixed shots"
    axes = "test shot", "gain", "gain over the Euclidean head (points)"
    return _lines_and_mean(values, single or values, axes, "head", alt.value(BLACK), words)


def offsets_by_train_shot(grids: Sequence[Grid]) -> alt.LayerChart:
    """Draw the model bias of each group by train shot, with the mean of Euclidean and of cosine heads."""
    wanted = [grid for grid in grids if grid.readout == "own" and len(grid.train_shots) > 1]
    biases = [dict(zip(grid.train_shots, grid.parts.model_bias, strict=True)) for grid in wanted]
    lines = [_line(grid, "train shot", "offset", bias) for grid, bias in zip(wanted, biases, strict=True)]
    values = [value for line in lines for value in line]
    _require_values(values, "these grids hold no head of several train shots that is read as trained")
    axes = "train shot", "offset", "model bias (points)"
    return _lines_and_mean(values, values, axes, "score", alt.Color("score:N", title="score"), "mean of its kind")


def _line(grid: Grid, x: str, y: str, values: Mapping[Any, float]) -> list[dict[str, Any]]:
    where = {name: getattr(grid, name) for name in ("head", "backbone", "score", "mixed")}
    where |= {"group": f"{grid.name} {grid.setting}"}
    return [where | {x: shot, y: float(value)} for shot, value in values.items()]


def _lines_and_mean(
    values: list[dict[str, Any]],
    averaged: list[dict[str, Any]],
    axes: tuple[str, str, str],
    by: str,
    ink: Any,
    words: str,
) -> alt.LayerChart:
    """Draw a thin line per group, coloured by one field and dashed by backbone, and a thick one for the mean."""
    x, y, title = axes
    thin = alt.Chart(inline_data(values)).mark_line(point=alt.OverlayMarkDef(size=18), strokeWidth=1.2, opacity=0.65)
    dash = alt.StrokeDash("backbone:N", legend=_DASH if any(_names(values, "backbone")) else None)
    tooltip = ["group:N", f"{x}:O", f"{y}:Q"]
    colours = colour(by, sorted(_names(values, by), key=_paper_first) if by == "score" else _names(values, by))
    thin = thin.encode(_shots(x), alt.Y(f"{y}:Q", title=title), colours, dash, alt.Detail("group:N"), tooltip=tooltip)
    thick = alt.Chart(inline_data(averaged)).mark_line(strokeWidth=4.5)
    thick = thick.encode(alt.X(f"{x}:O"), alt.Y(f"mean({y}):Q"), color=ink)
    zero = alt.Chart(inline_data([{"zero": 0}])).mark_rule(color="#999").encode(alt.Y("zero:Q"))
    heading = alt.TitleParams(f"thin: a group, thick: {words}", anchor="start", fontWeight="normal")
    return apply_theme((zero + thin + thick).properties(title=heading, width=340, height=280))


def scatter(grids: Sequence[Grid]) -> alt.LayerChart:
    """Draw mean gain over test shots against sensitivity, one point per group; down and right is better."""
    pairs = [(grid, grid.find_counterpart(grids)) for grid in grids if grid.has_sensitivity]
    values: list[dict[str, Any]] = [
        {"method": grid.name, "setting": grid.setting, "sensitivity": grid.parts.sensitivity}
        | {"gain": float(np.mean(list(grid.gains_over(other).values())))}
        for grid, other in pairs
        if other is not None
    ]
    _require_values(values, "no grid has a Euclidean counterpart to gain on")
    x = alt.X("gain:Q", title="mean gain over the Euclidean head (points)", scale=alt.Scale(nice=True, padding=20))
    y = alt.Y("sensitivity:Q", title="sensitivity (points)", scale=alt.Scale(zero=True))
    tooltip = ["method:N", "setting:N", "gain:Q", "sensitivity:Q"]
    points = alt.Chart(inline_data(values)).mark_point(size=90, strokeWidth=2)
    points = points.encode(x, y, colour("method", _names(values, "method")), shape("setting", values), tooltip=tooltip)
    line = alt.Chart(inline_data([{"x": 0}])).mark_rule(color="#999").encode(x="x:Q")
    return apply_theme((line + points).properties(width=360, height=300))


def swapped_predictors(rows: Iterable[Mapping[str, Any]]) -> alt.FacetChart:
    """Draw accuracy by test shot and readout, one panel per train shot and learner.

    It answers whether a model follows its training or its readout. Mixed shots have no panel.
    """
    plain = [row for row in map(add_head_columns, rows) if not row["mixed"]]
    columns = ("learner", "readout", "train_shot", "test_shot", "accuracy")
    values = _values(plain, *columns, **{"trained with": "score"})
    readouts = sorted(_names(values, "readout"), key=_paper_first)
    tint = colour("trained with", ["Euclidean", "cosine"])
    base = alt.Chart().encode(_shots("test shot"), _from_lowest("mean(accuracy)", "accuracy (%)"), tint)
    dash = alt.StrokeDash("readout:N", title="read with", sort=readouts, legend=_DASH)
    dots = base.mark_point(filled=True, size=25).encode(alt.Detail("readout:N"))
    panel = (base.mark_line(strokeWidth=2).encode(dash) + dots).properties(width=170, height=200)
    row = alt.Row("learner:N", title=None, sort=_names(values, "learner"))
    column = alt.Column("train shot:O", title="train shot")
    return apply_theme(panel.facet(row=row, column=column, data=inline_data(values)))


def consistency(rows: Iterable[Mapping[str, Any]]) -> alt.FacetChart:
    """Draw the share of predictions that survive a new support, by trained model and by the score that predicts."""
    shots = [{**row, "train_shot": format_train_shot(row)} for row in rows]
    values = _values(shots, "head", "score", "train_shot", "consistency")
    scores = _names(values, "score")
    chart = alt.Chart().encode(_shots("train shot"), alt.XOffset("score:N", sort=scores))
    y = alt.Y("mean(consistency):Q", title="unchanged predictions (%)", scale=alt.Scale(domain=[0, 100]))
    bars = chart.mark_bar().encode(y, colour("score", scores, "predicted with"))
    labels = chart.mark_text(dy=-7).encode(y, alt.Text("mean(consistency):Q", format=".0f"))
    # A head of mixed shots has one column, the others as many as train shots.
    panels = _panels((bars + labels).properties(width=150, height=200), "head", values, "trained head")
    return panels.resolve_scale(x="independent", xOffset="independent")


def term_ratios(rows: Iterable[Mapping[str, Any]]) -> alt.LayerChart:
    """Draw the ratio of FRN's first term to its last by train shot: mean, and one deviation to each side."""
    ends = [{**row, "low": row["mean"] - row["deviation"], "high": row["mean"] + row["deviation"]} for row in rows]
    base = alt.Chart(inline_data(_values(ends, "train_shot", "low", "high", ratio="mean"))).encode(_shots("train shot"))
    y = _from_lowest("low", "ratio of terms, mean and deviation")
    bars = base.mark_rule(color=BLUE, strokeWidth=2).encode(y, alt.Y2("high:Q"))
    dots = base.mark_point(color=BLUE, filled=True, size=60).encode(alt.Y("ratio:Q"))
    return apply_theme((bars + dots).properties(width=220, height=200))


def mixed_shots(rows: Iterable[Mapping[str, Any]]) -> alt.FacetChart:
    """Draw mixed-shot training (dots) beside the same head trained for one shot (best to worst)."""
    values = _values(rows, "head", "test_shot", "accuracy", "best", "worst")
    base = alt.Chart().encode(_shots("test shot"))
    y = _from_lowest("worst", "accuracy (%), and the range of single shots")
    bars = base.mark_bar(color=BLUE, opacity=0.35, size=14).encode(y, alt.Y2("best:Q"))
    dots = base.mark_point(color=ORANGE, filled=True, size=50, opacity=1).encode(alt.Y("accuracy:Q"))
    return _panels((bars + dots).properties(width=220, height=220), "head", values)


def unequal_shots(rows: Iterable[Mapping[str, Any]]) -> alt.FacetChart:
    """Draw the recall of classes by their own shot, one panel per kind of support."""
    plain = [row for row in map(add_head_columns, rows) if not row["mixed"]]
    values = _values(plain, "head", "score", "own_shot", "recall", family="learner", support="test_shot")
    y, tint = _from_lowest("mean(recall)", "recall (%)"), colour("family", _names(values, "family"), "head")
    base = alt.Chart().encode(_shots("own shot"), y, tint, alt.Detail("head:N"))
    dash = alt.StrokeDash("score:N", sort=["Euclidean", "cosine"], legend=_DASH)
    panel = (base.mark_line().encode(dash) + base.mark_point(filled=True, size=30)).properties(width=220, height=240)
    return _panels(panel, "support", values).resolve_scale(x="independent")


def curves(rows: Iterable[Mapping[str, Any]]) -> alt.LayerChart:
    """Draw accuracy by test shot with its interval over episodes, one line per choice."""
    values = _values(rows, "choice", "test_shot", "accuracy", "low", "high")
    tooltip = ["choice:N", "test shot:O", *_two_decimals("accuracy", "low", "high")]
    tint = colour("choice", _names(values, "choice"))
    chart = alt.Chart(inline_data(values)).encode(_shots("test shot"), tint, tooltip=tooltip)
    line = chart.mark_line(point=True).encode(_from_lowest("accuracy", "accuracy (%)"))
    bar = chart.mark_rule(strokeWidth=3, opacity=0.5).encode(alt.Y("low:Q"), alt.Y2("high"))
    return apply_theme((bar + line).properties(width=380, height=280))


def ranking(names: Sequence[str], lines: int) -> alt.LayerChart:
    """Draw choices from the most to the least accurate with intervals; the page supplies the data "ranking"."""
    best = alt.EncodingSortField("accuracy", op="max", order="descending")
    y = alt.Y("label:N", sort=best, title=None, axis=alt.Axis(labelLimit=260, ticks=False, domain=False))
    axis = alt.Axis(tickCount=6, labelFlush=False, labelOverlap="greedy", labelSeparation=10)
    x = alt.X("accuracy:Q", title="expected accuracy (%)", scale=alt.Scale(zero=False, nice=True), axis=axis)
    tooltip = [alt.Tooltip("label:N", title="choice"), *_two_decimals("accuracy", "low", "high")]
    chart = alt.Chart(alt.NamedData(name="ranking")).encode(y, colour("name", names).legend(None))
    bar = chart.mark_rule(strokeWidth=3, opacity=0.55).encode(alt.X("low:Q", axis=axis), alt.X2("high"))
    point = chart.mark_point(filled=True, size=70, opacity=1).encode(x, tooltip=tooltip)
    fit = alt.AutoSizeParams(type="fit-x", contains="padding")
    return apply_theme((bar + point).properties(width="container", height=24 * lines + 10, autosize=fit))


def frontier(points: list[dict[str, Any]], names: Sequence[str], by: str = "method") -> alt.FacetChart:
    """Draw mean accuracy over test shots against sensitivity, one panel per setting; down and right is better.

    A thick bar is the interval over episodes, a thin one the interval over new classes, a short stroke one training.
    The line joins what nothing else beats in both: the choices that a reader has to weigh.

    Args:
        points: Rows of a grid and one of its trainings: setting, method, head, readout, accuracy, sensitivity, the ends
            of its intervals, whether it is on the `frontier`; the training's score, and whether it is known.
        names: Those that have a colour: methods (a head and its readout), or heads, with a shape for each readout.
        by: What the names are of: method or head.
    """
    x = alt.X("accuracy:Q", title="mean accuracy over the grid (%)", scale=alt.Scale(zero=False, nice=True, padding=12))
    y = alt.Y("sensitivity:Q", title="sensitivity (points)", scale=alt.Scale(zero=True))
    line = alt.Chart().mark_line(color="#888", strokeDash=[4, 3]).transform_filter("datum.frontier").encode(x, y)
    chart = alt.Chart().encode(x, colour(by, names))
    wide = chart.mark_rule(strokeWidth=1, opacity=0.7).encode(alt.Y("low_classes:Q"), alt.Y2("high_classes"))
    bars = chart.mark_rule(strokeWidth=4, opacity=0.4).encode(alt.Y("low:Q"), alt.Y2("high"))
    # Not drawn rather than filtered out: Vega warns of a panel in which nothing is left.
    visible = alt.condition("datum.has_trainings", alt.value(1), alt.value(0))
    strokes = chart.mark_tick(thickness=1.5, size=16, orient="horizontal").encode(alt.Y("training:Q"), opacity=visible)
    shown = ("accuracy", "sensitivity", "low", "high", "low_classes", "high_classes")
    tooltip = ["method:N", "setting:N", *_two_decimals(*shown)]
    dots = chart.mark_point(filled=True, size=80, opacity=1).encode(y, tooltip=tooltip)
    if by != "method":
        dots = dots.encode(shape("readout", sorted(points, key=lambda point: _paper_first(point["readout"]))))
    panel = alt.layer(line, wide, bars, strokes, dots).properties(width=260, height=240)
    return _panels(panel, "setting", points, columns=3).resolve_scale(x="independent", y="independent")


def learning_curves(rows: Iterable[Mapping[str, Any]], title: str) -> alt.FacetChart:
    """Draw a measure or two by epoch: one panel per setting and head, one colour per train shot."""
    values = _values(rows, "head", "train_shot", "seed", "epoch", "measure", "value")
    legend = alt.Legend(symbolType="stroke", symbolSize=400, symbolStrokeColor="#777")
    base = alt.Chart().encode(
        alt.X("epoch:Q", axis=alt.Axis(tickMinStep=1, grid=False)),
        _from_lowest("value", title, axis=alt.Axis(titlePadding=12)),
        colour("train shot", sorted(_names(values, "train shot"), key=shot_sort_key), "train shot"),
        tooltip=["head:N", "train shot:O", "epoch:Q", "measure:N", alt.Tooltip("value:Q", format=".3f")],
    )
    key = legend if len(_names(values, "measure")) > 1 else None
    dash = alt.StrokeDash("measure:N", title=None, legend=key)
    lines = base.mark_line(strokeWidth=1.8).encode(dash, alt.Detail("seed:N"))
    panel = (lines + base.mark_point(filled=True, size=16)).properties(width=210, height=190)
    return _panels(panel, "head", values, columns=3)


# ------------------------------------------------------------------------------------------- what the figures share


def colour(field: str, names: Sequence[Any], title: str | None = None) -> alt.Color:
    """Return the encoding that gives each name a colour, in the order given."""
    scale = alt.Scale(domain=list(names), range=list(islice(cycle(COLOURS), len(names))))
    return alt.Color(f"{field}:N", title=title or field, scale=scale, legend=alt.Legend(symbolOpacity=1))


def shape(field: str, values: Iterable[Mapping[str, Any]]) -> alt.Shape:
    """Return the encoding that gives each value of a field a shape, in the order of first appearance."""
    names = _names(values, field)
    return alt.Shape(f"{field}:N", scale=alt.Scale(domain=names, range=list(islice(cycle(SHAPES), len(names)))))


def _shots(field: str) -> alt.X:
    return alt.X(f"{field}:O", axis=alt.Axis(labelAngle=0))


def _from_lowest(field: str, title: str, **options: Any) -> alt.Y:
    """Return a vertical axis that need not begin at zero."""
    return alt.Y(f"{field}:Q", title=title, scale=alt.Scale(zero=False), **options)


def _panels(
    panel: Any, field: str, values: list[dict[str, Any]], title: str | None = None, columns: int = 0
) -> alt.FacetChart:
    """Draw one panel for each value of a field, in the order of first appearance."""
    names, data = _names(values, field), inline_data(values)
    if columns:
        return apply_theme(panel.facet(alt.Facet(f"{field}:N", title=title, sort=names), data=data, columns=columns))
    return apply_theme(panel.facet(alt.Column(f"{field}:N", title=title, sort=names), data=data))


def _two_decimals(*names: str) -> list[Any]:
    return [alt.Tooltip(f"{name}:Q", format=".2f") for name in names]


def _paper_first(name: str) -> tuple[int, str]:
    """Return the sort key that puts a head's own readout and the paper's two scores first."""
    first = ("own", "Euclidean", "cosine")
    return first.index(name) if name in first else len(first), name


def _names(values: Iterable[Mapping[str, Any]], field: str) -> list[Any]:
    return list(dict.fromkeys(value[field] for value in values))


def inline_data(values: list[dict[str, Any]]) -> alt.Data:
    """Return rows as data inside a chart."""
    return alt.InlineData(values=tuple(values))  # not a list: Altair copies lists, with all in them, at every step


def _values(rows: Iterable[Mapping[str, Any]], *columns: str, **renamed: str) -> list[dict[str, Any]]:
    """Select the columns that a chart shows; underscores in their names become spaces, and some are renamed."""
    names = {column.replace("_", " "): column for column in columns} | renamed
    values = [{name: row[column] for name, column in names.items()} for row in rows]
    _require_values(values, "there are no rows to draw")
    return values


def _require_values(values: list[Any], otherwise: str) -> None:
    if not values:
        raise BadInput(f"nothing to draw: {otherwise}.")


def apply_theme(chart: Any) -> Any:
    """Give a chart the look that all figures share."""
    small: dict[str, Any] = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    return chart.configure(
        view=alt.ViewConfig(stroke=None),
        axis=alt.AxisConfig(**small, gridColor="#eee"),
        legend=alt.LegendConfig(**small),
        title=alt.TitleConfig(fontSize=13, subtitleFontSize=12),
        header=alt.HeaderConfig(**small),
    )
