"""What a study costs: how many models fit side by side, and how long it would take on this machine."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from anyshot.errors import choose
from anyshot.heads import Head
from anyshot.progress import progress
from anyshot.recipe import Recipe
from anyshot.table import Row
from anyshot.training import Learner, best_device

SPARE_BYTES = 6e8  # of a process, besides what an update keeps
KEPT_AND_GRADIENTS = 2.0  # an update holds about twice what its forward pass keeps


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side(recipes: Sequence[Recipe], heads: Mapping[str, Head], workers: int = 0) -> tuple[int, int]:
    """How many models train at once, and with how many threads each.

    One thread a model, as many models as there are cores: one model on all cores has threads that wait for each other,
    and its weights do not depend on the number of cores. Fewer where memory does not hold them
    or there are fewer models than cores; the cores are then shared out. It is decided by the whole list of recipes,
    never by what of it is already done. With GPUs: one model each."""
    if (together := int(os.environ.get("LOCAL_WORLD_SIZE", "0"))) > 0:  # under torchrun: all processes on each model
        return 1, max(1, cores() // together)
    if torch.cuda.is_available():
        workers = workers or min(len(recipes), torch.cuda.device_count())
        return workers, max(1, cores() // workers)
    if not workers:
        settings = {_setting(recipe): recipe for recipe in recipes}.values()
        largest = max(_bytes(recipe, heads) for recipe in settings)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        workers = max(1, min(cores(), len(recipes), int(0.9 * memory / largest)))
    return workers, max(1, cores() // workers)


def _setting(recipe: Recipe) -> tuple:
    return (recipe.backbone, recipe.width, recipe.size, recipe.images)


def _bytes(recipe: Recipe, heads: Mapping[str, Head]) -> float:
    """Memory of a training process: what the backbone keeps for the gradient, counted on two images."""
    kept = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.nbytes
        return tensor

    with torch.random.fork_rng(), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        learner = Learner(replace(recipe, compile=False), choose("head", recipe.head, heads), 3, "cpu")
        learner.model.train()(torch.zeros(2, 3, recipe.size, recipe.size))
    return SPARE_BYTES + KEPT_AND_GRADIENTS * kept / 2 * recipe.images


def seconds_an_image(recipe: Recipe, head: Head, updates: int = 3) -> float:
    """Measured: the time of an update over its images. On a CPU it is that of one core and of a smaller batch."""
    device = best_device()
    clock, small = time.perf_counter, recipe
    if device == "cpu":
        few = 64 if recipe.backbone == "conv4" else 16
        clock = time.process_time  # other programs do not count
        small = replace(recipe, batch=few) if recipe.batch else replace(recipe, way=few // 4, train_shot=4)
        small = replace(small, mixed=(), start=None)
    images = np.random.default_rng(0).integers(0, 256, (small.images, recipe.size, recipe.size, 3), dtype=np.uint8)
    shot = 1 if small.batch else small.train_shot
    target = torch.arange(small.images, device=device) // shot % small.way
    learner = Learner(small, head, 3, device)
    learner.model.train()
    times = []
    for _ in range(updates):
        began = clock()
        learner.update(images, target, shot, 0, 0.0).tolist()
        times.append(clock() - began)
    return min(times) / small.images


def estimate(recipes: Sequence[Recipe], heads: Mapping[str, Head], train_images: Mapping[str, int]) -> list[Row]:
    """One row a data set, backbone and head: models, updates, images, and hours of a core (or GPU) of this machine."""
    rows: dict[tuple[str, ...], Row] = {}
    kinds = {(*_setting(recipe)[:3], recipe.head): recipe for recipe in recipes}
    measured: dict[tuple, float] = {}
    threads = torch.get_num_threads()
    with torch.random.fork_rng(), progress("measuring", float(len(kinds))) as advance:
        torch.set_num_threads(1)
        for key, recipe in kinds.items():
            measured[key] = seconds_an_image(recipe, choose("head", recipe.head, heads))
            advance(1.0)
        torch.set_num_threads(threads)
    for recipe in recipes:
        key = (*_setting(recipe)[:3], recipe.head)
        updates = recipe.epochs * (train_images[recipe.data] // recipe.images)
        row = rows.setdefault(
            recipe.path[:3],
            {"data": recipe.data, "backbone": recipe.backbone, "head": recipe.label}
            | {"models": 0, "updates": 0, "images": 0, "hours": 0.0},
        )
        row["models"] += 1
        row["updates"] += updates
        row["images"] += updates * recipe.images
        row["hours"] += updates * recipe.images * measured[key] / 3600
    return list(rows.values())


def describe(rows: Sequence[Row], workers: int, threads: int) -> str:
    """The estimate as a table for a terminal."""
    counts = ("models", "updates", "images", "hours")
    total: Row = {"data": "in all", "backbone": "", "head": ""} | {key: sum(row[key] for row in rows) for key in counts}
    lines = [f"{'data':10} {'backbone':10} {'head':14} {'models':>6} {'updates':>12} {'images':>16} {'core-hours':>10}"]
    for row in [*rows, total]:
        words = f"{row['data']:10} {row['backbone']:10} {row['head']:14}"
        lines.append(f"{words} {row['models']:6} {row['updates']:12,} {row['images']:16,} {row['hours']:10,.1f}")
    hours = total["hours"] / (workers * threads)
    lines.append(
        f"About {hours:,.1f} hours on this machine: {workers} models side by side, threads of each: {threads}."
    )
    return "\n".join(lines)
