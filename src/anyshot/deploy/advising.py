"""What `anyshot advise` (and `doctor --copies`) knows beyond features: the pictures, when they were taken, and other
networks."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from anyshot.data.likeness import Sketch
from anyshot.data.packing import Item
from anyshot.data.store import Store
from anyshot.data.taken import taken
from anyshot.deploy.advice import Advice, OtherFeatures
from anyshot.deploy.duplicates import near_duplicates
from anyshot.deploy.image_classifier import HEAD, thumbnail
from anyshot.measure.evaluation import evaluate
from anyshot.models.cache import FeatureCache
from anyshot.models.embedders import DEFAULT, Embedder, embedder
from anyshot.models.examples import Examples
from anyshot.models.gaussian import unit
from anyshot.models.registry import PACKAGE, Registry
from anyshot.progress import progress

SAMPLE_CLASSES, SAMPLE_IMAGES = 20, 12  # that another network is tried on: five seconds
SAMPLE_QUERIES, SAMPLE_EPISODES = 4, 100
ENOUGH = 0.9  # accuracy from which no other network is tried


def times_of(examples: Examples) -> list[float | None]:
    """When each picture was taken, where its file says so."""
    return [taken(item.read) for item in examples.items]


def picture_of(examples: Examples, embeds: Embedder) -> Callable[[int], np.ndarray] | None:
    """The picture of an example, by its number; None where there are only features."""
    if not examples.items:
        return None
    return lambda image: _read(examples.items[image], embeds)


def _read(item: Item, embeds: Embedder) -> np.ndarray:
    return embeds.read(item.read(), item.name, item.box)


def thumbnails(picture: Callable[[int], np.ndarray] | None, images: Sequence[int]) -> dict[int, bytes]:
    """Small JPEGs of some pictures."""
    return {} if picture is None else {image: thumbnail(picture(image)) for image in images}


def copies_in(store: Store, cache: FeatureCache | None = None) -> list[tuple[int, int]]:
    """Pairs of a store's pictures that are one, cropped, turned, mirrored or brighter, with the network that comes with
    us."""
    embeds = embedder(DEFAULT)
    with progress(f"embedding {len(store.items)} pictures", float(len(store.items))) as advance:
        features = embeds.features(store.items, advance, cache)
    with progress("comparing pictures", 1.0) as advance:
        vectors = unit(torch.from_numpy(features.reshape(len(features), -1)).double()).numpy()
        labels = np.unique(store.labels, return_inverse=True)[1]
        pairs = near_duplicates(vectors, labels, lambda image: Sketch.of(np.asarray(store.items[image])), advance)
    return [(one, other) for one, other, _ in pairs]


def other_features(
    advice: Advice,
    examples: Examples,
    embeds: Embedder,
    arguments: dict[str, Any],
    cache: FeatureCache | None = None,
    registry: Registry = PACKAGE,
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
    if not examples.items or embeds.name.startswith(DEFAULT) or advice.accuracy >= ENOUGH:
        return None
    rng = np.random.default_rng(0)
    labels = np.array(examples.labels)
    classes = rng.permutation(np.array(advice.class_names))[:SAMPLE_CLASSES]
    sample = np.concatenate([rng.permutation(np.flatnonzero(labels == name))[:SAMPLE_IMAGES] for name in classes])
    smallest = min(int((labels[sample] == name).sum()) for name in classes)
    queries = max(1, min(SAMPLE_QUERIES, smallest // 3))
    shot = smallest - queries
    other = embedder(DEFAULT)
    pictures = np.stack([_read(examples.items[image], other) for image in sample])
    rest = (labels[sample], [shot], len(classes), queries, SAMPLE_EPISODES)
    ways: dict[str, tuple[np.ndarray, str, dict[str, Any]]] = {
        "own": (examples.features[sample], advice.best, {**arguments, "registry": registry}),
        "other": (other.features(pictures, cache=cache), HEAD, {}),
    }
    right = {}
    for name, (features, head, more) in ways.items():
        evaluation = evaluate(features, rest[0], head, *rest[1:], **more)
        right[name] = float(evaluation.accuracies(head).mean() / 100)
    return OtherFeatures(DEFAULT, right["own"], right["other"], shot, len(classes), len(sample))
