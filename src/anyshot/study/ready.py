"""Trained models that come with a study, and their features of its test classes: seen without images or training.

    ready/STUDY/test.npz                  the label of each test image, the name of each class
    ready/STUDY/MODEL/model.safetensors   weights as float16, the recipe inside
    ready/STUDY/MODEL/features.npz        features of the test images as float16

The folder `ready` lies beside the study's file.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyshot.errors import BadInput
from anyshot.files import read_json, whole, write_json
from anyshot.measure.evaluation import recalls_of_model
from anyshot.measure.recalls import write_recalls
from anyshot.models.model import load_model, read_tensors, write_tensors
from anyshot.progress import progress
from anyshot.recipe import Recipe
from anyshot.rows import Row
from anyshot.study.runner import is_done, write_tables
from anyshot.study.study import Source, Study, select


def run_ready(source: Source, out: Path, only: str = "") -> list[Row]:
    """Test the models that come with a study at its full protocol; write and return its table. Readouts that are fitted
    are left out: they would need the features of the training classes."""
    study, folder = source.load(), _folder(source.path)
    if not (folder / "test.npz").is_file():
        known = sorted(path.parent.name for path in folder.parent.glob("*/test.npz"))
        raise BadInput(f"no trained models come with {source.path.stem}: they do with {', '.join(known) or 'none'}.")
    recipes = [recipe for recipe in study.recipes if (folder / recipe.name).is_dir()]
    if not recipes:
        raise BadInput(f"the models in {folder} are of other recipes than {source.path} has now: train them anew.")
    recipes = select(recipes, only)
    readouts = {
        head: tuple(name for name in names if study.registry.readout(name).fit is None)
        for head, names in study.readouts.items()
    }
    study = replace(study, recipes=recipes, readouts=readouts)
    with np.load(folder / "test.npz", allow_pickle=False) as test:
        plan = study.protocol.plan(test["labels"].astype(np.int64), test["classes"].tolist())
    with progress("testing", float(len(recipes))) as advance:
        for recipe in recipes:
            result, here = study.result(recipe, out / recipe.name), folder / recipe.name
            if not is_done(recipe, result):
                write_json(out / recipe.name / "recipe.json", read_json(here / "recipe.json"))
                model, features = load_model(here, study.registry), _features(here)
                tested = study.readouts_of(recipe), plan, study.protocol.shots, study.registry
                write_recalls(
                    result, recalls_of_model(model, recipe.data, {"test": features}.__getitem__, None, *tested)
                )
            advance(1.0, recipe.name)
    return write_tables(study, recipes, out)


def write_ready(source: Source, study: Study, recipes: Sequence[Recipe], run: Path, data: Path) -> Path:
    """Keep these models of a run, and their features, beside the study; returns the folder."""
    folder = _folder(source.path)
    if len({recipe.data for recipe in recipes}) != 1:
        raise BadInput("models that come with a study must share one data set.")
    test = study.stores[recipes[0].data](data).part("test")
    _write_arrays(folder / "test.npz", labels=test.labels.astype(np.int16), classes=np.array(test.class_names))
    with progress("embedding", float(len(recipes))) as advance:
        for recipe in recipes:
            here = folder / recipe.name
            tensors, about = read_tensors(run / recipe.name / "model.safetensors")
            halves = {name: value.half() if value.is_floating_point() else value for name, value in tensors.items()}
            write_tensors(here / "model.safetensors", halves, about)
            write_json(here / "recipe.json", read_json(run / recipe.name / "recipe.json"))
            features = load_model(here, study.registry).features(test.items)
            if not np.abs(features).max() < torch.finfo(torch.float16).max:
                raise BadInput(f"the features of {recipe.name} do not fit into float16.")
            _write_arrays(here / "features.npz", features=features.astype(np.float16))
            advance(1.0, recipe.name)
    return folder


def _folder(study: Path) -> Path:
    return study.parent / "ready" / study.stem


def _features(folder: Path) -> np.ndarray:
    with np.load(folder / "features.npz", allow_pickle=False) as file:
        return file["features"].astype(np.float32)


def _write_arrays(path: Path, **arrays: Any) -> None:
    with whole(path) as aside, aside.open("wb") as file:
        np.savez_compressed(file, **arrays)
