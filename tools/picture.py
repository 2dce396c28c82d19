"""Draw docs/images/picture.svg: accuracy against sensitivity of all that results/ holds, beside the paper's own grids.

python tools/picture.py
"""

from dataclasses import replace
from pathlib import Path

from anyshot.report.answer import Sensitivity, beside_paper, list_sensitivities
from anyshot.report.charts import frontier
from anyshot.report.runs import read_runs
from anyshot.show.figures import save

ROOT = Path(__file__).resolve().parents[1]
HEADS = (
    "proto", "cosine-proto", "unit-proto", "feat", "cosine-feat", "frn", "cosine-frn", "linear-proto",
    "cosine-linear-proto",
)  # fmt: skip


def points() -> list[Sensitivity]:
    """Ours, study by study, then the paper's of the same images."""
    ours = [
        replace(one, grid=replace(one.grid, data=f"{folder.name}, {one.grid.backbone}: ours", backbone=""))
        for folder in sorted(path.parent for path in (ROOT / "results").glob("*/sensitivity.csv"))
        for one in list_sensitivities(read_runs([folder]))
    ]
    return ours + beside_paper([replace(one, grid=replace(one.grid, data=one.grid.data.split(",")[0])) for one in ours])


if __name__ == "__main__":
    listed = points()
    heads = [head for head in HEADS if any(one.grid.head == head for one in listed)]
    listed = [one for one in listed if one.grid.head in heads]
    save(frontier(listed, heads, by="head"), ROOT / "docs" / "images" / "picture.svg")
