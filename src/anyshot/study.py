"""A study: recipes and readouts, and a runner that does what is missing.

A study is a Python file with a function `study(heads) -> Study`; the package's own lie in `studies/`, and a path names
any other. Each model is trained and tested in a process of its own; what is done is skipped: a study is its own resume.
"""

import importlib.util
import json
import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from anyshot.data.store import Store
from anyshot.errors import BadInput, choose, unknown
from anyshot.files import whole
from anyshot.heads import HEADS, Head
from anyshot.intervals import class_interval, episode_interval
from anyshot.progress import progress
from anyshot.readouts import check_readout
from anyshot.recipe import Recipe
from anyshot.sensitivity import certainty
from anyshot.table import Row, write_table

EVALUATION_WEIGHT = 1.0  # an evaluation counts as so many epochs in the time left


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
    shots: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    way: int = 5
    queries: int = 16
    episodes: int = 10_000
    seed: int = 0

    @property
    def all_heads(self) -> dict[str, Head]:
        return {**HEADS, **self.heads}

    def readouts_of(self, recipe: Recipe) -> tuple[str, ...]:
        return ("own", *self.readouts.get(recipe.head, ()))

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
        spec.loader.exec_module(module)
        if not callable(getattr(module, "study", None)):
            raise BadInput(f"{self.path} is not a study: it must define a function study(heads) that returns a Study.")
        study: Study = module.study(tuple(HEADS) if self.heads == ("all",) else self.heads)
        for recipe in study.recipes:
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
    here = Path(__file__).resolve()
    folders = [here.parent / "studies", here.parents[2] / "studies"]
    known = {path.stem: path for folder in folders if folder.is_dir() for path in sorted(folder.glob("[a-z]*.py"))}
    if name not in known:
        raise BadInput(unknown("study", name, known) + " The path of a .py file works too.")
    return known[name]


def run_study(source: Source, out: Path, data: Path, only: str = "", workers: int = 0) -> list[Row]:
    """Train and evaluate what is missing below `out`; write and return the study's table."""
    study = source.load()
    recipes = [recipe for recipe in study.recipes if only in f"{recipe.data}/{recipe.backbone}/{recipe.head}"]
    if not recipes:
        raise BadInput(f"no model of the study matches {only!r}: models are named like {study.recipes[0].name!r}.")
    for name in {recipe.data for recipe in recipes}:
        study.stores[name](data)  # made once, before the workers want it
    jobs = [(source, recipe, out / recipe.name, data) for recipe in recipes]
    total = sum(recipe.epochs + EVALUATION_WEIGHT for recipe in recipes)
    with progress(f"{len(recipes)} models", total) as advance:
        _run_side_by_side(jobs, workers or min(cores(), len(jobs)), advance)
    rows = [row for recipe in recipes for row in _rows(study, recipe, out / recipe.name)]
    write_table(out / "table.csv", rows)
    write_table(out / "sensitivity.csv", certainties(study, recipes, out))
    return rows


Job = tuple[Source, Recipe, Path, Path]


def _run_side_by_side(jobs: Sequence[Job], workers: int, advance: Callable[..., None]) -> None:
    """Each model in a process with one thread: small models finish sooner side by side than one by one on all cores,
    and the weights do not depend on how many cores there are."""
    context = multiprocessing.get_context("spawn")
    news = context.Queue()
    quiet = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
    before = {name: os.environ.get(name) for name in quiet}
    os.environ.update(quiet)  # read by the workers as they start: keeps freed memory instead of returning it each step
    try:
        with ProcessPoolExecutor(workers, context, _start_worker, (os.getpid(), news)) as pool:
            futures = [pool.submit(_work, job) for job in jobs]
            try:
                while not all(future.done() for future in futures):
                    _pass_on(news, advance)
                    failed = [future for future in futures if future.done() and future.exception()]
                    if failed:
                        break
                for future in as_completed(futures):
                    future.result()
            except BrokenProcessPool:
                raise BadInput("a worker was killed; the same command goes on where it stopped.") from None
            finally:
                pool.shutdown(cancel_futures=True)
            _pass_on(news, advance)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


_NEWS: Any = None


def _start_worker(parent: int, news: Any) -> None:
    global _NEWS
    _NEWS = news

    def follow() -> None:  # a worker must not outlive its study, however the study ended
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _pass_on(news: Any, advance: Callable[..., None]) -> None:
    try:
        while True:
            advance(*news.get(timeout=0.2))
    except queue.Empty:
        pass


def _work(job: Job) -> None:
    """Train and evaluate one model, in a worker."""
    import torch

    torch.set_num_threads(1)
    source, recipe, folder, data = job
    study = source.load()
    store = study.stores[recipe.data](data)
    run_model(study, recipe, store, folder, lambda amount, note="": _NEWS.put((amount, note)))


def run_model(
    study: Study,
    recipe: Recipe,
    store: Store,
    folder: Path,
    advance: Callable[..., None] = lambda amount, note="": None,
) -> None:
    """Train a model of a study and test it, as far as it has not been done."""
    import torch

    from anyshot.engine import Reading
    from anyshot.episodes import Plan
    from anyshot.readouts import read_out
    from anyshot.training import train

    path = _recall_path(study, recipe, folder)
    if path.exists():
        advance(recipe.epochs + EVALUATION_WEIGHT)
        return
    test = store.part("test")
    plan = Plan(test.labels, study.way, max(study.shots), study.queries, study.episodes, study.seed, test.class_names)
    model = train(recipe, store, folder, study.all_heads, advance)

    @cache
    def base() -> tuple[torch.Tensor, torch.Tensor]:
        part = store.part("train")
        return model.embed(torch.from_numpy(model.features(part.items))), torch.from_numpy(part.labels)

    vectors = model.embed(torch.from_numpy(model.features(test.items)))
    learned = {name: value.detach() for name, value in model.learned.items()}
    readouts = study.readouts_of(recipe)
    asked = [(Reading(model.head, learned), readout) for readout in readouts]
    found = dict(zip(readouts, read_out(asked, vectors, base, plan, study.shots), strict=True))
    classes = plan.draw(0, plan.episodes).classes
    with whole(path) as aside, aside.open("wb") as file:
        arrays: dict[str, Any] = {"classes": classes.astype(np.int32), **found}
        np.savez_compressed(file, **arrays)
    advance(EVALUATION_WEIGHT)


def _recall_path(study: Study, recipe: Recipe, folder: Path) -> Path:
    protocol = json.dumps(study.protocol(recipe), sort_keys=True)
    return folder / f"recall-{sha256(protocol.encode()).hexdigest()[:8]}.npz"


def _rows(study: Study, recipe: Recipe, folder: Path) -> list[Row]:
    rows = []
    with np.load(_recall_path(study, recipe, folder), allow_pickle=False) as found:
        classes = found["classes"]
        for readout in study.readouts_of(recipe):
            accuracies = 100 * found[readout].mean(-1, dtype=np.float64)
            for shot, accuracy in zip(study.shots, accuracies, strict=True):
                rows.append(_row(study, recipe, readout, shot, accuracy, classes))
    return rows


def certainties(study: Study, recipes: Sequence[Recipe], out: Path) -> list[Row]:
    """The sensitivity of each head and readout in each setting, with what is known of it: one row a grid."""
    groups: dict[tuple[str, str, str, str], dict[tuple[int, int], np.ndarray]] = {}
    for recipe in recipes:
        with np.load(_recall_path(study, recipe, out / recipe.name), allow_pickle=False) as found:
            for readout in study.readouts_of(recipe):
                cells = groups.setdefault((recipe.data, recipe.backbone, recipe.head, readout), {})
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


def _row(study: Study, recipe: Recipe, readout: str, shot: int, accuracy: np.ndarray, classes: np.ndarray) -> Row:
    return {
        "data": recipe.data,
        "backbone": recipe.backbone,
        "head": recipe.head,
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


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def with_seeds(recipes: Sequence[Recipe], seeds: Sequence[int]) -> list[Recipe]:
    """The same recipes, once a seed."""
    return [replace(recipe, seed=seed) for seed in seeds for recipe in recipes]
