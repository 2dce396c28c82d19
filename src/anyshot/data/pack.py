"""`anyshot pack KIND SOURCE`: from a source of any kind to a store.

Images are decoded, or embedded, in chunks. Each chunk becomes a file of its own, in a hidden folder beside the place of
the store. In the end the store is put together from them, which takes twice its room for a while, and moved into its
place. An interrupted pack goes on with the chunks that are missing.

    .NAME.packing/chunks-FINGERPRINT/000000000.npz   a chunk, called by its first image: what became of its images
    .NAME.packing/unpacked-VERSION                   the files of an archive
    .NAME.packing/store                              the store before it takes its place
"""

import contextlib
import hashlib
import json
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
from anyshot.data.arrays import read_npz
from anyshot.data.frames import as_flat
from anyshot.data.layout import PackOptions
from anyshot.data.open import open_source
from anyshot.data.pictures import FileBytes, Fit, decode_picture, explain_unreadable, picture_size
from anyshot.data.source import Item, Source, describe_notes, describe_source, number_classes, order_by_split
from anyshot.data.store import SIDES, SPLITS, Store, check_absent, finish_store, open_store, write_items, write_store
from anyshot.errors import BadInput, os_error_as_bad_input
from anyshot.files import locked, move_into_place
from anyshot.progress import OnMessage, no_message, progress

FRAME_SIDE = 256  # pixels of a frame's shorter side: no resized crop of a 4:3 photo (0.08 of its area) is below 84x84
CHUNK = 64  # images of a chunk, which one thread decodes
FEATURE_ROWS = 4096  # vectors that are copied at a time
GOES_ON = "; what is done is kept, the same command goes on."
Results = list[np.ndarray | str]
"""An array for each image of a chunk, or the reason why it could not be read."""


@dataclass(frozen=True)
class StoreOptions(PackOptions):
    """How a store is made, beside the options of its source.

    Attributes:
        split: Shares of the classes for train, val and test, where the source does not say.
        seed: Decides this division; the same number gives the same division.
        workers: Threads that decode; one a core by default.
    """

    split: Sequence[int | float] = (0.6, 0.2, 0.2)
    seed: int = 0
    workers: int = 0


@dataclass(frozen=True)
class Embedding:
    """A network that makes features of images while they are packed.

    Attributes:
        about: What the store says of it: the backbone, and the hash of its content.
        embed: Turns chunks of items into features "position channel", chunk by chunk in their order.
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
        kind: cub, mini, tiered, meta-inat, folder, table, huggingface, features or npz; empty for whatever is there.
        source: The path to read.
        out: The path of the store.
        size: Side of the stored square; the reader's by default.
        fit: How a picture becomes a square; the reader's by default.
        embedding: Stores features of the images instead of the images.
        examine: Called with the complete store before it takes its place, so that what it writes there is part of it.
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
            with os_error_as_bad_input(f"could not write {folder}", GOES_ON):
                _pack_images(contents, source, folder, choices, embedding)
        if examine is not None:
            examine(open_store(staged))
        with os_error_as_bad_input(f"could not write {out}", GOES_ON):
            move_into_place(staged, out)
        shutil.rmtree(folder, ignore_errors=True)
    return open_store(out)


@contextlib.contextmanager
def _packing_folder(out: Path) -> Iterator[Path]:
    """Lock the folder that a store is packed in; it stays afterwards only if the same command can go on with it."""
    folder = out.with_name(f".{out.name}.packing")
    with locked(folder):
        try:
            if (out / "store.json").is_file():  # a pack was killed after its store had taken its place
                shutil.rmtree(folder, ignore_errors=True)
            check_absent(out)
            yield folder
        except BadInput as error:
            if not isinstance(error.__cause__, OSError):  # after a full disk, the same command goes on
                shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            with contextlib.suppress(OSError):  # one with chunks in it stays
                folder.rmdir()


# ------------------------------------------------------------------------------------------------ splits of the classes


def assign_splits(items: Sequence[Item], options: StoreOptions) -> list[Item]:
    """Return items with a split each: classes without one are divided by the shares of the options."""
    loose = sorted({item.class_name for item in items if item.split is None})
    split = divide_classes(loose, options.split, options.seed) if loose else {}
    return [item if item.split else replace(item, split=split[item.class_name]) for item in items]


def divide_classes(classes: Sequence[str], fractions: Sequence[int | float], seed: int) -> dict[str, str]:
    """Put a share of the classes into train, val and test, at random but the same for the same names and seed."""
    if len(fractions) != 3 or not (min(fractions) >= 0 and 0 < sum(fractions) < float("inf")):
        raise BadInput(
            f"a split is three shares of the classes (train, val, test), such as 0.6 0.2 0.2, not {fractions}."
        )
    wanted = [index for index in range(3) if fractions[index] > 0]
    if len(classes) < len(wanted):
        raise BadInput(f"{len(classes)} classes cannot be divided into {len(wanted)} splits: try --split 0 0 1.")
    shares = [fraction * len(classes) / sum(fractions) for fraction in fractions]
    counts = [max(int(share), int(share > 0)) for share in shares]
    while sum(counts) != len(classes):  # the split furthest from its share gains or gives one
        step = 1 if sum(counts) < len(classes) else -1
        able = [index for index in wanted if counts[index] + step > 0]
        counts[max(able, key=lambda index: step * (shares[index] - counts[index]))] += step
    shuffled = sorted(classes)
    random.Random(seed).shuffle(shuffled)
    splits = [split for split, count in zip(SPLITS, counts, strict=True) for _ in range(count)]
    return dict(zip(shuffled, splits, strict=True))


# -------------------------------------------------------------------------------------------------------------- packing


def _pack_features(source: Source, staged: Path, options: StoreOptions) -> None:
    items = assign_splits(source.items, options)
    order = order_by_split(items)
    ordered = [items[row] for row in order]
    chunks = (source.features[order[start : start + FEATURE_ROWS]] for start in range(0, len(order), FEATURE_ROWS))
    write_store(staged, chunks, *number_classes(ordered), names=[item.name for item in ordered], notes=[])


def _pack_images(source: Source, path: Path, folder: Path, options: StoreOptions, embedding: Embedding | None) -> None:
    """Make the chunks that are missing in a packing folder, then a store of all; it lists what could not be read."""
    items = assign_splits(source.items, options)
    items = [items[row] for row in order_by_split(items)]
    if not items:
        raise BadInput("there are no images to pack.")
    made = {"size": source.size, "fit": source.fit} if embedding is None else embedding.about
    chunk_folder = folder / f"chunks-{fingerprint(items, path, made)}"
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


def fingerprint(items: Sequence[Item], path: Path, made: dict[str, Any]) -> str:
    """Return a hash of all that must be equal for an interrupted pack to go on.

    Args:
        items: The images: their names, classes, splits and boxes, and the size and time of their files.
        path: The source: a file, or a folder whose table of contents is a file (of a store or a data set).
        made: What is made of them.
    """
    tables = [path, *(path / name for name in ("store.json", "state.json", "dataset_dict.json"))]
    digest = hashlib.sha256(repr((made, CHUNK, [_version(file) for file in tables])).encode())
    for item in items:
        # Of a picture inside a file, its reader is a `partial` with that file among its arguments.
        paths = [item.read.path] if isinstance(item.read, FileBytes) else getattr(item.read, "args", ())
        versions = [_version(path) for path in paths if isinstance(path, Path)]
        about = (item.name, item.class_name, item.split, item.box, versions)
        digest.update(repr(about).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:32]


def _version(path: Path) -> tuple[int, ...]:
    """Return the size and time of a file; nothing for a folder, and for what cannot be read."""
    with contextlib.suppress(OSError):
        if path.is_file():
            return path.stat().st_size, path.stat().st_mtime_ns
    return ()


def _decode_chunks(
    parts: Sequence[Sequence[Item]], source: Source, workers: int
) -> Iterator[tuple[Results, list[int]]]:
    """Yield the images of each part, and their shorter sides before they were resized; decoded in threads, ahead."""

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

    workers = workers or os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        yield from map_in_order(pool, decode, parts, 2 * workers)


def _write_chunk(path: Path, results: Results, sides: Sequence[int]) -> None:
    """Write the results of one chunk, and the shorter sides of its images; the file appears complete."""
    rows = [result for result in results if not isinstance(result, str)]
    skipped = {place: why for place, why in enumerate(results) if isinstance(why, str)}
    arrays = {
        "values": as_flat(rows) if rows else np.empty(0, np.uint8),
        "shapes": np.array([row.shape for row in rows], np.int64),
        "shorter_sides": np.array(sides, np.int64),
        "skipped": np.frombuffer(json.dumps(skipped).encode(), np.uint8),
    }
    aside = path.with_suffix(".part")
    with aside.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    os.replace(aside, path)


def _is_chunk(path: Path) -> bool:
    """Return whether a chunk was made before, and is undamaged."""
    with contextlib.suppress(BadInput):
        return "skipped" in read_npz(path)
    return False


def _join_chunks(
    files: Sequence[Path], items: Sequence[Item], source: Source, folder: Path, embedding: Embedding | None
) -> None:
    """Write the store of all chunks."""
    skipped: dict[int, str] = {}
    shapes: list[tuple[int, ...]] = []
    sides: list[int] = []
    is_frames = embedding is None and source.fit == "frame"

    def read_rows() -> Iterator[np.ndarray]:
        for file in files:
            chunk = read_npz(file)
            reasons = json.loads(chunk["skipped"].tobytes())
            skipped.update({int(file.stem) + int(place): why for place, why in reasons.items()})
            sides.extend(chunk["shorter_sides"].tolist())
            shapes.extend(map(tuple, chunk["shapes"].tolist()))
            different = {*shapes[:1], *map(tuple, chunk["shapes"].tolist())}
            if len(different) > 1 and not is_frames:
                both = f"{min(different)} and {max(different)}"
                raise BadInput(f"the images have different sizes, {both} among them: give one with --size.")
            if len(chunk["shapes"]):
                yield chunk["values"] if is_frames else chunk["values"].reshape(-1, *shapes[0])

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
    finish_store(folder, len(readable), *number_classes(readable), about, [item.name for item in readable])


def _describe_enlarged(sides: Sequence[int], size: int | None) -> list[str]:
    """Return a note if most images, by their shorter sides, are smaller than what is stored of them."""
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
