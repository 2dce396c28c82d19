"""The `compare` verb: tables and figures of what a run's table compares. Nothing here imports torch."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from anyshot.errors import BadInput, look_up
from anyshot.measure.comparisons import (
    Rows,
    frn_forms,
    gains_by_test_shot,
    list_complete_grids,
    mixed_shot_training,
    offsets_by_train_shot,
    swapped_scores,
)
from anyshot.tables import Row, format_table, read_table

if TYPE_CHECKING:
    from anyshot.show.figures import Chart

COMPARISONS: dict[str, tuple[Callable[[Rows], list[Row]], str]] = {
    "gains": (gains_by_test_shot, "a cosine head and its Euclidean counterpart"),
    "offsets": (offsets_by_train_shot, "a head with several train shots"),
    "swapped": (swapped_scores, "the readout 'swapped'"),
    "frn-forms": (frn_forms, "both frn and frn-old"),
    "mixed": (mixed_shot_training, "a head trained with mixed shots and the same head trained for single ones"),
}


def run_comparison(kind: str, run: Path, out: Path | None, figure: Path | None) -> str:
    """Run the `compare` verb: make the table and the figure of a comparison from a run's table."""
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
    """Return the figure of a comparison."""
    from anyshot.show import figures

    if kind == "swapped":
        return figures.swapped_predictors([row for row in rows if row["readout"] in ("own", "swapped")])
    if kind == "mixed":
        return figures.mixed_shots(mixed_shot_training(rows))
    grids = list_complete_grids(rows)
    if kind == "frn-forms":
        return figures.draw_heatmaps([grid for grid in grids if grid.head in ("frn", "frn-old")])
    return figures.gains_by_test_shot(grids) if kind == "gains" else figures.offsets_by_train_shot(grids)
