"""The store: a folder of images or features that is memory-mapped by training and evaluation.

    items.npy    uint8 images "image height width channel", or float32 features "image position channel"; of frames,
                 which differ in size, the uint8 values one image after the other
    sides.npy    only of frames: height and width of each
    labels.npy   the class of each item, an index into the class names
    names.jsonl  the path of each item in the source, a JSON string per line; old stores do not have it
    store.json   class names, the split of each class, metadata, checksums of the other files

Items are sorted by split, then by class, so that a split is a slice of the items, and a class a slice of a split.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped, UInt8

from anyshot.data.archives import read_npy
from anyshot.errors import BadInput, as_bad_input, check_names
from anyshot.files import atomic_write, read_json, read_text, remove_leftovers, write_json

SPLITS = ("train", "val", "test")
SPLIT_NAMES = {name: name for name in SPLITS} | {
    "valid": "val", "validation": "val", "dev": "val", "training": "train", "testing": "test",
}  # fmt: skip
"""Names that folders, tables and data sets have for splits."""
NAMES, GROUPS, SIDES = "names.jsonl", "groups.jsonl", "sides.npy"
LONGEST_SIDE = 1 << 16  # pixels of a frame; JPEG allows no more, and a store with a longer side is damaged


@dataclass(frozen=True)
class Frames:
    """Images of different sizes as one array: the items of a store that was packed with `--fit frame`.

    They share their shorter side and their number of channels. The pixels are stored uncompressed: cutting a training
    crop takes 0.03 ms, decoding the same photo from JPEG 0.3 ms (shorter side of 150 pixels, one core).

    An integer index returns an image, a slice or an array of indices returns `Frames`. `np.asarray` returns the central
    squares, for code that needs images of one size; `shape`, `ndim` and `dtype` are those of that array.

    Args:
        pixels: The values of all images, one image after the other, each "height width channel".
        sides: Height and width of each image.
        starts: Where each image begins in `pixels`.
        channels: Values of a pixel, 1 or 3.
    """

    pixels: UInt8[np.ndarray, " value"]
    sides: Int[np.ndarray, "image 2"]
    starts: Int[np.ndarray, " image"]
    channels: int

    def __len__(self) -> int:
        return len(self.sides)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int | np.integer):
            height, width = self.sides[index]
            start = self.starts[index]
            return self.pixels[start : start + height * width * self.channels].reshape(height, width, self.channels)
        return Frames(self.pixels, self.sides[index], self.starts[index], self.channels)

    def __iter__(self) -> Iterator[UInt8[np.ndarray, "height width channel"]]:
        return (self[index] for index in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the central squares of all images."""
        side = self.shape[1]
        squares = np.empty(self.shape, np.uint8)
        for square, frame in zip(squares, self, strict=True):
            top, left = ((length - side) // 2 for length in frame.shape[:2])
            square[:] = frame[top : top + side, left : left + side]
        return squares if dtype is None else squares.astype(dtype)

    @property
    def dtype(self) -> np.dtype:
        """The type of the values."""
        return self.pixels.dtype

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the central squares: "image side side channel"."""
        side = int(self.sides[:1].min(initial=LONGEST_SIDE))
        return len(self), side, side, self.channels

    @property
    def ndim(self) -> int:
        """The number of axes of the central squares."""
        return 4

    def cut(self, boxes: Int[np.ndarray, "image 4"]) -> UInt8[np.ndarray, "image height width channel"]:
        """Cut one box (top, left, height, width) out of each image, padded below and to the right to the largest."""
        cuts = np.zeros((len(self), *boxes[:, 2:].max(0), self.channels), np.uint8)
        for cut, frame, (top, left, height, width) in zip(cuts, self, boxes.tolist(), strict=True):
            cut[:height, :width] = frame[top : top + height, left : left + width]
        return cuts


def frames_from_flat(pixels: UInt8[np.ndarray, " value"], sides: np.ndarray) -> Frames:
    """Return images that lie one after the other in a flat array.

    Args:
        pixels: Their values.
        sides: Height and width of each image.

    Raises:
        ValueError: The two do not fit together.
    """
    if sides.ndim != 2 or sides.shape[1] != 2 or not len(sides) or sides.dtype.kind not in "iu":
        raise ValueError("the sides of its images are not a height and a width each")
    sides = sides.astype(np.int64)
    if sides.min() < 1 or sides.max() > LONGEST_SIDE or len(np.unique(sides.min(1))) > 1:
        raise ValueError("the shorter sides of its images are not the same")
    areas = sides.prod(1)
    channels, rest = divmod(len(pixels), int(areas.sum()))
    if rest or channels not in (1, 3):
        raise ValueError("the sides of its images do not fit their pixels")
    return Frames(pixels, sides, channels * (np.cumsum(areas) - areas), channels)


@dataclass(frozen=True)
class StoreSplit:
    """One split of a store: its items, their labels from 0 within the split, the names of its classes.

    `groups` has the group of each item, None for one that belongs to no other.
    """

    items: Shaped[np.ndarray, "image ..."] | Frames
    labels: Int[np.ndarray, " image"]
    class_names: tuple[str, ...]
    groups: tuple[str | None, ...]

    @property
    def counts(self) -> Int[np.ndarray, " class_"]:
        """The number of items of each class."""
        return np.bincount(self.labels, minlength=len(self.class_names))


@dataclass(frozen=True)
class Store:
    """An opened store; `items` stays on disk until it is indexed."""

    path: Path
    items: Shaped[np.ndarray, "image ..."] | Frames
    labels: Int[np.ndarray, " image"]
    class_names: tuple[str, ...]
    class_split: tuple[str, ...]
    about: dict[str, Any]

    @property
    def is_features(self) -> bool:
        """Whether the items are features rather than images."""
        return self.items.dtype != np.uint8

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The path of each item in the source; in old stores, which do not have it, its number."""
        return self._read_lines(NAMES) or tuple(f"item {index}" for index in range(len(self.items)))

    @cached_property
    def groups(self) -> tuple[str, ...]:
        """The group of each item, "" where it belongs to none; of all where the source had no groups."""
        return self._read_lines(GROUPS) or ("",) * len(self.items)

    def _read_lines(self, file: str) -> tuple[str, ...]:
        """Return a text per item; none where the store does not have the file."""
        if not (self.path / file).is_file():
            return ()
        damaged = f"the store {self.path} is damaged, {file}"
        with as_bad_input((BadInput, ValueError, RecursionError), damaged, ": pack it again."):
            lines = tuple(json.loads(line) for line in read_text(self.path / file).splitlines())
            if len(lines) != len(self.items) or not all(isinstance(line, str) for line in lines):
                raise ValueError(f"{len(lines)} texts for {len(self.items)} items")
        return lines

    def part(self, split: str) -> StoreSplit:
        """Return one split."""
        check_names("split", [split], SPLITS)
        classes = [index for index, name in enumerate(self.class_split) if name == split]
        if not classes:
            raise BadInput(f"{self.path} has no {split} classes.")
        start, stop = np.searchsorted(self.labels, [classes[0], classes[-1] + 1])
        names = tuple(self.class_names[index] for index in classes)
        labels = self.labels[start:stop] - classes[0]
        groups = tuple(group or None for group in self.groups[start:stop])
        return StoreSplit(self.items[start:stop], labels, names, groups)


def write_items(path: Path, chunks: Iterable[Shaped[np.ndarray, "image ..."]]) -> None:
    """Write arrays one after the other as one .npy file.

    The file is not memory-mapped: on a full disk, a write to a memory map would kill the process.
    """
    rows, header = 0, dict[str, Any]()
    with path.open("wb") as file:
        for chunk in chunks:
            descr = np.lib.format.dtype_to_descr(chunk.dtype)
            chunk_header = {"descr": descr, "shape": (0, *chunk.shape[1:]), "fortran_order": False}
            if not header:
                header = chunk_header
                np.lib.format.write_array_header_1_0(file, header)
            if chunk_header != header:
                raise BadInput(f"items must be alike: {chunk.dtype} {chunk.shape[1:]} came after {header}.")
            file.write(np.ascontiguousarray(chunk).data)
            rows += len(chunk)
        if header:  # numpy pads the header so that the number of rows can grow
            file.seek(0)
            np.lib.format.write_array_header_1_0(file, {**header, "shape": (rows, *header["shape"][1:])})


def write_store(
    path: Path,
    chunks: Iterable[Shaped[np.ndarray, "image ..."]],
    labels: Sequence[int] | np.ndarray,
    class_names: Sequence[str],
    class_split: Sequence[str],
    names: Sequence[str] = (),
    groups: Sequence[str] = (),
    **about: Any,
) -> Store:
    """Write a complete store.

    Args:
        path: The folder, which must not exist yet.
        chunks: The items, some at a time, in order of split, then class.
        labels: The class number of each item.
        class_names: The names of the classes.
        class_split: The split of each class.
        names: The path of each item in its source.
        groups: The group of each item, "" for none.
        about: Metadata.
    """
    check_absent(path)
    with atomic_write(path) as temporary:
        temporary.mkdir()
        write_items(temporary / "items.npy", chunks)
        finish_store(temporary, labels, class_names, class_split, about, names, groups)
    return open_store(path)


def check_absent(path: Path) -> None:
    """Raise a BadInput if a path exists; remove what a killed process left beside it."""
    remove_leftovers(path.parent)
    if path.exists():
        raise BadInput(f"{path} exists already: remove it, or choose another place for the store.")


def finish_store(
    folder: Path,
    labels: Sequence[int] | np.ndarray,
    class_names: Sequence[str],
    class_split: Sequence[str],
    about: dict[str, Any],
    names: Sequence[str] = (),
    groups: Sequence[str] = (),
) -> None:
    """Turn a folder with items.npy into a store: check the order, write labels, names, groups and checksums."""
    labels = np.asarray(labels, np.int32)
    if not len(labels):
        raise BadInput("a store needs at least one item.")
    with as_bad_input(ValueError, "that would be no store", "."):
        _check(_read_items(folder), labels, class_names, class_split)
    np.save(folder / "labels.npy", labels)
    files = ["items.npy", "labels.npy", *([SIDES] if (folder / SIDES).is_file() else [])]
    for file, texts in ((NAMES, names), (GROUPS, groups)):
        if any(texts):
            lines = (json.dumps(text) + "\n" for _, text in zip(labels, texts, strict=True))
            (folder / file).write_text("".join(lines), encoding="ascii")
            files.append(file)
    checksums = {name: hash_file(folder / name) for name in files}
    splits = {"class_names": list(class_names), "class_split": list(class_split)}
    write_json(folder / "store.json", {"format": 1, **splits, "about": about, "sha256": checksums})


def open_store(path: Path, verify: bool = False) -> Store:
    """Open a store; with `verify`, read all files and compare their checksums."""
    if not path.exists():
        raise BadInput(f"there is no store {path}: make one with `anyshot pack`.")
    if not (path / "store.json").is_file():
        raise BadInput(f"{path} is not a store (it has no store.json): make one with `anyshot pack`.")
    index = {"about": {}, **read_json(path / "store.json")}
    with as_bad_input((BadInput, ValueError, KeyError, TypeError), f"the store {path} is damaged", ": pack it again."):
        items, labels = _read_items(path), np.array(read_npy(path / "labels.npy"))
        names, splits, checksums, about = (index[key] for key in ("class_names", "class_split", "sha256", "about"))
        if [type(part) for part in (names, splits, checksums, about)] != [list, list, dict, dict]:
            raise ValueError("its store.json does not hold lists and objects where it should")
        _check(items, labels, names, splits)
    if verify:
        for name in ("items.npy", "labels.npy", *sorted({NAMES, GROUPS, SIDES} & checksums.keys())):
            if not (path / name).is_file() or hash_file(path / name) != checksums.get(name):
                raise BadInput(f"the store {path} is damaged: {name} does not match its checksum; pack it again.")
    return Store(path, items, labels, tuple(names), tuple(splits), about)


def _read_items(folder: Path) -> Shaped[np.ndarray, "image ..."] | Frames:
    """Return the images or features of a store, on disk until they are indexed; a ValueError for anything else."""
    items: Any = read_npy(folder / "items.npy")
    if items.ndim == 1 and items.dtype == np.uint8:
        items = frames_from_flat(items, np.array(read_npy(folder / SIDES)))
    is_images = items.dtype == np.uint8 and items.ndim == 4 and items.shape[3] in (1, 3)
    if 0 in items.shape or not (is_images or (items.dtype == np.float32 and items.ndim == 3)):
        raise ValueError(f"its items are {items.dtype} {items.shape}, neither images nor features")
    return items


def _check(items: np.ndarray | Frames, labels: np.ndarray, names: Sequence[Any], splits: Sequence[Any]) -> None:
    """Raise a ValueError unless items, labels, class names and splits are consistent and in order."""
    order = [SPLITS.index(split) for split in splits]  # a ValueError for what is no split
    if order != sorted(order) or (np.diff(labels.astype(np.int64)) < 0).any():
        raise ValueError("it is not in order of split, then class")
    if labels.shape != items.shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError("its labels are not as many as its items")
    if len(names) != len(splits) or not all(isinstance(name, str) for name in names):
        raise ValueError("its class_names and class_split do not fit together")
    if labels[0] < 0 or labels[-1] >= len(names):
        raise ValueError("a label is no index into its class_names")


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
