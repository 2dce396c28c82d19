"""A study: recipes and readouts, and a runner that does what is missing.

A study is a Python file with a function `study(heads) -> Study`; the package's own lie in `studies/`, and a path names
any other. Each model is trained and tested as a job of its own, here or elsewhere (`launch`); what is done is skipped:
a study is its own resume.
"""

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from anyshot.data.store import Store, open_store
from anyshot.errors import BadInput, choose, unknown
from anyshot.files import own_studies, read_json, whole, write_json
from anyshot.machine import keep_memory
from anyshot.measure.readouts import check_readout
from anyshot.models.heads import HEADS, Head
from anyshot.models.pretraining import PRETRAINING
from anyshot.recipe import Recipe
from anyshot.rows import Row, write_table
from anyshot.study.launch import Pending, Submit, launcher
from anyshot.study.results import cells, certainties, result_path
from anyshot.study.watch import Watched, watching
from anyshot.versions import versions

if TYPE_CHECKING:
    from anyshot.measure.plan import Plan
    from anyshot.models.model import Model
    from anyshot.study.cost import Speeds


@dataclass(frozen=True, kw_only=True)
class Study:
    """What to train, on which stores, and how to read and test it."""

    recipes: Sequence[Recipe]
    stores: Mapping[str, Callable[[Path], Store]]
    """The name a recipe gives its data, and a function that opens or makes the store in the folder of data."""
    readouts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Readouts of each head besides its own."""
    heads: Mapping[str, Head] = field(default_factory=dict)
    """Heads of this study that the package does not have."""
    train_images: Mapping[str, int] = field(default_factory=dict)
    """How many training images a data set has, for an estimate of the cost where its store is not at hand."""
    shots: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    way: int = 5
    queries: int = 16
    episodes: int = 10_000
    seed: int = 0

    @property
    def all_heads(self) -> dict[str, Head]:
        return {**HEADS, **PRETRAINING, **self.heads}

    def readouts_of(self, recipe: Recipe) -> tuple[str, ...]:
        return ("own", *self.readouts.get(recipe.head, ()))

    def plan(self, labels: Int[np.ndarray, " image"], class_names: Sequence[str]) -> "Plan":
        """The episodes that all models of the study are tested on."""
        from anyshot.measure.plan import Plan

        return Plan(labels, self.way, max(self.shots), self.queries, self.episodes, self.seed, tuple(class_names))

    def protocol(self, recipe: Recipe) -> dict[str, Any]:
        """All that decides a model's test, besides the model and the store."""
        names = ("shots", "way", "queries", "episodes", "seed")
        return {name: getattr(self, name) for name in names} | {"readouts": self.readouts_of(recipe)}


@dataclass(frozen=True)
class Source:
    """Where a study comes from, small enough to be sent to another process, which loads it anew."""

    path: Path
    heads: tuple[str, ...] | None = None

    def load(self) -> Study:
        spec = importlib.util.spec_from_file_location(f"anyshot_study_{self.path.stem}", self.path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(self.path.parent))  # a study may import what lies beside it
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str(self.path.parent))
        if not callable(getattr(module, "study", None)):
            raise BadInput(f"{self.path} is not a study: it must define a function study(heads) that returns a Study.")
        study: Study = module.study(tuple(HEADS) if self.heads == ("all",) else self.heads)
        for recipe in [*study.recipes, *starts(study.recipes)]:
            head = choose("head", recipe.head, study.all_heads)
            choose("store in this study", recipe.data, study.stores)
            for readout in study.readouts_of(recipe):
                check_readout(readout, recipe.head, head)
        return study


def find_study(name: str) -> Path:
    """The file of a study: a path, or the name of one of the package's own."""
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise BadInput(f"there is no study file {name}.")
        return Path(name).resolve()
    known = {path.stem: path for folder in own_studies() for path in sorted(folder.glob("[a-z]*.py"))}
    if name not in known:
        raise BadInput(unknown("study", name, known) + " The path of a .py file works too.")
    return known[name]


def packed(name: str, kind: str, options: str = "") -> Callable[[Path], Store]:
    """Opens the store `name` of a folder of data, or says how to make it."""
    how = f" {options}" if options else ""

    def open_it(data: Path) -> Store:
        if not (data / name / "store.json").is_file():
            raise BadInput(
                f"there is no store {data / name}: make it with `anyshot pack {kind} SOURCE{how} -o {data / name}`."
            )
        return open_store(data / name)

    return open_it


def starts(recipes: Sequence[Recipe]) -> list[Recipe]:
    """The pretrainings that recipes begin with, each once."""
    return list(dict.fromkeys(recipe.start for recipe in recipes if recipe.start is not None))


def select(recipes: Sequence[Recipe], only: str) -> list[Recipe]:
    """The recipes that `only` names: words among data, backbone, head, 4-shot, seed-0, joined by slashes, matched whole
    and all of them (cub/conv4/frn); several such names are separated by commas."""
    wanted = [name.split("/") for name in only.split(",") if name]
    known = sorted({word for recipe in recipes for word in recipe.path})
    for word in (word for name in wanted for word in name):
        if word not in known:
            raise BadInput(unknown("word to select models by", word, known))
    chosen = [recipe for recipe in recipes if not wanted or any(set(name) <= set(recipe.path) for name in wanted)]
    if not chosen:
        raise BadInput(f"no model of the study matches {only!r}: models are named like {'/'.join(recipes[0].path)!r}.")
    return chosen


@dataclass(frozen=True)
class Job:
    """One model to train and test, small enough to be sent to another machine."""

    source: Source
    recipe: Recipe
    folder: Path
    data: Path
    threads: int


def run_study(
    source: Source,
    out: Path,
    data: Path,
    only: str = "",
    workers: int = 0,
    on: str = "here",
    tensorboard: bool = False,
) -> list[Row]:
    """Train and evaluate what is missing below `out`; write and return the study's table."""
    from anyshot.study.cost import cores, side_by_side
    from anyshot.train.parallel import is_first

    study = source.load()
    recipes = select(study.recipes, only)
    out, data = out.resolve(), data.resolve()
    for name in {recipe.data for recipe in recipes} if os.environ.get("RANK", "0") == "0" else ():
        study.stores[name](data)  # made once, before the workers want it
    everything = [*starts(recipes), *recipes]
    folders = [out / recipe.name for recipe in everything]
    watched = [Watched(*both, result_path(study, *both)) for both in zip(everything, folders, strict=True)]
    if missing := [model for model in watched if not model.result.exists()]:
        speeds = _speeds(source, study, out) if on == "here" and not workers else None
        if speeds:
            _write_about(out, study, images_a_second={str(cores()): asdict(speeds)})
        workers, threads = side_by_side(everything, study.all_heads, workers, speeds)
        jobs = [Job(source, model.recipe, model.folder, data, threads) for model in missing]
        with (
            launcher(on, min(workers, len(jobs)), threads, out / "slurm") as submit,
            watching(watched, out / "tensorboard" if tensorboard else None),
        ):
            _run(jobs, submit)
            if not is_first():
                return []
    return write_tables(study, recipes, out)


def write_tables(study: Study, recipes: Sequence[Recipe], out: Path) -> list[Row]:
    """From the recalls of tested models to the study's tables; the rows of the first."""
    rows = [row for recipe in recipes for row in cells(study, recipe, out / recipe.name)]
    write_table(out / "table.csv", rows)
    write_table(out / "sensitivity.csv", certainties(study, recipes, out))
    _write_about(out, study)
    return rows


def _speeds(source: Source, study: Study, out: Path) -> "Speeds | None":
    """What decides how the models of a study share the cores: measured once and then kept, since weights depend on the
    number of threads. It is the whole study's, whatever part of it is asked for."""
    from anyshot.study.cost import Speeds, cores, measure_speeds

    kept = _about(out).get("images_a_second", {}).get(str(cores()))
    return Speeds(**kept) if kept else measure_speeds(source.load, [*starts(study.recipes), *study.recipes])


def _about(out: Path) -> dict[str, Any]:
    return read_json(out / "about.json") if (out / "about.json").exists() else {}


def _write_about(out: Path, study: Study, images_a_second: Mapping[str, Any] | None = None) -> None:
    """What the results depend on besides the recipes; speeds measured with other numbers of cores are kept."""
    speeds = {**_about(out).get("images_a_second", {}), **(images_a_second or {})}
    about = {"versions": versions(), "episode_seed": study.seed}
    write_json(out / "about.json", about | ({"images_a_second": speeds} if speeds else {}))


def _run(jobs: Sequence[Job], submit: Submit) -> None:
    """Submit each job as soon as the pretraining that it begins with is done, and wait for all. A model that fails does
    not stop the others; the first failure is told at the end."""
    waiting, running = list(jobs), dict[Any, Job]()
    failures: list[str] = []
    while True:
        unfinished = {job.recipe for job in [*waiting, *running.values()]}
        for job in [job for job in waiting if job.recipe.start not in unfinished]:
            waiting.remove(job)
            running[submit(work, job)] = job
        if not running:
            break
        ended = [pending for pending in running if pending.done()]
        for pending in ended:
            job = running.pop(pending)
            if failure := _ending(pending):
                failures.append(failure)
                waiting = [other for other in waiting if other.recipe.start != job.recipe]
        if not ended:
            time.sleep(0.1)
    if failures:
        more = f" ({len(failures) - 1} more failed; the others are done.)" if len(failures) > 1 else ""
        raise BadInput(failures[0] + more)


def _ending(pending: Pending) -> str:
    try:
        return pending.result()
    except BrokenProcessPool:
        raise BadInput("a worker was killed; the same command goes on where it stopped.") from None


def work(job: Job) -> str:
    """Train and test one model, in a worker; what was wrong, where it could not be done."""
    import torch

    keep_memory()
    torch.set_num_threads(job.threads)
    try:
        study = job.source.load()
        run_model(study, job.recipe, study.stores[job.recipe.data](job.data), job.folder)
    except BadInput as error:
        return str(error)
    return ""


def run_model(study: Study, recipe: Recipe, store: Store, folder: Path) -> None:
    """Train a model of a study and test it, as far as it has not been done."""
    from anyshot.train.parallel import is_first, wait
    from anyshot.train.training import train

    result = result_path(study, recipe, folder)
    if result.exists():
        return
    test = store.part("test")
    # The plan comes before the training, to say early what does not fit.
    plan = None if recipe.batch else study.plan(test.labels, test.class_names)
    model = train(recipe, store, folder, study.all_heads)
    if plan is not None and is_first():
        train_labels = store.part("train").labels
        evaluate_model(study, model, lambda split: model.features(store.part(split).items), train_labels, plan, result)
    wait()


def evaluate_model(
    study: Study,
    model: "Model",
    features: Callable[[str], Float[np.ndarray, "image position channel"]],
    train_labels: Int[np.ndarray, " image"] | None,
    plan: "Plan",
    result: Path,
) -> None:
    """Recalls of all readouts of a model, and the classes of the episodes, as one file. `features` gives those of the
    images of a split; those of the training classes are asked for only if a projection is fitted."""
    import torch

    from anyshot.measure.engine import Reading
    from anyshot.measure.readouts import read_out

    def vectors(split: str) -> torch.Tensor:
        return model.embed(torch.from_numpy(features(split)))

    @cache
    def base() -> tuple[torch.Tensor, torch.Tensor]:
        assert train_labels is not None
        return vectors("train"), torch.from_numpy(train_labels)

    readouts = study.readouts_of(model.recipe)
    asked = [(Reading(model.head, model.head_parameters), readout) for readout in readouts]
    found = dict(zip(readouts, read_out(asked, vectors("test"), base, plan, study.shots), strict=True))
    classes = plan.draw(0, plan.episodes).classes
    with whole(result) as aside, aside.open("wb") as file:
        arrays: dict[str, Any] = {"classes": classes.astype(np.int32), **found}
        np.savez_compressed(file, **arrays)


def with_seeds(recipes: Sequence[Recipe], seeds: Sequence[int]) -> list[Recipe]:
    """The same recipes, once a seed."""
    return [replace(recipe, seed=seed) for seed in seeds for recipe in recipes]


def plan_study(source: Source, out: Path, data: Path, only: str = "", workers: int = 0, on: str = "here") -> str:
    """What a study would do, and about how long it would take on this machine."""
    from anyshot.study.cost import describe, estimate, side_by_side

    study = source.load()
    recipes = select(study.recipes, only)
    everything = [*starts(recipes), *recipes]
    images = {
        name: study.train_images.get(name) or len(study.stores[name](data).part("train").items)
        for name in {recipe.data for recipe in recipes}
    }
    speeds = _speeds(source, study, out) if on == "here" and not workers else None
    keep_memory()
    rows = estimate(everything, study.all_heads, images)
    return describe(rows, *side_by_side(everything, study.all_heads, workers, speeds), speeds)
