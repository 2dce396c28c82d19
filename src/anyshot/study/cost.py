"""The cost of a study: how many models train at once, and how long it would take on this machine."""

import os
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from anyshot.machine import count_cores
from anyshot.measure.engine import compute_recalls, compute_vectors
from anyshot.measure.plan import Protocol
from anyshot.models.devices import to_gpu, training_device, use_threads
from anyshot.models.model import Model
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
TIMED_IMAGES = 8  # of an update that is timed on a CPU: enough to estimate by, and soon done
TIMED_UPDATES = 2  # the first may be slower, so the shortest counts
TIMED_EPISODES = 2
TIMED_WAY = 5  # classes of an episode that is timed for a protocol of all classes
FORWARD_SHARE = 1 / 3  # of an update's time that embedding an image takes: the backward pass costs twice the forward


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
        kinds = {(one.backbone, one.width, one.size, one.images): one for one in recipes}.values()
        largest = max(estimate_bytes(recipe, registry) for recipe in kinds)
        workers = max(1, min(count_cores(), len(recipes), int(MEMORY_SHARE * memory / largest)))
    return workers, max(1, count_cores() // workers)


def estimate_bytes(recipe: Recipe, registry: Registry) -> float:
    """Return the memory of a training process, from what the backbone saves for the gradient of two images."""
    if recipe.frozen:
        return BASE_BYTES
    sizes: list[int] = []

    def count(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    with use_threads(1), torch.random.fork_rng(), torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
        learner = Learner(replace(recipe, compile=False), registry, 3, "cpu")
        learner.model.train()(torch.zeros(2, 3, recipe.size, recipe.size))
    return BASE_BYTES + GRADIENT_FACTOR * sum(sizes) / 2 * recipe.images


def seconds_per_image(recipe: Recipe, registry: Registry) -> float:
    """Measure the time of an update divided by its images: on a GPU, or on one core of a CPU with a smaller batch."""
    device = training_device()
    if device == "cpu":
        smaller: dict[str, Any] = {"way": TIMED_IMAGES // 4, "train_shot": 4}
        if recipe.batch:  # as many classes for each image, as a head may compute something for every class
            smaller = {"way": max(2, recipe.way * TIMED_IMAGES // recipe.batch), "batch": TIMED_IMAGES}
        recipe = replace(recipe, mixed=(), start=None, start_scale=False, **smaller)
    rng = np.random.default_rng(0)
    images: np.ndarray = rng.random((recipe.images, 1, FROZEN_FEATURES), np.float32)
    if not recipe.frozen:
        images = rng.integers(0, 256, (recipe.images, recipe.size, recipe.size, 3), dtype=np.uint8)
    shot = 1 if recipe.batch else recipe.train_shot
    target = torch.arange(recipe.images, device=device) // shot % recipe.way
    learner = Learner(recipe, registry, images.shape[-1], device)
    learner.model.train()
    return _shortest_time(lambda: learner.update(images, target, shot, 0, 0.0).tolist(), TIMED_UPDATES) / recipe.images


def seconds_per_episode(recipe: Recipe, registry: Registry, protocol: Protocol) -> float:
    """Measure the time of an episode at all test shots, on features drawn at random."""
    model = Model(recipe, FROZEN_FEATURES if recipe.frozen else 3, registry).eval()
    side = (1, FROZEN_FEATURES) if recipe.frozen else (3, recipe.size, recipe.size)
    with torch.no_grad():
        shape = model(torch.zeros(1, *side)).shape[1:]
    labels = np.arange(protocol.way or TIMED_WAY).repeat(max(protocol.shots) + protocol.queries)
    plan = replace(protocol, episodes=TIMED_EPISODES, way=protocol.way or TIMED_WAY).plan(labels, [])
    maps = to_gpu(torch.rand(len(labels), *shape), training_device())
    vectors = compute_vectors(maps, model.embed, model.bound_head.parameters)
    test = partial(compute_recalls, vectors, [model.bound_head], plan, protocol.shots)
    return _shortest_time(test, 1) / TIMED_EPISODES


def _shortest_time(work: Callable[[], object], repeats: int) -> float:
    """Return the shortest time that work takes: seconds of this process or, with a GPU, of the clock."""
    # The time of this process does not count what other programs take.
    timer = timeit.Timer(work, timer=time.process_time if training_device() == "cpu" else time.perf_counter)
    return min(timer.repeat(repeats, number=1))


def estimate_cost(
    recipes: Sequence[Recipe],
    registry: Registry,
    images: Mapping[str, int | tuple[int, int, int]],
    protocol: Protocol,
) -> list[Row]:
    """Return a row per data set, backbone and head: models, updates, images, and hours of a core (or GPU).

    Args:
        recipes: The models.
        registry: What their heads and backbones are looked up in.
        images: Images of each data set, for training, or for training, validation and test.
        protocol: What models are tested by.
    """
    seconds: dict[Recipe, tuple[float, float]] = {}  # of an image in training, and of an episode
    groups = group_by(recipes, lambda recipe: (recipe.backbone, recipe.width, recipe.size, recipe.head))
    with use_threads(1), torch.random.fork_rng(), progress("measuring", float(len(groups))) as advance:
        for (backbone, *_, head), alike in groups.items():
            times = seconds_per_image(alike[-1], registry), seconds_per_episode(alike[-1], registry, protocol)
            seconds |= dict.fromkeys(alike, times)
            advance(1.0, f"{head} on {backbone}")
    rows = []
    for (data, backbone, head), models in group_by(recipes, lambda recipe: recipe.path[:3]).items():
        counts = images[data]
        train, val, test = (counts, 0, 0) if isinstance(counts, int) else counts
        row: Row = {"data": data, "backbone": backbone, "head": head, "models": len(models)}
        row |= dict.fromkeys(("updates", "images", "hours", "testing"), 0)
        for recipe in models:
            image_seconds, episode_seconds = seconds[recipe]
            updates = recipe.epochs * (train // recipe.images)
            validations = -(-recipe.epochs // recipe.validate_every) if recipe.validate_every else 0
            embedded, episodes = validations * val, float(validations * recipe.validation_episodes)
            episodes /= len(protocol.shots)  # a validation has one shot, a test all of them
            if not recipe.batch:
                embedded, episodes = embedded + test, episodes + protocol.episodes
            row["updates"] += updates
            row["images"] += updates * recipe.images
            row["hours"] += updates * recipe.images * image_seconds / 3600
            row["testing"] += (embedded * FORWARD_SHARE * image_seconds + episodes * episode_seconds) / 3600
        rows.append(row)
    return rows


def format_estimate(rows: Sequence[Row], workers: int, threads: int) -> str:
    """Return the estimate as a table for a terminal."""
    counts = ("models", "updates", "images", "hours", "testing")
    total: Row = {"data": "in all", "backbone": "", "head": ""} | {key: sum(row[key] for row in rows) for key in counts}
    unit, per_hour = ("minutes", 60) if total["hours"] < 10 else ("hours", 1)
    numbers = f"{'models':>6} {'updates':>12} {'images':>16} {'core-' + unit:>12} {'+ testing':>10}"
    lines = [f"{'data':10} {'backbone':10} {'head':14} {numbers}"]
    for row in [*rows, total]:
        words = f"{row['data']:10} {row['backbone']:10} {row['head']:14}"
        numbers = f"{row['models']:6} {row['updates']:12,} {row['images']:16,} {row['hours'] * per_hour:12,.1f}"
        lines.append(f"{words} {numbers} {row['testing'] * per_hour:10,.1f}")
    hours = (total["hours"] + total["testing"]) / (workers * threads)
    duration = f"About {hours:,.1f} hours" if hours >= 2 else f"About {60 * hours:,.1f} minutes"
    duration = duration if hours >= 1 / 60 else "Less than a minute"
    models = f"{workers} models side by side" if workers > 1 else "one model at a time"
    lines.append("Testing is validation and the test: embedding their images, and the episodes.")
    return "\n".join([*lines, f"{duration} on this machine: {models}, threads of each: {threads}."])
