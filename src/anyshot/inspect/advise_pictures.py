"""What `anyshot advise` (and `doctor --copies`) knows beyond features: the pictures, when they were taken, and other
networks."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from anyshot.classify.classifier import DEFAULT_HEAD
from anyshot.classify.copies import find_copies
from anyshot.classify.images import make_thumbnail
from anyshot.classify.likeness import PictureSketch
from anyshot.data.packer import Item
from anyshot.data.pictures import capture_time
from anyshot.data.store import Store
from anyshot.inspect.advice import Advice, OtherFeatures
from anyshot.measure.evaluation import evaluate
from anyshot.models.cache import FeatureCache
from anyshot.models.embedders import DEFAULT_EMBEDDER, Embedder, load_embedder
from anyshot.models.examples import Examples
from anyshot.models.law import normalize
from anyshot.models.registry import BUILTIN, Registry
from anyshot.progress import progress

SAMPLE_CLASSES, SAMPLE_IMAGES = 20, 12  # that another network is tried on: five seconds
SAMPLE_QUERIES, SAMPLE_EPISODES = 4, 100
ENOUGH = 0.9  # accuracy from which no other network is tried


def read_capture_times(examples: Examples) -> list[float | None]:
    """When each picture was taken, where its file says so."""
    return [capture_time(item.read) for item in examples.items]


def picture_reader(examples: Examples, embeds: Embedder) -> Callable[[int], np.ndarray] | None:
    """The picture of an example, by its number; None where there are only features."""
    if not examples.items:
        return None
    return lambda image: _read(examples.items[image], embeds)


def _read(item: Item, embeds: Embedder) -> np.ndarray:
    return embeds.read(item.read(), item.name, item.box)


def make_thumbnails(picture: Callable[[int], np.ndarray] | None, images: Sequence[int]) -> dict[int, bytes]:
    """Small JPEGs of some pictures."""
    return {} if picture is None else {image: make_thumbnail(picture(image)) for image in images}


def find_copies_in_store(store: Store, cache: FeatureCache | None = None) -> list[tuple[int, int]]:
    """Pairs of a store's pictures that are one, cropped, turned, mirrored or brighter, with the network that comes with
    us."""
    embeds = load_embedder(DEFAULT_EMBEDDER)
    with progress(f"embedding {len(store.items)} pictures", float(len(store.items))) as advance:
        features = embeds.features(store.items, advance, cache)
    with progress("comparing pictures", 1.0) as advance:
        vectors = normalize(torch.from_numpy(features.reshape(len(features), -1)).double()).numpy()
        labels = np.unique(store.labels, return_inverse=True)[1]
        pairs = find_copies(vectors, labels, lambda image: PictureSketch.of(np.asarray(store.items[image])), advance)
    return [(one, other) for one, other, _ in pairs]


def try_default_features(
    advice: Advice,
    examples: Examples,
    embeds: Embedder,
    arguments: dict[str, Any],
    cache: FeatureCache | None = None,
    registry: Registry = BUILTIN,
) -> OtherFeatures | None:
    """What the network that comes with us would bring, where another one was used and is not accurate enough; measured
    with the same episodes on a sample of the pictures.

    Args:
        advice: What was found with the network that was used.
        examples: The examples it was found on.
        embeds: That network.
        arguments: For `evaluate`, of the head that is advised (parameters, embed).
        cache: Features that were computed before.
        registry: What heads are looked up in.
    """
    if not examples.items or embeds.name.startswith(DEFAULT_EMBEDDER) or advice.accuracy >= ENOUGH:
        return None
    rng = np.random.default_rng(0)
    labels = np.array(examples.labels)
    classes = rng.permutation(np.array(advice.class_names))[:SAMPLE_CLASSES]
    sample = np.concatenate([rng.permutation(np.flatnonzero(labels == name))[:SAMPLE_IMAGES] for name in classes])
    smallest = min(int((labels[sample] == name).sum()) for name in classes)
    queries = max(1, min(SAMPLE_QUERIES, smallest // 3))
    shot = smallest - queries
    other = load_embedder(DEFAULT_EMBEDDER)
    pictures = np.stack([_read(examples.items[image], other) for image in sample])
    rest = (labels[sample], [shot], len(classes), queries, SAMPLE_EPISODES)
    ways: dict[str, tuple[np.ndarray, str, dict[str, Any]]] = {
        "own": (examples.features[sample], advice.best, {**arguments, "registry": registry}),
        "other": (other.features(pictures, cache=cache), DEFAULT_HEAD, {}),
    }
    right = {}
    for name, (features, head, more) in ways.items():
        evaluation = evaluate(features, rest[0], head, *rest[1:], **more)
        right[name] = float(evaluation.accuracies(head).mean() / 100)
    return OtherFeatures(DEFAULT_EMBEDDER, right["own"], right["other"], shot, len(classes), len(sample))
