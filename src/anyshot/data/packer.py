"""The packer: from what a reader lists (items: a name, a class, a split, a way to get pixels) to a store.

Decoding runs in threads (Pillow lets go of the interpreter while it decodes and resizes). Finished chunks are appended
to a store in a hidden folder beside its place, each with a line of progress and a checksum; an interrupted pack goes
on after the last chunk that is whole, and the store takes its place only when everything is in it.

    .NAME.packing/store            the store as it grows
    .NAME.packing/progress.jsonl   what it is of, then a line per chunk
    .NAME.packing/unpacked         the files of an archive
"""

import contextlib
import hashlib
import io
import json
import math
import os
import random
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped, UInt8
from PIL import Image

from anyshot.concurrency import map_in_order
from anyshot.data.frames import as_flat
from anyshot.data.pictures import Box, Fit, decode_picture, explain_unreadable
from anyshot.data.store import SIDES, SPLITS, ItemsFile, Store, check_absent, finish_store, open_store
from anyshot.errors import BadInput, os_error_as_bad_input
from anyshot.files import locked, move_into_place, read_bytes
from anyshot.progress import progress

CHUNK = 64  # images: what a thread decodes in one go, and a line of progress
Skipped = dict[int, str]  # number of an item -> why it could not be read
SkippedFile = tuple[str, str]  # the name of a file that a reader did not list, and why


@dataclass(frozen=True)
class Item:
    """One image, wherever it is. Without a split, its class is put into one by share."""

    name: str
    class_name: str
    split: str | None
    read: Callable[[], bytes | np.ndarray]
    box: Box | None = None


@dataclass(frozen=True)
class FileBytes:
    """The bytes of an image's file, when they are asked for."""

    path: Path

    def __call__(self) -> bytes:
        return read_bytes(self.path)


@dataclass(frozen=True)
class StoredImage:
    """An image of a store, when it is asked for."""

    store: Store
    index: int

    def __call__(self) -> np.ndarray:
        return np.array(self.store.items[self.index])


@dataclass(frozen=True)
class Source:
    """What a reader lists, and the square that its images are stored as (None: as they are); with the fit `frame`,
    `size` is the shorter side."""

    items: Sequence[Item]
    size: int | None = 92
    fit: Fit = "crop"
    notes: tuple[str, ...] = ()
    left_out: tuple[SkippedFile, ...] = ()
    """Files that are there and not listed, and why."""
    stamp: str = ""
    """The checksum of the file that all items are from, where they are from one."""
    about: dict[str, Any] = field(default_factory=dict)


def order_items(items: Sequence[Item], fractions: Sequence[int | float], seed: int) -> list[Item]:
    """The items in order of split, then class, each with a split."""
    loose = sorted({item.class_name for item in items if item.split is None})
    split = divide_classes(loose, fractions, seed) if loose else {}
    placed = [item if item.split else replace(item, split=split[item.class_name]) for item in items]
    return sorted(placed, key=lambda item: (SPLITS.index(str(item.split)), item.class_name))


def order_labels(
    labels: Sequence[str], splits: Sequence[str | None], fractions: Sequence[int | float] = (), seed: int = 0
) -> tuple[list[int], list[Item]]:
    """Examples without pixels in order of split, then class: their places before, and what each is now."""
    rows = enumerate(zip(labels, splits, strict=True))
    placed = order_items([Item(str(place), *row, bytes) for place, row in rows], fractions, seed)
    return [int(item.name) for item in placed], placed


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


def number_classes(items: Sequence[Item]) -> tuple[list[int], list[str], list[str]]:
    """The class of each item as a number, and the names and splits of the classes in that order."""
    classes = list(dict.fromkeys((str(item.split), item.class_name) for item in items))
    number = {class_: index for index, class_ in enumerate(classes)}
    labels = [number[str(item.split), item.class_name] for item in items]
    return labels, [name for _, name in classes], [split for split, _ in classes]


@dataclass(frozen=True)
class Embedding:
    """What makes features of images while they are packed.

    Args:
        about: What the store says of it: the backbone, and the hash of its content.
        embed: Items to chunks of features "position channel", or of reasons why there are none, in their order.
    """

    about: dict[str, Any]
    embed: Callable[[Sequence[Item]], Iterator[list[np.ndarray | str]]]


@contextlib.contextmanager
def open_packing_folder(out: Path) -> Iterator[Path]:
    """The folder that a store is packed in until it is whole, ours alone; it stays only where there is progress."""
    folder = packing_path(out)
    try:
        with locked(folder):
            if (out / "store.json").is_file():  # what was left by a pack that was killed when all was done
                shutil.rmtree(folder, ignore_errors=True)
            check_absent(out)
            try:
                yield folder
            except BadInput as error:
                if not isinstance(error.__cause__, OSError):  # as of a full disk: the same command goes on
                    shutil.rmtree(folder, ignore_errors=True)
                raise
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def pack_images(
    source: Source,
    out: Path,
    fractions: Sequence[int | float],
    seed: int,
    workers: int,
    embedding: Embedding | None = None,
) -> Store:
    """Decode every image of a source into a store, or embed it; what cannot be decoded is left out and listed in it."""
    check_absent(out)
    items = order_items(source.items, fractions, seed)
    if not items:
        raise BadInput("there are no images to pack.")
    folder = packing_path(out)
    with os_error_as_bad_input(f"could not write {out}", "; what is done is kept, the same command goes on."):
        _pack(items, source, folder, workers, embedding)
        move_into_place(folder / "store", out)
    shutil.rmtree(folder, ignore_errors=True)
    return open_store(out)


def _pack(items: Sequence[Item], source: Source, folder: Path, workers: int, embedding: Embedding | None) -> None:
    is_frames = embedding is None and source.fit == "frame"
    with _Log(folder, _fingerprint(items, source, embedding), is_frames) as log, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # large is fine; Pillow refuses the absurd
        warnings.simplefilter("ignore", UserWarning)  # odd metadata of images that decode
        left = items[log.seen :]
        chunks = _decoded(left, source, workers) if embedding is None else embedding.embed(left)
        title = "packing" if embedding is None else "embedding"
        with progress(f"{title} {len(items)} images", float(len(items))) as advance:
            advance(float(log.seen))
            for chunk in chunks:
                log.add(chunk)
                advance(float(len(chunk)))
        skipped = log.finish()
    if len(skipped) == len(items):
        raise BadInput(f"none of the {len(items)} images could be read; {items[0].name}: {skipped[0]}.")
    readable = [item for index, item in enumerate(items) if index not in skipped]
    enlarged = _enlarged(items, source.size) if embedding is None else []
    notes = [*source.notes, *enlarged, *_lost(items, readable)]
    made = {"fit": source.fit} if embedding is None else embedding.about
    about = {**source.about, "notes": notes, **made}
    about["skipped"] = [{"name": items[index].name, "why": why} for index, why in sorted(skipped.items())]
    finish_store(folder / "store", len(readable), *number_classes(readable), about, [item.name for item in readable])


def packing_path(out: Path) -> Path:
    """Where a store is packed until it is whole."""
    return out.with_name(f".{out.name}.packing")


def _enlarged(items: Sequence[Item], size: int | None) -> list[str]:
    """A note where most images are smaller than what is stored of them, judged by a few."""
    sides = []
    whole = [item for item in items if not item.box] if size else []
    for item in whole[:: max(1, len(whole) // 50)]:
        with contextlib.suppress(Exception):  # those that cannot be read are listed elsewhere
            data = item.read()
            shape = data.shape[:2] if isinstance(data, np.ndarray) else Image.open(io.BytesIO(data)).size
            sides.append(min(shape))
    side = sorted(sides)[len(sides) // 2] if sides else 0
    if not size or not 0 < side < size:
        return []
    return [
        f"most images are smaller than {size}x{size} and were enlarged: `--size {side}` would store them as they are"
    ]


def _lost(items: Sequence[Item], readable: Sequence[Item]) -> list[str]:
    """A note for each class without a readable image."""
    before, after = ({(str(item.split), item.class_name) for item in part} for part in (items, readable))
    return [f"class {name!r} ({split}) has no readable image and is left out" for split, name in sorted(before - after)]


def _fingerprint(items: Sequence[Item], source: Source, embedding: Embedding | None) -> str:
    """What must be equal for an interrupted pack to go on."""
    made = (source.size, source.fit) if embedding is None else embedding.about
    digest = hashlib.sha256(repr((made, source.stamp)).encode())
    for item in items:
        about: tuple[Any, ...] = (item.name, item.class_name, item.split, item.box)
        if isinstance(item.read, FileBytes):
            with contextlib.suppress(OSError):  # it will be listed as one that cannot be read
                status = item.read.path.stat()
                about += (status.st_size, status.st_mtime_ns)
        digest.update(repr(about).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def _decoded(
    items: Sequence[Item], source: Source, workers: int
) -> Iterator[list[UInt8[np.ndarray, "height width channel"] | str]]:
    """Chunks of images, or of reasons why there is none; the next ones are decoded while one is written."""

    def decode(item: Item) -> UInt8[np.ndarray, "height width channel"] | str:
        data: bytes | np.ndarray = b""
        try:
            data = item.read()
            return decode_picture(data, source.size, source.fit, item.box)
        except Exception as error:  # a broken image can fail in any way
            return explain_unreadable(error, data[:64] if isinstance(data, bytes) else b"")

    workers = workers or os.cpu_count() or 1
    parts = (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))
    with ThreadPoolExecutor(workers) as pool:
        yield from map_in_order(pool, lambda part: [decode(item) for item in part], parts, 2 * workers)


class _Log(contextlib.AbstractContextManager):
    """The progress of a pack: a first line that says of what, then one line per chunk, after its images are written."""

    def __init__(self, folder: Path, fingerprint: str, is_frames: bool = False) -> None:
        self._folder, self._is_frames = folder / "store", is_frames
        self._sides: list[list[int]] = []  # height and width of each frame
        (folder / "store").mkdir(parents=True, exist_ok=True)
        path, store = folder / "progress.jsonl", folder / "store" / "items.npy"
        self.seen, rows, self._skipped = 0, 0, Skipped()
        lines = _whole_lines(path, fingerprint, store)
        for line in lines:
            self.seen, rows = line["seen"], line["rows"]
            self._skipped |= {int(index): why for index, why in line["skipped"].items()}
            self._sides += line.get("sides", [])
        self._items = ItemsFile(store, rows)
        self._file = path.open("w", encoding="utf-8")
        for line in [{"fingerprint": fingerprint}, *lines]:
            self._write(line)

    def __exit__(self, *_: object) -> None:
        self._items.close()
        self._file.close()

    def add(self, chunk: Sequence[np.ndarray | str]) -> None:
        images = [image for image in chunk if not isinstance(image, str)]
        skipped = {self.seen + index: why for index, why in enumerate(chunk) if isinstance(why, str)}
        crc = 0
        if images:
            rows = as_flat(images) if self._is_frames else _stacked(images)
            crc = zlib.crc32(np.ascontiguousarray(rows).data)
            self._items.append(rows)
        self.seen += len(chunk)
        self._skipped |= skipped
        line: dict[str, Any] = {"seen": self.seen, "rows": self._items.rows, "skipped": skipped, "crc": crc}
        if self._is_frames:
            line["sides"] = [list(image.shape[:2]) for image in images]
            self._sides += line["sides"]
        self._write(line)

    def finish(self) -> Skipped:
        self._items.finish()
        if self._is_frames and self._sides:
            np.save(self._folder / SIDES, np.array(self._sides, np.int32))
        return self._skipped

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def _stacked(images: Sequence[np.ndarray]) -> Shaped[np.ndarray, "image ..."]:
    shapes = sorted({image.shape for image in images})
    if len(shapes) > 1:
        raise BadInput(
            f"the images have different sizes, {shapes[0]} and {shapes[-1]} among them: give one with --size."
        )
    return np.stack(images)


def _whole_lines(path: Path, fingerprint: str, store: Path) -> list[dict[str, Any]]:
    """The lines of an earlier pack of the same items, as far as they and the rows that they tell of are whole."""
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
