"""What a study costs: how many models train side by side, and how long it would take on this machine."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from anyshot.errors import as_bad_input
from anyshot.machine import count_cores, keep_freed_memory
from anyshot.models.devices import training_device, use_threads
from anyshot.models.registry import Registry
from anyshot.progress import progress
from anyshot.recipe import Recipe
from anyshot.study.launch import exit_with_parent
from anyshot.tables import Row
from anyshot.text import group_by
from anyshot.train.training import Learner

if TYPE_CHECKING:
    from anyshot.study.study import Study

SPARE_BYTES = 6e8  # of a process, besides what an update keeps
KEPT_AND_GRADIENTS = 2.0  # an update holds about twice what its forward pass keeps
CLEARLY = 1.25  # how much faster one model at a time must be to be chosen: the choice changes rounding
ROUNDS = 3  # of a contest; the best of each contender counts
FEATURES = 1280  # numbers that a frozen backbone is taken to give
TIMED_SECONDS = 0.3  # at least, of a contender in a round
SHORT_SECONDS = 600.0  # of a core: a study that takes no longer starts at once, side by side


@dataclass(frozen=True)
class Speeds:
    """Measured images a second of training, by how a study shares the cores."""

    side_by_side: float
    one_at_a_time: float

    @property
    def favour_one(self) -> bool:
        return self.one_at_a_time > CLEARLY * self.side_by_side


def plan_workers(
    recipes: Sequence[Recipe], registry: Registry, workers: int = 0, speeds: Speeds | None = None
) -> tuple[int, int]:
    """How many models train at once, and with how many threads each.

    One thread a model, as many models as there are cores: one model on all cores has threads that wait for each other,
    and its weights do not depend on the number of cores. Fewer where memory does not hold them
    or there are fewer models than cores, and one where measured `speeds` clearly favour it; the cores are then shared
    out. It is decided by the whole list of recipes, never by what of it is already done. With GPUs: one model each."""
    if (together := int(os.environ.get("LOCAL_WORLD_SIZE", "0"))) > 0:  # under torchrun: all processes on each model
        return 1, max(1, count_cores() // together)
    if (device := training_device()).startswith("cuda"):
        workers = workers or (1 if ":" in device else min(len(recipes), torch.cuda.device_count()))
        return workers, max(1, count_cores() // workers)
    if not workers:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        fit = int(0.9 * memory / _bytes(_costliest(recipes, registry), registry))
        workers = 1 if speeds and speeds.favour_one else max(1, min(count_cores(), len(recipes), fit))
    return workers, max(1, count_cores() // workers)


def measure_speeds(load: "Callable[[], Study]", recipes: Sequence[Recipe]) -> Speeds | None:
    """The speeds of both ways to share the cores, on the costliest setting of `recipes`; None where there is no choice:
    on a GPU, under torchrun, with one core, one model, or memory for one. `load` gives the study in another process.

    Measured in processes like those that train: threads of one process would share an allocator and Python's lock,
    which workers do not. Nothing of it touches this process."""
    registry = load().registry
    recipes = [recipe for recipe in recipes if not recipe.frozen]  # on features an update takes no time
    if not recipes or training_device() != "cpu" or "LOCAL_WORLD_SIZE" in os.environ:
        return None
    workers, threads = plan_workers(recipes, registry)
    return None if workers < 2 else race_workers(load, _costliest(recipes, registry), workers, threads)


def is_short(recipes: Sequence[Recipe], registry: Registry, train_images: Mapping[str, int]) -> bool:
    """Whether a study is done about as soon as it would be measured how to share the cores, by an update of its
    costliest setting."""
    trained = [recipe for recipe in recipes if not recipe.frozen]
    if not trained:
        return True
    images = sum(recipe.epochs * (train_images[recipe.data] // recipe.images * recipe.images) for recipe in trained)
    with _aside():
        each = seconds_an_image(_costliest(trained, registry), registry)
    return images * each < SHORT_SECONDS


def race_workers(load: "Callable[[], Study]", recipe: Recipe, workers: int, threads: int) -> Speeds:
    """Images a second of `workers` models that train at once with `threads` each, and of one model on all cores. They
    take turns, so that what else the machine does disturbs both alike."""
    context = multiprocessing.get_context("spawn")
    prepared = (os.getpid(), load, recipe, context.Barrier(workers))
    several, one = [], []
    measuring = progress("measuring how to share the cores", float(ROUNDS))
    killed = "a worker was killed while the speed was measured; `--workers N` goes without that."
    workers_ = ProcessPoolExecutor(workers, context, _prepare, prepared)
    with as_bad_input(BrokenProcessPool, killed), workers_ as pool, measuring as advance:
        for _ in range(ROUNDS):
            started = [pool.submit(_images_a_second, threads, True) for _ in range(workers)]
            several.append(sum(future.result() for future in started))
            one.append(pool.submit(_images_a_second, count_cores(), False).result())
            advance(1.0)
            if 2 * one[-1] < several[-1]:
                break  # another round would not turn that
    return Speeds(max(several), max(one))


_measured: Any = None  # of a process of a contest: its update, the number of its images, and the barrier of all


def _prepare(parent: int, load: "Callable[[], Study]", recipe: Recipe, barrier: Any) -> None:
    global _measured
    exit_with_parent(parent)
    keep_freed_memory()
    small = _small(recipe)
    update = _an_update(small, load().registry, "cpu")
    torch.set_num_threads(1)
    update()  # the first is slower
    _measured = update, small.images, barrier


def _images_a_second(threads: int, all_at_once: bool) -> float:
    update, images, barrier = _measured
    torch.set_num_threads(threads)
    if all_at_once:
        barrier.wait()
    began, updates = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < TIMED_SECONDS:
        update()
        updates += 1
    return updates * images / took


def _costliest(recipes: Sequence[Recipe], registry: Registry) -> Recipe:
    """A recipe of the setting whose updates keep, and so compute, the most."""
    settings = {_setting(recipe): recipe for recipe in recipes}
    return max(settings.values(), key=lambda recipe: _bytes(recipe, registry))


@contextmanager
def _aside() -> Iterator[None]:
    """On one thread, and without a trace in the caller's threads and random numbers."""
    with use_threads(1), torch.random.fork_rng():
        yield


def _setting(recipe: Recipe) -> tuple:
    return (recipe.backbone, recipe.width, recipe.size, recipe.images)


def _bytes(recipe: Recipe, registry: Registry) -> float:
    """Memory of a training process: what the backbone keeps for the gradient, counted on two images."""
    if recipe.frozen:
        return SPARE_BYTES
    sizes: list[int] = []

    def count(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    with _aside(), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        learner = Learner(replace(recipe, compile=False), registry, 3, "cpu")
        learner.model.train()(torch.zeros(2, 3, recipe.size, recipe.size))
    return SPARE_BYTES + KEPT_AND_GRADIENTS * sum(sizes) / 2 * recipe.images


def seconds_an_image(recipe: Recipe, registry: Registry, updates: int = 3) -> float:
    """Measured: the time of an update over its images. On a CPU it is that of one core and of a smaller batch."""
    device = training_device()
    clock, small = time.perf_counter, recipe
    if device == "cpu":
        clock, small = time.process_time, _small(recipe)  # other programs do not count
    update = _an_update(small, registry, device)
    times = []
    for _ in range(updates):
        began = clock()
        update()
        times.append(clock() - began)
    return min(times) / small.images


def _small(recipe: Recipe) -> Recipe:
    """The recipe with a batch that is enough to measure by."""
    few = 64 if recipe.backbone == "conv4" else 16
    small = replace(recipe, mixed=(), start=None)
    return replace(small, batch=few) if recipe.batch else replace(small, way=few // 4, train_shot=4)


def _an_update(recipe: Recipe, registry: Registry, device: str) -> Callable[[], None]:
    """An update of a new model on noise, to be called again and again."""
    rng = np.random.default_rng(0)
    images: np.ndarray = rng.random((recipe.images, 1, FEATURES), np.float32)
    if not recipe.frozen:
        images = rng.integers(0, 256, (recipe.images, recipe.size, recipe.size, 3), dtype=np.uint8)
    shot = 1 if recipe.batch else recipe.train_shot
    target = torch.arange(recipe.images, device=device) // shot % recipe.way
    learner = Learner(recipe, registry, images.shape[-1], device)
    learner.model.train()

    def update() -> None:
        learner.update(images, target, shot, 0, 0.0).tolist()

    return update


def estimate_cost(recipes: Sequence[Recipe], registry: Registry, train_images: Mapping[str, int]) -> list[Row]:
    """One row a data set, backbone and head: models, updates, images, and hours of a core (or GPU) of this machine."""
    kinds = group_by(recipes, lambda recipe: (*_setting(recipe)[:3], recipe.head))
    seconds: dict[Recipe, float] = {}
    with _aside(), progress("measuring", float(len(kinds))) as advance:
        for alike in kinds.values():
            seconds |= dict.fromkeys(alike, seconds_an_image(alike[-1], registry))
            advance(1.0)
    rows = []
    for (data, backbone, head), models in group_by(recipes, lambda recipe: recipe.path[:3]).items():
        updates = [recipe.epochs * (train_images[data] // recipe.images) for recipe in models]
        images = [many * recipe.images for many, recipe in zip(updates, models, strict=True)]
        hours = sum(many * seconds[recipe] / 3600 for many, recipe in zip(images, models, strict=True))
        row: Row = {"data": data, "backbone": backbone, "head": head, "models": len(models)}
        rows.append(row | {"updates": sum(updates), "images": sum(images), "hours": hours})
    return rows


def format_estimate(rows: Sequence[Row], workers: int, threads: int, speeds: Speeds | None = None) -> str:
    """The estimate as a table for a terminal."""
    counts = ("models", "updates", "images", "hours")
    total: Row = {"data": "in all", "backbone": "", "head": ""} | {key: sum(row[key] for row in rows) for key in counts}
    unit, in_an_hour = ("minutes", 60) if total["hours"] < 10 else ("hours", 1)
    numbers = f"{'models':>6} {'updates':>12} {'images':>16} {'core-' + unit:>12}"
    lines = [f"{'data':10} {'backbone':10} {'head':14} {numbers}"]
    for row in [*rows, total]:
        words = f"{row['data']:10} {row['backbone']:10} {row['head']:14}"
        numbers = f"{row['models']:6} {row['updates']:12,} {row['images']:16,} {row['hours'] * in_an_hour:12,.1f}"
        lines.append(f"{words} {numbers}")
    hours = total["hours"] / (workers * threads)
    long = f"About {hours:,.1f} hours" if hours >= 2 else f"About {60 * hours:,.1f} minutes"
    long = long if hours >= 1 / 60 else "Less than a minute"
    models = f"{workers} models side by side" if workers > 1 else "one model at a time"
    measured = ""
    if speeds:
        both = f"{speeds.side_by_side:,.0f} images/s side by side, {speeds.one_at_a_time:,.0f} one at a time"
        measured = f" (measured: {both})"
    lines.append(f"{long} on this machine: {models}, threads of each: {threads}{measured}.")
    return "\n".join(lines)
