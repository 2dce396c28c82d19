"""Draw docs/images/picture.svg: accuracy against sensitivity of all that results/ holds, beside the paper's own grids.

python tools/picture.py
"""

from dataclasses import replace
from pathlib import Path

from anyshot.report.answer import Sensitivity, list_sensitivities
from anyshot.report.charts import frontier_points
from anyshot.report.runs import paper_findings, read_runs
from anyshot.show.figures import frontier, save_chart

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


def points() -> list[Sensitivity]:
    """Ours of small images, below them the paper's of the same data and backbone, then ours of 84x84 pixels."""
    ours, paper = [], list_sensitivities(paper_findings())
    for folders in PANELS.values():
        ways = {}
        for folder in reversed(folders):
            ways |= {
                (one.grid.head, one.grid.readout): one
                for one in list_sensitivities(read_runs([ROOT / "results" / folder]))
            }
        ours.append([_named(one, "ours") for one in ways.values()])
    printed = [
        [_named(one, "the paper's") for one in paper if (f"{one.grid.data}32", one.grid.backbone) == panel]
        for panel in PANELS
    ]
    return [one for panel in [*ours[:N_SMALL], *printed[:N_SMALL], *ours[N_SMALL:]] for one in panel]


def _named(one: Sensitivity, whose: str) -> Sensitivity:
    return replace(one, grid=replace(one.grid, data=f"{one.grid.data}, {one.grid.backbone}: {whose}", backbone=""))


if __name__ == "__main__":
    listed = points()
    heads = [head for head in HEADS if any(one.grid.head == head for one in listed)]
    listed = [one for one in listed if one.grid.head in heads]
    save_chart(frontier(frontier_points(listed), heads, by="head"), ROOT / "docs" / "images" / "picture.svg")
