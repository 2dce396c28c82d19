"""What pictures add to advice: copies, capture times, thumbnails, and the accuracy of another network."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from anyshot.classify.classifier import DEFAULT_HEAD
from anyshot.classify.images import find_time, make_thumbnail
from anyshot.data.source import Source
from anyshot.data.store import Store
from anyshot.inspect.case import AdviceOptions, OtherFeatures
from anyshot.inspect.copies import find_copies
from anyshot.measure.evaluate import evaluate
from anyshot.measure.groups import unit_vectors
from anyshot.models.cache import FeatureCache
from anyshot.models.embedders import DEFAULT_EMBEDDER, Embedder, load_embedder
from anyshot.progress import progress

# Another network is tried on a sample that takes about five seconds, unless the accuracy is ENOUGH; not tuned.
SAMPLE_CLASSES, SAMPLE_IMAGES, SAMPLE_QUERIES, SAMPLE_EPISODES = 20, 12, 4, 100
ENOUGH = 0.9

ReadPicture = Callable[[int], np.ndarray]


def add_picture_options(
    examples: Source, embedder: Embedder, options: AdviceOptions, cache: FeatureCache | None = None
) -> AdviceOptions:
    """Return the options of `advise` with those that need pictures: `times`, `picture` and `other_features`."""
    if not examples.has_pictures:
        return options
    new: AdviceOptions = {**options}
    new["times"] = [find_time(item) for item in examples.items]
    new["picture"] = make_picture_reader(examples, embedder)
    if not embedder.name.startswith(DEFAULT_EMBEDDER):
        new["other_features"] = lambda head, accuracy: (
            None if accuracy >= ENOUGH else try_default_features(examples, head, options, cache)
        )
    return new


def make_picture_reader(examples: Source, embedder: Embedder) -> ReadPicture:
    """Return a function that reads the picture of an example, by its number, as the network sees it."""

    def read(image: int) -> np.ndarray:
        item = examples.items[image]
        return embedder.prepare(item.read(), item.name, item.box)

    return read


def make_thumbnails(picture: ReadPicture | None, images: Iterable[int]) -> dict[int, bytes]:
    """Return small JPEGs of some pictures."""
    return {} if picture is None else {image: make_thumbnail(picture(image)) for image in images}


def find_copies_in_store(store: Store, cache: FeatureCache | None = None) -> list[tuple[int, int]]:
    """Return pairs of a store's pictures that are copies, also cropped, turned or brighter, by the built-in network."""
    embedder = load_embedder(DEFAULT_EMBEDDER)
    with progress(f"embedding {len(store.items)} pictures", float(len(store.items))) as advance:
        features = embedder.features(store.items, advance, cache)
    with progress("comparing pictures", 1.0) as advance:
        labels = np.unique(store.labels, return_inverse=True)[1]
        pairs = find_copies(unit_vectors(features), labels, lambda image: np.asarray(store.items[image]), advance)
    return [(one, other) for one, other, _ in pairs]


def try_default_features(
    examples: Source, head: str, options: AdviceOptions, cache: FeatureCache | None = None
) -> OtherFeatures:
    """Measure the built-in network beside the features at hand, with the same episodes, on a sample of the pictures.

    Args:
        examples: The examples, with their pictures.
        head: The head that is advised for the features at hand.
        options: Options of `advise`; of them `parameters`, `embed` and `registry` are used.
        cache: Features that were computed before.
    """
    rng, labels = np.random.default_rng(0), np.array(examples.labels)
    names, counts = np.unique(labels, return_counts=True)
    classes = rng.permutation(names[counts >= 3])[:SAMPLE_CLASSES]
    sample = np.concatenate([rng.permutation(np.flatnonzero(labels == name))[:SAMPLE_IMAGES] for name in classes])
    smallest = min(int((labels[sample] == name).sum()) for name in classes)
    queries = max(1, min(SAMPLE_QUERIES, smallest // 3))
    shot = smallest - queries

    def measure(features: np.ndarray, head: str, **learned: Any) -> float:
        evaluation = evaluate(features, labels[sample], head, [shot], len(classes), queries, SAMPLE_EPISODES, **learned)
        return float(evaluation.accuracies(head).mean() / 100)

    embedder = load_embedder(DEFAULT_EMBEDDER)
    pictures = np.stack([make_picture_reader(examples, embedder)(int(image)) for image in sample])
    learned = {name: options[name] for name in ("parameters", "embed", "registry") if name in options}
    own = measure(examples.features[sample], head, **learned)
    other = measure(embedder.features(pictures, cache=cache), DEFAULT_HEAD)
    return OtherFeatures(DEFAULT_EMBEDDER, own, other, shot, len(classes), len(sample))
