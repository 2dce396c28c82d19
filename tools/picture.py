"""Draw docs/images/picture.svg: accuracy against sensitivity of all that results/ holds, beside the paper's own grids.

python tools/picture.py
"""

from dataclasses import replace
from pathlib import Path

from anyshot.measure.grid import Grid
from anyshot.report.answer import list_sensitivities
from anyshot.report.charts import frontier_points
from anyshot.report.runs import paper_findings, read_runs
from anyshot.show.figures import frontier, save_chart
from anyshot.tables import Row

ROOT = Path(__file__).resolve().parents[1]
# Panels of our own, and where each head and readout is found: in the first of these results that has it.
PANELS = {
    ("cub32", "conv4"): ("cub32/more-trainings", "cub32"),
    ("cub32", "resnet12"): ("cub32-resnet12",),
    ("mini32", "conv4"): ("mini32/second-training", "mini32"),
    ("cub84", "conv4"): ("cub84",),
    ("cub84-lite0", "efficientnet-lite0"): ("birds-pretrained",),
}
N_SMALL = 3  # panels of images of 32x32 pixels, which stand above the paper's
HEADS = (
    "proto", "cosine-proto", "unit-proto", "feat", "cosine-feat", "frn", "cosine-frn", "linear-proto",
    "cosine-linear-proto",
)  # fmt: skip


def points() -> list[tuple[Grid, Row]]:
    """Ours of small images, below them the paper's of the same data and backbone, then ours of 84x84 pixels."""
    ours, paper = [], list_sensitivities(paper_findings())
    for folders in PANELS.values():
        ways = {}
        for folder in reversed(folders):
            found = list_sensitivities(read_runs([ROOT / "results" / folder]))
            ways |= {(grid.head, grid.readout): (_named(grid, "ours"), row) for grid, row in found}
        ours.append([*ways.values()])
    printed = [
        [(_named(grid, "the paper's"), row) for grid, row in paper if (f"{grid.data}32", grid.backbone) == panel]
        for panel in PANELS
    ]
    return [one for panel in [*ours[:N_SMALL], *printed[:N_SMALL], *ours[N_SMALL:]] for one in panel]


def _named(grid: Grid, whose: str) -> Grid:
    return replace(grid, data=f"{grid.data}, {grid.backbone}: {whose}", backbone="")


if __name__ == "__main__":
    listed = points()
    heads = [head for head in HEADS if any(grid.head == head for grid, _ in listed)]
    listed = [(grid, row) for grid, row in listed if grid.head in heads]
    save_chart(frontier(frontier_points(listed), heads, by="head"), ROOT / "docs" / "images" / "picture.svg")
