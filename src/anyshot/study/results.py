"""From the recalls that a study's models left to its table of cells and its table of sensitivities."""

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anyshot.measure.intervals import class_interval, episode_interval
from anyshot.measure.sensitivity import certainty
from anyshot.recipe import Recipe
from anyshot.rows import Row

if TYPE_CHECKING:
    from anyshot.study.study import Study


def result_path(study: "Study", recipe: Recipe, folder: Path) -> Path:
    """The file that says a model is done: its recalls, or the model itself in pretraining."""
    if recipe.batch:
        return folder / "model.safetensors"
    protocol = json.dumps(study.protocol(recipe), sort_keys=True)
    return folder / f"recall-{sha256(protocol.encode()).hexdigest()[:8]}.npz"


def cells(study: "Study", recipe: Recipe, folder: Path) -> list[Row]:
    """The rows of one tested model: a cell each."""
    rows = []
    with np.load(result_path(study, recipe, folder), allow_pickle=False) as found:
        classes = found["classes"]
        for readout in study.readouts_of(recipe):
            accuracies = 100 * found[readout].mean(-1, dtype=np.float64)
            for shot, accuracy in zip(study.shots, accuracies, strict=True):
                rows.append(_row(study, recipe, readout, shot, accuracy, classes))
    return rows


def certainties(study: "Study", recipes: Sequence[Recipe], out: Path) -> list[Row]:
    """The sensitivity of each head and readout in each setting, with what is known of it: one row a grid."""
    groups: dict[tuple[str, str, str, str], dict[tuple[int, int], np.ndarray]] = {}
    for recipe in recipes:
        with np.load(result_path(study, recipe, out / recipe.name), allow_pickle=False) as found:
            for readout in study.readouts_of(recipe):
                cells = groups.setdefault((recipe.data, recipe.backbone, recipe.label, readout), {})
                cells[recipe.seed, recipe.train_shot] = 100 * found[readout].mean(-1)
    rows = []
    for (data, backbone, head, readout), cells in groups.items():
        seeds, shots = (sorted({key[axis] for key in cells}) for axis in (0, 1))
        if len(shots) < 2 or len(cells) < len(seeds) * len(shots):
            continue  # no sensitivity without at least two train shots, each with every seed
        known = certainty(np.stack([np.stack([cells[seed, shot] for shot in shots], 1) for seed in seeds]))
        row = {"data": data, "backbone": backbone, "head": head, "readout": readout, "seeds": len(seeds)}
        names = ("sensitivity", "low", "high", "noise_floor")
        row |= {name: round(getattr(known, name), 4) for name in names}
        rows.append(row | {"over_seeds": " ".join(f"{score:.4f}" for score in known.over_seeds)})
    return rows


def _row(study: "Study", recipe: Recipe, readout: str, shot: int, accuracy: np.ndarray, classes: np.ndarray) -> Row:
    return {
        "data": recipe.data,
        "backbone": recipe.backbone,
        "head": recipe.label,
        "readout": readout,
        "train_shot": recipe.train_shot,
        "seed": recipe.seed,
        "test_shot": shot,
        "way": study.way,
        "queries": study.queries,
        "episodes": study.episodes,
        "accuracy": round(float(accuracy.mean()), 4),
        "ci95": round(episode_interval(accuracy), 4),
        "ci95_classes": round(class_interval(accuracy, classes), 4),
        "model": recipe.id,
    }
