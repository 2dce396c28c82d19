"""The data doctor: what is in a store, how many shots it can serve, and what is wrong with it.

Near duplicates: images whose perceptual hashes (64 bits: is each cell of a 9x8 grey thumbnail darker than its right
neighbour) differ in at most three bits, confirmed on colour thumbnails. Three bits leave one of four 16-bit bands
equal, so only images that share a band are compared, and the search stays near linear.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt8, UInt64

from anyshot.data.store import SPLITS, Store, StoreSplit
from anyshot.files import write_json
from anyshot.inspect.sheets import draw_pairs, draw_sheet
from anyshot.progress import progress
from anyshot.text import count_noun, format_range, group_by

QUERIES = 16  # query images of a class in the paper's protocol
MAX_BITS, BANDS = 3, 4  # hashes of near duplicates differ in at most so many bits; bands that one of them shares
MAX_NEIGHBOURS = 64  # images of a band that each is compared with, so that a crowded band stays near linear
MAX_GREY_GAP, MIN_CORRELATION = 6.0, 0.98  # of thumbnails of near duplicates: mean difference of grey levels
ROWS = 512  # items that are read at a time
FindCopies = Callable[[Store], list[tuple[int, int]]]


@dataclass(frozen=True)
class Finding:
    """Something to know about a store.

    Attributes:
        weight: How much it matters: note or warning.
        text: What it is.
        items: Items that show it.
    """

    weight: str
    text: str
    items: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Diagnosis:
    """Facts of each split, and findings."""

    splits: dict[str, dict[str, Any]]
    findings: list[Finding]

    @property
    def text(self) -> str:
        """A line per split and finding, for a terminal."""
        lines = [
            f"{split:5}  {facts['classes']} classes, {facts['items']} items, "
            f"{format_range(facts['smallest'], facts['largest'])} per class; "
            f"largest shot with {QUERIES} queries: {_describe_largest_shot(facts)}"
            for split, facts in self.splits.items()
        ]
        return "\n".join([*lines, *(f"{finding.weight}: {finding.text}" for finding in self.findings)])


def diagnose(store: Store, copies: FindCopies | None = None) -> Diagnosis:
    """Read every item once and return what there is to know; `copies` finds further pairs that are one picture."""
    parts = {split: store.part(split) for split in SPLITS if split in store.class_split}
    findings = [Finding("note", note) for note in store.about.get("notes", [])]
    findings += [*_find_skipped(store), *_find_small_classes(parts), *_find_shared_classes(parts)]
    exact, constant, hashes, thumbnails = _scan(store)
    findings += _find_constant(constant, store)
    findings += _describe_pairs(store, "exact duplicates", _find_equal(exact, constant))
    if not store.is_features:
        looks = np.concatenate(hashes), np.concatenate(thumbnails)
        pairs = {*find_near_duplicates(*looks, constant), *(copies(store) if copies is not None else ())}
        near = [(a, b) for a, b in sorted(pairs) if exact[a] != exact[b] and not (constant[a] or constant[b])]
        findings += _describe_pairs(store, "near duplicates", near)
    return Diagnosis({split: _count_split(part) for split, part in parts.items()}, findings)


def diagnose_to_folder(
    store: Store, folder: Path | None = None, copies: FindCopies | None = None, title: str = ""
) -> Diagnosis:
    """Diagnose a store, write diagnosis.json and, for images, draw a sheet per split and one of repeated pictures.

    Args:
        store: The store.
        folder: Where to write; the folder `doctor` of the store by default.
        copies: Finds further pairs that are one picture.
        title: What the sheets call the store; the name of its folder by default.
    """
    folder, title = folder or store.path / "doctor", title or store.path.name
    diagnosis = diagnose(store, copies)
    names = [{"files": [[store.names[index] for index in some] for some in each.items]} for each in diagnosis.findings]
    findings = [asdict(finding) | files for finding, files in zip(diagnosis.findings, names, strict=True)]
    write_json(folder / "diagnosis.json", asdict(diagnosis) | {"findings": findings})
    if not store.is_features:
        for split in diagnosis.splits:
            draw_sheet(store.part(split), f"{title}, {split}", folder / f"{split}.png")
        if pairs := [pair for finding in diagnosis.findings for pair in finding.items if len(pair) == 2]:
            called = [[_name_item(store, index) for index in pair] for pair in pairs]
            draw_pairs(store.items, pairs, called, f"{title}, the same picture twice", folder / "pairs.png")
    return diagnosis


def _count_split(part: StoreSplit) -> dict[str, Any]:
    counts = part.counts
    smallest = int(counts.min())
    facts = {"classes": len(counts), "items": int(counts.sum()), "smallest": smallest, "largest": int(counts.max())}
    return facts | {"largest_shot": max(smallest - QUERIES, 0)}


def _describe_largest_shot(facts: dict[str, Any]) -> str:
    return str(facts["largest_shot"]) if facts["largest_shot"] else f"none, a class has {facts['smallest']}"


def _find_skipped(store: Store) -> Iterator[Finding]:
    skipped = store.about.get("skipped", [])
    if skipped:
        first = "; ".join(f"{entry['name']} ({entry['why']})" for entry in skipped[:3])
        more = f"; and {len(skipped) - 3} more, all in store.json" if len(skipped) > 3 else ""
        yield Finding("warning", f"{len(skipped)} files could not be read and are left out: {first}{more}")


def _find_small_classes(parts: dict[str, StoreSplit]) -> Iterator[Finding]:
    for split, part in parts.items():
        counts = zip(part.class_names, part.counts, strict=True)
        if small := [f"{name} ({count})" for name, count in counts if count <= QUERIES]:
            text = f"{len(small)} {split} classes have no shot left beside {QUERIES} queries: {_first_names(small)}"
            yield Finding("warning", text)
        if len(part.class_names) < 5:
            yield Finding("warning", f"{split} has {len(part.class_names)} classes: too few for 5-way episodes")


def _find_shared_classes(parts: dict[str, StoreSplit]) -> Iterator[Finding]:
    for one, other in combinations(parts, 2):
        shared = sorted(set(parts[one].class_names) & set(parts[other].class_names))
        if shared:
            text = (
                f"{len(shared)} classes are in both {one} and {other}, so {other} is not unseen: {_first_names(shared)}"
            )
            yield Finding("warning", text)


def _first_names(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _find_constant(constant: np.ndarray, store: Store) -> Iterator[Finding]:
    items = np.flatnonzero(constant).tolist()
    if items:
        shown = _first_names([_name_item(store, index) for index in items[:6]])
        yield Finding("warning", f"{len(items)} items are constant, one value all over: {shown}", [[i] for i in items])


def _name_item(store: Store, index: int) -> str:
    """Return an item's path, with its class where that is not in the path."""
    name, class_name = store.names[index], store.class_names[store.labels[index]]
    return name if class_name in name.split("/")[:-1] else f"{name} ({class_name})"


def _describe_pairs(store: Store, what: str, pairs: list[tuple[int, int]]) -> Iterator[Finding]:
    """Report pairs by what they cross: a split leaks, a class confuses, within a class they only repeat."""

    def crossed(pair: tuple[int, int]) -> str:
        a, b = store.labels[list(pair)]
        across = store.class_split[a] != store.class_split[b]
        return "across splits" if across else "across classes" if a != b else "within a class"

    kinds = group_by(pairs, crossed)
    for kind in ("across splits", "across classes", "within a class"):
        if alike := kinds.get(kind):
            shown = _first_names([f"{_name_item(store, a)} and {_name_item(store, b)}" for a, b in alike[:6]])
            text = f"{count_noun(len(alike), 'pair')} of {what} {kind}: {shown}"
            yield Finding("note" if kind == "within a class" else "warning", text, [list(pair) for pair in alike])


def _scan(store: Store) -> tuple[list[int], np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """Read the items once.

    Returns:
        For each item a hash of its bytes and whether all its values are equal; for images, chunk by chunk, perceptual
        hashes and thumbnails.
    """
    exact: list[int] = []
    constant = np.zeros(len(store.items), bool)
    hashes, thumbnails = [], []
    with progress(f"examining {len(store.items)} items", float(len(store.items))) as advance:
        for start in range(0, len(store.items), ROWS):
            chunk = np.asarray(store.items[start : start + ROWS])
            flat = chunk.reshape(len(chunk), -1)
            exact += [hash(row.tobytes()) for row in flat]
            constant[start : start + ROWS] = (flat == flat[:, :1]).all(1)
            if not store.is_features:
                hashes.append(perceptual_hash(chunk))
                thumbnails.append(mean_pool(chunk, 8, 8).round().astype(np.uint8).reshape(len(chunk), -1))
            advance(float(len(chunk)))
    return exact, constant, hashes, thumbnails


def perceptual_hash(images: UInt8[np.ndarray, "image height width channel"]) -> UInt64[np.ndarray, " image"]:
    """Return 64 bits per picture: whether each cell of a 9x8 grey thumbnail is darker than the one to its right."""
    grey = mean_pool(images, 8, 9).mean(3)
    bits = (grey[:, :, :-1] < grey[:, :, 1:]).reshape(len(images), 64)
    return np.packbits(bits, axis=1).view(">u8").astype(np.uint64)[:, 0]


def mean_pool(
    images: UInt8[np.ndarray, "image height width channel"], rows: int, columns: int
) -> Float[np.ndarray, "image rows columns channel"]:
    """Return the means over a grid of cells, as equal as whole pixels allow; smaller images are repeated first."""
    for axis, cells in ((1, rows), (2, columns)):
        if images.shape[axis] < cells:
            images = images.repeat(-(-cells // images.shape[axis]), axis)
    many, height, width, channels = images.shape
    lines = _pooling_matrix(height, rows) @ images.reshape(many, height, -1).astype(np.float32)
    cells = _pooling_matrix(width, columns) @ lines.reshape(many * rows, width, channels)
    return cells.reshape(many, rows, columns, channels)


def _pooling_matrix(side: int, cells: int) -> Float[np.ndarray, "cells side"]:
    """Return the matrix that takes the mean of each of so many stretches of a side."""
    edges = np.arange(cells + 1) * side // cells
    pixels = np.arange(side)
    within = (pixels >= edges[:-1, None]) & (pixels < edges[1:, None])
    return (within / np.diff(edges)[:, None]).astype(np.float32)


def _find_equal(hashes: list[int], constant: np.ndarray) -> list[tuple[int, int]]:
    """Return each item that equals an earlier one, with that one; constant items have their own finding."""
    first: dict[int, int] = {}
    pairs = []
    for index, value in enumerate(hashes):
        if not constant[index] and first.setdefault(value, index) != index:
            pairs.append((first[value], index))
    return pairs


def find_near_duplicates(
    hashes: UInt64[np.ndarray, " image"], thumbnails: UInt8[np.ndarray, "image value"], constant: np.ndarray
) -> list[tuple[int, int]]:
    """Return pairs that are alike in hash and thumbnail, each once, in order."""
    pairs: set[tuple[int, int]] = set()
    width = 64 // BANDS
    for band in range(BANDS):
        keys = (hashes >> np.uint64(band * width)) & np.uint64((1 << width) - 1)
        order = np.lexsort((hashes, keys))
        order = order[~constant[order]]
        # Equal keys lie next to each other: compare each with the one 1, 2, ... places on while any key is shared.
        for step in range(1, min(MAX_NEIGHBOURS, len(order))):
            one, other = order[:-step], order[step:]
            shared = keys[one] == keys[other]
            if not shared.any():
                break
            one, other = one[shared], other[shared]
            close = np.bitwise_count(hashes[one] ^ hashes[other]) <= MAX_BITS
            pairs.update(confirm_pairs(one[close], other[close], thumbnails))
    return sorted(pairs)


def confirm_pairs(
    one: Int[np.ndarray, " pair"], other: Int[np.ndarray, " pair"], thumbnails: UInt8[np.ndarray, "image value"]
) -> Iterator[tuple[int, int]]:
    """Yield the pairs whose thumbnails are alike: close in grey levels, and varying together."""
    for start in range(0, len(one), 65536):
        a, b = one[start : start + 65536], other[start : start + 65536]
        x, y = (thumbnails[index].astype(np.float32) for index in (a, b))
        gap = np.abs(x - y).mean(1)
        x, y = (values - values.mean(1, keepdims=True) for values in (x, y))
        # Strokes on an empty ground are close in grey levels whatever they show: they must also vary together.
        together = (x * y).sum(1) / np.sqrt((x**2).sum(1) * (y**2).sum(1) + 1e-6)
        alike = (gap <= MAX_GREY_GAP) & (together >= MIN_CORRELATION)
        for first, second in zip(a[alike].tolist(), b[alike].tolist(), strict=True):
            yield min(first, second), max(first, second)
