"""Examples with labels, from whatever holds them: pictures in folders, archives, tables or stores, or features.

Pictures become features here, each once: what was embedded before comes from a cache.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from anyshot.data.archives import is_archive
from anyshot.data.embeddings import READERS, VECTORS, read_feature_file
from anyshot.data.layout import SourceOptions
from anyshot.data.open import describe_source, open_labelled_pictures
from anyshot.data.packer import Item, Source, StoredImage, number_classes, order_labels
from anyshot.data.shards import is_shards, memory_map_shards, read_shards
from anyshot.data.store import Store, open_store
from anyshot.data.tables import column_names
from anyshot.errors import BadInput
from anyshot.models.cache import FeatureCache
from anyshot.models.embedders import Embedder, FeatureBuffer, embed_items
from anyshot.progress import OnMessage, no_message, progress

Choose = Callable[[Sequence[str | None]], tuple[list[int], str]]
"""The examples that are wanted of those with these splits, and what to say of it (`sources.choose_splits`)."""


@dataclass(frozen=True)
class Examples:
    """Features, and of each example its label, a name that a person finds it by, and its split where it has one."""

    features: Float[np.ndarray, "example ..."]
    labels: list[str]
    names: list[str]
    splits: list[str | None]
    items: Sequence[Item] = ()
    """The pictures, to be read again; none where there are only features, or where an archive was unpacked for a
    while."""

    def store(self, path: Path) -> Store:
        """The same as a store in memory; where the source has no splits, all classes are test classes."""
        order, placed = order_labels(self.labels, [split or "test" for split in self.splits])
        labels, names, splits = number_classes(placed)
        features = self.features if self.features.ndim == 3 else self.features[:, None]
        features = features if order == sorted(order) else features[order]  # those in order may stay on disk
        return Store(path, features, np.array(labels), tuple(names), tuple(splits), {})

    def at(self, places: Sequence[int]) -> "Examples":
        """Some of them; features on a disk stay there where these lie side by side."""
        side_by_side = len(places) > 0 and list(places) == list(range(places[0], places[0] + len(places)))
        rows = slice(places[0], places[0] + len(places)) if side_by_side else list(places)
        labels, names = ([values[place] for place in places] for values in (self.labels, self.names))
        items = [self.items[place] for place in places] if self.items else ()
        return Examples(self.features[rows], labels, names, [self.splits[place] for place in places], items)


def has_features(source: Path) -> bool:
    """Whether a source has features already: a file of them, or a store."""
    if (source / "store.json").is_file():
        return open_store(source).is_features
    if is_shards(source):
        return True
    suffix = source.suffix.lower()
    if suffix in (".parquet", ".pq") and source.is_file():  # a table of paths, or of vectors
        return any(name.lower() in VECTORS for name in column_names(source))
    return not source.is_dir() and suffix in READERS


@contextlib.contextmanager
def select_pictures(
    source: Path, layout: SourceOptions | None = None, choose: Choose | None = None, say: OnMessage = no_message
) -> Iterator[Sequence[Item]]:
    """The pictures of a source that are wanted; what was understood of it is said first."""
    with _pictures(source, layout) as pictures:
        say(describe_source(pictures, source))
        places, words = choose([item.split for item in pictures.items]) if choose else (range(len(pictures.items)), "")
        say(f"  {words}." if words else "")
        yield [pictures.items[place] for place in places]


@contextlib.contextmanager
def _pictures(source: Path, layout: SourceOptions | None) -> Iterator[Source]:
    if not (source / "store.json").is_file():
        with open_labelled_pictures(source, layout) as pictures:
            yield pictures
        return
    store = open_store(source)
    labels, splits = _of_store(store)
    rows = zip(store.names, labels, splits, strict=True)
    yield Source([Item(*row, StoredImage(store, index)) for index, row in enumerate(rows)])


def read_examples(
    source: Path,
    embeds: Embedder | None,
    cache: FeatureCache | None = None,
    layout: SourceOptions | None = None,
    choose: Choose | None = None,
    say: OnMessage = no_message,
) -> Examples:
    """The examples of a source, or those of them that are wanted; pictures need what embeds them. What was understood
    is said before the work, and afterwards what could not be read."""
    if (source / "store.json").is_file():
        store = open_store(source)
        if embeds is None or store.is_features or choose is None:
            return _read_store(store, embeds, cache, choose, say)
    elif is_shards(source):
        return _chosen(_of_shards(source), source, choose, say)
    elif has_features(source) or not source.exists():
        return _chosen(_read_features(source, layout or SourceOptions()), source, choose, say)
    assert embeds is not None
    with select_pictures(source, layout, choose, say) as items:
        rows, readable = embed_readable(embeds, items, "embedding", cache, say)
    if not rows:
        raise BadInput(f"no picture of {source} can be read.")
    return Examples(
        rows.array,
        [item.class_name for item in readable],
        [item.name for item in readable],
        [item.split for item in readable],
        () if is_archive(source) else readable,
    )


def _of_shards(source: Path) -> Examples:
    """Shards of features, in order of split, then class; the features stay on disk."""
    shards = list(read_shards(source))
    labels = [label for shard in shards for label in shard.labels]
    names = [name for shard in shards for name in shard.names]
    splits = [split for shard in shards for split in shard.splits]
    order, _ = order_labels(labels, [split or "test" for split in splits])
    labels, names = [labels[i] for i in order], [names[i] for i in order]
    return Examples(memory_map_shards(source, order), labels, names, [splits[i] for i in order])


def embed_readable(
    embeds: Embedder, items: Sequence[Item], doing: str, cache: FeatureCache | None = None, say: OnMessage = no_message
) -> tuple[FeatureBuffer, list[Item]]:
    """The features of the pictures that can be read, and which these are; the others are said."""
    rows, readable, unread = FeatureBuffer(len(items)), [], []
    with progress(doing, float(len(items))) as advance:
        for part in embed_items(embeds, items, cache):
            for one in part:
                if one.features is None:
                    unread.append(one.why)
                else:
                    rows.add(one.features)
                    readable.append(one.item)
            advance(float(len(part)))
    report_unreadable(unread, say)
    return rows, readable


def report_unreadable(unread: Sequence[str], say: OnMessage, most: int = 10) -> None:
    """Tell of pictures that could not be read, after the work."""
    if unread:
        more = [f"  and {len(unread) - most} more."] if len(unread) > most else []
        files = "file" if len(unread) == 1 else "files"
        say("\n".join([f"Left out, {len(unread)} {files}:", *(f"  {why}" for why in unread[:most]), *more]))


def _of_store(store: Store) -> tuple[list[str], list[str | None]]:
    """The labels and splits of a store's items. A division of the classes, as `pack` makes it, divides no pictures of a
    class: then none has a split."""
    by_class = len(set(store.class_names)) == len(store.class_names)
    labels = [store.class_names[label] for label in store.labels]
    return labels, [None if by_class else store.class_split[label] for label in store.labels]


def _read_store(
    store: Store, embeds: Embedder | None, cache: FeatureCache | None, choose: Choose | None, say: OnMessage
) -> Examples:
    labels, splits = _of_store(store)
    features = np.asarray(store.items) if store.is_features or embeds is None else np.empty(0)
    if embeds is not None and not store.is_features:
        with progress("embedding", float(len(labels))) as advance:
            features = embeds.features(store.items, advance, cache)
    rows = zip(store.names, labels, splits, strict=True)
    items = () if store.is_features else [Item(*row, StoredImage(store, index)) for index, row in enumerate(rows)]
    return _chosen(Examples(features, labels, list(store.names), splits, items), store.path, choose, say)


def _read_features(source: Path, layout: SourceOptions) -> Examples:
    labelled = read_feature_file(source, layout.labels, layout.feature_column, layout.label_column, layout.split_column)
    names = [f"row {index}" for index in range(len(labelled.labels))]
    return Examples(labelled.features, list(labelled.labels), names, list(labelled.splits))


def _chosen(examples: Examples, source: Path, choose: Choose | None, say: OnMessage) -> Examples:
    """What was understood of features, said as of pictures, and those that are wanted."""
    rows = zip(examples.names, examples.labels, examples.splits, strict=True)
    say(describe_source(Source([Item(*row, bytes) for row in rows]), source, "vector"))
    if choose is None:
        return examples
    places, more = choose(examples.splits)
    say(f"  {more}." if more else "")
    return examples.at(places)
