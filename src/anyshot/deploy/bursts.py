"""Photos of one moment. Left out alone, such a photo is recognised by its siblings, and the accuracy flatters: so the
whole burst is left out.

Bursts are told by the times in the files (or in their names), by numbers in the names where neighbours in number are
alike, and by features that are nearer than separate photos of one class would be.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from anyshot.deploy.classifier import FewShotClassifier
from anyshot.deploy.duplicates import PART, Labels, Usual, Vectors
from anyshot.deploy.left_out import LeftOut
from anyshot.models.law import Head, score_support

SECONDS = 30.0  # between two photos of one burst
NEAR = 0.3  # squared distance of two photos of one moment, as a share of the usual one of a class
CHANCE = 0.01  # of an image to have another so near by chance
ALIKE = 0.6  # and of neighbours in number, for numbers to tell of bursts
SHARE = 0.05  # of the images must be in bursts, to speak of them
FOLDS = 10
MOST_IMAGES = 20_000

_TIME = re.compile(r"((?:19|20)\d{6})[-_ T]?(\d{6})")
_NUMBER = re.compile(r"^(.*?)(\d+)\D*$")


@dataclass(frozen=True)
class Bursts:
    """Which images belong together."""

    group: Int[np.ndarray, " image"]
    """The burst of each image; an image alone has one of its own."""
    told_by: tuple[str, ...]
    """What tells of bursts: times, numbers in names, near-identical features; empty where nothing does."""

    @property
    def many(self) -> int:
        """Bursts of two images or more."""
        return int((np.bincount(self.group) > 1).sum())

    @property
    def images(self) -> int:
        """Images in them."""
        sizes = np.bincount(self.group)
        return int(sizes[sizes > 1].sum())


def find_bursts(
    vectors: Vectors, labels: Labels, names: Sequence[str] = (), times: Sequence[float | None] = ()
) -> Bursts:
    """Bursts within classes.

    Args:
        vectors: A vector per image.
        labels: Their classes, counted from 0.
        names: Their file names, where they have any.
        times: When they were taken, in seconds, where that is known; without, times in the names are used.
    """
    many = len(labels)
    if many > MOST_IMAGES or many < 3:
        return Bursts(np.arange(many), ())
    taken = [time if time is not None else time_in(name) for time, name in _both(many, times, names)]
    usual = Usual.of(vectors, labels)
    near: list[tuple[int, int]] = []
    in_time: list[tuple[int, int]] = []
    for place in range(int(labels.max()) + 1):
        mine = np.flatnonzero(labels == place)
        near += _near(vectors[mine], mine, usual)
        dated = sorted((time, int(image)) for image in mine if (time := taken[image]) is not None)
        in_time += [(a, b) for (one, a), (other, b) in pairwise(dated) if other - one <= SECONDS]
    signs = {
        "times": in_time,
        "numbers in file names": _in_number(vectors, labels, names, usual),
        "near-identical features": near,
    }
    told_by = tuple(
        sign for sign, pairs in signs.items() if len({image for pair in pairs for image in pair}) >= SHARE * many
    )
    pairs = [pair for sign in told_by for pair in signs[sign]]
    rows, columns = np.array(pairs, int).reshape(-1, 2).T
    graph = coo_array((np.ones(len(rows)), (rows, columns)), shape=(many, many))
    return Bursts(connected_components(graph, directed=False)[1].astype(np.int64), told_by)


def time_in(name: str) -> float | None:
    """The time that a phone or a camera wrote into a file's name, as in IMG_20240131_120501.jpg."""
    if match := _TIME.search(name):
        try:
            return datetime.strptime(match[1] + match[2], "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp()
        except ValueError:
            return None
    return None


def _both(many: int, times: Sequence[float | None], names: Sequence[str]) -> list[tuple[float | None, str]]:
    return [(times[i] if i < len(times) else None, names[i] if i < len(names) else "") for i in range(many)]


def _near(
    vectors: Float[np.ndarray, "image d"], mine: Int[np.ndarray, " image"], usual: Usual
) -> list[tuple[int, int]]:
    if len(mine) < 2:
        return []
    square = (vectors**2).sum(1)
    limit = min(NEAR * usual.distance, usual.by_chance(CHANCE / (len(mine) - 1)))
    pairs: list[tuple[int, int]] = []
    for start in range(0, len(mine), PART):
        part = slice(start, start + PART)
        apart = square[part, None] + square[start:] - 2 * vectors[part] @ vectors[start:].T
        one, other = np.nonzero(np.triu(apart <= limit, 1))
        pairs += zip(mine[start + one].tolist(), mine[start + other].tolist(), strict=True)
    return pairs


def _in_number(vectors: Vectors, labels: Labels, names: Sequence[str], usual: Usual) -> list[tuple[int, int]]:
    """Neighbours in number, if they are mostly much more alike than images of a class are."""
    series: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for image, name in enumerate(names[: len(labels)]):
        if match := _NUMBER.match(name.rpartition(".")[0] or name):
            series[int(labels[image]), match[1]].append((int(match[2]), image))
    pairs = [
        (a, b) for one in series.values() for (low, a), (high, b) in pairwise(sorted(one)) if high - low == 1
    ]  # fmt: skip
    if not pairs:
        return []
    one, other = np.array(pairs).T
    parts = [slice(start, start + PART) for start in range(0, len(pairs), PART)]
    apart = np.concatenate([((vectors[one[part]] - vectors[other[part]]) ** 2).sum(1) for part in parts])
    if np.median(apart) > ALIKE * usual.distance:
        return []
    return [pair for pair, distance in zip(pairs, apart.tolist(), strict=True) if distance <= ALIKE * usual.distance]


def leave_out_bursts(
    new: Callable[[], FewShotClassifier],
    features: Float[np.ndarray, "image ..."],
    labels: Labels,
    bursts: Bursts,
    alone: float,
    vectors: Vectors | None = None,
    head: Head | None = None,
) -> tuple[Int[np.ndarray, " image"], LeftOut]:
    """The class of each image when its whole burst is left out, with the bursts in ten parts, and how often that is
    right; -1 for images of a class that is a single burst.

    Args:
        new: Makes a classifier that has learned nothing.
        features: Of each image.
        labels: Their classes, counted from 0.
        bursts: Which of them belong together.
        alone: How many are recognised when each is left out alone.
        vectors: What a class is a mean of, for a head that estimates from its support alone: it needs no classifier.
        head: That head.
    """
    fold = _folds(labels, bursts.group)
    predicted = np.full(len(labels), -1)
    for part in range(FOLDS):
        asked = fold == part
        if asked.any() and vectors is not None and head is not None:
            support, owner, query = (torch.from_numpy(x) for x in (vectors[~asked], labels[~asked], vectors[asked]))
            predicted[asked] = score_support(head, support, owner, query).argmax(1).numpy()
        elif asked.any():
            predicted[asked] = new().fit(features[~asked], labels[~asked]).predict(features[asked])
    judged = predicted >= 0
    right = float((predicted == labels)[judged].mean()) if judged.any() else None
    return predicted, LeftOut(alone, right, bursts.many, bursts.images, bursts.told_by)


def _folds(labels: Labels, group: Int[np.ndarray, " image"]) -> Int[np.ndarray, " image"]:
    """Each class's bursts dealt to the parts in turn, the largest first; -1 where there is only one. Classes begin at
    different parts, so that these are of about one size."""
    fold = np.full(len(labels), -1)
    dealt = 0
    for place in range(int(labels.max()) + 1):
        mine = np.flatnonzero(labels == place)
        bursts, sizes = np.unique(group[mine], return_counts=True)
        if len(bursts) < 2:
            continue
        for burst in bursts[np.argsort(-sizes, kind="stable")]:
            fold[mine[group[mine] == burst]] = dealt % FOLDS
            dealt += 1
    return fold
