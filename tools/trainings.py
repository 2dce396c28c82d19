"""Write results/STUDY/trainings.csv: one column per training of a study, with their mean and their spread.

    python tools/trainings.py

A training is a seed. The tables of all trainings of a study are in its folder and in folders below it, and some seeds
in several of these, because models were read in more ways later: the study's own folder comes first.
"""

from pathlib import Path
from statistics import mean, stdev

from anyshot.measure.grid import Grid, build_grids
from anyshot.tables import Row, read_table, to_csv
from anyshot.text import group_by

ROOT = Path(__file__).resolve().parents[1]
STUDIES = ("cub32", "mini32", "cub84", "cub32-resnet12", "birds-pretrained")


def measure(grid: Grid) -> dict[str, float]:
    """Return the numbers of one training of a head: its residual's statistics, and accuracies over train shots."""
    accuracies = {f"accuracy at {shot}": value for shot, value in grid.means.items()}
    accuracies["accuracy"] = mean(accuracies.values())
    parts = grid.parts
    statistics = {"sensitivity": parts.sensitivity, "deviation": parts.deviation, "trend": parts.trend}
    return accuracies | (statistics if grid.has_sensitivity else {})


def list_trainings(study: Path) -> list[Row]:
    """Return a row for each head, readout and measure of a study, with a column for each training."""
    cells: dict[tuple[str, str, str], dict[int, float]] = {}
    for folder in (study, *sorted(path.parent for path in study.glob("*/table.csv"))):
        for seed, rows in group_by(read_table(folder / "table.csv"), lambda row: row["seed"]).items():
            for grid in build_grids(rows):
                for name, value in measure(grid).items() if grid.is_complete else ():
                    cells.setdefault((grid.head, grid.readout, name), {}).setdefault(seed, value)
    seeds = sorted({seed for values in cells.values() for seed in values})
    return [
        {"head": head, "readout": readout, "measure": name}
        | {f"seed_{seed}": f"{values[seed]:.4f}" if seed in values else "" for seed in seeds}
        | {"trainings": len(values), "mean": f"{mean(values.values()):.4f}"}
        | {"spread": f"{stdev(values.values()):.4f}" if len(values) > 1 else ""}
        | {"smallest": f"{min(values.values()):.4f}", "largest": f"{max(values.values()):.4f}"}
        for (head, readout, name), values in cells.items()
    ]


def table(name: str) -> str:
    """Return the text of a study's trainings.csv."""
    rows = list_trainings(ROOT / "results" / name)
    return to_csv([list(rows[0]), *(list(row.values()) for row in rows)])


if __name__ == "__main__":
    for name in STUDIES:
        (ROOT / "results" / name / "trainings.csv").write_text(table(name), encoding="utf-8")
