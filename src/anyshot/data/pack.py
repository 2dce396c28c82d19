"""`anyshot pack KIND SOURCE`: make a store of a source of any kind.

Images are decoded, or embedded, in chunks of 64. Each chunk becomes a file in a hidden folder beside the path of the
store, so that an interrupted pack can go on with the missing chunks. At the end the store is written from all chunks,
which takes its disk space twice, and is moved to its path.

    .NAME.packing/chunks-HASH/000000000.npz   a chunk, named by the number of its first image (`_write_chunk`)
    .NAME.packing/unpacked-SIZE-TIME          the files of an archive
    .NAME.packing/store                       the store before it is moved
"""

import contextlib
import hashlib
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from anyshot.concurrency import map_in_order
from anyshot.data.archives import read_npz
from anyshot.data.layout import PackOptions
from anyshot.data.open import open_source
from anyshot.data.pictures import FileBytes, Fit, decode_picture, explain_unreadable, picture_size
from anyshot.data.source import Item, Source, describe_notes, describe_source, number_classes, order_by_split
from anyshot.data.store import SIDES, SPLITS, Store, check_absent, finish_store, open_store, write_items, write_store
from anyshot.errors import BadInput, os_error_as_bad_input
from anyshot.files import locked, move_into_place
from anyshot.machine import count_cores
from anyshot.progress import OnMessage, no_message, progress

FRAME_SIDE = 256  # pixels of a frame's shorter side: no resized crop of a 4:3 photo (0.08 of its area) is below 84x84
CHUNK = 64  # images of a chunk, which one thread decodes
FEATURE_ROWS = 4096  # vectors that are copied at a time
RESUME_HINT = "; what is done is kept, the same command goes on."
Results = list[np.ndarray | str]
"""For each image of a chunk its array, or the reason why it could not be read."""


@dataclass(frozen=True)
class StoreOptions(PackOptions):
    """How a store is made, beside the options of its source.

    Attributes:
        split: Shares of the classes for train, val and test, where the source does not say.
        seed: Seed of this random division.
        workers: Threads that decode; one per core by default.
    """

    split: Sequence[int | float] = (0.6, 0.2, 0.2)
    seed: int = 0
    workers: int = 0


@dataclass(frozen=True)
class Embedding:
    """How `pack` stores features of images instead of the images.

    Attributes:
        about: Metadata for the store: the backbone, and the fingerprint of the embedder.
        embed: Yields, for each chunk of items in turn, their features "position channel".
    """

    about: dict[str, Any]
    embed: Callable[[Sequence[Sequence[Item]]], Iterable[Results]]


def pack(
    kind: str,
    source: Path,
    out: Path,
    size: int | None = None,
    fit: Fit | None = None,
    embedding: Embedding | None = None,
    examine: Callable[[Store], object] | None = None,
    say: OnMessage = no_message,
    **options: Any,
) -> Store:
    """Read a source of some kind and write a store of its images or features.

    Args:
        kind: cub, mini, tiered, meta-inat, folder, table, huggingface, features or npz; empty to find it by the path.
        source: The path to read.
        out: The path of the store.
        size: Side of the stored square; the reader's by default.
        fit: How a picture becomes a square; the reader's by default.
        embedding: Stores features of the images instead of the images.
        examine: Called with the complete store before it is moved to its path; files that it writes there belong to it.
        say: Called with a summary of the source before the work.
        options: Fields of `StoreOptions`.
    """
    choices, resizes = StoreOptions(**options), size is not None or fit is not None
    if size is not None and not 1 <= size <= 1024:
        raise BadInput(f"a size of {str(size)[:20]} is not sensible: images are stored as squares of 1 to 1024 pixels.")
    if embedding is not None and resizes:
        raise BadInput("--size and --fit are for stored images; what --embed names has a size of its own.")
    with _packing_folder(out) as folder, open_source(source, choices, pack_kind=kind, workdir=folder) as contents:
        staged = folder / "store"
        shutil.rmtree(staged, ignore_errors=True)
        if contents.has_features:
            if resizes or embedding is not None:
                raise BadInput("--size, --fit and --embed are for images, not for features.")
            _pack_features(contents, staged, choices)
        else:
            say(describe_source(contents, source))
            about = {"kind": kind or contents.kind, "source": source.name, "split": list(choices.split)}
            contents = replace(
                contents,
                size=size or (FRAME_SIDE if fit == "frame" else contents.size),
                fit=fit or contents.fit,
                about={**about, "seed": choices.seed, **contents.about},
                notes=tuple(describe_notes(contents)),
            )
            with os_error_as_bad_input(f"could not write {folder}", RESUME_HINT):
                _pack_images(contents, source, folder, choices, embedding)
        if examine is not None:
            examine(open_store(staged))
        with os_error_as_bad_input(f"could not write {out}", RESUME_HINT):
            move_into_place(staged, out)
        shutil.rmtree(folder, ignore_errors=True)
    return open_store(out)


def _packing_path(out: Path) -> Path:
    return out.with_name(f".{out.name}.packing")


def remove_leftovers(out: Path) -> None:
    """Remove the packing folder of a store that is complete: a pack that was killed at the very end leaves it."""
    folder = _packing_path(out)
    if folder.exists():
        with locked(folder):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _packing_folder(out: Path) -> Iterator[Path]:
    """Lock the folder that a store is packed in; remove it at the end, unless the same command can go on with it."""
    folder = _packing_path(out)
    with locked(folder):
        try:
            if (out / "store.json").is_file():  # an earlier pack was killed after it had moved its store
                shutil.rmtree(folder, ignore_errors=True)
            check_absent(out)
            yield folder
        except BadInput as error:
            if not isinstance(error.__cause__, OSError):  # after a full disk, the same command goes on
                shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            with contextlib.suppress(OSError):  # a folder with chunks is not empty and stays
                folder.rmdir()


# ------------------------------------------------------------------------------------------------ splits of the classes


def assign_splits(items: Sequence[Item], options: StoreOptions) -> list[Item]:
    """Give every item a split: classes that have none are divided at random, in the shares of the options."""
    unassigned = sorted({item.class_name for item in items if item.split is None})
    split = divide_classes(unassigned, options.split, options.seed) if unassigned else {}
    return [item if item.split else replace(item, split=split[item.class_name]) for item in items]


def divide_classes(classes: Sequence[str], fractions: Sequence[int | float], seed: int) -> dict[str, str]:
    """Return the split of each class, at random: a share for train, val and test each, of at least one class."""
    if len(fractions) != 3 or not (min(fractions) >= 0 and 0 < sum(fractions) < float("inf")):
        raise BadInput(
            f"a split is three shares of the classes (train, val, test), such as 0.6 0.2 0.2, not {fractions}."
        )
    wanted = [index for index in range(3) if fractions[index] > 0]
    if len(classes) < len(wanted):
        raise BadInput(f"{len(classes)} classes cannot be divided into {len(wanted)} splits: try --split 0 0 1.")
    shares = [fraction * len(classes) / sum(fractions) for fraction in fractions]
    counts = [max(int(share), int(share > 0)) for share in shares]
    while sum(counts) != len(classes):  # the split that is furthest from its share gains or loses a class
        step = 1 if sum(counts) < len(classes) else -1
        candidates = [index for index in wanted if counts[index] + step > 0]
        counts[max(candidates, key=lambda index: step * (shares[index] - counts[index]))] += step
    shuffled = sorted(classes)
    random.Random(seed).shuffle(shuffled)
    splits = [split for split, count in zip(SPLITS, counts, strict=True) for _ in range(count)]
    return dict(zip(shuffled, splits, strict=True))


# -------------------------------------------------------------------------------------------------------------- packing


def _pack_features(source: Source, staged: Path, options: StoreOptions) -> None:
    """Write the store of a source of features."""
    items = assign_splits(source.items, options)
    order = order_by_split(items)
    ordered = [items[row] for row in order]
    chunks = (source.features[order[start : start + FEATURE_ROWS]] for start in range(0, len(order), FEATURE_ROWS))
    names, groups = [item.name for item in ordered], [item.group for item in ordered]
    write_store(staged, chunks, *number_classes(ordered), names=names, groups=groups, notes=[])


def _pack_images(source: Source, path: Path, folder: Path, options: StoreOptions, embedding: Embedding | None) -> None:
    """Write the missing chunks of a source of pictures to the packing folder, then the store of all chunks."""
    items = assign_splits(source.items, options)
    items = [items[row] for row in order_by_split(items)]
    if not items:
        raise BadInput("there are no images to pack.")
    settings = {"size": source.size, "fit": source.fit} if embedding is None else embedding.about
    chunk_folder = folder / f"chunks-{hash_inputs(items, path, settings)}"
    for other in folder.glob("chunks-*"):
        if other != chunk_folder:
            shutil.rmtree(other)
    chunk_folder.mkdir(exist_ok=True)
    parts = {chunk_folder / f"{start:09d}.npz": items[start : start + CHUNK] for start in range(0, len(items), CHUNK)}
    missing = {file: part for file, part in parts.items() if not _is_chunk(file)}
    if embedding is None:
        title, chunks = "packing", _decode_chunks(list(missing.values()), source, options.workers)
    else:
        title, chunks = "embedding", ((results, []) for results in embedding.embed(list(missing.values())))
    with progress(f"{title} {len(items)} images", float(len(items))) as advance:
        advance(float(len(items) - sum(map(len, missing.values()))))
        for file, (results, sides) in zip(missing, chunks, strict=True):
            _write_chunk(file, results, sides)
            advance(float(len(results)))
    _join_chunks(list(parts), items, source, folder / "store", embedding)


def hash_inputs(items: Sequence[Item], path: Path, settings: dict[str, Any]) -> str:
    """Return a hash of everything that chunks depend on: only chunks of the same hash are used again.

    Args:
        items: The images: names, classes, splits, boxes, groups, and the size and time of their files count.
        path: The source; the size and time of a file count, and of the index of a store or a data set.
        settings: How the images are stored or embedded.
    """
    indices = [path, *(path / name for name in ("store.json", "state.json", "dataset_dict.json"))]
    digest = hashlib.sha256(repr((settings, CHUNK, [_version(file) for file in indices])).encode())
    for item in items:
        # The `read` of a picture inside a tar or Parquet file is a `partial` with that file among its arguments.
        paths = [item.read.path] if isinstance(item.read, FileBytes) else getattr(item.read, "args", ())
        versions = [_version(path) for path in paths if isinstance(path, Path)]
        about = (item.name, item.class_name, item.split, item.box, versions, *([item.group] if item.group else []))
        digest.update(repr(about).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:32]


def _version(path: Path) -> tuple[int, ...]:
    """Return the size and time of a file; () if there is none, or it cannot be read."""
    with contextlib.suppress(OSError):
        if path.is_file():
            return path.stat().st_size, path.stat().st_mtime_ns
    return ()


def _decode_chunks(
    parts: Sequence[Sequence[Item]], source: Source, workers: int
) -> Iterator[tuple[Results, list[int]]]:
    """Yield the images of each part, decoded in threads, and the shorter sides of the originals."""

    def decode(part: Sequence[Item]) -> tuple[Results, list[int]]:
        results: Results = []
        sides: list[int] = []
        for item in part:
            data: bytes | np.ndarray = b""
            try:
                data = item.read()
                results.append(decode_picture(data, source.size, source.fit, item.box))
            except Exception as error:  # a broken image can fail in any way
                results.append(explain_unreadable(error, data))
            else:
                sides += [min(picture_size(data))] if item.box is None else []
        return results, sides

    workers = workers or count_cores()
    with ThreadPoolExecutor(workers) as pool:
        yield from map_in_order(pool, decode, parts, 2 * workers)


def _write_chunk(path: Path, results: Results, sides: Sequence[int]) -> None:
    """Write a chunk atomically: the array of each image or the reason as text, and the shorter sides."""
    temporary = path.with_suffix(".part")
    with temporary.open("wb") as file:
        np.savez(file, *results, sides=np.array(sides, np.int64))
    os.replace(temporary, path)


def _is_chunk(path: Path) -> bool:
    """Return whether a path is a complete chunk of an earlier run."""
    with contextlib.suppress(BadInput):
        return "sides" in read_npz(path)
    return False


def _join_chunks(
    files: Sequence[Path], items: Sequence[Item], source: Source, folder: Path, embedding: Embedding | None
) -> None:
    """Write the store from the files of all chunks."""
    skipped: dict[int, str] = {}
    shapes: list[tuple[int, ...]] = []
    sides: list[int] = []
    is_frames = embedding is None and source.fit == "frame"

    def read_rows() -> Iterator[np.ndarray]:
        for file in files:
            chunk = read_npz(file)
            sides.extend(chunk.pop("sides").tolist())
            for index, (_, result) in enumerate(chunk.items(), int(file.stem)):
                if result.dtype.kind == "U":
                    skipped[index] = str(result)
                    continue
                shapes.append(result.shape)
                if shapes[0] != result.shape and not is_frames:
                    two = f"{min(shapes[0], result.shape)} and {max(shapes[0], result.shape)}"
                    raise BadInput(f"the images have different sizes, {two} among them: give one with --size.")
                yield result.ravel() if is_frames else result[None]

    folder.mkdir()
    write_items(folder / "items.npy", read_rows())
    if len(skipped) == len(items):
        raise BadInput(f"none of the {len(items)} images could be read; {items[0].name}: {skipped[0]}.")
    if is_frames:
        np.save(folder / SIDES, np.array(shapes, np.int32)[:, :2])
    readable = [item for index, item in enumerate(items) if index not in skipped]
    notes = [*source.notes, *_describe_enlarged(sides, source.size), *_describe_lost(items, readable)]
    about = {**source.about, "notes": notes, **({"fit": source.fit} if embedding is None else embedding.about)}
    about["skipped"] = [{"name": items[index].name, "why": why} for index, why in sorted(skipped.items())]
    names, groups = [item.name for item in readable], [item.group for item in readable]
    finish_store(folder, *number_classes(readable), about, names, groups)


def _describe_enlarged(sides: Sequence[int], size: int | None) -> list[str]:
    """Return a note if most images had to be enlarged, by the median of their shorter sides."""
    side = sorted(sides)[len(sides) // 2] if sides else 0
    if not size or not 0 < side < size:
        return []
    return [
        f"most images are smaller than {size}x{size} and were enlarged: `--size {side}` would store them as they are"
    ]


def _describe_lost(items: Sequence[Item], readable: Sequence[Item]) -> list[str]:
    """Return a note for each class without a readable image."""
    before, after = ({(str(item.split), item.class_name) for item in part} for part in (items, readable))
    return [f"class {name!r} ({split}) has no readable image and is left out" for split, name in sorted(before - after)]
