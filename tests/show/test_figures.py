"""Figures show the numbers they are given, ours or the paper's, and every kind of file can be written."""

import json
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyshot import BadInput, decompose
from anyshot.measure.grid import Grid, build_grids
from anyshot.paper import printed
from anyshot.show import figures
from anyshot.tables import Row

SHOTS = (1, 3, 5)


def own_rows() -> list[Row]:
    """A small study of our own: other data, other shots, two seeds, three readouts."""
    random = np.random.default_rng(0)
    return [
        {
            "data": "glyphs",
            "backbone": "conv4",
            "head": head,
            "readout": readout,
            "train_shot": train,
            "test_shot": test,
        }
        | {"seed": seed, "accuracy": 60 + 5 * np.log2(test) + random.normal()}
        for head, readout in (
            ("proto", "own"),
            ("proto", "pca60"),
            ("cosine-proto", "own"),
            ("cosine-proto", "swapped"),
        )
        for train in (2, 5)
        for test in SHOTS
        for seed in (0, 1)
    ]


SOURCES = {"paper": printed.rows(), "own": own_rows()}
BY_GRIDS = (figures.gains_by_test_shot, figures.offsets_by_train_shot, figures.scatter, figures.draw_heatmaps)


def data(chart: Any) -> list[dict[str, Any]]:
    """All values in a chart, wherever they are nested."""
    rows: list[dict[str, Any]] = []

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                rows.extend(value) if key == "values" and value and isinstance(value[0], dict) else walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(specification(chart))
    return rows


def specification(chart: Any) -> dict[str, Any]:
    """A chart as Vega-Lite, each part with its own data; the schema is checked in a test of its own."""
    with alt.data_transformers.enable(consolidate_datasets=False):
        return json.loads(chart.to_json(validate=False))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("draw", [*BY_GRIDS, figures.calculation], ids=lambda draw: draw.__name__)
def test_one_code_draws_both_sources(draw: Any, source: str) -> None:
    some = build_grids(SOURCES[source])[:8]
    chart = draw(some if draw in BY_GRIDS else some[0])
    assert chart.to_dict()["$schema"]  # to_dict checks the specification against Vega-Lite's schema


@pytest.mark.parametrize("source", SOURCES)
def test_heatmap_shows_residual_and_both_biases(source: str) -> None:
    grid = build_grids(SOURCES[source])[0]
    parts = decompose(grid.accuracy)
    cells = {(cell["train"], cell["test"]): cell["value"] for cell in data(figures.draw_heatmaps([grid]))}
    rows, columns = grid.accuracy.shape
    inside = [[cells[str(train), str(test)] for train in grid.train_shots] for test in grid.test_shots]
    np.testing.assert_allclose(inside, parts.residual)
    right = [cells["mean", str(test)] for test in grid.test_shots]
    above = [cells[str(train), "model bias"] for train in grid.train_shots]
    np.testing.assert_allclose(right, parts.test_bias)
    np.testing.assert_allclose(above, parts.model_bias)
    assert len(cells) == rows * columns + rows + columns


@settings(max_examples=5)
@given(st.lists(st.lists(st.floats(0, 100), min_size=3, max_size=3), min_size=2, max_size=4))
def test_colours_are_centred_at_zero_and_shared(values: list[list[float]]) -> None:
    first = Grid("glyphs", "conv4", "proto", "own", tuple(range(1, len(values) + 1)), (1, 2, 4), np.array(values))
    second = Grid("glyphs", "conv4", "cosine-proto", "own", first.test_shots, first.train_shots, first.accuracy / 2)
    scales = [s for s in _scales(specification(figures.draw_heatmaps([first, second]))) if "domainMid" in s]
    assert scales
    assert all(scale["domainMid"] == 0 and scale["domainMin"] == -scale["domainMax"] for scale in scales)
    assert len({scale["domainMax"] for scale in scales}) == 1
    parts = [decompose(grid.accuracy) for grid in (first, second)]
    assert scales[0]["domainMax"] >= max(np.abs(p.residual).max() for p in parts)


def _scales(node: Any) -> list[dict[str, Any]]:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
    own = [node["scale"]] if isinstance(node, dict) and isinstance(node.get("scale"), dict) else []
    return own + [scale for child in children for scale in _scales(child)]


def test_calculation_goes_from_accuracy_to_residual() -> None:
    grid = build_grids(SOURCES["paper"])[0]
    parts = decompose(grid.accuracy)
    spec = specification(figures.calculation(grid))
    shown = []
    for panel in spec["hconcat"]:
        cells = {(c["train"], c["test"]): c["value"] for c in panel["data"]["values"]}
        shown.append([[cells[str(train), str(test)] for train in grid.train_shots] for test in grid.test_shots])
    np.testing.assert_allclose(shown[0], grid.accuracy)
    np.testing.assert_allclose(shown[1], grid.accuracy - parts.test_bias[:, None])
    np.testing.assert_allclose(shown[2], parts.residual)


def test_gains_are_those_of_the_gain_tables() -> None:
    printed = build_grids(SOURCES["paper"])
    drawn = [p for p in data(figures.gains_by_test_shot(printed)) if p.get("group") == "cosine-proto meta-inat/conv4"]
    assert {(p["test shot"], round(p["gain"], 1)) for p in drawn} >= {(1, 13.3), (2, 6.6)}
    heads = {p["head"] for p in data(figures.gains_by_test_shot(printed)) if "head" in p}
    assert heads == {"cosine-proto", "cosine-feat", "cosine-frn"}


def test_one_train_shot_has_no_residual_offset_or_score() -> None:
    shots = (1, 2, 4)
    group = [Grid("d", "b", "proto", "own", shots, (4, 8), np.array([[50.0, 51], [60, 63], [70, 71]]))]
    group += [Grid("d", "b", "cosine-proto", "own", shots, (4, 8), group[0].accuracy + 1)]
    mixed = Grid("d", "b", "proto-mixed", "own", shots, (16,), np.array([[52.0], [62], [70]]))
    assert "sensitivity 0" not in json.dumps(figures.draw_heatmaps([mixed]).to_dict())
    assert list(figures.list_views(mixed)) == ["accuracy"]
    every = [*group, mixed]
    assert {value["method"] for value in data(figures.scatter(every)) if "method" in value} == {"cosine-proto"}
    offsets = {value["head"] for value in data(figures.offsets_by_train_shot(every)) if "head" in value}
    assert offsets == {"proto", "cosine-proto"}
    gains = [value for value in data(figures.gains_by_test_shot(every)) if value.get("head") == "proto-mixed"]
    assert {value["test shot"]: value["gain"] for value in gains} == {1: 1.5, 2: 0.5, 4: -0.5}


def test_rows_make_swapped_and_consistency_figures() -> None:
    mixed = [row | {"head": "feat-mixed"} for row in own_rows()]
    chart = figures.swapped_predictors([*own_rows(), *mixed])
    panels = {(v["learner"], v["trained with"], v["readout"]) for v in data(chart)}
    assert panels >= {("proto", "cosine", "swapped"), ("proto", "Euclidean", "own")}
    assert "feat" not in {learner for learner, *_ in panels}
    shares = {
        (v["head"], v["score"], v["train shot"]): v["consistency"]
        for v in data(figures.consistency(printed.consistency_rows()))
    }
    assert shares["proto", "euclidean", 4] == 48
    assert shares["cosine-proto", "cosine", 32] == 51
    mixed = [row | {"head": "proto-mixed"} for row in printed.consistency_rows()]
    assert {value["train shot"] for value in data(figures.consistency(mixed))} == {"mixed"}


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<svg"), ("png", b"\x89PNG"), ("pdf", b"%PDF"), ("json", b"{")])
def test_every_kind_of_file_is_written_whole(ending: str, start: bytes, tmp_path: Path) -> None:
    path = tmp_path / "deep" / f"figure.{ending}"
    figures.save_chart(figures.draw_heatmaps(build_grids(own_rows())[:1]), path)
    assert path.read_bytes().startswith(start)
    assert list(path.parent.iterdir()) == [path]


def test_svg_names_every_shot(tmp_path: Path) -> None:
    """Vega drops labels it finds too many; ours must all be there."""
    path = tmp_path / "figure.svg"
    proto = next(grid for grid in build_grids(SOURCES["paper"]) if grid.head == "proto")
    figures.save_chart(figures.draw_heatmaps([proto]), path)
    text = path.read_text(encoding="utf-8")
    for label in ("1", "2", "4", "8", "16", "32", "mean", "model bias", "train shot", "test shot"):
        assert f">{label}</text>" in text


def test_bad_wishes_get_a_sentence(tmp_path: Path) -> None:
    chart = figures.draw_heatmaps(build_grids(own_rows())[:1])
    with pytest.raises(BadInput, match="figure format named 'jpg'"):
        figures.save_chart(chart, tmp_path / "figure.jpg")
    alone = [grid for grid in build_grids(own_rows()) if grid.head == "proto" and grid.readout == "own"]
    for draw in (figures.gains_by_test_shot, figures.scatter):
        with pytest.raises(BadInput, match="nothing to draw"):
            draw(alone)
    with pytest.raises(BadInput, match="nothing to draw"):
        figures.swapped_predictors([])


def test_term_ratios_show_mean_and_deviation(tmp_path):
    chart = figures.term_ratios([{"train_shot": 4, "mean": 2.03, "deviation": 0.06}])
    figures.save_chart(chart, tmp_path / "terms.svg")
    assert "2.0" in (tmp_path / "terms.svg").read_text()
