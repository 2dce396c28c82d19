"""The runner of studies: does what is missing, and skips what is done. A study is its own resume.

Each model is trained and tested as a job of its own, here or elsewhere (`launch`); what it leaves are its weights and
its recalls, and the study's tables are functions of these.
"""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from anyshot.data.store import Store
from anyshot.errors import BadInput, as_bad_input
from anyshot.files import read_json, write_json
from anyshot.machine import keep_freed_memory
from anyshot.measure.comparisons import study_tables
from anyshot.measure.evaluate import evaluate_model, fit_readouts_on_training_classes
from anyshot.measure.recalls import Recalls, read_recalls, write_recalls
from anyshot.models.devices import use_device
from anyshot.progress import print_message
from anyshot.recipe import Recipe
from anyshot.study import cost
from anyshot.study.launch import Submit, get_launcher
from anyshot.study.study import Study, StudySource, list_pretrainings, pack_missing, select_recipes
from anyshot.study.watch import WatchedModel, watch_study
from anyshot.tables import Row, write_table
from anyshot.train.parallel import is_first, wait_for_all
from anyshot.train.training import open_training_features, train
from anyshot.versions import versions


@dataclass(frozen=True)
class Job:
    """One model to train and test, small enough to be sent to another machine."""

    source: StudySource
    recipe: Recipe
    folder: Path
    data: Path
    threads: int
    device: str = ""


def run_study(
    source: StudySource,
    out: Path,
    data: Path,
    only: str = "",
    workers: int = 0,
    on: str = "here",
    tensorboard: bool = False,
    device: str = "",
    images: Path | None = None,
) -> list[Row]:
    """Train and evaluate what is missing below `out`; write and return the study's table. A store that is missing is
    made of `images`."""
    if workers < 0:
        raise BadInput(f"workers are models trained side by side, 0 for what is faster, not {workers}.")
    use_device(device)
    study = source.load()
    recipes = select_recipes(study.recipes, only)
    out, data = out.resolve(), data.resolve()
    if os.environ.get("RANK", "0") == "0":  # made once, and embedded once, before the workers want it
        if images is not None:
            pack_missing(study, recipes, data, images, print_message)
        stores = {name: study.store(name, data) for name in {recipe.data for recipe in recipes}}
        for recipe in {(one.data, one.backbone): one for one in recipes if one.frozen}.values():
            open_training_features(recipe, stores[recipe.data], study.registry)
    everything = [*list_pretrainings(recipes), *recipes]
    folders = [out / recipe.name for recipe in everything]
    watched = [WatchedModel(*both, study.result(*both)) for both in zip(everything, folders, strict=True)]
    if missing := [model for model in watched if not is_done(model.recipe, model.result)]:
        speeds = _speeds(source, study, recipes, out, data) if on == "here" and not workers else None
        if speeds:
            _write_about(out, study, images_a_second={str(cost.count_cores()): asdict(speeds)})
        workers, threads = cost.plan_workers(everything, study.registry, workers, speeds)
        jobs = [Job(source, model.recipe, model.folder, data, threads, device) for model in missing]
        with (
            get_launcher(on, min(workers, len(jobs)), threads, out / "slurm") as submit,
            watch_study(watched, out / "tensorboard" if tensorboard else None),
        ):
            _run(jobs, submit)
            if not is_first():
                return []
    return write_tables(study, recipes, out)


def write_tables(study: Study, recipes: Sequence[Recipe], out: Path) -> list[Row]:
    """From the recalls of tested models to the study's tables; the rows of the first."""
    tables = study_tables(recalls_of_study(study, recipes, out))
    for name, rows in tables.items():
        write_table(out / f"{name}.csv", rows)
    _write_about(out, study)
    return tables["table"]


def recalls_of_study(study: Study, recipes: Sequence[Recipe], out: Path) -> list[Recalls]:
    """The recalls that tested models left, all readouts of each."""
    return [one for recipe in recipes for one in read_recalls(study.result(recipe, out / recipe.name))]


def is_done(recipe: Recipe, result: Path) -> bool:
    """Whether a model has been trained and tested; a damaged result is a missing one."""
    with contextlib.suppress(BadInput):
        return result.exists() if recipe.batch else bool(read_recalls(result))
    return False


def _speeds(source: StudySource, study: Study, asked: Sequence[Recipe], out: Path, data: Path) -> "cost.Speeds | None":
    """What decides how the models of a study share the cores: measured once and then kept, since weights depend on the
    number of threads. It is the whole study's, whatever part of it is asked for. A short study goes without."""
    if speeds := _about(out).get("images_a_second", {}).get(str(cost.count_cores())):
        return cost.Speeds(**speeds)
    recipes = [*list_pretrainings(study.recipes), *study.recipes]
    images = {**study.train_images, **_train_images(study, asked, data)}
    if images.keys() >= {recipe.data for recipe in recipes} and cost.is_short(recipes, study.registry, images):
        return None
    return cost.measure_speeds(source.load, recipes)


def _train_images(study: Study, recipes: Sequence[Recipe], data: Path) -> dict[str, int]:
    """Training images of each set: as the study says, else as many as its store has."""
    return {
        name: study.train_images.get(name) or len(study.store(name, data).part("train").items)
        for name in {recipe.data for recipe in recipes}
    }


def _about(out: Path) -> dict[str, Any]:
    return read_json(out / "about.json") if (out / "about.json").exists() else {}


def _write_about(out: Path, study: Study, images_a_second: Mapping[str, Any] | None = None) -> None:
    """What the results depend on besides the recipes; speeds measured with other numbers of cores are kept."""
    speeds = {**_about(out).get("images_a_second", {}), **(images_a_second or {})}
    about = {"versions": versions(), "episode_seed": study.protocol.seed}
    write_json(out / "about.json", about | ({"images_a_second": speeds} if speeds else {}))


def _run(jobs: Sequence[Job], submit: Submit) -> None:
    """Submit each job as soon as the pretraining that it begins with is done, and wait for all. A model that fails does
    not stop the others; the first failure is said at the end."""
    waiting, running = list(jobs), dict[Any, Job]()
    failures: list[str] = []
    while True:
        unfinished = {job.recipe for job in [*waiting, *running.values()]}
        for job in [job for job in waiting if job.recipe.start not in unfinished]:
            waiting.remove(job)
            running[submit(run_job, job)] = job
        if not running:
            break
        ended = [pending for pending in running if pending.done()]
        for pending in ended:
            job = running.pop(pending)
            with as_bad_input(BrokenProcessPool, "a worker was killed; the same command goes on where it stopped."):
                failure = pending.result()
            if failure:
                failures.append(failure)
                waiting = [other for other in waiting if other.recipe.start != job.recipe]
        if not ended:
            time.sleep(0.1)
    if failures:
        more = f" ({len(failures) - 1} more failed; the others are done.)" if len(failures) > 1 else ""
        raise BadInput(failures[0] + more)


def run_job(job: Job) -> str:
    """Train and test one model, in a worker; what was wrong, where it could not be done."""
    keep_freed_memory()
    torch.set_num_threads(job.threads)
    try:
        use_device(job.device)
        study = job.source.load()
        run_model(study, job.recipe, study.store(job.recipe.data, job.data), job.folder)
    except BadInput as error:
        return str(error)
    return ""


def run_model(study: Study, recipe: Recipe, store: Store, folder: Path) -> None:
    """Train a model of a study and test it, as far as it has not been done."""
    result = study.result(recipe, folder)
    if is_done(recipe, result):
        return
    store = open_training_features(recipe, store, study.registry)
    test = store.part("test")
    # The plan comes before the training, to say early what does not fit.
    plan = None if recipe.batch else study.protocol.plan(test.labels, test.class_names)
    model = train(recipe, store, folder, study.registry)
    if plan is not None and is_first():
        features, fitted = model.features(test.items), fit_readouts_on_training_classes(model, store, study.registry)
        asked = study.readouts_of(recipe), plan, study.protocol.shots, study.registry
        write_recalls(result, evaluate_model(model, recipe.data, features, fitted, *asked))
    wait_for_all()


def plan_study(source: StudySource, out: Path, data: Path, only: str = "", workers: int = 0, on: str = "here") -> str:
    """What a study would do, and about how long it would take on this machine."""
    study = source.load()
    recipes = select_recipes(study.recipes, only)
    everything = [*list_pretrainings(recipes), *recipes]
    images = _train_images(study, recipes, data)
    speeds = _speeds(source, study, recipes, out, data) if on == "here" and not workers else None
    keep_freed_memory()
    rows = cost.estimate_cost(everything, study.registry, images)
    return cost.format_estimate(rows, *cost.plan_workers(everything, study.registry, workers, speeds), speeds)
