"""Run folders for the tests of the report: as a study writes them, whole, half done, or odd."""

from pathlib import Path

import numpy as np

from anyshot.files import write_json
from anyshot.measure.grid import build_grids
from anyshot.measure.recalls import Recalls, episode_interval, write_recalls
from anyshot.measure.sensitivity import decompose
from anyshot.tables import Row, write_table

TEST_SHOTS = (1, 2, 4, 8, 16, 32)


def rows(
    heads: tuple[str, ...] = ("proto", "cosine-proto"),
    train_shots: tuple[int, ...] = (4, 8, 16, 32),
    data: str = "glyphs",
    seed: int = 0,
) -> list[Row]:
    """Accuracies that grow with the test shot; Euclidean heads overfit to their train shot, and cosine heads less."""
    rng = np.random.default_rng(seed)
    out = []
    for h, head in enumerate(heads):
        strength = 0.4 if head.startswith("cosine-") else 2.0
        for train in train_shots:
            for test in TEST_SHOTS:
                fit = -strength * abs(np.log2(max(train, 1)) - np.log2(test)) / 2
                accuracy = 50 + 6 * np.log2(test) + fit - h + rng.normal(0, 0.1)
                row = {
                    "data": data,
                    "backbone": "conv4",
                    "head": head,
                    "readout": "own",
                    "train_shot": train,
                    "seed": 0,
                }
                row |= {"test_shot": test, "way": 5, "queries": 16, "episodes": 1000, "accuracy": round(accuracy, 4)}
                out.append(row | {"ci95": 0.2, "ci95_classes": 3.0, "model": f"{head}-{train}"})
    return out


def write_run(folder: Path, table: list[Row], models: bool = True) -> Path:
    """A run's folder: its table and, where it has models, sensitivities with intervals, recipes, learning curves."""
    write_table(folder / "table.csv", table)
    scores = []
    for grid in build_grids(table) if models else []:
        if np.isfinite(grid.accuracy).all() and len(grid.train_shots) > 1:
            score = decompose(grid.accuracy).sensitivity
            where = {"data": grid.data, "backbone": grid.backbone, "head": grid.head, "readout": grid.readout}
            ends = {"low": score - 0.2, "high": score + 0.2, "noise_floor": 0.1}
            scores.append(where | {"seeds": 1, "sensitivity": round(score, 4), **ends, "over_seeds": ""})
    if scores:
        write_table(folder / "sensitivity.csv", scores)
    write_json(folder / "about.json", {"versions": {"anyshot": "0.1.0", "torch": "2.13.0"}, "episode_seed": 7})
    for number, model in enumerate(dict.fromkeys((row["head"], row["train_shot"]) for row in table) if models else ()):
        recipe = {"data": table[0]["data"], "backbone": "conv4", "head": model[0], "train_shot": model[1], "seed": 0}
        recipe |= {"way": 256 // max(model[1], 1), "epochs": 3, "optimiser": "sgd", "lr": 0.1, "weight_decay": 5e-4}
        write_json(folder / f"model-{number}" / "recipe.json", recipe | {"schedule": "one-cycle"})
        epochs = [{"epoch": e, "loss": 3.0 / e, "train_accuracy": 20.0 * e, "val_accuracy": ""} for e in (1, 2, 3)]
        epochs[-1]["val_accuracy"] = 61.5
        write_table(folder / f"model-{number}" / "history.csv", epochs)
    return folder


def with_recalls(folder: Path, table: list[Row], episodes: int = 400) -> list[Row]:
    """Recalls beside each model as a study keeps them, most of their noise shared; the rows with their means."""
    rng = np.random.default_rng(0)
    shared, classes = rng.normal(0, 0.1, (len(TEST_SHOTS), episodes, 1)), rng.integers(9, size=(episodes, 5))
    out = []
    for start in range(0, len(table), len(TEST_SHOTS)):
        cells = table[start : start + len(TEST_SHOTS)]
        level = np.array([row["accuracy"] for row in cells])[:, None, None] / 100
        recall = (level + shared + rng.normal(0, 0.02, (len(cells), episodes, 5))).astype(np.float32)
        accuracies = 100 * recall.mean(-1, dtype=np.float64)
        model = folder / f"{cells[0]['head']}-{cells[0]['train_shot']}-id{start}"
        of = {name: cells[0][name] for name in ("data", "backbone", "head", "readout", "train_shot", "seed")}
        plan = {"way": 5, "queries": 16, "episodes": episodes, "seed": 0, "id": "the same"}
        of |= {"model": f"id{start}"}
        write_recalls(model / "recalls-1.npz", [Recalls(of, plan, TEST_SHOTS, classes, recall)])
        measured = [{"accuracy": round(a.mean(), 4), "ci95": round(episode_interval(a), 4)} for a in accuracies]
        out += [
            row | now | {"model": f"id{start}", "episodes": episodes} for row, now in zip(cells, measured, strict=True)
        ]
    return out
