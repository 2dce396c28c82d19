"""The paper's tables and figures again, from its printed grids, by the functions that serve our own studies."""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from anyshot import figures
from anyshot.files import write_text
from anyshot.paper import printed
from anyshot.paper.illustration import illustrate
from anyshot.summaries import ENDINGS, Summary, gain_summary, grid_summary, sensitivity_summary
from anyshot.table import Grid, grids

T = TypeVar("T")
Chart = figures.Chart
COLUMNS = {"table-5": ("cub",), "table-6": ("mini",), "table-7": ("meta-inat", "tiered")}


def write_tables(folder: Path, format: str) -> None:
    """Table 2, the gain tables 5 to 7, the old and the new FRN of Table 4, and the 48 grids."""
    study = _study()
    summaries: dict[str, Summary] = {"table-2-sensitivity": sensitivity_summary(study)}
    for name, datasets in COLUMNS.items():
        summaries[f"{name}-gains"] = gain_summary([grid for grid in study if grid.data in datasets])
    for grid in (*study, _frn_old()):
        summaries[f"grid-{_slug(grid)}"] = grid_summary(grid)
    for name, summary in _progress(summaries.items(), "tables"):
        write_text(folder / f"{name}.{ENDINGS[format]}", summary.text(format))
    print(f"{len(summaries)} tables in {folder}")


def write_figures(folder: Path, format: str) -> None:
    """Figures 1 to 4 and 6, the consistency of Table 1, and the heatmaps of all 48 grids, paired as in the paper."""
    charts = _charts()
    for name, draw in _progress(charts.items(), "figures"):
        figures.save(draw(), folder / f"{name}.{format}")
    print(f"{len(charts)} figures in {folder}")


def _charts() -> dict[str, Callable[[], Chart]]:
    study = _study()
    proto = [grid for grid in study if grid.head in ("proto", "cosine-proto")]
    example = [grid for grid in proto if grid.setting == "meta-inat/conv4" and grid.readout == "own"]
    charts: dict[str, Callable[[], Chart]] = {
        "figure-1-illustration": illustrate,
        "figure-2-calculation": lambda: figures.calculation(example[0]),
        "figure-3-example": lambda: figures.side_by_side(example),
        "figure-4-gains": lambda: figures.gains_by_test_shot(study),
        "figure-4-offsets": lambda: figures.offsets_by_train_shot(study),
        "figure-6-tradeoff": lambda: figures.scatter(proto),
        "table-1-consistency": lambda: figures.consistency(printed.consistency_rows()),
        "table-4-frn": lambda: figures.side_by_side([_frn_old(), _find(study, "meta-inat", "conv4", "frn")]),
    }
    for _, pair in groupby(
        study, key=lambda grid: (grid.setting, grid.head.removeprefix("cosine-"), grid.readout != "own")
    ):
        both = list(pair)
        charts["heatmaps-" + _slug(both[0]).replace("-pca60", "-pca60-est60")] = _pair(both)
    return charts


def _pair(both: list[Grid]) -> Callable[[], Chart]:
    return lambda: figures.side_by_side(both)


def _study() -> list[Grid]:
    """The 48 grids in the paper's order."""
    return [grid for grid in grids(printed.rows()) if grid.head != "frn-old"]


def _frn_old() -> Grid:
    return _find(grids(printed.rows()), "meta-inat", "conv4", "frn-old")


def _find(among: Iterable[Grid], *where: str) -> Grid:
    return next(grid for grid in among if (grid.data, grid.backbone, grid.head) == where)


def _slug(grid: Grid) -> str:
    return "-".join([grid.data, grid.backbone, grid.head] + ([grid.readout] if grid.readout != "own" else []))


def _progress(items: Iterable[tuple[str, T]], what: str) -> Iterator[tuple[str, T]]:
    """A bar in a terminal, a plain line an item elsewhere."""
    if Console().is_terminal:
        yield from track(list(items), description=what, transient=True)
        return
    for name, item in items:
        print(name, flush=True)
        yield name, item
