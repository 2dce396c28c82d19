"""Examples with labels, from whatever holds them: a store, a folder of pictures, or a file of features.

Pictures become features here, each once: what was embedded before comes from a cache.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from anyshot.data.embeddings import READERS, read_features
from anyshot.data.folders import read_folder
from anyshot.data.packing import Item, arrange, numbered
from anyshot.data.shards import is_shards, on_disk, read_shards
from anyshot.data.store import Store, open_store
from anyshot.errors import BadInput
from anyshot.models.cache import FeatureCache
from anyshot.models.embedders import Embedder, embed_items
from anyshot.progress import progress


@dataclass(frozen=True)
class Examples:
    """Features, and of each example its label, a name that a person finds it by, and its split where it has one."""

    features: Float[np.ndarray, "example ..."]
    labels: list[str]
    names: list[str]
    splits: list[str | None]

    def store(self, path: Path) -> Store:
        """The same as a store in memory; where the source has no splits, all classes are test classes."""
        items = [
            Item(str(index), label, split or "test", bytes)
            for index, (label, split) in enumerate(zip(self.labels, self.splits, strict=True))
        ]
        placed = arrange(items, (), 0)
        labels, names, splits = numbered(placed)
        order = np.array([int(item.name) for item in placed])
        features = self.features if self.features.ndim == 3 else self.features[:, None]
        in_order = bool((order[:-1] < order[1:]).all())  # then they may stay on disk
        return Store(path, features if in_order else features[order], np.array(labels), tuple(names), tuple(splits), {})


def holds_features(source: Path) -> bool:
    """Whether a source has features already: a file of them, or a store."""
    if (source / "store.json").is_file():
        return open_store(source).is_features
    if is_shards(source):
        return True
    return not source.is_dir() and (source.suffix.lower() in READERS)


def read_examples(source: Path, embeds: Embedder | None, cache: FeatureCache | None = None) -> Examples:
    """The examples of a source; pictures need what embeds them."""
    if (source / "store.json").is_file():
        store = open_store(source)
        labels = [store.class_names[label] for label in store.labels]
        splits: list[str | None] = [store.class_split[label] for label in store.labels]
        features = np.asarray(store.items)
        if embeds is not None and not store.is_features:
            with progress("embedding", float(len(labels))) as advance:
                features = embeds.features(store.items, advance, cache)
        return Examples(features, labels, [f"item {index}" for index in range(len(labels))], splits)
    if is_shards(source):
        return _of_shards(source)
    if not source.is_dir():
        found = read_features(source)
        names = [f"row {index}" for index in range(len(found.labels))]
        return Examples(found.features, list(found.labels), names, list(found.splits))
    items = read_folder(source).items
    assert embeds is not None
    rows, readable = [], []
    with progress("embedding", float(len(items))) as advance:
        for part in embed_items(embeds, items, cache):
            for one in part:
                if one.features is None:
                    warnings.warn(f"left out: {one.why}", stacklevel=2)
                else:
                    rows.append(one.features)
                    readable.append(one.item)
            advance(float(len(part)))
    if not rows:
        raise BadInput(f"no picture of {source} can be read.")
    return Examples(
        np.stack(rows),
        [item.class_name for item in readable],
        [item.name for item in readable],
        [item.split for item in readable],
    )


def _of_shards(source: Path) -> Examples:
    """Shards of features, in order of split, then class; the features stay on disk."""
    shards = list(read_shards(source))
    labels = [label for shard in shards for label in shard.labels]
    names = [name for shard in shards for name in shard.names]
    splits = [split for shard in shards for split in shard.splits]
    items = [
        Item(str(i), label, split or "test", bytes) for i, (label, split) in enumerate(zip(labels, splits, strict=True))
    ]
    order = [int(item.name) for item in arrange(items, (), 0)]
    labels, names = [labels[i] for i in order], [names[i] for i in order]
    return Examples(on_disk(source, order), labels, names, [splits[i] for i in order])
