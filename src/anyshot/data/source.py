"""What a source holds: examples with names, classes and splits, their pictures or features, and a summary in words."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from anyshot.data.frames import Frames
from anyshot.data.pictures import Box, Fit
from anyshot.data.store import SPLITS, Store
from anyshot.errors import BadInput
from anyshot.text import count_noun, format_range, group_by

ReadPicture = Callable[[], bytes | np.ndarray]
"""Returns an encoded picture, or its pixels."""
SkippedFile = tuple[str, str]
"""The name of a file that is not read, and why."""
SelectSplits = Callable[[Sequence[str | None]], tuple[list[int], str]]
"""Takes the split of each example; returns which examples to use and a sentence that says so (`select_splits`)."""
NO_FEATURES: Float[np.ndarray, "example ..."] = np.empty((0, 0), np.float32)
"""The features of a source that has none."""


def no_picture() -> bytes:
    """Stand in for the reader of an example that has no picture."""
    raise BadInput("this example has features and no picture.")


@dataclass(frozen=True, slots=True)
class Item:
    """One example of a source.

    Attributes:
        name: What a person finds it by: its path in the source.
        class_name: Its label; empty where labels were not asked for.
        split: train, val or test; None where the source does not say.
        read: Returns the encoded picture or its pixels; `no_picture` where the source holds features only.
        box: The part of the picture that counts, in pixels.
    """

    name: str
    class_name: str
    split: str | None = None
    read: ReadPicture = no_picture
    box: Box | None = None


@dataclass(frozen=True)
class Source:
    """What lies at a path, as every verb sees it.

    Attributes:
        items: The examples in order.
        kind: What was found at the path, a key of `open.KINDS`.
        features: Their features; `NO_FEATURES` until they have been computed, where the source holds pictures.
        images: Their images as one array, which may be on disk, where the source is a store of images.
        size: Side of the square (of frames: the shorter side) that `pack` stores; None stores pictures as they are.
        fit: How `pack` makes a square of a picture by default.
        notes: Remarks of the reader.
        skipped: Files that are there and not among the items, and why.
        about: What a store made of it says about itself.
    """

    items: Sequence[Item]
    kind: str = ""
    features: Float[np.ndarray, "example ..."] = field(default_factory=lambda: NO_FEATURES)
    images: UInt8[np.ndarray, "image height width channel"] | Frames | None = None
    size: int | None = 92
    fit: Fit = "crop"
    notes: tuple[str, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> list[str]:
        """The class name of each example."""
        return [item.class_name for item in self.items]

    @property
    def names(self) -> list[str]:
        """The name of each example."""
        return [item.name for item in self.items]

    @property
    def splits(self) -> list[str | None]:
        """The split of each example."""
        return [item.split for item in self.items]

    @property
    def has_features(self) -> bool:
        """Whether the examples have features."""
        return self.features is not NO_FEATURES

    @property
    def has_pictures(self) -> bool:
        """Whether the examples can be read as pictures."""
        return bool(self.items) and all(item.read is not no_picture for item in self.items)

    def select(self, rows: Sequence[int]) -> "Source":
        """Return some of the examples. Features and images on disk stay there if the rows are consecutive."""
        consecutive = len(rows) > 0 and list(rows) == list(range(rows[0], rows[0] + len(rows)))
        where = slice(rows[0], rows[0] + len(rows)) if consecutive else list(rows)
        features = self.features[where] if self.has_features else NO_FEATURES
        images = None if self.images is None else self.images[where]
        return replace(self, items=[self.items[row] for row in rows], features=features, images=images)

    def to_store(self, path: Path) -> Store:
        """Return the features as a store in memory; where the source has no splits, all classes are test classes."""
        items = [replace(item, split=item.split or "test") for item in self.items]
        order = order_by_split(items)
        features = self.features if self.features.ndim == 3 else self.features[:, None]
        features = features if order == sorted(order) else features[order]  # those in order may stay on disk
        labels, names, splits = number_classes([items[row] for row in order])
        return Store(path, features, np.array(labels), tuple(names), tuple(splits), {})


def order_by_split(items: Sequence[Item]) -> list[int]:
    """Return the rows of items in order of split, then class; every item must have a split."""
    return sorted(range(len(items)), key=lambda row: (SPLITS.index(str(items[row].split)), items[row].class_name))


def number_classes(items: Sequence[Item]) -> tuple[list[int], list[str], list[str]]:
    """Number the classes of items in order of appearance.

    Returns:
        The class number of each item, the names of the classes, and their splits.
    """
    classes = list(dict.fromkeys((str(item.split), item.class_name) for item in items))
    number = {class_: index for index, class_ in enumerate(classes)}
    labels = [number[str(item.split), item.class_name] for item in items]
    return labels, [name for _, name in classes], [split for split, _ in classes]


# ---------------------------------------------------------------------------------------------------------- in words


def describe_source(source: Source, path: Path) -> str:
    """Return a summary of a source, printed before the work: its classes and splits, remarks, skipped files."""
    noun = "picture" if source.has_pictures else "vector"
    splits = group_by(source.items, lambda item: item.split)
    parts = []
    for split in (None, *SPLITS):
        if counts := Counter(item.class_name for item in splits.get(split, ())):
            words = f"{count_noun(len(counts), 'class')}, {count_noun(sum(counts.values()), noun)}"
            each = format_range(min(counts.values()), max(counts.values()))
            parts.append(f"{split + ': ' if split else ''}{words} ({each} each)")
    return "\n".join([f"{path}: {'; '.join(parts)}.", *(f"  {remark}." for remark in describe_notes(source))])


def describe_notes(source: Source) -> list[str]:
    """Return the reader's remarks, classes whose names are nearly the same, and the skipped files."""
    similar = [
        f"classes {' and '.join(map(_quote, names))} are called nearly the same: are they one?"
        for names in find_similar_names({item.class_name for item in source.items})
    ]
    return [*source.notes, *similar, *describe_skipped(source.skipped)]


def describe_skipped(skipped: Sequence[SkippedFile], limit: int = 3) -> list[str]:
    """Return one line per reason, with the first names."""
    lines = []
    for why, files in group_by(skipped, itemgetter(1)).items():
        first = ", ".join(name for name, _ in files[:limit]) + (", ..." if len(files) > limit else "")
        lines.append(f"left out, {count_noun(len(files), 'file')}: {why} ({first})")
    return lines


def find_similar_names(names: Iterable[str]) -> list[list[str]]:
    """Return groups of names that differ only in case, spaces, or how letters with accents are coded."""
    groups = group_by(sorted(set(names)), lambda name: tuple(unicodedata.normalize("NFKC", name).casefold().split()))
    return [group for group in groups.values() if len(group) > 1]


def _quote(name: str) -> str:
    """Quote a name; characters beyond ASCII are shown by their codes too, so that twins can be told apart."""
    return repr(name) if name.isascii() else f"{name!r} ({name!a})"


def select_splits(splits: Sequence[str | None], wanted: Sequence[str], for_test: bool) -> tuple[list[int], str]:
    """Choose the examples to learn from or to test with.

    Args:
        splits: The split of each example.
        wanted: The splits that the user asked for. Without any, all examples are used if none has a split; otherwise
            one learns from train (or from all but test, where there is no train) and tests with test (or val).
        for_test: Whether the examples are for a test.

    Returns:
        The rows of the examples, and a sentence that says what was chosen; empty if there is nothing to choose.
    """
    present = [split for split in SPLITS if split in splits]
    for name in wanted:
        if name not in present:
            raise BadInput(f"there is no split {name} here: there are {', '.join(present) or 'none'}.")
    if not present:
        return list(range(len(splits))), ""
    chosen = list(wanted) or _default_splits(present, for_test)
    rows = [row for row, split in enumerate(splits) if split in (None, *chosen)]
    verb, word = ("testing", "with") if for_test else ("learning", "from")
    sentence = f"{verb} {word} {' and '.join(chosen)}"
    if rest := [name for name in present if name not in chosen]:
        sentence += f", not {word} {' or '.join(rest)} (--split names others)"
    return rows, sentence


def _default_splits(present: Sequence[str], for_test: bool) -> list[str]:
    if for_test:
        return [next((name for name in ("test", "val") if name in present), "train")]
    chosen = ["train"] if "train" in present else [name for name in present if name != "test"]
    if not chosen:
        raise BadInput(
            "there are only test examples here, and a classifier does not learn from those: `--split test` if it "
            "should."
        )
    return chosen
