"""Comparisons that a table already holds, ours or the paper's, as rows: gains by test shot and offsets by train shot
(Fig. 4), swapped predictors (Fig. 5), FRN's old form against its new one (Table 4), mixed-shot training beside
single shots. Nothing here imports torch.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyshot.errors import BadInput, choose
from anyshot.measure.sensitivity import decompose
from anyshot.rows import Row, read_table, show_table
from anyshot.show.grid import Grid, grids
from anyshot.show.summaries import counterpart

if TYPE_CHECKING:
    from anyshot.show.figures import Chart


def gains(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Mean accuracy of each cosine head, and of each model of mixed shots, above its Euclidean counterpart, by test
    shot."""
    whole = _whole(rows)
    pairs = [(grid, counterpart(grid, whole)) for grid in whole if grid.readout == "own"]
    return [row for grid, other in pairs if other for row in _difference(grid, other)]


def offsets(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """How far each model lies above its group on average, by train shot."""
    return [
        {"data": grid.data, "backbone": grid.backbone, "head": grid.head, "train_shot": shot, "offset": float(bias)}
        for grid in _whole(rows)
        if grid.readout == "own" and len(grid.train_shots) > 1
        for shot, bias in zip(grid.train_shots, decompose(grid.accuracy).model_bias, strict=True)
    ]


def swapped(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Each model under its own score and under the other, by train shot and test shot; the mean over seeds."""
    by_name = {(grid.setting, grid.name): grid for grid in grids(rows)}
    pairs = []
    for (setting, name), grid in by_name.items():
        other = by_name.get((setting, f"{name} (swapped)"))
        theirs = other.cells() if other else {}
        for (train_shot, test_shot), own in grid.cells().items():
            if (read := theirs.get((train_shot, test_shot))) is not None:
                about: Row = {"data": grid.data, "backbone": grid.backbone, "head": grid.head}
                about |= {"train_shot": train_shot, "test_shot": test_shot}
                pairs.append(about | {"own": own, "swapped": read, "change": read - own})
    return pairs


def frn_forms(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The new FRN above the old one, by test shot."""
    whole = _whole(rows)
    old = {grid.setting: grid for grid in whole if grid.head == "frn-old"}
    new = [grid for grid in whole if grid.head == "frn" and grid.setting in old]
    return [row for grid in new for row in _difference(grid, old[grid.setting])]


def mixed(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Each model trained with mixed shots beside the models of its head that were trained for one shot, by test shot:
    the best, the mean and the worst of these, and how far it stays behind the best."""
    whole = _whole(rows)
    fixed = {(grid.setting, f"{grid.head}-mixed", grid.readout): grid for grid in whole if not grid.mixed}
    compared = []
    for grid in whole:
        other = fixed.get((grid.setting, grid.head, grid.readout))
        if other is None or grid.readout != "own":
            continue
        about = {"data": grid.data, "backbone": grid.backbone, "head": grid.head}
        for shot, accuracy in zip(grid.test_shots, grid.accuracy.mean(1).tolist(), strict=True):
            cells = other.accuracy[other.test_shots.index(shot)].tolist()
            beside = {"best": max(cells), "mean": sum(cells) / len(cells), "worst": min(cells)}
            beside["behind"] = max(cells) - accuracy
            compared.append(about | {"test_shot": shot, "accuracy": accuracy} | beside)
    return compared


def _difference(grid: Grid, other: Grid) -> list[Row]:
    ours, theirs = (decompose(one.accuracy) for one in (grid, other))
    about = {"data": grid.data, "backbone": grid.backbone, "head": grid.head, "against": other.head}
    shots = [shot for shot in grid.test_shots if shot in other.test_shots]
    means = [dict(zip(g.test_shots, p.test_bias, strict=True)) for g, p in ((grid, ours), (other, theirs))]
    return [about | {"test_shot": shot, "gain": float(means[0][shot] - means[1][shot])} for shot in shots]


def _whole(rows: Sequence[Mapping[str, Any]]) -> list[Grid]:
    return [grid for grid in grids(rows) if grid.is_whole]


COMPARISONS: dict[str, tuple[Callable[[Sequence[Mapping[str, Any]]], list[Row]], str]] = {
    "gains": (gains, "a cosine head and its Euclidean counterpart"),
    "offsets": (offsets, "a head with several train shots"),
    "swapped": (swapped, "the readout 'swapped'"),
    "frn-forms": (frn_forms, "both frn and frn-old"),
    "mixed": (mixed, "a head trained with mixed shots and the same head trained for single ones"),
}


def run_comparison(kind: str, run: Path, out: Path | None, figure: Path | None) -> str:
    """The `compare` verb: from a run's table to a comparison's table and figure."""
    compare, needs = choose("comparison", kind, COMPARISONS)
    rows = read_table(run / "table.csv" if run.is_dir() else run)
    compared = compare(rows)
    if not compared:
        raise BadInput(f"{run} holds nothing to compare by {kind}: it needs {needs}.")
    if figure is not None:
        from anyshot.show import figures

        figures.save(draw(kind, rows), figure)
    return show_table(compared, out)


def draw(kind: str, rows: Sequence[Mapping[str, Any]]) -> "Chart":
    """The figure of a comparison."""
    from anyshot.show import figures

    whole = _whole(rows)
    if kind == "gains":
        return figures.gains_by_test_shot(whole)
    if kind == "offsets":
        return figures.offsets_by_train_shot(whole)
    if kind == "swapped":
        return figures.swapped_predictors([row for row in rows if row["readout"] in ("own", "swapped")])
    if kind == "mixed":
        return figures.mixed_shots(mixed(rows))
    return figures.side_by_side([grid for grid in whole if grid.head in ("frn", "frn-old")])
