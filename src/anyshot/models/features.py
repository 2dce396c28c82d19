"""Images to features: examples of any source embedded once, taken from the cache the next time, and written to files.

`embed_path` writes shards for millions of pictures. What a shard holds depends on its own pictures alone, and a shard
appears complete or not at all: the same command goes on with those that are missing, and any number of workers, here
or on Ray, end with the same files.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from anyshot.data.features import SHARDS, is_shard, read_shards, shard_path, write_feature_file, write_shard
from anyshot.data.layout import SourceOptions
from anyshot.data.open import open_source
from anyshot.data.pack import Embedding
from anyshot.data.source import (
    NO_FEATURES,
    FileBytes,
    Item,
    SelectSplits,
    SkippedFile,
    Source,
    describe_source,
    no_picture,
)
from anyshot.errors import BadInput
from anyshot.files import locked, read_json, remove_leftovers, write_json
from anyshot.models.cache import CachedFeatures, FeatureCache, hash_picture
from anyshot.models.devices import map_in_threads
from anyshot.models.embedders import BATCH, Embedder, load_embedder, open_cached
from anyshot.models.registry import load_registry
from anyshot.progress import OnMessage, no_message, progress

SHARD_ROWS = 1024  # pictures of a shard: 5 MB of features of the default network

# ---------------------------------------------------------------------------------------------------------- embedding


@dataclass(frozen=True)
class EmbeddedItem:
    """A picture of a source and its features, or why there are none.

    Attributes:
        item: The picture.
        features: Its features; None where it could not be read.
        pixels: What the network saw, where it was decoded now.
        why: Why it could not be read.
    """

    item: Item
    features: Float[np.ndarray, "..."] | None
    pixels: UInt8[np.ndarray, "side side 3"] | None = None
    why: str = ""


class FeatureBuffer:
    """An array of features that grows up to a size known before: a list would be in memory twice when it is stacked.

    Args:
        capacity: How many rows come at most; rows that never come take no memory.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity, self._filled = capacity, 0
        self._rows: np.ndarray | None = None

    def add(self, features: Float[np.ndarray, "..."]) -> None:
        """Append one row."""
        if self._rows is None:
            self._rows = np.empty((self._capacity, *features.shape), features.dtype)
        if features.shape != self._rows.shape[1:]:
            raise BadInput(f"the backbone gave features of shapes {self._rows.shape[1:]} and {features.shape}.")
        self._rows[self._filled] = features
        self._filled += 1

    def __len__(self) -> int:
        return self._filled

    @property
    def array(self) -> Float[np.ndarray, "image ..."]:
        """The rows; there must be one."""
        assert self._rows is not None
        return self._rows[: self._filled]


def embed_items(
    embedder: Embedder, items: Sequence[Item], cache: FeatureCache | None = None
) -> Iterator[list[EmbeddedItem]]:
    """Embed pictures, in order and a batch at a time: decoded and embedded on all cores, few of them in memory.

    Args:
        embedder: The network.
        items: The pictures.
        cache: Features of earlier runs; only pictures that it does not have are embedded.
    """
    with open_cached(embedder, cache) as cached:
        batches = [items[start : start + BATCH] for start in range(0, len(items), BATCH)]
        yield from map_in_threads(partial(_embed_batch, embedder, cached), batches)


def _embed_batch(embedder: Embedder, cached: CachedFeatures | None, batch: Sequence[Item]) -> list[EmbeddedItem]:
    done: dict[int, EmbeddedItem] = {}
    pictures: dict[int, np.ndarray] = {}
    keys: dict[int, bytes] = {}
    for place, item in enumerate(batch):
        try:
            data = item.read()
            keys[place] = hash_picture(data, item.box) if cached is not None else b""
            row = cached.get(keys[place]) if cached is not None else None
            if row is None:
                pictures[place] = embedder.read(data, item.name, item.box)
            else:
                done[place] = EmbeddedItem(item, row)
        except FileNotFoundError:
            done[place] = EmbeddedItem(item, None, why=f"there is no file {item.name}.")
        except (BadInput, OSError) as error:
            done[place] = EmbeddedItem(item, None, why=str(error))
    if pictures:
        features = embedder.embedded(np.stack(list(pictures.values())))
        for (place, pixels), row in zip(pictures.items(), features, strict=True):
            done[place] = EmbeddedItem(batch[place], row, pixels)
            if cached is not None:
                cached.add(keys[place], row)
    return [done[place] for place in range(len(batch))]


def embed_pictures(
    embedder: Embedder,
    items: Sequence[Item],
    cache: FeatureCache | None = None,
    title: str = "embedding",
    say: OnMessage = no_message,
) -> Source:
    """Return the pictures that can be read with their features; the others are its skipped files.

    Args:
        embedder: The network.
        items: The pictures.
        cache: Features of earlier runs.
        title: What the progress bar says.
        say: Called with a summary of the pictures that cannot be read.
    """
    rows, readable = FeatureBuffer(len(items)), list[Item]()
    skipped: list[SkippedFile] = []
    with progress(title, float(len(items))) as advance:
        for batch in embed_items(embedder, items, cache):
            for one in batch:
                if one.features is None:
                    skipped.append((one.item.name, one.why))
                else:
                    rows.add(one.features)
                    readable.append(one.item)
            advance(float(len(batch)))
    say(describe_unreadable([why for _, why in skipped]))
    return Source(readable, features=rows.array if readable else NO_FEATURES, skipped=tuple(skipped))


def describe_unreadable(reasons: Sequence[str], limit: int = 10) -> str:
    """Return a summary of the pictures that could not be read; empty where there are none."""
    if not reasons:
        return ""
    more = [f"  and {len(reasons) - limit} more."] if len(reasons) > limit else []
    files = "file" if len(reasons) == 1 else "files"
    return "\n".join([f"Left out, {len(reasons)} {files}:", *(f"  {why}" for why in reasons[:limit]), *more])


def as_packing_embedding(embedder: Embedder, cache: FeatureCache | None = None) -> Embedding:
    """Return what makes `anyshot pack` store features of images."""

    def chunks(items: Sequence[Item]) -> Iterator[list[np.ndarray | str]]:
        for batch in embed_items(embedder, items, cache):
            yield [one.why if one.features is None else np.atleast_2d(one.features).astype(np.float32) for one in batch]

    return Embedding({"backbone": embedder.about["backbone"], "content": embedder.content}, chunks)


# --------------------------------------------------------------------------------------------------- examples of a path


@contextlib.contextmanager
def open_examples(
    path: Path,
    options: SourceOptions | None = None,
    choose: SelectSplits | None = None,
    say: OnMessage = no_message,
) -> Iterator[Source]:
    """Open the labelled examples of a path, or those of the splits that are chosen; a summary is said first."""
    with open_source(path, options) as source:
        say(describe_source(source, path))
        if choose is not None:
            rows, sentence = choose(source.splits)
            say(f"  {sentence}." if sentence else "")
            source = source.select(rows)
        yield source


@contextlib.contextmanager
def select_pictures(
    path: Path, options: SourceOptions | None = None, choose: SelectSplits | None = None, say: OnMessage = no_message
) -> Iterator[Sequence[Item]]:
    """Open the labelled pictures of a path, or those of the splits that are chosen; a summary is said first."""
    with open_examples(path, options, choose, say) as source:
        if source.has_features:
            raise BadInput(f"{path} holds features, not pictures.")
        yield source.items


def read_examples(
    path: Path,
    embedder: Embedder | None = None,
    cache: FeatureCache | None = None,
    options: SourceOptions | None = None,
    choose: SelectSplits | None = None,
    say: OnMessage = no_message,
) -> Source:
    """Read the labelled examples of a path with their features.

    Args:
        path: Any path of pictures or features.
        embedder: Turns pictures into features; a path of features needs none.
        cache: Features of earlier runs.
        options: How the source is laid out, where that cannot be seen.
        choose: Which splits to use; all by default.
        say: Called with a summary before the work, and with the pictures that cannot be read after it.
    """
    with open_examples(path, options, choose, say) as source:
        if source.has_features:
            return source
        if embedder is None:
            raise BadInput(f"{path} holds pictures, not features: name what embeds them.")
        if source.store is not None:
            with progress("embedding", float(len(source.items))) as advance:
                return replace(source, features=embedder.features(source.store.items, advance, cache))
        embedded = embed_pictures(embedder, source.items, cache, say=say)
    if not embedded.has_features:
        raise BadInput(f"no picture of {path} can be read.")
    if source.kind != "archive":
        return embedded
    return replace(embedded, items=[replace(item, read=no_picture) for item in embedded.items])  # no longer unpacked


# ---------------------------------------------------------------------------------------------------- features to files


def embed_path(path: Path, out: Path, model: str, on: str = "here", workers: int = 0, using: Path | None = None) -> str:
    """Embed the pictures of a path and write their features.

    Args:
        path: Any path of pictures.
        out: A file (.npz, .parquet) for plain arrays, or a folder for shards.
        model: What embeds the pictures, as `load_embedder` takes it.
        on: Where shards are made: here, ray, or ray://ADDRESS.
        workers: Processes on Ray; one a core by default.
        using: A Python file with heads and backbones of the user's.

    Returns:
        A sentence that says what was written.
    """
    if on not in ("here", "ray") and not on.startswith("ray://"):
        raise BadInput(f"pictures are embedded here, on ray or on ray://ADDRESS, not on {on!r}.")
    with select_pictures(path) as items:
        if not items:
            raise BadInput(f"there are no pictures in {path}.")
        embedder = load_embedder(model, registry=load_registry(using))
        if out.suffix.lower() in (".npz", ".parquet"):
            return _write_file(embedder, items, out)
        about = {
            "format": 1,
            "backbone": embedder.about["backbone"],
            "content": embedder.content,
            "pictures": len(items),
            "shards": -(-len(items) // SHARD_ROWS),
            "source": _fingerprint(items),
        }
        with _shard_folder(out, about):
            missing = [number for number in range(about["shards"]) if not is_shard(shard_path(out, number))]
            tasks = [(number, items[number * SHARD_ROWS : (number + 1) * SHARD_ROWS]) for number in missing]
            with progress(f"embedding {len(items)} pictures", float(len(items))) as advance:
                advance(float(SHARD_ROWS * (about["shards"] - len(missing))))
                if on == "here":
                    for number, part in tasks:
                        advance(float(_embed_shard(embedder, part, shard_path(out, number))))
                else:
                    for rows in _embed_on_ray(on, tasks, out.resolve(), model, workers, using):
                        advance(float(rows))
    skipped = sum(len(shard.skipped) for shard in read_shards(out))
    words = f"; {skipped} could not be read, and are named in the shards" if skipped else ""
    return f"{out}: {len(items) - skipped} pictures in {about['shards']} shards{words}."


def _write_file(embedder: Embedder, items: Sequence[Item], out: Path) -> str:
    """Write plain arrays; the cache keeps what was done, should this be interrupted."""
    embedded = embed_pictures(embedder, items, FeatureCache(), f"embedding {len(items)} pictures")
    if not embedded.has_features:
        raise BadInput(f"none of the {len(items)} pictures can be read; {embedded.skipped[0][1]}")
    write_feature_file(out, embedded)
    unreadable = describe_unreadable([why for _, why in embedded.skipped])
    shape = "x".join(map(str, embedded.features.shape[1:]))
    return f"{out}: {len(embedded.items)} pictures, features of {shape} values.\n{unreadable}".rstrip()


@contextlib.contextmanager
def _shard_folder(out: Path, about: dict[str, Any]) -> Iterator[None]:
    """Lock the folder of the shards, and check that it is empty or holds shards of the same pictures and model."""
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        remove_leftovers(out)  # a killed process may have begun to write shards.json
        if (out / SHARDS).is_file():
            if read_json(out / SHARDS) != about:
                raise BadInput(f"{out} holds features of other pictures, or of another model: choose another folder.")
        elif any(out.iterdir()):
            raise BadInput(f"{out} has other things in it: choose another folder.")
        write_json(out / SHARDS, about)
        yield


def _embed_shard(embedder: Embedder, items: Sequence[Item], path: Path) -> int:
    """Embed the pictures of one shard; returns how many there are."""
    embedded = [one for batch in embed_items(embedder, items) for one in batch]
    rows = [np.atleast_2d(one.features) for one in embedded if one.features is not None]
    readable = [one.item for one in embedded if one.features is not None]
    skipped = tuple((one.item.name, one.why) for one in embedded if one.features is None)
    write_shard(path, Source(readable, features=np.stack(rows) if rows else NO_FEATURES, skipped=skipped))
    return len(items)


class _RayWorker:
    """An embedder in a process of Ray's."""

    def __init__(self, model: str, using: Path | None, out: Path) -> None:
        self.embedder, self.out = load_embedder(model, registry=load_registry(using)), out

    def __call__(self, row: dict[str, Any]) -> dict[str, int]:
        number, items = row["item"]
        return {"rows": _embed_shard(self.embedder, items, shard_path(self.out, number))}


def _embed_on_ray(
    on: str, tasks: Sequence[tuple[int, Sequence[Item]]], out: Path, model: str, workers: int, using: Path | None
) -> Iterator[int]:
    """Embed shards in processes of Ray's; yields the number of pictures of each."""
    try:
        import ray
        import ray.data
    except ImportError:
        raise BadInput("`--on ray` needs the extra: pip install 'anyshot[ray]' 'ray[data]'.") from None
    started = not ray.is_initialized()
    if started:
        ray.init(None if on == "ray" else on, log_to_driver=False, logging_level="warning")
    try:
        many = workers or int(ray.cluster_resources().get("CPU", 1))
        ray.data.DataContext.get_current().enable_progress_bars = False
        shards = ray.data.from_items(list(tasks), override_num_blocks=max(1, len(tasks))) if tasks else None
        if shards is not None:
            arguments = {"model": model, "using": using, "out": out}
            done = shards.map(_RayWorker, fn_constructor_kwargs=arguments, concurrency=min(many, len(tasks)))
            for row in done.iter_rows():
                yield int(row["rows"])
    finally:
        if started:
            ray.shutdown()


def _fingerprint(items: Sequence[Item]) -> str:
    """Hash what must be equal for an interrupted run to go on."""
    digest = hashlib.sha256()
    for item in items:
        size = os.path.getsize(item.read.path) if isinstance(item.read, FileBytes) and item.read.path.is_file() else 0
        digest.update(repr((item.name, item.class_name, item.split, size)).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:32]
