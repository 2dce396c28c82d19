"""The paper's tables and figures again, from its printed grids, by the functions that serve our own studies."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from anyshot.files import write_text
from anyshot.measure.grid import Grid, build_grids
from anyshot.paper import printed
from anyshot.progress import progress
from anyshot.show import figures
from anyshot.show.summaries import ENDINGS, gain_summary, grid_summary, sensitivity_summary
from anyshot.tables import GridKey

FRN, FRN_OLD = (GridKey("meta-inat", "conv4", head) for head in ("frn", "frn-old"))
COLUMNS = {"table-5": ("cub",), "table-6": ("mini",), "table-7": ("meta-inat", "tiered")}


def write_tables(folder: Path, format: str) -> None:
    """Write Table 2, the gain tables 5 to 7, the old and the new FRN of Table 4, and the 48 grids."""
    study, frn_old = _read_grids()
    summaries = {"table-2-sensitivity": sensitivity_summary(study)}
    for name, datasets in COLUMNS.items():
        summaries[f"{name}-gains"] = gain_summary([grid for grid in study if grid.data in datasets])
    summaries |= {f"grid-{_slug(grid)}": grid_summary(grid) for grid in (*study, frn_old)}
    for name, summary in summaries.items():
        write_text(folder / f"{name}.{ENDINGS[format]}", summary.text(format))
    print(f"{len(summaries)} tables in {folder}")


def write_figures(folder: Path, format: str) -> None:
    """Draw Figures 2 to 4 and 6, the consistency of Table 1, and heatmaps of all 48 grids, paired as in the paper."""
    study, frn_old = _read_grids()
    proto = [grid for grid in study if grid.learner == "proto"]
    example = [grid for grid in proto if grid.setting == "meta-inat/conv4" and grid.readout == "own"]
    frn = next(grid for grid in study if grid.key == FRN)
    charts: dict[str, Callable[[], figures.Chart]] = {
        "figure-2-calculation": lambda: figures.calculation(example[0]),
        "figure-3-example": lambda: figures.draw_heatmaps(example),
        "figure-4-gains": lambda: figures.gains_by_test_shot(study),
        "figure-4-offsets": lambda: figures.offsets_by_train_shot(study),
        "figure-6-tradeoff": lambda: figures.scatter(proto),
        "table-1-consistency": lambda: figures.consistency(printed.consistency_rows()),
        "table-4-frn": lambda: figures.draw_heatmaps([frn_old, frn]),
    }
    for pair in zip(study[::2], study[1::2], strict=True):  # Euclidean and cosine, PCA and EST
        charts["heatmaps-" + _slug(pair[0]).replace("-pca60", "-pca60-est60")] = partial(figures.draw_heatmaps, pair)
    with progress("figures", len(charts)) as advance:
        for name, draw in charts.items():
            figures.save_chart(draw(), folder / f"{name}.{format}")
            advance(1, name)
    print(f"{len(charts)} figures in {folder}")


def _read_grids() -> tuple[list[Grid], Grid]:
    """Return the 48 grids in the paper's order, and the grid of the old FRN."""
    grids = {grid.key: grid for grid in build_grids(printed.rows())}
    frn_old = grids.pop(FRN_OLD)
    return list(grids.values()), frn_old


def _slug(grid: Grid) -> str:
    return "-".join(grid.key).removesuffix("-own")
