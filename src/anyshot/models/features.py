"""Embed the pictures of any source, with a cache of features on disk, and write features to files."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from anyshot.concurrency import connect_ray
from anyshot.data.features import write_feature_file
from anyshot.data.layout import SourceOptions
from anyshot.data.open import open_source
from anyshot.data.pack import Embedding, Results, hash_inputs, pack, remove_leftovers
from anyshot.data.pictures import describe_failure
from anyshot.data.source import (
    NO_FEATURES,
    Item,
    SelectSplits,
    SkippedFile,
    Source,
    check_content,
    describe_source,
    no_picture,
)
from anyshot.data.store import open_store
from anyshot.errors import BadInput
from anyshot.models.cache import FeatureCache, hash_picture
from anyshot.models.devices import map_in_threads
from anyshot.models.embedders import BATCH, Embedder, load_embedder
from anyshot.models.registry import load_registry
from anyshot.progress import OnMessage, no_message, print_message, progress
from anyshot.text import count_noun

FILES = (".npz", ".parquet", ".pq")  # what plain arrays are written to

# ---------------------------------------------------------------------------------------------------------- embedding


@dataclass(frozen=True)
class EmbeddedItem:
    """A picture of a source and its features, or why there are none.

    Attributes:
        item: The picture.
        features: Its features; None where it could not be read.
        pixels: The input of the network; None where the features were cached.
        why: Why it could not be read; empty where it could.
    """

    item: Item
    features: Float[np.ndarray, "..."] | None
    pixels: UInt8[np.ndarray, "side side 3"] | None = None
    why: str = ""


def embed_items(
    embedder: Embedder, items: Sequence[Item], cache: FeatureCache | None = None
) -> Iterator[list[EmbeddedItem]]:
    """Decode and embed pictures on all cores; yield them in batches, in their order.

    Args:
        embedder: The network.
        items: The pictures.
        cache: Features of earlier runs; only other pictures are embedded.
    """
    batches = [items[start : start + BATCH] for start in range(0, len(items), BATCH)]
    return map_in_threads(partial(_embed_batch, embedder, cache), batches)


def _embed_batch(embedder: Embedder, cache: FeatureCache | None, batch: Sequence[Item]) -> list[EmbeddedItem]:
    """Embed the pictures of a batch that are not cached, all at once; pictures that fail do not stop the others."""
    done: dict[int, EmbeddedItem] = {}
    pictures: dict[int, np.ndarray] = {}
    keys: dict[int, str] = {}
    for index, item in enumerate(batch):
        data: bytes | np.ndarray = b""
        try:
            data = item.read()
            keys[index] = hash_picture(data, item.box) if cache is not None else ""
            row = embedder.get_cached(cache, keys[index])
            if row is None:
                pictures[index] = embedder.crop_square(data, item.box)
            else:
                done[index] = EmbeddedItem(item, row)
        except FileNotFoundError:
            done[index] = EmbeddedItem(item, None, why=f"there is no file {item.name}.")
        except Exception as error:  # a broken picture, or the file that it lies in, can fail in any way
            done[index] = EmbeddedItem(item, None, why=describe_failure(item.name, error, data))
    if pictures:
        features = embedder.run_network(np.stack(list(pictures.values())))
        for (index, pixels), row in zip(pictures.items(), features, strict=True):
            done[index] = EmbeddedItem(batch[index], row, pixels)
            embedder.add_cached(cache, keys[index], row)
    return [done[index] for index in range(len(batch))]


def embed_pictures(
    embedder: Embedder,
    items: Sequence[Item],
    cache: FeatureCache | None = None,
    title: str = "embedding",
    say: OnMessage = no_message,
) -> Source:
    """Embed pictures and return them as a source with features; unreadable pictures are its skipped files.

    Args:
        embedder: The network.
        items: The pictures.
        cache: Features of earlier runs.
        title: Title of the progress bar.
        say: Called with a summary of the pictures that cannot be read.
    """
    rows, readable = list[np.ndarray](), list[Item]()
    skipped: list[SkippedFile] = []
    with progress(title, float(len(items))) as advance:
        for batch in embed_items(embedder, items, cache):
            for one in batch:
                if one.features is None:
                    skipped.append((one.item.name, one.why))
                else:
                    rows.append(one.features)
                    readable.append(one.item)
            advance(float(len(batch)))
    say(describe_unreadable([why for _, why in skipped]))
    return Source(readable, features=np.stack(rows) if rows else NO_FEATURES, skipped=tuple(skipped))


def describe_unreadable(reasons: Sequence[str], limit: int = 10) -> str:
    """Return a summary of the pictures that could not be read; empty where there are none."""
    if not reasons:
        return ""
    more = [f"  and {len(reasons) - limit} more."] if len(reasons) > limit else []
    return "\n".join(
        [f"Left out, {count_noun(len(reasons), 'file')}:", *(f"  {why}" for why in reasons[:limit]), *more]
    )


def as_packing_embedding(embedder: Embedder, cache: FeatureCache | None = None) -> Embedding:
    """Return the argument that makes `pack` store the features of an embedder."""

    def embed(parts: Sequence[Sequence[Item]]) -> Iterator[Results]:
        return map(_as_results, map_in_threads(partial(_embed_batch, embedder, cache), parts))

    return Embedding({"backbone": embedder.about["backbone"], "content": embedder.fingerprint}, embed)


def _as_results(batch: Sequence[EmbeddedItem]) -> Results:
    """Return the features "position channel" of pictures, or the reasons why there are none."""
    return [one.why if one.features is None else np.atleast_2d(one.features).astype(np.float32) for one in batch]


# --------------------------------------------------------------------------------------------------- examples of a path


@contextlib.contextmanager
def open_examples(
    path: Path,
    options: SourceOptions | None = None,
    choose: SelectSplits | None = None,
    say: OnMessage = no_message,
) -> Iterator[Source]:
    """Open the labelled examples of a path and print a summary of them.

    Args:
        path: Any path of pictures or features.
        options: How the source is laid out, where that cannot be seen.
        choose: Which splits to use; all by default.
        say: Called with the summary.
    """
    with open_source(path, options) as source:
        say(describe_source(source, path))
        if choose is not None:
            rows, note = choose(source.splits)
            say(f"  {note}." if note else "")
            source = source.select(rows)
        yield source


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
            raise BadInput(f"{path} holds pictures, and features are needed here.")
        if source.images is not None:
            with progress("embedding", float(len(source.items))) as advance:
                features = embedder.features(source.images, advance, cache)
            return replace(source, features=features, images=None)
        embedded = embed_pictures(embedder, source.items, cache, say=say)
    if not embedded.has_features:
        raise BadInput(f"no picture of {path} can be read.")
    if source.kind != "archive":
        return embedded
    # The files of the archive are gone now.
    return replace(embedded, items=[replace(item, read=no_picture) for item in embedded.items])


# ---------------------------------------------------------------------------------------------------- features to files


def embed_path(
    path: Path,
    out: Path,
    model: str,
    on: str = "here",
    workers: int = 0,
    using: Path | None = None,
    options: SourceOptions | None = None,
) -> str:
    """Embed the pictures of a path and write their features; an interrupted call can be repeated and goes on.

    Args:
        path: Any path of pictures.
        out: A file (.npz, .parquet) for plain arrays, or a folder for a store, which may hold millions.
        model: The name of the network, as for `load_embedder`.
        on: Where the pictures of a store are embedded: here, ray, or ray://ADDRESS.
        workers: Processes on Ray; one per core by default.
        using: A Python file with heads and backbones of the user.
        options: How the source is laid out, where that cannot be seen.

    Returns:
        A sentence for the user about what was written.
    """
    if on not in ("here", "ray") and not on.startswith("ray://"):
        raise BadInput(f"pictures are embedded here, on ray or on ray://ADDRESS, not on {on!r}.")
    is_file = out.suffix.lower() in FILES
    if not is_file and out.suffix[1:2].isalpha() and not out.is_dir():  # a store may be called photos-1.2
        raise BadInput(
            "plain arrays are written to a .npz or .parquet file, and a name without an ending is that of a store: "
            f"{out.name} is neither."
        )
    with open_examples(path, options, say=print_message if is_file else no_message) as source:  # `pack` says it, too
        check_content(source, path, has_features=False)
        if not (items := source.items):
            raise BadInput(f"there are no pictures in {path}.")
        embedder = load_embedder(model, registry=load_registry(using))
        if is_file:
            return _write_file(embedder, items, out)
        embedding = as_packing_embedding(embedder)
        # Unlike in a packed store, a class may have examples in several splits, those of the source.
        about = {**embedding.about, "example_splits": any(item.split for item in items)}
        about["fingerprint"] = hash_inputs(items, path, about)
    if (out / "store.json").is_file() and open_store(out).about.get("fingerprint") == about["fingerprint"]:
        store = open_store(out)  # which the same command made before
        remove_leftovers(out)
    else:
        embed = embedding.embed if on == "here" else partial(_embed_on_ray, on, workers, model, using)
        layout = vars(options or SourceOptions())
        store = pack("", path, out, embedding=Embedding(about, embed), split=(0, 0, 1), say=print_message, **layout)
    skipped = len(store.about["skipped"])
    note = f"; {count_noun(skipped, 'picture')} could not be read: store.json has the names" if skipped else ""
    return f"{out}: features of {count_noun(len(store.items), 'picture')}{note}."


def _write_file(embedder: Embedder, items: Sequence[Item], out: Path) -> str:
    """Write the features of pictures as plain arrays; the cache lets an interrupted call go on."""
    embedded = embed_pictures(embedder, items, FeatureCache(), f"embedding {len(items)} pictures", print_message)
    if not embedded.has_features:
        raise BadInput(f"none of the {len(items)} pictures can be read; {embedded.skipped[0][1]}")
    write_feature_file(out, embedded)
    shape = "x".join(str(side) for side in embedded.features.shape[1:] if side > 1)
    return f"{out}: {len(embedded.items)} pictures, features of {shape} values."


class _RayWorker:
    """An embedder in a process of Ray's."""

    def __init__(self, model: str, using: Path | None) -> None:
        self.embedder = load_embedder(model, registry=load_registry(using))

    def embed(self, part: Sequence[Item]) -> Results:
        return _as_results(_embed_batch(self.embedder, None, part))


def _embed_on_ray(
    on: str, workers: int, model: str, using: Path | None, parts: Sequence[Sequence[Item]]
) -> Iterator[Results]:
    """Embed chunks of pictures in processes of Ray's; yields their features in order."""
    with connect_ray(on) as ray:
        from ray.util import ActorPool

        count = min(workers or int(ray.cluster_resources().get("CPU", 1)), len(parts))
        actors = [ray.remote(_RayWorker).remote(model, using) for _ in range(count)]
        yield from ActorPool(actors).map(lambda actor, part: actor.embed.remote(part), parts) if actors else ()
