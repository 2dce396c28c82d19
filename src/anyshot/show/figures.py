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
from anyshot.measure.grid import Grid, format_train_shot
from anyshot.tables import add_head_columns
from anyshot.text import format_decimals

Chart = alt.Chart | alt.LayerChart | alt.ConcatChart | alt.HConcatChart | alt.FacetChart
FORMATS = {"svg": 1, "png": 2, "pdf": 1, "json": 1}  # and how much larger than life to draw
BLUE, ORANGE, GREEN, PINK, BLACK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000"
DIVERGING = ["#0b5394", "#6fa8dc", "#f7f7f7", "#f0a35e", "#b45309"]
SEQUENTIAL = ["#f7fbff", "#9ecae1", "#3182bd"]
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"]
_DASH = alt.Legend(symbolType="stroke", symbolSize=400, symbolStrokeColor="#555")
CELL = 46  # pixels
Notes = Mapping[tuple[int | str, int], str]
NO_NOTES: Notes = {}


def save_chart(chart: Chart, path: Path) -> None:
    """Write a chart as its file's ending says: .svg, .png, .pdf, or .json for the Vega-Lite specification."""
    format = path.suffix.removeprefix(".")
    scale = look_up("figure format", format, FORMATS)
    with atomic_write(path) as aside:
        chart.save(str(aside), format=format, scale_factor=scale)  # type: ignore[arg-type]  # one of FORMATS


def heatmap(grid: Grid) -> alt.LayerChart:
    """Draw the residual of a grid, test bias to the right, model bias above, sensitivity in the title."""
    return apply_theme(_heatmap(grid, largest_residual([grid])))


def draw_heatmaps(grids: Sequence[Grid], columns: int = 2) -> alt.ConcatChart:
    """Draw heatmaps on one colour scale, so that they compare."""
    limit = largest_residual(grids)
    return apply_theme(alt.concat(*(_heatmap(grid, limit) for grid in grids), columns=columns, spacing=30))


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
    trains, inside = _train_names(grid), list_views(grid)[view]
    limit = 0.0 if view == "accuracy" else limit
    cells = [
        _cell(name, str(test), inside[y, x], limit) | ({"note": notes[test, train]} if notes else {})
        for y, test in enumerate(grid.test_shots)
        for x, (name, train) in enumerate(zip(trains, grid.train_shots, strict=True))
        if np.isfinite(inside[y, x])
    ]
    if view == "residual":
        cells += [_cell(*place, limit) for place in zip(trains, repeat("model bias"), grid.parts.model_bias)]
    if view != "accuracy":
        cells += [_cell("mean", str(test), mean) | {"margin": True} for test, mean in grid.means.items()]
    return cells


def _train_names(grid: Grid) -> list[str]:
    return ["mixed"] if grid.mixed and len(grid.train_shots) == 1 else [*map(str, grid.train_shots)]


def _cell(train: str, test: str, value: float, limit: float = 0.0) -> dict[str, Any]:
    """One box and its number; the ink is white where the box is dark."""
    text = format_decimals(value, "+" if limit else "").replace("-", "\N{MINUS SIGN}")
    ink = "white" if limit and abs(value) > 0.6 * limit else BLACK
    return {"train": train, "test": test, "value": float(value), "text": text, "ink": ink}


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
    x = alt.X("train:O", title="train shot", axis=bare, scale=alt.Scale(domain=[*_train_names(grid), *right]))
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
    values = []
    for grid in grids:
        other = grid.find_counterpart(grids)
        if grid.readout == "own" and other is not None:
            line = _line(grid, "test shot", "gain", grid.gains_over(other))
            values += [point | {"mixed": grid.mixed} for point in line]
    _require_values(values, "no cosine head has its Euclidean counterpart among these grids")
    thin = _lines(values, "test shot", "gain", "gain over the Euclidean head (points)", "head")
    alike = [value for value in values if not value["mixed"]]
    mean = "mean of all" if len(alike) in (0, len(values)) else "mean of all but mixed shots"
    return _with_trend(thin, _trend(alike or values, "test shot", "gain"), mean)


def offsets_by_train_shot(grids: Sequence[Grid]) -> alt.LayerChart:
    """Draw the model bias of each group by train shot, with the mean of Euclidean and of cosine heads."""
    values = []
    for grid in grids:
        if grid.readout == "own" and len(grid.train_shots) > 1:
            line = _line(grid, "train shot", "offset", dict(zip(grid.train_shots, grid.parts.model_bias, strict=True)))
            values += [point | {"score": grid.score} for point in line]
    _require_values(values, "these grids hold no head of several train shots that is read as trained")
    thin = _lines(values, "train shot", "offset", "model bias (points)", "score", *_scores(values))
    return _with_trend(thin, _trend(values, "train shot", "offset", "score"), "mean of its kind")


def scatter(grids: Sequence[Grid]) -> alt.LayerChart:
    """Draw mean gain over test shots against sensitivity, one point per group; down and right is better."""
    values: list[dict[str, Any]] = []
    for grid in grids:
        other = grid.find_counterpart(grids)
        if other is not None and grid.has_sensitivity:
            gain = float(np.mean(list(grid.gains_over(other).values())))
            point = {"method": grid.name, "setting": grid.setting}
            values.append(point | {"gain": gain, "sensitivity": grid.parts.sensitivity})
    _require_values(values, "no grid has a Euclidean counterpart to gain on")
    x = alt.X("gain:Q", title="mean gain over the Euclidean head (points)", scale=alt.Scale(nice=True, padding=20))
    y = alt.Y("sensitivity:Q", title="sensitivity (points)", scale=alt.Scale(zero=True))
    names = list(dict.fromkeys(value["method"] for value in values))
    colour = alt.Color("method:N", sort=names, scale=alt.Scale(domain=names, range=_range(names)))
    settings = list(dict.fromkeys(value["setting"] for value in values))
    shape = alt.Shape("setting:N", scale=alt.Scale(domain=settings, range=list(islice(cycle(SHAPES), len(settings)))))
    tooltip = ["method:N", "setting:N", "gain:Q", "sensitivity:Q"]
    points = (
        alt.Chart(inline_data(values)).mark_point(size=90, strokeWidth=2).encode(x, y, colour, shape, tooltip=tooltip)
    )
    line = alt.Chart(inline_data([{"x": 0}])).mark_rule(color="#999").encode(x="x:Q")
    return apply_theme((line + points).properties(width=360, height=300))


def swapped_predictors(rows: Iterable[Mapping[str, Any]]) -> alt.FacetChart:
    """Draw accuracy by test shot and readout, one panel per train shot and learner.

    It answers whether a model follows its training or its readout. Mixed shots have no panel.
    """
    plain = [row for row in map(add_head_columns, rows) if not row["mixed"]]
    columns = ("learner", "readout", "train_shot", "test_shot", "accuracy")
    values = _values(plain, *columns, **{"trained with": "score"})
    learners = list(dict.fromkeys(value["learner"] for value in values))
    readouts = sorted({value["readout"] for value in values}, key=lambda readout: (readout != "own", readout))
    base = alt.Chart().encode(
        alt.X("test shot:O", axis=alt.Axis(labelAngle=0)),
        alt.Y("mean(accuracy):Q", title="accuracy (%)", scale=alt.Scale(zero=False)),
        alt.Color("trained with:N", scale=alt.Scale(domain=["Euclidean", "cosine"], range=[BLUE, ORANGE])),
    )
    dash = alt.StrokeDash("readout:N", title="read with", sort=readouts, legend=_DASH)
    dots = base.mark_point(filled=True, size=25).encode(alt.Detail("readout:N"))
    panel = (base.mark_line(strokeWidth=2).encode(dash) + dots).properties(width=170, height=200)
    row = alt.Row("learner:N", title=None, sort=learners)
    return apply_theme(
        panel.facet(row=row, column=alt.Column("train shot:O", title="train shot"), data=inline_data(values))
    )


def consistency(rows: Iterable[Mapping[str, Any]]) -> alt.FacetChart:
    """Draw the share of predictions that survive a new support, by trained model and by the score that predicts."""
    shots = [{**row, "train_shot": format_train_shot(row)} for row in rows]
    values = _values(shots, "head", "score", "train_shot", "consistency")
    heads, scores = (list(dict.fromkeys(value[field] for value in values)) for field in ("head", "score"))
    x = alt.X("train shot:O", axis=alt.Axis(labelAngle=0))
    chart = alt.Chart().encode(x, alt.XOffset("score:N", sort=scores))
    y = alt.Y("mean(consistency):Q", title="unchanged predictions (%)", scale=alt.Scale(domain=[0, 100]))
    colour = alt.Color("score:N", title="predicted with", scale=alt.Scale(domain=scores, range=_range(scores)))
    bars = chart.mark_bar().encode(y, colour)
    labels = chart.mark_text(dy=-7).encode(y, alt.Text("mean(consistency):Q", format=".0f"))
    panel = (bars + labels).properties(width=150, height=200)
    facets = panel.facet(alt.Column("head:N", title="trained head", sort=heads), data=inline_data(values))
    # A head of mixed shots has one column, the others as many as train shots.
    return apply_theme(facets.resolve_scale(x="independent", xOffset="independent"))


def term_ratios(rows: Iterable[Mapping[str, Any]]) -> alt.LayerChart:
    """Draw the ratio of FRN's first term to its last by train shot: mean, and one deviation to each side."""
    ends = [{**row, "low": row["mean"] - row["deviation"], "high": row["mean"] + row["deviation"]} for row in rows]
    values = _values(ends, "train_shot", "low", "high", ratio="mean")
    base = alt.Chart(inline_data(values)).encode(alt.X("train shot:O", axis=alt.Axis(labelAngle=0)))
    y = alt.Y("low:Q", title="ratio of terms, mean and deviation", scale=alt.Scale(zero=False))
    bars = base.mark_rule(color=BLUE, strokeWidth=2).encode(y, alt.Y2("high:Q"))
    dots = base.mark_point(color=BLUE, filled=True, size=60).encode(alt.Y("ratio:Q"))
    return apply_theme((bars + dots).properties(width=220, height=200))


def mixed_shots(rows: Iterable[Mapping[str, Any]]) -> alt.FacetChart:
    """Draw mixed-shot training (dots) beside the same head trained for one shot (best to worst)."""
    values = _values(rows, "head", "test_shot", "accuracy", "best", "worst")
    base = alt.Chart().encode(alt.X("test shot:O", axis=alt.Axis(labelAngle=0)))
    y = alt.Y("worst:Q", title="accuracy (%), and the range of single shots", scale=alt.Scale(zero=False))
    bars = base.mark_bar(color=BLUE, opacity=0.35, size=14).encode(y, alt.Y2("best:Q"))
    dots = base.mark_point(color=ORANGE, filled=True, size=50, opacity=1).encode(alt.Y("accuracy:Q"))
    panel = (bars + dots).properties(width=220, height=220)
    heads = list(dict.fromkeys(value["head"] for value in values))
    return apply_theme(panel.facet(alt.Column("head:N", title=None, sort=heads), data=inline_data(values)))


def unequal_shots(rows: Iterable[Mapping[str, Any]]) -> alt.FacetChart:
    """Draw the recall of classes by their own shot, one panel per kind of support."""
    plain = [row for row in map(add_head_columns, rows) if not row["mixed"]]
    values = _values(plain, "head", "score", "own_shot", "recall", family="learner", support="test_shot")
    families = list(dict.fromkeys(value["family"] for value in values))
    base = alt.Chart().encode(
        alt.X("own shot:O", axis=alt.Axis(labelAngle=0)),
        alt.Y("mean(recall):Q", title="recall (%)", scale=alt.Scale(zero=False)),
        alt.Color("family:N", title="head", scale=alt.Scale(domain=families, range=_range(families))),
        alt.Detail("head:N"),
    )
    dash = alt.StrokeDash("score:N", sort=["Euclidean", "cosine"], legend=_DASH)
    panel = (base.mark_line().encode(dash) + base.mark_point(filled=True, size=30)).properties(width=220, height=240)
    kinds = list(dict.fromkeys(value["support"] for value in values))
    facets = panel.facet(alt.Column("support:N", title=None, sort=kinds), data=inline_data(values))
    return apply_theme(facets.resolve_scale(x="independent"))


def _line(grid: Grid, x: str, y: str, values: Mapping[Any, float]) -> list[dict[str, Any]]:
    where = {"group": f"{grid.name} {grid.setting}", "head": grid.head, "backbone": grid.backbone, "data": grid.data}
    return [where | {x: shot, y: float(value)} for shot, value in values.items()]


def _lines(values: list[dict[str, Any]], x: str, y: str, title: str, by: str, *order: str) -> alt.Chart:
    """One thin line per group, coloured by one field, dashed by backbone."""
    names = list(order or dict.fromkeys(value[by] for value in values))
    return (
        alt.Chart(inline_data(values))
        .mark_line(point=alt.OverlayMarkDef(size=18), strokeWidth=1.2, opacity=0.65)
        .encode(
            alt.X(f"{x}:O", axis=alt.Axis(labelAngle=0)),
            alt.Y(f"{y}:Q", title=title),
            alt.Color(f"{by}:N", scale=alt.Scale(domain=names, range=_range(names))),
            alt.StrokeDash("backbone:N", legend=_DASH),
            alt.Detail("group:N"),
            tooltip=["group:N", f"{x}:O", f"{y}:Q"],
        )
        .properties(width=340, height=280)
    )


def _trend(values: list[dict[str, Any]], x: str, y: str, by: str | None = None) -> alt.Chart:
    """The mean line, thick: one per value of `by`, in its colour, or one in black."""
    line = alt.Chart(inline_data(values)).mark_line(strokeWidth=4.5)
    colour = alt.Color(f"{by}:N", title="score") if by else alt.value(BLACK)
    return line.encode(alt.X(f"{x}:O"), alt.Y(f"mean({y}):Q"), color=colour)


def _with_trend(thin: alt.Chart, thick: alt.Chart, words: str) -> alt.LayerChart:
    zero = alt.Chart(inline_data([{"zero": 0}])).mark_rule(color="#999").encode(alt.Y("zero:Q"))
    title = alt.TitleParams(f"thin: a group, thick: {words}", anchor="start", fontWeight="normal")
    return apply_theme((zero + thin + thick).properties(title=title))


def _range(names: Sequence[str]) -> list[str]:
    return list(islice(cycle((BLUE, ORANGE, GREEN, PINK, BLACK)), len(names)))


def inline_data(values: list[dict[str, Any]]) -> alt.Data:
    """Rows as data inside a chart."""
    return alt.InlineData(values=tuple(values))  # not a list: Altair copies lists, with all in them, at every step


def _scores(values: Iterable[Mapping[str, Any]]) -> list[str]:
    """The scores among these values, the two of the paper first."""
    scores = {value["score"] for value in values}
    return [*(name for name in ("Euclidean", "cosine") if name in scores), *sorted(scores - {"Euclidean", "cosine"})]


def _values(rows: Iterable[Mapping[str, Any]], *columns: str, **renamed: str) -> list[dict[str, Any]]:
    """What a chart shows of rows: columns by their names, with spaces in them, or by other names."""
    names = {column.replace("_", " "): column for column in columns} | renamed
    values = [{name: row[column] for name, column in names.items()} for row in rows]
    _require_values(values, "there are no rows to draw")
    return values


def _require_values(values: list[Any], otherwise: str) -> None:
    if not values:
        raise BadInput(f"nothing to draw: {otherwise}.")


def apply_theme(chart: Any) -> Any:
    """The look all figures share."""
    small: dict[str, Any] = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    return chart.configure(
        view=alt.ViewConfig(stroke=None),
        axis=alt.AxisConfig(**small, gridColor="#eee"),
        legend=alt.LegendConfig(**small),
        title=alt.TitleConfig(fontSize=13, subtitleFontSize=12),
        header=alt.HeaderConfig(**small),
    )
