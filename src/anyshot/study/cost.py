"""The cost of a study: how many models train at once, and how long it would take on this machine."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from anyshot.machine import count_cores
from anyshot.models.devices import training_device, use_threads
from anyshot.models.registry import Registry
from anyshot.progress import progress
from anyshot.recipe import Recipe
from anyshot.tables import Row
from anyshot.text import group_by
from anyshot.train.training import Learner

BASE_BYTES = 6e8  # memory of a training process before it holds a batch, measured on Conv-4
GRADIENT_FACTOR = 2.0  # an update holds about twice what its forward pass saves
MEMORY_SHARE = 0.9  # of the machine's memory that training processes may take together
FROZEN_FEATURES = 1280  # numbers per image that a frozen backbone is assumed to give
TIMED_IMAGES = 32  # of an update that is timed on a CPU: enough to estimate by, and soon done


def plan_workers(recipes: Sequence[Recipe], registry: Registry, workers: int = 0) -> tuple[int, int]:
    """Return how many models train at once, and with how many threads each.

    On a CPU as many models as cores train at once with one thread each: on two cores this trained 1,144 images/s where
    one model on both cores trained 582 (Conv-4 at 32x32), and the weights then do not depend on the number of cores.
    They are fewer where there are fewer models, or where memory does not hold as many; the cores are then shared out.
    On GPUs, one model trains on each.

    Args:
        recipes: All models of the study, whether done or not, so that a resumed study is planned alike.
        registry: What heads and backbones are looked up in.
        workers: Models at once, where the user has said so.
    """
    if (local_processes := int(os.environ.get("LOCAL_WORLD_SIZE", "0"))) > 0:  # torchrun: all work on each model
        return 1, max(1, count_cores() // local_processes)
    if (device := training_device()).startswith("cuda"):
        workers = workers or (1 if ":" in device else min(len(recipes), torch.cuda.device_count()))
    if not workers:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        largest = max(estimate_bytes(recipe, registry) for recipe in {_setting(one): one for one in recipes}.values())
        workers = max(1, min(count_cores(), len(recipes), int(MEMORY_SHARE * memory / largest)))
    return workers, max(1, count_cores() // workers)


@contextmanager
def _without_side_effects() -> Iterator[None]:
    """Use one thread, and restore the caller's threads and random state afterwards."""
    with use_threads(1), torch.random.fork_rng():
        yield


def _setting(recipe: Recipe) -> tuple:
    return (recipe.backbone, recipe.width, recipe.size, recipe.images)


def estimate_bytes(recipe: Recipe, registry: Registry) -> float:
    """Return the memory of a training process, from what the backbone saves for the gradient of two images."""
    if recipe.frozen:
        return BASE_BYTES
    sizes: list[int] = []

    def count(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    with _without_side_effects(), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        learner = Learner(replace(recipe, compile=False), registry, 3, "cpu")
        learner.model.train()(torch.zeros(2, 3, recipe.size, recipe.size))
    return BASE_BYTES + GRADIENT_FACTOR * sum(sizes) / 2 * recipe.images


def seconds_per_image(recipe: Recipe, registry: Registry, updates: int = 3) -> float:
    """Measure the time of an update divided by its images: on a GPU, or on one core of a CPU with a smaller batch."""
    device = training_device()
    clock = time.perf_counter
    if device == "cpu":
        clock = time.process_time  # other programs do not count
        recipe = replace(recipe, mixed=(), start=None)
        if recipe.batch:
            recipe = replace(recipe, batch=TIMED_IMAGES)
        else:
            recipe = replace(recipe, way=TIMED_IMAGES // 4, train_shot=4)
    rng = np.random.default_rng(0)
    images: np.ndarray = rng.random((recipe.images, 1, FROZEN_FEATURES), np.float32)
    if not recipe.frozen:
        images = rng.integers(0, 256, (recipe.images, recipe.size, recipe.size, 3), dtype=np.uint8)
    shot = 1 if recipe.batch else recipe.train_shot
    target = torch.arange(recipe.images, device=device) // shot % recipe.way
    learner = Learner(recipe, registry, images.shape[-1], device)
    learner.model.train()
    times = []
    for _ in range(updates):
        began = clock()
        learner.update(images, target, shot, 0, 0.0).tolist()
        times.append(clock() - began)
    return min(times) / recipe.images


def estimate_cost(recipes: Sequence[Recipe], registry: Registry, train_images: Mapping[str, int]) -> list[Row]:
    """Return a row per data set, backbone and head: models, updates, images, and hours of a core (or GPU)."""
    groups = group_by(recipes, lambda recipe: (*_setting(recipe)[:3], recipe.head))
    seconds: dict[Recipe, float] = {}
    with _without_side_effects(), progress("measuring", float(len(groups))) as advance:
        for alike in groups.values():
            seconds |= dict.fromkeys(alike, seconds_per_image(alike[-1], registry))
            advance(1.0)
    rows = []
    for (data, backbone, head), models in group_by(recipes, lambda recipe: recipe.path[:3]).items():
        updates = [recipe.epochs * (train_images[data] // recipe.images) for recipe in models]
        images = [number * recipe.images for number, recipe in zip(updates, models, strict=True)]
        hours = sum(number * seconds[recipe] / 3600 for number, recipe in zip(images, models, strict=True))
        row: Row = {"data": data, "backbone": backbone, "head": head, "models": len(models)}
        rows.append(row | {"updates": sum(updates), "images": sum(images), "hours": hours})
    return rows


def format_estimate(rows: Sequence[Row], workers: int, threads: int) -> str:
    """Return the estimate as a table for a terminal."""
    counts = ("models", "updates", "images", "hours")
    total: Row = {"data": "in all", "backbone": "", "head": ""} | {key: sum(row[key] for row in rows) for key in counts}
    unit, per_hour = ("minutes", 60) if total["hours"] < 10 else ("hours", 1)
    numbers = f"{'models':>6} {'updates':>12} {'images':>16} {'core-' + unit:>12}"
    lines = [f"{'data':10} {'backbone':10} {'head':14} {numbers}"]
    for row in [*rows, total]:
        words = f"{row['data']:10} {row['backbone']:10} {row['head']:14}"
        numbers = f"{row['models']:6} {row['updates']:12,} {row['images']:16,} {row['hours'] * per_hour:12,.1f}"
        lines.append(f"{words} {numbers}")
    hours = total["hours"] / (workers * threads)
    duration = f"About {hours:,.1f} hours" if hours >= 2 else f"About {60 * hours:,.1f} minutes"
    duration = duration if hours >= 1 / 60 else "Less than a minute"
    models = f"{workers} models side by side" if workers > 1 else "one model at a time"
    return "\n".join([*lines, f"{duration} on this machine: {models}, threads of each: {threads}."])
