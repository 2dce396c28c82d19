"""The runner of studies: trains and tests what is missing and skips what is done, so that a study resumes itself.

Each model is trained and tested as a job of its own, here or elsewhere (`launch`). A job leaves the model's weights and
its recalls, and the study's tables are functions of these.
"""

import contextlib
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import torch

import anyshot
from anyshot.data.store import Store
from anyshot.errors import BadInput, as_bad_input
from anyshot.files import read_json, write_json
from anyshot.machine import keep_freed_memory
from anyshot.measure.comparisons import compare_deviations, list_looks, run_until_apart, study_tables
from anyshot.measure.evaluate import embed_split, evaluate_model
from anyshot.measure.recalls import Recalls, read_recalls, write_recalls
from anyshot.models.devices import training_device, use_device
from anyshot.models.model import find_model
from anyshot.progress import print_message
from anyshot.recipe import Recipe
from anyshot.study import cost
from anyshot.study.inputs import check_inputs, describe_inputs, record_inputs
from anyshot.study.launch import Submit, get_launcher
from anyshot.study.study import Study, StudySource, list_pretrainings, pack_missing, select_recipes
from anyshot.study.watch import WatchedModel, watch_study
from anyshot.tables import Row, write_table
from anyshot.text import group_by
from anyshot.train.parallel import is_first, wait_for_all
from anyshot.train.training import check_recipe, open_training_features, train

# Epochs below which a cosine that starts at a temperature of 1 stays behind: after 12 epochs of cub32 it lost 3 to 22
# points on validation classes. The paper's trainings, which start at 1, have 90 epochs or more.
SHORT_EPOCHS = 90


@dataclass(frozen=True)
class Job:
    """One model to train and test, small enough to be sent to another machine."""

    source: StudySource
    recipe: Recipe
    folder: Path
    data: Path
    threads: int
    device: str = ""
    amp: bool = False
    low_memory: bool = False
    inputs: Mapping[str, str] = field(default_factory=dict)


class RunOptions(TypedDict, total=False):
    """Where and how the models of a study run.

    workers: Models trained at once here; 0 for as many as there are cores, within memory.
    on: Where models run: here, ray, ray://ADDRESS or slurm.
    tensorboard: Whether to mirror the histories into event files.
    device: Where models train, as torch names it.
    amp: Whether backbones train in bfloat16.
    low_memory: Whether ResNet-12 trains in less memory and more time.
    """

    workers: int
    on: str
    tensorboard: bool
    device: str
    amp: bool
    low_memory: bool


def run_study(
    source: StudySource,
    out: Path,
    data: Path,
    only: str = "",
    *,
    images: Path | None = None,
    **options: Unpack[RunOptions],
) -> list[Row]:
    """Train and evaluate the models of a study that are missing below `out`, and write its tables.

    Args:
        source: The study.
        out: Folder of results.
        data: Folder of stores.
        only: Which models, by the words of their names (`select_recipes`); all where empty.
        images: What a missing store is made of.
        options: Where and how models run.

    Returns:
        The rows of the study's table.
    """
    workers, on, device = options.get("workers", 0), options.get("on", "here"), options.get("device", "")
    if workers < 0:
        raise BadInput(f"workers are models trained at once, 0 for one per core, not {workers}.")
    use_device(device)
    study = source.load()
    recipes = select_recipes(study.recipes, only)
    if warning := find_low_temperatures(study, recipes):
        print_message(f"{warning} A short training then ranks them too low, and as too robust.")
    out, data = out.resolve(), data.resolve()
    everything = [*list_pretrainings(recipes), *recipes]
    for recipe in everything:
        if isinstance(recipe.start, str):
            find_model(Path(recipe.start), f"; {recipe.name} begins with it")
    inputs = _prepare_data(study, recipes, data, images)
    models = [(recipe, out / recipe.name) for recipe in everything]
    check_inputs([(folder, inputs.get(recipe, {})) for recipe, folder in models])
    watched = [WatchedModel(recipe, folder, study.result(recipe, folder)) for recipe, folder in models]
    if missing := [model for model in watched if not is_done(model.recipe, model.result)]:
        workers, threads = cost.plan_workers(everything, study.registry, workers)
        hardware = device, options.get("amp", False), options.get("low_memory", False)
        jobs = [
            Job(source, model.recipe, model.folder, data, threads, *hardware, inputs.get(model.recipe, {}))
            for model in missing
        ]
        with (
            get_launcher(on, min(workers, len(jobs)), threads, out / "slurm") as submit,
            watch_study(watched, out / "tensorboard" if options.get("tensorboard") else None),
        ):
            _run_jobs(jobs, submit)
            if not is_first():
                return []
    return write_tables(study, recipes, out)


def _prepare_data(
    study: Study, recipes: Sequence[Recipe], data: Path, images: Path | None
) -> dict[Recipe, dict[str, str]]:
    """Make and embed stores once, before the workers want them, and describe what each model is made from.

    Of the processes of torchrun only the first does so.
    """
    if os.environ.get("RANK", "0") != "0":
        return {}
    if images is not None:
        pack_missing(study, recipes, data, images, print_message)
    stores = {name: study.store(name, data) for name in {recipe.data for recipe in recipes}}
    for recipe in {(one.data, one.backbone): one for one in recipes if one.frozen}.values():
        open_training_features(recipe, stores[recipe.data], study.registry)
    return describe_inputs(study, [*list_pretrainings(recipes), *recipes], stores)


def find_low_temperatures(study: Study, recipes: Sequence[Recipe]) -> str:
    """Return a sentence on the heads whose logits start at another scale than suits a short training, if any."""
    short = {recipe.head: recipe.temperature for recipe in recipes if recipe.epochs < SHORT_EPOCHS and not recipe.batch}
    usual = {name: study.registry.head(name).temperature for name in short}
    names = [f"{name} (from {short[name]:g}, not {usual[name]:g})" for name in short if short[name] < usual[name]]
    return f"The temperature of these heads starts low: {', '.join(names)}." if names else ""


def write_tables(study: Study, recipes: Sequence[Recipe], out: Path) -> list[Row]:
    """Write the study's tables from the recalls of its models, and return the rows of the first."""
    tables = study_tables(recalls_of_study(study, recipes, out))
    for name, rows in tables.items():
        write_table(out / f"{name}.csv", rows)
    about = read_json(out / "about.json") if (out / "about.json").exists() else {}
    versions = {"anyshot": anyshot.__version__, "Python": platform.python_version()}
    versions |= {"torch": str(torch.__version__), "numpy": np.__version__}
    write_json(out / "about.json", about | {"versions": versions, "episode_seed": study.protocol.seed})
    return tables["table"]


def run_study_early(run: Callable[[StudySource], list[Row]], source: StudySource, out: Path, only: str) -> list[Row]:
    """Run a study on a part of its episodes, and on more only where these do not tell its heads apart."""

    def run_part(episodes: int) -> tuple[StudySource, list[Row]]:
        part = replace(source, episodes=episodes)
        return part, run(part)

    def compare(result: tuple[StudySource, list[Row]], level: float) -> list[Row]:
        study = result[0].load()
        recipes = [recipe for recipe in select_recipes(study.recipes, only) if (out / recipe.name).is_dir()]
        return compare_deviations(recalls_of_study(study, recipes, out), level)

    (_, rows), message = run_until_apart(run_part, list_looks(source.load().protocol.episodes), compare)
    print_message(message)
    return rows


def recalls_of_study(study: Study, recipes: Sequence[Recipe], out: Path) -> list[Recalls]:
    """Return the recalls of tested models, all readouts of each."""
    return [one for recipe in recipes for one in read_recalls(study.result(recipe, out / recipe.name))]


def is_done(recipe: Recipe, result: Path) -> bool:
    """Return whether a model has been trained and tested; a damaged result counts as missing."""
    with contextlib.suppress(BadInput):
        return result.exists() if recipe.batch else bool(read_recalls(result))
    return False


def _run_jobs(jobs: Sequence[Job], submit: Submit) -> None:
    """Submit each job as soon as the pretraining that it starts from is done, and wait for all.

    A model that fails does not stop the others; the first failure is raised at the end.
    """
    waiting, running = list(jobs), dict[Any, Job]()
    failures: list[str] = []
    while waiting or running:
        unfinished = {job.recipe for job in [*waiting, *running.values()]}
        for job in [job for job in waiting if job.recipe.start not in unfinished]:
            waiting.remove(job)
            running[submit(run_job, job)] = job
        for pending in _wait_for_any(running):
            job = running.pop(pending)
            with as_bad_input(BrokenProcessPool, "a worker was killed; the same command goes on where it stopped."):
                failure = pending.result()
            if failure:
                failures.append(failure)
                waiting = [other for other in waiting if other.recipe.start != job.recipe]
    if failures:
        more = f" ({len(failures) - 1} more failed; the others are done.)" if len(failures) > 1 else ""
        raise BadInput(failures[0] + more)


def _wait_for_any(running: Mapping[Any, Job]) -> list[Any]:
    """Return the futures that have ended, after there is one."""
    while not (ended := [future for future in running if future.done()]):
        time.sleep(0.1)
    return ended


def run_job(job: Job) -> str:
    """Train and test one model in a worker; return an error message, empty where all went well."""
    keep_freed_memory()
    torch.set_num_threads(job.threads)
    try:
        use_device(job.device, job.amp, job.low_memory)
        study = job.source.load()
        run_model(study, job.recipe, study.store(job.recipe.data, job.data), job.folder, job.inputs)
    except BadInput as error:
        return str(error)
    return ""


def run_model(
    study: Study, recipe: Recipe, store: Store, folder: Path, inputs: Mapping[str, str] | None = None
) -> None:
    """Train a model of a study and test it, as far as that has not been done.

    Args:
        study: The study.
        recipe: The model.
        store: Its data.
        folder: Folder of the run.
        inputs: What it is made from, to be recorded in the folder.
    """
    result = study.result(recipe, folder)
    if is_done(recipe, result):
        return
    store = open_training_features(recipe, store, study.registry)
    _check_model(study, recipe, store)
    record_inputs(folder, inputs or {})
    model = train(recipe, store, folder, study.registry).to(training_device())
    if not recipe.batch and is_first():
        embedded = embed_split(store, model, registry=study.registry)
        write_recalls(result, evaluate_model(embedded, study.readouts_of(recipe), study.protocol, study.registry))
    wait_for_all()


def _check_model(study: Study, recipe: Recipe, store: Store) -> None:
    """Raise BadInput where the data of a model has too few images to train or test it."""
    check_recipe(recipe, store, study.registry)
    test = store.part("test")
    if not recipe.batch:
        study.protocol.plan(test.labels, test.class_names)


def plan_study(source: StudySource, data: Path, only: str = "", workers: int = 0) -> str:
    """Return what a study would do, and about how long it would take on this machine, as a table."""
    study = source.load()
    recipes = select_recipes(study.recipes, only)
    everything = [*list_pretrainings(recipes), *recipes]
    images: dict[str, int | tuple[int, int, int]] = dict(study.train_images)
    for name, alike in group_by(everything, lambda recipe: recipe.data).items():
        if name not in images:
            store = study.store(name, data)
            counts = Counter(np.array(store.class_split)[store.labels].tolist())
            images[name] = counts["train"], counts["val"], counts["test"]
            for recipe in alike:
                _check_model(study, recipe, store)
    keep_freed_memory()
    rows = cost.estimate_cost(everything, study.registry, images, study.protocol)
    return cost.format_estimate(rows, *cost.plan_workers(everything, study.registry, workers))
