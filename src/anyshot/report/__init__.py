"""What a study found, for people to see. Nothing here imports torch."""

from pathlib import Path

from anyshot.table import grids, read_table


def summary(folder: Path) -> str:
    """The terminal's table: the sensitivity of each head and readout with its interval, and its accuracies."""
    scores = {
        (row["data"], row["backbone"], row["head"], row["readout"]): row
        for row in read_table(folder / "sensitivity.csv")
    }
    lines = [
        f"{'head (readout)':28} {'sensitivity':>11} {'95 % interval':>16} {'noise floor':>11}   accuracy by test shot"
    ]
    for grid in grids(read_table(folder / "table.csv")):
        row = scores.get((grid.data, grid.backbone, grid.head, grid.readout))
        means = "  ".join(
            f"{shot}: {mean:.1f}" for shot, mean in zip(grid.test_shots, grid.accuracy.mean(1), strict=True)
        )
        if row:
            score = f"{row['sensitivity']:11.2f} {row['low']:7.2f} to {row['high']:5.2f} {row['noise_floor']:11.2f}"
        else:
            score = f"{'-':>11} {'needs two train shots':>28}"
        lines.append(f"{grid.name:28} {score}   {means}")
    return "\n".join(lines)
