"""The data doctor: what is in a store, how many shots it can serve, and what is wrong with it; with contact sheets.

Near duplicates: images whose perceptual hashes (64 bits: is each cell of a 9x8 thumbnail darker than its right
neighbour) differ in at most three bits, confirmed on the thumbnails. Three bits leave one of four 16-bit bands equal,
so only images that share a band are compared, and the search stays near linear.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8, UInt64
from PIL import Image, ImageDraw, ImageFont, ImageOps

from anyshot.arrays import split_rows
from anyshot.data.pictures import to_picture
from anyshot.data.store import SPLITS, Store, StoreSplit
from anyshot.files import atomic_write, write_json
from anyshot.progress import progress
from anyshot.text import count_noun, format_range, group_by, list_first

QUERIES = 16  # query images of a class in the paper's protocol
MAX_BITS, BANDS = 3, 4  # hashes of near duplicates differ in at most so many bits; bands that one of them shares
MAX_NEIGHBOURS = 64  # images of a band that each is compared with, so that a crowded band stays near linear
# Mean difference of grey levels, and correlation, of thumbnails of near duplicates. With these a bird of CUB is found
# in two frames, and one in a hundred hand-drawn letters is like another, mostly of its class (docs/log/code-size.md).
MAX_GREY_GAP, MIN_CORRELATION = 6.0, 0.99
PART = 512  # items that are read at a time
ROWS, COLUMNS = 24, 12  # classes of a contact sheet, and images of each, at most
MAX_PAIRS = 60  # pairs of a sheet, at most
TILE, GAP, TOP = 64, 2, 24  # pixels of a picture on a sheet, between pictures, and above them
CAPTION, MAX_NAME = 150, 22  # pixels of the captions of a contact sheet, and characters of a name that fit into them


@dataclass(frozen=True)
class Finding:
    """Something to know about a store.

    Attributes:
        weight: How much it matters: "note" or "warning".
        text: What it is.
        items: Items that show it.
    """

    weight: str
    text: str
    items: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Diagnosis:
    """What `doctor` says of a store.

    Attributes:
        splits: Facts of each split, by name.
        findings: What else there is to know.
    """

    splits: dict[str, dict[str, Any]]
    findings: list[Finding]

    @property
    def text(self) -> str:
        """A line per split and finding, for a terminal."""
        lines = [
            f"{split:5}  {facts['classes']} classes, {facts['items']} items, "
            f"{format_range(facts['smallest'], facts['largest'])} per class; "
            f"largest shot with {QUERIES} queries: {facts['largest_shot'] or 'none'}"
            for split, facts in self.splits.items()
        ]
        return "\n".join([*lines, *(f"{finding.weight}: {finding.text}" for finding in self.findings)])


def diagnose(store: Store, copies: Sequence[tuple[int, int]] = ()) -> Diagnosis:
    """Read every item once and return what there is to know; `copies` are further pairs that are one picture."""
    parts = {split: store.part(split) for split in SPLITS if split in store.class_split}
    findings = [Finding("note", note) for note in store.about.get("notes", [])]
    findings += [Finding("warning", text) for text in _describe_classes(store, parts)]
    exact, constant, thumbnails = _scan(store)
    if items := np.flatnonzero(constant).tolist():
        shown = list_first([_name_item(store, index) for index in items])
        text = f"{len(items)} items are constant, one value all over: {shown}"
        findings.append(Finding("warning", text, [[item] for item in items]))
    findings += _describe_pairs(store, "exact duplicates", _find_equal(exact, constant))
    if not store.is_features:
        pairs = {*find_near_duplicates(thumbnails), *copies}
        near = [(a, b) for a, b in sorted(pairs) if exact[a] != exact[b] and not (constant[a] or constant[b])]
        findings += _describe_pairs(store, "near duplicates", near)
    return Diagnosis({split: _count_split(part) for split, part in parts.items()}, findings)


def diagnose_to_folder(
    store: Store, folder: Path | None = None, copies: Sequence[tuple[int, int]] = (), title: str = ""
) -> Diagnosis:
    """Diagnose a store, write diagnosis.json and, for images, draw a sheet per split and one of repeated pictures.

    Args:
        store: The store.
        folder: Where to write; the folder `doctor` of the store by default.
        copies: Further pairs that are one picture.
        title: What the sheets call the store; the name of its folder by default.
    """
    folder, title = folder or store.path / "doctor", title or store.path.name
    diagnosis = diagnose(store, copies)
    findings = [
        asdict(finding) | {"files": [[store.names[index] for index in items] for items in finding.items]}
        for finding in diagnosis.findings
    ]
    write_json(folder / "diagnosis.json", asdict(diagnosis) | {"findings": findings})
    if not store.is_features:
        for split in diagnosis.splits:
            _draw_split(store.part(split), f"{title}, {split}", folder / f"{split}.png")
        if pairs := [pair for finding in diagnosis.findings for pair in finding.items if len(pair) == 2]:
            _draw_pairs(store, pairs, f"{title}, the same picture twice", folder / "pairs.png")
    return diagnosis


def _count_split(part: StoreSplit) -> dict[str, Any]:
    """Return the facts of a split: its classes, its items, and the largest shot that it can serve."""
    counts = part.counts
    smallest = int(counts.min())
    facts = {"classes": len(counts), "items": int(counts.sum()), "smallest": smallest, "largest": int(counts.max())}
    return facts | {"largest_shot": max(smallest - QUERIES, 0)}


def _describe_classes(store: Store, parts: dict[str, StoreSplit]) -> Iterator[str]:
    """Yield sentences about skipped files, classes that are too small or too few, and classes in two splits."""
    if skipped := [f"{entry['name']} ({entry['why']})" for entry in store.about.get("skipped", [])]:
        yield f"{len(skipped)} files could not be read and are left out: {list_first(skipped)} (all are in store.json)"
    for split, part in parts.items():
        counts = zip(part.class_names, part.counts, strict=True)
        if small := [f"{name} ({count})" for name, count in counts if count <= QUERIES]:
            yield f"{len(small)} {split} classes have no shot left beside {QUERIES} queries: {list_first(small)}"
        if len(part.class_names) < 5:
            yield f"{split} has {len(part.class_names)} classes: too few for 5-way episodes"
    for one, other in combinations(parts, 2):
        if shared := sorted(set(parts[one].class_names) & set(parts[other].class_names)):
            names = list_first(shared)
            yield f"{len(shared)} classes are in both {one} and {other}, so {other} is not unseen: {names}"


def _name_item(store: Store, index: int) -> str:
    """Return an item's path, with its class where that is not in the path."""
    name, class_name = store.names[index], store.class_names[store.labels[index]]
    return name if class_name in name.split("/")[:-1] else f"{name} ({class_name})"


def _describe_pairs(store: Store, noun: str, pairs: list[tuple[int, int]]) -> Iterator[Finding]:
    """Yield a finding for pairs across splits, which leak, across classes, which confuse, and within a class."""

    def place(pair: tuple[int, int]) -> str:
        a, b = store.labels[list(pair)]
        if store.class_split[a] != store.class_split[b]:
            return "across splits"
        return "across classes" if a != b else "within a class"

    by_place = group_by(pairs, place)
    for where in ("across splits", "across classes", "within a class"):
        if alike := by_place.get(where):
            names = list_first([f"{_name_item(store, a)} and {_name_item(store, b)}" for a, b in alike])
            text = f"{count_noun(len(alike), 'pair')} of {noun} {where}: {names}"
            yield Finding("note" if where == "within a class" else "warning", text, [list(pair) for pair in alike])


def _scan(store: Store) -> tuple[list[int], np.ndarray, UInt8[np.ndarray, "image row column channel"]]:
    """Return a hash of the bytes of each item, whether all its values are equal and, of images, thumbnails."""
    exact: list[int] = []
    constant = np.zeros(len(store.items), bool)
    thumbnails = np.zeros((0 if store.is_features else len(store.items), 8, 9, 3), np.uint8)
    with progress(f"examining {len(store.items)} items", float(len(store.items))) as advance:
        for part in split_rows(len(store.items), PART):
            chunk = np.asarray(store.items[part])
            flat = chunk.reshape(len(chunk), -1)
            exact += [hash(row.tobytes()) for row in flat]
            constant[part] = (flat == flat[:, :1]).all(1)
            if not store.is_features:
                small = [np.asarray(to_picture(image).resize((9, 8), Image.Resampling.BOX)) for image in chunk]
                thumbnails[part] = small
            advance(float(len(chunk)))
    return exact, constant, thumbnails


def _find_equal(hashes: list[int], constant: np.ndarray) -> list[tuple[int, int]]:
    """Return each item that equals an earlier one, with that one; constant items have their own finding."""
    first: dict[int, int] = {}
    earlier = [(first.setdefault(value, item), item) for item, value in enumerate(hashes) if not constant[item]]
    return [(one, other) for one, other in earlier if one != other]


def find_near_duplicates(thumbnails: UInt8[np.ndarray, "image 8 9 3"]) -> list[tuple[int, int]]:
    """Return pairs that are alike in hash and thumbnail, each once, in order."""
    hashes = hash_thumbnails(thumbnails)
    candidates = [np.empty((0, 2), np.int64)]
    for keys in hashes.view(np.uint16).reshape(-1, BANDS).T:
        order = np.lexsort((hashes, keys))
        # Equal keys lie next to each other: compare each with the one 1, 2, ... places on while any key is shared.
        for step in range(1, min(MAX_NEIGHBOURS, len(order))):
            pairs = np.stack([order[:-step], order[step:]], 1)
            pairs = pairs[keys[pairs[:, 0]] == keys[pairs[:, 1]]]
            if not len(pairs):
                break
            candidates.append(pairs[np.bitwise_count(hashes[pairs[:, 0]] ^ hashes[pairs[:, 1]]) <= MAX_BITS])
    return confirm_pairs(np.concatenate(candidates), thumbnails)


def hash_thumbnails(thumbnails: UInt8[np.ndarray, "image 8 9 3"]) -> UInt64[np.ndarray, " image"]:
    """Return 64 bits per thumbnail: whether each of its cells is darker than the one to its right."""
    grey = thumbnails.sum(3, dtype=np.int16)
    return np.packbits(grey[:, :, :-1] < grey[:, :, 1:], axis=None).view(np.uint64)


def confirm_pairs(
    candidates: Int[np.ndarray, "pair 2"], thumbnails: UInt8[np.ndarray, "image 8 9 3"]
) -> list[tuple[int, int]]:
    """Return the pairs whose thumbnails are alike, each once: close in grey levels, and varying together."""
    alike: list[tuple[int, int]] = []
    candidates = np.unique(np.sort(candidates, 1), axis=0)
    for pairs in np.array_split(candidates, len(candidates) // 65536 + 1):
        one, other = thumbnails[pairs.T].reshape(2, len(pairs), 8 * 9 * 3).astype(np.float32)
        gap = np.abs(one - other).mean(1)
        one, other = (values - values.mean(1, keepdims=True) for values in (one, other))
        # Strokes on an empty ground are close in grey levels whatever they show: they must also vary together.
        together = (one * other).sum(1) / np.sqrt((one**2).sum(1) * (other**2).sum(1) + 1e-6)
        alike += map(tuple, pairs[(gap <= MAX_GREY_GAP) & (together >= MIN_CORRELATION)].tolist())
    return alike


# ------------------------------------------------------------------------------------------------------- contact sheets


def _draw_split(part: StoreSplit, title: str, path: Path) -> None:
    """Draw classes and images at even steps through a split, a row per class."""
    starts, rows = np.cumsum(part.counts) - part.counts, []
    for class_ in _pick_evenly(len(part.counts), ROWS):
        name, count = " ".join(part.class_names[class_].split()), int(part.counts[class_])
        if len(name) > MAX_NAME:
            name = f"{name[: MAX_NAME // 2]}…{name[-MAX_NAME // 2 :]}"
        images = [part.items[int(starts[class_]) + index] for index in _pick_evenly(count, COLUMNS)]
        rows.append((f"{name}\n{count} images", images))
    title = f"{title}: {len(part.class_names)} classes, {len(part.items)} images"
    _draw_rows(rows, title, path, CAPTION + COLUMNS * (TILE + GAP), pictures_at=CAPTION)


def _draw_pairs(store: Store, pairs: Sequence[Sequence[int]], title: str, path: Path) -> None:
    """Draw the first pairs, two pictures a row."""
    rows = [
        ("\n".join(_name_item(store, index) for index in pair), [store.items[index] for index in pair])
        for pair in pairs[:MAX_PAIRS]
    ]
    right = 2 * (TILE + GAP)
    _draw_rows(rows, f"{title}: {len(pairs)} pairs", path, right + 4 * CAPTION, captions_at=right)


def _draw_rows(
    rows: Sequence[tuple[str, Sequence[np.ndarray]]],
    title: str,
    path: Path,
    width: int,
    captions_at: int = 0,
    pictures_at: int = 0,
) -> None:
    """Write a sheet of rows, each a caption and pictures that begin at these pixels."""
    sheet = Image.new("RGB", (width, TOP + len(rows) * (TILE + GAP)), "white")
    draw = ImageDraw.Draw(sheet)
    draw.font = ImageFont.load_default(11)
    draw.text((6, 5), title, "black")
    for top, (caption, images) in zip(range(TOP, sheet.height, TILE + GAP), rows, strict=True):
        draw.multiline_text((captions_at + 6, top + 16), caption, "black")
        for column, image in enumerate(images):
            tile = ImageOps.fit(to_picture(np.asarray(image)), (TILE, TILE), Image.Resampling.BICUBIC)
            sheet.paste(tile, (pictures_at + column * (TILE + GAP), top))
    with atomic_write(path) as temporary:
        sheet.save(temporary, "PNG")


def _pick_evenly(count: int, most: int) -> list[int]:
    """Return numbers below `count`, at even steps, at most so many."""
    return [int(index) for index in np.linspace(0, count - 1, min(count, most)).round()]
