"""Draw docs/images/picture.svg: accuracy against sensitivity of all that results/ holds, beside the paper's own grids.

python tools/picture.py
"""

from dataclasses import replace
from pathlib import Path

from anyshot.report.answer import Sensitivity, list_sensitivities
from anyshot.report.charts import frontier
from anyshot.report.runs import paper_findings, read_runs
from anyshot.show.figures import save

ROOT = Path(__file__).resolve().parents[1]
HEADS = ("proto", "cosine-proto", "unit-proto", "feat", "cosine-feat", "frn", "cosine-frn")


def points() -> list[Sensitivity]:
    """Ours, study by study, then the paper's in the settings that have the same data."""
    listed = []
    for folder in sorted(path.parent for path in (ROOT / "results").glob("*/sensitivity.csv")):
        ours = list_sensitivities(read_runs([folder]))
        listed += [_called(one, f"{folder.name}, {one.grid.backbone}: ours") for one in ours]
    data = {one.grid.data.split("32")[0] for one in listed}
    for one in list_sensitivities(paper_findings()):
        if one.grid.data.split(":")[0] in data:
            listed.append(_called(one, f"{one.grid.setting.replace('/', ', ')}: the paper's"))
    return sorted(listed, key=lambda one: (one.grid.data.endswith("paper's"), one.grid.data))


def _called(one: Sensitivity, setting: str) -> Sensitivity:
    return replace(one, grid=replace(one.grid, data=setting, backbone=""))


if __name__ == "__main__":
    listed = points()
    heads = [head for head in HEADS if any(one.grid.head == head for one in listed)]
    listed = [one for one in listed if one.grid.head in heads]
    save(frontier(listed, heads, by="head"), ROOT / "docs" / "images" / "picture.svg")
