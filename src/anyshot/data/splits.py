"""Which class belongs to which split: the published lists of classes, and a seeded division of anyone's own."""

import random
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files

from anyshot.data.store import SPLITS
from anyshot.errors import BadInput


def published(benchmark: str) -> dict[str, str]:
    """The split of each class of `mini` or `tiered`, by WordNet id."""
    folder = files("anyshot.data") / "splits"
    return {
        wnid: split
        for split in SPLITS
        for wnid in (folder / f"{benchmark}_{split}_wnids.txt").read_text(encoding="ascii").split()
    }


def check_classes(counts: Counter[str], expected: dict[str, int], where: object) -> None:
    """Refuse a benchmark whose splits do not have the published numbers of classes."""
    for split, classes in expected.items():
        if counts[split] != classes:
            raise BadInput(f"{where} has {counts[split]} {split} classes: the benchmark has {classes}.")


def divide(classes: Sequence[str], fractions: Sequence[int | float], seed: int) -> dict[str, str]:
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
