"""Trained models that come with a study, with their features of its test classes: tested without images or training.

    ready/STUDY/test.npz                  the label of each test image, the name of each class
    ready/STUDY/MODEL/model.safetensors   weights as float16, the recipe inside
    ready/STUDY/MODEL/features.npz        features of the test images as float16
    ready/STUDY/MODEL/readouts.safetensors   readouts fitted on the training classes, as float16

The folder `ready` is beside the study's file.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from anyshot.data.archives import read_npz
from anyshot.errors import BadInput
from anyshot.files import atomic_write, read_json, write_json
from anyshot.measure.engine import FitReadout
from anyshot.measure.evaluate import EmbeddedSplit, embed_split, evaluate_model
from anyshot.measure.recalls import write_npz, write_recalls
from anyshot.models.law import Parameters
from anyshot.models.model import load_model, read_tensors, write_tensors
from anyshot.progress import progress
from anyshot.recipe import Recipe
from anyshot.study.runner import is_done, write_tables
from anyshot.study.study import Study, StudySource, select_recipes
from anyshot.tables import Row


def run_ready(source: StudySource, out: Path, only: str = "") -> list[Row]:
    """Test the models that come with a study by its full protocol, write its tables, return the rows of the first."""
    study, folder = source.load(), _folder(source.path)
    if not (folder / "test.npz").is_file():
        others = sorted(path.parent.name for path in folder.parent.glob("*/test.npz"))
        raise BadInput(
            f"no trained models come with {source.path.stem} (they do with {', '.join(others) or 'none'}): train them "
            f"with `anyshot study {source.path.stem}`."
        )
    recipes = [recipe for recipe in study.recipes if (folder / recipe.name).is_dir()]
    if not recipes:
        raise BadInput(f"the models in {folder} are of other recipes than {source.path} has now: train them anew.")
    recipes = select_recipes(recipes, only)
    study = replace(study, recipes=recipes)
    test = read_npz(folder / "test.npz")
    labels, classes = test["labels"].astype(np.int64), test["classes"].tolist()
    with progress("testing", float(len(recipes))) as advance:
        for recipe in recipes:
            run, ready = out / recipe.name, folder / recipe.name
            result = study.result(recipe, run)
            if not is_done(recipe, result):
                write_json(run / "recipe.json", read_json(ready / "recipe.json"))
                with atomic_write(run / "model.safetensors") as temporary:
                    shutil.copyfile(ready / "model.safetensors", temporary)
                model = load_model(ready, study.registry)
                features = read_npz(ready / "features.npz")["features"].astype(np.float32)
                embedded = EmbeddedSplit(recipe.data, model, features, labels, classes, _read_readouts(ready))
                recalls = evaluate_model(embedded, study.readouts_of(recipe), study.protocol, study.registry)
                write_recalls(result, recalls)
            advance(1.0, recipe.name)
    return write_tables(study, recipes, out)


def write_ready(source: StudySource, study: Study, recipes: Sequence[Recipe], run: Path, data: Path) -> Path:
    """Write models of a run, and their features, beside the study for `--ready`, and return the folder."""
    folder = _folder(source.path)
    if len({recipe.data for recipe in recipes}) != 1:
        raise BadInput("models that come with a study must share one data set.")
    store = study.store(recipes[0].data, data)
    test = store.part("test")
    write_npz(folder / "test.npz", labels=test.labels.astype(np.int16), classes=np.array(test.class_names))
    with progress("embedding", float(len(recipes))) as advance:
        for recipe in recipes:
            ready = folder / recipe.name
            tensors, about = read_tensors(run / recipe.name / "model.safetensors")
            halves = {name: value.half() if value.is_floating_point() else value for name, value in tensors.items()}
            write_tensors(ready / "model.safetensors", halves, about)
            write_json(ready / "recipe.json", read_json(run / recipe.name / "recipe.json"))
            embedded = embed_split(store, load_model(ready, study.registry), registry=study.registry)
            features, fit_readout = embedded.features, embedded.fit_readout
            names = [name for name in study.readouts_of(recipe) if study.registry.readout(name).fit]
            halves = {f"{name}.{part}": value.half() for name in names for part, value in fit_readout(name).items()}
            if halves:
                write_tensors(ready / "readouts.safetensors", halves, {})
            if not np.abs(features).max() < torch.finfo(torch.float16).max:
                raise BadInput(f"the features of {recipe.name} do not fit into float16.")
            write_npz(ready / "features.npz", features=features.astype(np.float16))
            advance(1.0, recipe.name)
    return folder


def _folder(study: Path) -> Path:
    return study.parent / "ready" / study.stem


def _read_readouts(folder: Path) -> FitReadout:
    """Return a function that gives what a readout has learned, from the folder of a model."""
    path = folder / "readouts.safetensors"
    tensors = read_tensors(path)[0] if path.is_file() else {}

    def fit_readout(readout: str) -> Parameters:
        prefix = f"{readout}."
        return {name.removeprefix(prefix): value.float() for name, value in tensors.items() if name.startswith(prefix)}

    return fit_readout
