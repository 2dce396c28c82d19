"""The store: a folder that training and evaluation read at memory speed.

    items.npy    memory-mapped: uint8 images "image height width channel", or float32 features "image position channel"
    labels.npy   the class of each item, an index into the class names
    store.json   class names, the split of each class, what the items are and where they came from, checksums

Items lie in order of split, then class, so that a split is one slice of the map and a class one slice of a split.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from anyshot.errors import BadInput, unknown
from anyshot.files import read_json, whole, write_json

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Part:
    """The items of one split, their labels counted from 0 within it, and the names of its classes."""

    items: Shaped[np.ndarray, "image ..."]
    labels: Int[np.ndarray, " image"]
    class_names: tuple[str, ...]

    @property
    def counts(self) -> Int[np.ndarray, " class_"]:
        return np.bincount(self.labels, minlength=len(self.class_names))


@dataclass(frozen=True)
class Store:
    """An opened store; `items` stays on disk until it is indexed."""

    path: Path
    items: Shaped[np.ndarray, "image ..."]
    labels: Int[np.ndarray, " image"]
    class_names: tuple[str, ...]
    class_split: tuple[str, ...]
    about: dict[str, Any]

    @property
    def is_features(self) -> bool:
        """Whether the items are features rather than images."""
        return self.items.dtype != np.uint8

    def part(self, split: str) -> Part:
        """The slice of one split."""
        if split not in SPLITS:
            raise BadInput(unknown("split", split, SPLITS))
        classes = [index for index, name in enumerate(self.class_split) if name == split]
        if not classes:
            raise BadInput(f"{self.path} has no {split} classes.")
        start, stop = np.searchsorted(self.labels, [classes[0], classes[-1] + 1])
        names = tuple(self.class_names[index] for index in classes)
        return Part(self.items[start:stop], self.labels[start:stop] - classes[0], names)


def write_store(
    path: Path,
    chunks: Iterable[Shaped[np.ndarray, "image ..."]],
    labels: Sequence[int] | np.ndarray,
    class_names: Sequence[str],
    class_split: Sequence[str],
    **about: Any,
) -> Store:
    """Write a store whole. `chunks` yields the items; they and `labels` must be in order of split, then class."""
    labels = np.asarray(labels, np.int32)
    order = [SPLITS.index(split) for split in class_split]
    if order != sorted(order) or (np.diff(labels) < 0).any() or len(class_split) != len(class_names):
        raise BadInput(f"the items of {path} must lie in order of split (train, val, test), then class.")
    with whole(path) as aside:
        aside.mkdir()
        items: np.memmap | None = None
        filled = 0
        for chunk in chunks:
            if items is None:
                shape = (len(labels), *chunk.shape[1:])
                items = np.lib.format.open_memmap(aside / "items.npy", "w+", chunk.dtype, shape)
            items[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
        if items is None or filled != len(labels):
            raise BadInput(f"{path} would have {filled} items and {len(labels)} labels: they must be as many.")
        items.flush()
        np.save(aside / "labels.npy", labels)
        checksums = {name: _checksum(aside / name) for name in ("items.npy", "labels.npy")}
        splits = {"class_names": list(class_names), "class_split": list(class_split)}
        write_json(aside / "store.json", {"format": 1, **splits, "about": about, "sha256": checksums})
    return open_store(path)


def open_store(path: Path, verify: bool = False) -> Store:
    """Open a store; with `verify`, read every byte and compare the checksums first."""
    if not (path / "store.json").is_file():
        raise BadInput(f"{path} is not a store (it has no store.json): make one with `anyshot pack`.")
    about = read_json(path / "store.json")
    try:
        items = np.load(path / "items.npy", mmap_mode="r", allow_pickle=False)
        labels = np.load(path / "labels.npy", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise BadInput(f"the store {path} is damaged ({error}): pack it again.") from None
    if verify:
        for name, checksum in about["sha256"].items():
            if _checksum(path / name) != checksum:
                raise BadInput(f"the store {path} is damaged: {name} does not match its checksum; pack it again.")
    return Store(path, items, labels, tuple(about["class_names"]), tuple(about["class_split"]), about["about"])


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
