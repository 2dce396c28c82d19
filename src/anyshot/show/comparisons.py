"""Comparisons that a table already holds, ours or the paper's, as rows: gains by test shot and offsets by train shot
(Fig. 4), swapped predictors (Fig. 5), FRN's old form against its new one (Table 4), mixed-shot training beside
single shots. Nothing here imports torch.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyshot.errors import BadInput, look_up
from anyshot.measure.grid import Grid, build_grids
from anyshot.show.summaries import find_counterpart
from anyshot.tables import Row, format_table, read_table

if TYPE_CHECKING:
    from anyshot.show.figures import Chart


def gains_by_test_shot(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Mean accuracy of each cosine head, and of each model of mixed shots, above its Euclidean counterpart, by test
    shot."""
    whole = _whole(rows)
    pairs = [(grid, find_counterpart(grid, whole)) for grid in whole if grid.readout == "own"]
    return [row for grid, other in pairs if other for row in _difference(grid, other)]


def offsets_by_train_shot(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """How far each model lies above its group on average, by train shot."""
    return [
        _about(grid) | {"train_shot": shot, "offset": float(bias)}
        for grid in _whole(rows)
        if grid.readout == "own" and len(grid.train_shots) > 1
        for shot, bias in zip(grid.train_shots, grid.parts.model_bias, strict=True)
    ]


def swapped_scores(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Each model under its own score and under the other, by train shot and test shot; the mean over seeds."""
    listed = build_grids(rows)
    swapped = {(grid.setting, grid.head): grid.cells() for grid in listed if grid.readout == "swapped"}
    return [
        _about(grid) | {"train_shot": train, "test_shot": test, "own": own, "swapped": read, "change": read - own}
        for grid in listed
        if grid.readout == "own"
        for (train, test), own in grid.cells().items()
        if (read := swapped.get((grid.setting, grid.head), {}).get((train, test))) is not None
    ]


def frn_forms(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The new FRN above the old one, by test shot."""
    whole = _whole(rows)
    old = {grid.setting: grid for grid in whole if grid.head == "frn-old"}
    new = [grid for grid in whole if grid.head == "frn" and grid.setting in old]
    return [row for grid in new for row in _difference(grid, old[grid.setting])]


def mixed_shot_training(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Each model trained with mixed shots beside the models of its head that were trained for one shot, by test shot:
    the best, the mean and the worst of these, and how far it stays behind the best."""
    whole = _whole(rows)
    fixed = {(grid.setting, f"{grid.head}-mixed", grid.readout): grid for grid in whole if not grid.mixed}
    compared = []
    for grid in whole:
        other = fixed.get((grid.setting, grid.head, grid.readout))
        if other is None or grid.readout != "own":
            continue
        for shot, accuracy in grid.means.items():
            cells = other.accuracy[other.test_shots.index(shot)].tolist()
            beside = {"best": max(cells), "mean": sum(cells) / len(cells), "worst": min(cells)}
            row = _about(grid) | {"test_shot": shot, "accuracy": accuracy} | beside
            compared.append(row | {"behind": max(cells) - accuracy})
    return compared


def _difference(grid: Grid, other: Grid) -> list[Row]:
    about = _about(grid) | {"against": other.head}
    both = [(shot, mean, other.means[shot]) for shot, mean in grid.means.items() if shot in other.means]
    return [about | {"test_shot": shot, "gain": ours - theirs} for shot, ours, theirs in both]


def _about(grid: Grid) -> Row:
    return {"data": grid.data, "backbone": grid.backbone, "head": grid.head}


def _whole(rows: Sequence[Mapping[str, Any]]) -> list[Grid]:
    return [grid for grid in build_grids(rows) if grid.is_whole]


Rows = Sequence[Mapping[str, Any]]
COMPARISONS: dict[str, tuple[Callable[[Rows], list[Row]], str]] = {
    "gains": (gains_by_test_shot, "a cosine head and its Euclidean counterpart"),
    "offsets": (offsets_by_train_shot, "a head with several train shots"),
    "swapped": (swapped_scores, "the readout 'swapped'"),
    "frn-forms": (frn_forms, "both frn and frn-old"),
    "mixed": (mixed_shot_training, "a head trained with mixed shots and the same head trained for single ones"),
}


def run_comparison(kind: str, run: Path, out: Path | None, figure: Path | None) -> str:
    """The `compare` verb: from a run's table to a comparison's table and figure."""
    compare, needs = look_up("comparison", kind, COMPARISONS)
    rows = read_table(run / "table.csv" if run.is_dir() else run)
    compared = compare(rows)
    if not compared:
        raise BadInput(f"{run} holds nothing to compare by {kind}: it needs {needs}.")
    if figure is not None:
        from anyshot.show import figures

        figures.save_chart(draw(kind, rows), figure)
    return format_table(compared, out)


def draw(kind: str, rows: Rows) -> "Chart":
    """The figure of a comparison."""
    from anyshot.show import figures

    charts: dict[str, Callable[[], Chart]] = {
        "gains": lambda: figures.gains_by_test_shot(_whole(rows)),
        "offsets": lambda: figures.offsets_by_train_shot(_whole(rows)),
        "swapped": lambda: figures.swapped_predictors([row for row in rows if row["readout"] in ("own", "swapped")]),
        "mixed": lambda: figures.mixed_shots(mixed_shot_training(rows)),
        "frn-forms": lambda: figures.draw_heatmaps([one for one in _whole(rows) if one.head in ("frn", "frn-old")]),
    }
    return charts[kind]()
