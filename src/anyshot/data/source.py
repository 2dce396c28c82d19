"""A source of examples: their names, classes, splits, pictures or features, and a summary for people."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from anyshot.data.pictures import Box, Fit
from anyshot.data.store import SPLITS, Frames, Store
from anyshot.errors import BadInput
from anyshot.text import count_noun, format_range, group_by, list_first

ReadPicture = Callable[[], bytes | np.ndarray]
"""Returns an encoded picture, or its pixels "height width channel"."""
SkippedFile = tuple[str, str]
"""The name of a file that is not read, and the reason."""
SelectSplits = Callable[[Sequence[str | None]], tuple[list[int], str]]
"""`select_splits` with its options filled in: takes the split of each example, returns the rows to use and a note."""
NO_FEATURES: Float[np.ndarray, "example ..."] = np.empty((0, 0), np.float32)
"""The features of a source that has none, recognised by `is`."""


def no_picture() -> bytes:
    """Raise a BadInput: the `read` of an example that has no picture."""
    raise BadInput("this example has features and no picture.")


@dataclass(frozen=True, slots=True)
class Item:
    """One example of a source.

    Attributes:
        name: Its path in the source, or another name that a person can find it by.
        class_name: Its label; empty in a source that was opened without labels.
        split: train, val or test; None where the source has no splits.
        read: Returns the encoded picture or its pixels; `no_picture` where there are only features.
        box: The part of the picture to use, in pixels; None for all of it.
        group: The name of the examples that it belongs to, where the user has named groups; empty if to none.
        is_confirmed: Whether a person has confirmed its label.
    """

    name: str
    class_name: str
    split: str | None = None
    read: ReadPicture = no_picture
    box: Box | None = None
    group: str = ""
    is_confirmed: bool = False


@dataclass(frozen=True)
class Source:
    """The examples at a path, whatever its kind.

    Attributes:
        items: The examples.
        kind: The kind of the path, a key of `open.KINDS`.
        features: The features of the examples; `NO_FEATURES` where they have pictures that are not embedded yet.
        images: The images of the examples as one array, possibly on disk; only of a store of images.
        size: Default side of what `pack` stores (of frames the shorter one), in pixels; None leaves pictures as they
            are.
        fit: Default of how `pack` fits a picture to that size.
        notes: What the user should know about how the source was read.
        skipped: Files that are not among the examples, with the reasons.
        about: Metadata for the store that `pack` makes of the source.
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
    def groups(self) -> list[str | None] | None:
        """The group of each example, None for one that belongs to no other; None where no groups are named."""
        names = [item.group or None for item in self.items]
        return names if any(names) else None

    @property
    def has_features(self) -> bool:
        """Whether the examples have features."""
        return self.features is not NO_FEATURES

    @property
    def has_pictures(self) -> bool:
        """Whether the examples can be read as pictures."""
        return bool(self.items) and all(item.read is not no_picture for item in self.items)

    def select(self, rows: Sequence[int]) -> "Source":
        """Return some of the examples; consecutive rows of features and images are not copied."""
        is_consecutive = len(rows) > 0 and list(rows) == list(range(rows[0], rows[0] + len(rows)))
        index = slice(rows[0], rows[0] + len(rows)) if is_consecutive else list(rows)
        features = self.features[index] if self.has_features else NO_FEATURES
        images = None if self.images is None else self.images[index]
        return replace(self, items=[self.items[row] for row in rows], features=features, images=images)

    def to_store(self, path: Path) -> Store:
        """Return the features as a store that is not on disk; examples without a split become test examples."""
        items = [replace(item, split=item.split or "test") for item in self.items]
        order = order_by_split(items)
        features = self.features if self.features.ndim == 3 else self.features[:, None]
        features = features if order == sorted(order) else features[order]  # no copy where they are in order
        labels, names, splits = number_classes([items[row] for row in order])
        store = Store(path, features, np.array(labels), tuple(names), tuple(splits), {})
        store.__dict__["groups"] = tuple(items[row].group for row in order)  # which it would read from its folder
        return store


def check_content(source: Source, path: Path, has_features: bool) -> None:
    """Raise BadInput where a source has features and pictures are needed, or the other way round."""
    if source.has_features != has_features:
        has, needs = ("features", "pictures") if source.has_features else ("pictures", "features")
        raise BadInput(f"{path} holds {has}, and {needs} are needed here.")


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


# --------------------------------------------------------------------------------------------------------- summary


def describe_source(source: Source, path: Path) -> str:
    """Return a summary for the user: the classes and examples of each split, notes and skipped files."""
    noun = "picture" if source.has_pictures else "vector"
    splits = group_by(source.items, lambda item: item.split)
    parts = []
    for split in (None, *SPLITS):
        if counts := Counter(item.class_name for item in splits.get(split, ())):
            totals = f"{count_noun(len(counts), 'class')}, {count_noun(sum(counts.values()), noun)}"
            per_class = format_range(min(counts.values()), max(counts.values()))
            parts.append(f"{split + ': ' if split else ''}{totals} ({per_class} each)")
    return "\n".join([f"{path}: {'; '.join(parts)}.", *(f"  {note}." for note in describe_notes(source))])


def describe_notes(source: Source) -> list[str]:
    """Return the notes of the reader, on classes whose names are nearly the same, and on skipped files."""
    similar = [
        f"classes {' and '.join(map(_quote, names))} are called nearly the same: are they one?"
        for names in find_similar_names({item.class_name for item in source.items})
    ]
    skipped = [
        f"left out, {count_noun(len(files), 'file')}: {why} ({list_first([name for name, _ in files])})"
        for why, files in group_by(source.skipped, itemgetter(1)).items()
    ]
    return [*source.notes, *similar, *skipped]


def find_similar_names(names: Iterable[str]) -> list[list[str]]:
    """Return groups of names that differ only in case, spaces, or the Unicode form of their letters."""
    groups = group_by(sorted(set(names)), lambda name: tuple(unicodedata.normalize("NFKC", name).casefold().split()))
    return [group for group in groups.values() if len(group) > 1]


def _quote(name: str) -> str:
    """Quote a name, with the codes of characters beyond ASCII, which may look the same and differ."""
    return repr(name) if name.isascii() else f"{name!r} ({name!a})"


def select_splits(splits: Sequence[str | None], wanted: Sequence[str], for_test: bool) -> tuple[list[int], str]:
    """Choose the examples to learn from or to test with.

    Args:
        splits: The split of each example.
        wanted: The splits that the user named. By default one learns from train (from all but test, where there is no
            train) and tests with test (or val). Examples without a split are always used.
        for_test: Whether the examples are for a test.

    Returns:
        The rows of the examples, and a note on the choice; it is empty if no example has a split.
    """
    present = [split for split in SPLITS if split in splits]
    for name in wanted:
        if name not in present:
            are = f"there are {', '.join(present)}" if present else "nothing is divided into train, val and test"
            raise BadInput(f"there is no split {name} here: {are}.")
    if not present:
        return list(range(len(splits))), ""
    chosen = list(wanted) or _default_splits(present, for_test)
    rows = [row for row, split in enumerate(splits) if split in (None, *chosen)]
    verb, preposition = ("testing", "with") if for_test else ("learning", "from")
    note = f"{verb} {preposition} {' and '.join(chosen)}"
    if rest := [name for name in present if name not in chosen]:
        note += f", not {preposition} {' or '.join(rest)} (--split names others)"
    return rows, note


def _default_splits(present: Sequence[str], for_test: bool) -> list[str]:
    """Return the splits to use where the user named none."""
    if for_test:
        return [next((name for name in ("test", "val") if name in present), "train")]
    chosen = ["train"] if "train" in present else [name for name in present if name != "test"]
    if not chosen:
        raise BadInput(
            "there are only test examples here, and a classifier does not learn from those: `--split test` if it "
            "should."
        )
    return chosen
