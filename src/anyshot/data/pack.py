"""`anyshot pack KIND SOURCE`: from a source of any kind to a store.

Decoding runs in threads (Pillow lets go of the interpreter while it decodes and resizes). Finished chunks are appended
to a store in a hidden folder beside its place, each with a line of progress and a checksum; an interrupted pack goes
on after the last complete chunk, and the store takes its place only when everything is in it.

    .NAME.packing/store            the store as it grows
    .NAME.packing/progress.jsonl   what it is made of, then a line per chunk
    .NAME.packing/unpacked         the files of an archive
"""

import contextlib
import hashlib
import json
import math
import os
import random
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped
from PIL import Image

from anyshot.concurrency import map_in_order
from anyshot.data.archives import is_archive, unpack
from anyshot.data.features import read_shard_folder
from anyshot.data.frames import as_flat
from anyshot.data.layout import PackOptions
from anyshot.data.open import PARQUET, find_kind, inspect_npz
from anyshot.data.pictures import Fit, decode_picture, explain_unreadable, picture_size
from anyshot.data.source import (
    FileBytes,
    Item,
    Source,
    describe_notes,
    describe_source,
    number_classes,
    order_by_split,
)
from anyshot.data.store import (
    SIDES,
    SPLITS,
    ItemsFile,
    Store,
    check_absent,
    finish_store,
    hash_file,
    open_store,
    write_store,
)
from anyshot.errors import BadInput, look_up, os_error_as_bad_input
from anyshot.files import locked, move_into_place, write_text
from anyshot.progress import OnMessage, no_message, progress

READERS = {  # the function that reads each kind, and what a source of it holds; a benchmark holds files of any name
    "cub": ("benchmarks.read_cub", ""),
    "mini": ("benchmarks.read_mini", ""),
    "tiered": ("benchmarks.read_tiered", ""),
    "meta-inat": ("benchmarks.read_meta_inat", ""),
    "folder": ("folders.read_folder", "images in class folders"),
    "table": ("tables.read_image_table", "paths and labels of images"),
    "huggingface": ("tables.read_huggingface", "a data set saved to disk"),
    "features": ("features.read_feature_file", "vectors and labels"),
    "npz": ("npz.read_image_npz", "images in arrays"),
}
# The kinds to name when something else was found at the path.
FITTING = {
    **dict.fromkeys(("features", "shards"), ("features",)),
    **dict.fromkeys(("archive", "tar"), ("folder", "huggingface")),
    **{kind: (kind,) for kind in ("table", "huggingface", "folder")},
}
FRAME_SIDE = 256  # pixels of a frame's shorter side: no resized crop of a 4:3 photo (0.08 of its area) is below 84x84
CHUNK = 64  # images that a thread decodes in one go; a line of progress
FEATURE_ROWS = 4096  # vectors that are copied at a time
SAMPLES = 50  # images whose size is looked at, to tell whether most were enlarged
SkippedItems = dict[int, str]  # the number of an item, and why it could not be read


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
        embed: Turns items into chunks of features "position channel", or of reasons why there are none, in order.
    """

    about: dict[str, Any]
    embed: Callable[[Sequence[Item]], Iterator[list[np.ndarray | str]]]


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
        kind: A key of `READERS`.
        source: The path to read.
        out: The path of the store.
        size: Side of the stored square; the reader's by default.
        fit: How a picture becomes a square; the reader's by default.
        embedding: Stores features of the images instead of the images.
        examine: Called with the complete store before it takes its place, so that what it writes there is part of it.
        say: Called with a summary of the source before the work.
        options: Fields of `StoreOptions`.
    """
    choices = StoreOptions(**options)
    reader = _find_reader(kind, choices)
    if not choices.feature_column:  # who names the array of vectors knows what the file holds
        _check_kind(kind, source)
    _check_images(kind, size, fit, embedding)
    with _packing_folder(out) as folder:
        contents, stamp = _read(kind, source, folder, reader)
        staged = folder / "store"
        if contents.has_features:
            shutil.rmtree(staged, ignore_errors=True)
            _pack_features(contents, staged, choices)
        else:
            say(describe_source(contents, source))
            about = {"kind": kind, "source": source.name, "split": list(choices.split), "seed": choices.seed}
            contents = replace(
                contents,
                size=size or (FRAME_SIDE if fit == "frame" else contents.size),
                fit=fit or contents.fit,
                about=about | contents.about,
                notes=tuple(describe_notes(contents)),
            )
            _pack_images(contents, stamp, folder, choices, embedding)
        if examine is not None:
            examine(open_store(staged))
        with os_error_as_bad_input(f"could not write {out}", "; what is done is kept, the same command goes on."):
            move_into_place(staged, out)
        shutil.rmtree(folder, ignore_errors=True)
    return open_store(out)


# ----------------------------------------------------------------------------------------------------------- the source


def _find_reader(kind: str, options: StoreOptions) -> Callable[[Path], Source]:
    """Return the reader of a kind with its options; one that it does not have is refused."""
    module, name = look_up("kind", kind, READERS)[0].split(".")
    reader = getattr(import_module(f"anyshot.data.{module}"), name)
    given = {one.name: value for one in fields(PackOptions) if (value := getattr(options, one.name))}
    for name in given:
        if name not in signature(reader).parameters:
            raise BadInput(f"--{name.replace('_', '-')} is not an option of kind {kind!r}.")
    return partial(reader, **given)


def _check_kind(kind: str, source: Path) -> None:
    """Raise a BadInput that names the right kind, where a source is plainly of another."""
    fitting = _list_fitting_kinds(kind, source) if source.exists() else ()
    if fitting and kind not in fitting:
        uses = " or ".join(f"`anyshot pack {name}` ({READERS[name][1]})" for name in fitting)
        raise BadInput(f"{source} is not a source of kind {kind!r}: use {uses}.")


def _list_fitting_kinds(kind: str, source: Path) -> tuple[str, ...]:
    """Return the kinds that a source looks like; none where its reader has to judge."""
    suffix = source.suffix.lower() if source.is_file() else ""
    if suffix == ".npz":
        images, vectors = inspect_npz(source)
        return ("npz", "features") if images == vectors else ("npz",) if images else ("features",)
    is_benchmark = not READERS[kind][1]
    if source.is_file() and (is_benchmark or kind == "features"):
        return ()
    if suffix in PARQUET:
        return "table", "features"
    found = find_kind(source)
    if found == "folder" and kind not in ("table", "features", "npz"):
        return ()
    return FITTING.get(found, ())


def _check_images(kind: str, size: int | None, fit: Fit | None, embedding: Embedding | None) -> None:
    """Check that what is asked of the stored images fits together, and fits the kind."""
    if size is not None and not 1 <= size <= 1024:
        raise BadInput(f"a size of {str(size)[:20]} is not sensible: images are stored as squares of 1 to 1024 pixels.")
    is_square = size is not None or fit is not None
    if kind == "features" and (is_square or embedding is not None):
        raise BadInput("--size, --fit and --embed are for images, not for features.")
    if embedding is not None and is_square:
        raise BadInput("--size and --fit are for stored images; what --embed names has a size of its own.")


def _read(kind: str, source: Path, packing: Path, reader: Callable[[Path], Source]) -> tuple[Source, str]:
    """Read a source; returns also the hash of the file that it is, or an empty text."""
    if kind == "features" and source.is_dir() and find_kind(source) == "shards":
        return read_shard_folder(source), ""
    if kind not in ("npz", "features", "table") and is_archive(source):
        stamp = hash_file(source)
        return _read_archive(source, stamp, packing, reader), stamp
    contents = reader(source)
    return contents, hash_file(source) if kind != "features" and source.is_file() else ""


def _read_archive(archive: Path, stamp: str, packing: Path, reader: Callable[[Path], Source]) -> Source:
    """Read an archive; files that an interrupted pack of the same archive unpacked are used again."""
    folder, marker = packing / "unpacked", packing / "unpacked.txt"
    try:
        if not marker.is_file() or marker.read_text(encoding="utf-8") != stamp:
            _remove_unpacked(folder, marker)
            unpack(archive, folder)
            write_text(marker, stamp)
        return reader(folder)
    except BadInput:
        _remove_unpacked(folder, marker)
        raise


def _remove_unpacked(folder: Path, marker: Path) -> None:
    marker.unlink(missing_ok=True)  # first, because it says that the folder is complete
    shutil.rmtree(folder, ignore_errors=True)


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


@contextlib.contextmanager
def _packing_folder(out: Path) -> Iterator[Path]:
    """Lock the folder that a store is packed in; it stays afterwards only if the same command can go on with it."""
    folder = out.with_name(f".{out.name}.packing")
    try:
        with locked(folder):
            if (out / "store.json").is_file():  # a pack was killed after its store had taken its place
                shutil.rmtree(folder, ignore_errors=True)
            check_absent(out)
            try:
                yield folder
            except BadInput as error:
                if not isinstance(error.__cause__, OSError):  # after a full disk, the same command goes on
                    shutil.rmtree(folder, ignore_errors=True)
                raise
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _pack_features(source: Source, staged: Path, options: StoreOptions) -> None:
    items = assign_splits([replace(item, name=f"row {row}") for row, item in enumerate(source.items)], options)
    order = order_by_split(items)
    placed = [items[row] for row in order]
    chunks = (source.features[order[start : start + FEATURE_ROWS]] for start in range(0, len(order), FEATURE_ROWS))
    write_store(staged, chunks, *number_classes(placed), names=[item.name for item in placed], notes=[])


def _pack_images(source: Source, stamp: str, folder: Path, options: StoreOptions, embedding: Embedding | None) -> None:
    """Decode or embed every image into the store in a packing folder; unreadable ones are left out and listed."""
    items = assign_splits(source.items, options)
    items = [items[row] for row in order_by_split(items)]
    if not items:
        raise BadInput("there are no images to pack.")
    disk = os_error_as_bad_input(f"could not write {folder}", "; what is done is kept, the same command goes on.")
    is_frames, fingerprint = embedding is None and source.fit == "frame", _fingerprint(items, source, stamp, embedding)
    with disk, _ProgressLog(folder, fingerprint, is_frames) as log, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # large is fine; Pillow refuses the absurd
        warnings.simplefilter("ignore", UserWarning)  # odd metadata of images that decode
        remaining = items[log.seen :]
        if embedding is None:
            title, chunks = "packing", _decode_chunks(remaining, source, options.workers)
        else:
            title, chunks = "embedding", ((rows, []) for rows in embedding.embed(remaining))
        with progress(f"{title} {len(items)} images", float(len(items))) as advance:
            advance(float(log.seen))
            for chunk, sides in chunks:
                log.add(chunk, sides)
                advance(float(len(chunk)))
        skipped = log.finish()
        if len(skipped) == len(items):
            raise BadInput(f"none of the {len(items)} images could be read; {items[0].name}: {skipped[0]}.")
        readable = [item for index, item in enumerate(items) if index not in skipped]
        made = {"fit": source.fit} if embedding is None else embedding.about
        notes = [*source.notes, *_describe_enlarged(log.sides, source.size), *_describe_lost(items, readable)]
        about = {**source.about, "notes": notes, **made}
        about["skipped"] = [{"name": items[index].name, "why": why} for index, why in sorted(skipped.items())]
        finish_store(folder / "store", len(readable), *number_classes(readable), about, [one.name for one in readable])


def _describe_enlarged(sides: Sequence[int], size: int | None) -> list[str]:
    """Return a note if most images are smaller than what is stored of them, judged by the shorter sides of some."""
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


def _fingerprint(items: Sequence[Item], source: Source, stamp: str, embedding: Embedding | None) -> str:
    """Hash what must be equal for an interrupted pack to go on."""
    made = (source.size, source.fit) if embedding is None else embedding.about
    digest = hashlib.sha256(repr((made, stamp)).encode())
    for item in items:
        about: tuple[Any, ...] = (item.name, item.class_name, item.split, item.box)
        if isinstance(item.read, FileBytes):
            with contextlib.suppress(OSError):  # it will be listed as one that cannot be read
                status = item.read.path.stat()
                about += (status.st_size, status.st_mtime_ns)
        digest.update(repr(about).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def _decode_chunks(
    items: Sequence[Item], source: Source, workers: int
) -> Iterator[tuple[list[np.ndarray | str], list[int]]]:
    """Decode images in threads; the next chunks are decoded while one is written.

    Yields:
        Images "height width channel", or reasons why there is none; and the shorter sides of some before decoding.
    """
    step = min(max(1, len(source.items) // SAMPLES), CHUNK)

    def decode(part: Sequence[Item]) -> tuple[list[np.ndarray | str], list[int]]:
        images: list[np.ndarray | str] = []
        sides: list[int] = []
        for index, item in enumerate(part):
            data: bytes | np.ndarray = b""
            try:
                data = item.read()
                images.append(decode_picture(data, source.size, source.fit, item.box))
            except Exception as error:  # a broken image can fail in any way
                images.append(explain_unreadable(error, data[:64] if isinstance(data, bytes) else b""))
            else:
                if item.box is None and index % step == 0:
                    sides.append(min(picture_size(data)))
        return images, sides

    workers = workers or os.cpu_count() or 1
    parts = (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))
    with ThreadPoolExecutor(workers) as pool:
        yield from map_in_order(pool, decode, parts, 2 * workers)


class _ProgressLog(contextlib.AbstractContextManager):
    """The progress of a pack: a first line with its fingerprint, then one line per chunk, after its images."""

    def __init__(self, folder: Path, fingerprint: str, is_frames: bool) -> None:
        self._folder, self._is_frames = folder / "store", is_frames
        self._frame_sides: list[list[int]] = []  # height and width of each frame
        (folder / "store").mkdir(parents=True, exist_ok=True)
        path, store = folder / "progress.jsonl", folder / "store" / "items.npy"
        self.seen, rows = 0, 0
        self.sides: list[int] = []
        self._skipped: SkippedItems = {}
        lines = _read_complete_lines(path, fingerprint, store)
        for line in lines:
            self.seen, rows = line["seen"], line["rows"]
            self._skipped |= {int(index): why for index, why in line["skipped"].items()}
            self.sides += line.get("shorter", [])
            self._frame_sides += line.get("sides", [])
        self._items = ItemsFile(store, rows)
        self._file = path.open("w", encoding="utf-8")
        for line in [{"fingerprint": fingerprint}, *lines]:
            self._write(line)

    def __exit__(self, *_: object) -> None:
        self._items.close()
        self._file.close()

    def add(self, chunk: Sequence[np.ndarray | str], sides: Sequence[int]) -> None:
        """Append the images of a chunk to the store, then a line to the log."""
        images = [image for image in chunk if not isinstance(image, str)]
        skipped = {self.seen + index: why for index, why in enumerate(chunk) if isinstance(why, str)}
        crc = 0
        if images:
            rows = as_flat(images) if self._is_frames else _stack(images)
            crc = zlib.crc32(np.ascontiguousarray(rows).data)
            self._items.append(rows)
        self.seen += len(chunk)
        self._skipped |= skipped
        self.sides += sides
        line: dict[str, Any] = {
            "seen": self.seen,
            "rows": self._items.rows,
            "skipped": skipped,
            "crc": crc,
            "shorter": list(sides),
        }
        if self._is_frames:
            line["sides"] = [list(image.shape[:2]) for image in images]
            self._frame_sides += line["sides"]
        self._write(line)

    def finish(self) -> SkippedItems:
        """Complete the file of items; returns what could not be read."""
        self._items.finish()
        if self._frame_sides:
            np.save(self._folder / SIDES, np.array(self._frame_sides, np.int32))
        return self._skipped

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def _stack(images: Sequence[np.ndarray]) -> Shaped[np.ndarray, "image ..."]:
    shapes = sorted({image.shape for image in images})
    if len(shapes) > 1:
        raise BadInput(
            f"the images have different sizes, {shapes[0]} and {shapes[-1]} among them: give one with --size."
        )
    return np.stack(images)


def _read_complete_lines(path: Path, fingerprint: str, store: Path) -> list[dict[str, Any]]:
    """Return the lines of an earlier pack of the same items, as far as they and their rows are complete."""
    lines: list[dict[str, Any]] = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        text = path.read_bytes()
        first, *chunks = [json.loads(line) for line in text[: text.rfind(b"\n") + 1].decode("utf-8").splitlines()]
        if first != {"fingerprint": fingerprint}:
            return []
        row = before = 0
        with store.open("rb") as file:
            if any(line["rows"] for line in chunks):
                np.lib.format.read_magic(file)
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                row = dtype.itemsize * math.prod(shape[1:])
            for line in chunks:
                size = (line["rows"] - before) * row
                chunk = file.read(size)
                if len(chunk) != size or zlib.crc32(chunk) != line["crc"]:
                    break
                before = line["rows"]
                lines.append(line)
    return lines
