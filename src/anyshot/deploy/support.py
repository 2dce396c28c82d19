"""What a deployed classifier remembers of its classes: a sum and a count each, as the law says, and a few examples.

Sums and counts only add, so batches come in any order and two machines' classes merge exactly (`ledger`). Calibration
and the reader's eye want examples too; of each class at most `keep` stay, those with the smallest keys. A key is a hash
of the example, so that which ones stay is a fair draw, yet depends on nothing but the set of examples itself.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped, UInt64
from scipy.linalg.blas import dsyrk

HASHED = 128  # rows whose keys are made at once
PART = 1024  # images whose scatter is summed at once: what is made of them on the way takes as much memory as they do

Kept = tuple[Float[np.ndarray, "kept d"], Int[np.ndarray, " kept"], UInt64[np.ndarray, " kept"]]


@dataclass(frozen=True)
class Support:
    """Classes in order of their labels; kept examples in order of class, then key."""

    labels: Shaped[np.ndarray, " way"]
    sums: Float[np.ndarray, "way d"]
    counts: Int[np.ndarray, " way"]
    examples: Float[np.ndarray, "kept d"]
    owner: Int[np.ndarray, " kept"]
    """The class of each kept example, an index into the labels."""
    keys: UInt64[np.ndarray, " kept"]
    scatter: Float[np.ndarray, "d d"] | None = None
    """How images vary about the means of their classes, summed over images, for heads that estimate from it."""
    freedom: int = 0
    """How many images tell of that: all but one of each class. (A class that is removed leaves what it told.)"""

    @property
    def means(self) -> Float[np.ndarray, "way d"]:
        return self.sums / self.counts[:, None]

    @property
    def kept(self) -> Kept:
        """The kept examples, their classes and keys."""
        return self.examples, self.owner, self.keys

    @property
    def kept_counts(self) -> Int[np.ndarray, " way"]:
        return np.bincount(self.owner, minlength=len(self.labels))

    def without(self, labels: Shaped[np.ndarray, " removed"]) -> "Support":
        """The other classes."""
        stay = ~np.isin(self.labels, labels)
        here = stay[self.owner]
        owner = (np.cumsum(stay) - 1)[self.owner[here]]
        classes = self.labels[stay], self.sums[stay], self.counts[stay]
        return Support(*classes, self.examples[here], owner, self.keys[here], self.scatter, self.freedom)

    def kept_of(self, shot: int) -> Int[np.ndarray, " chosen"]:
        """The places of at most `shot` kept examples per class, those with the smallest keys."""
        return _smallest(self.keys, self.owner, shot)[0]

    def taken(self, label: Any, key: int | None = None) -> "tuple[Support | None, Support]":
        """What is left without a class, or without one kept example of it, and what was taken: joined they are as
        before. A class goes with its only example, and nothing is left without the last class."""
        place = int(np.searchsorted(self.labels, label))
        mine = np.flatnonzero(self.owner == place)
        if key is not None and self.counts[place] > 1:
            return self._without_example(int(mine[self.keys[mine] == np.uint64(key)][0]))
        if len(self.labels) == 1:
            return None, self
        return self.without(self.labels[[place]]), self._part(place, mine, self.sums[[place]], self.counts[[place]])

    def _without_example(self, example: int) -> "tuple[Support, Support]":
        place, vector = int(self.owner[example]), self.examples[example]
        sums, counts, scatter = self.sums.copy(), self.counts.copy(), self.scatter
        sums[place] -= vector
        counts[place] -= 1
        if scatter is not None:  # what `joined` will add
            apart = (sums[place] / counts[place] - vector) * np.sqrt(counts[place] / self.counts[place])
            scatter = scatter - np.outer(apart, apart)
        examples, owner, keys = (np.delete(values, example, 0) for values in (self.examples, self.owner, self.keys))
        left = Support(self.labels, sums, counts, examples, owner, keys, scatter, self.freedom - 1)
        return left, self._part(place, np.array([example]), vector[None], np.ones(1, np.int64))

    def _part(self, place: int, examples: Int[np.ndarray, " part"], sums: Any, counts: Any) -> "Support":
        """Some of a class, to be joined again: of how its images vary it says nothing."""
        scatter = None if self.scatter is None else np.zeros(self.scatter.shape)
        owner, label = np.zeros(len(examples), np.int64), self.labels[[place]]
        return Support(label, sums, counts, self.examples[examples], owner, self.keys[examples], scatter)

    def first(self, shot: int) -> "Support":
        """The classes as they would be with at most `shot` examples: sums of the first kept ones, nested in `shot`."""
        chosen, owner = _smallest(self.keys, self.owner, shot)
        is_all = len(chosen) == len(self.examples)  # in the same order; then they are not copied
        examples, keys = self.examples if is_all else self.examples[chosen], self.keys[chosen]
        sums, counts = _sums(examples, owner, len(self.labels))
        scatter = None if self.scatter is None else _scatter(examples, owner, sums, counts)
        return Support(self.labels, sums, counts, examples, owner, keys, scatter, len(examples) - len(counts))


def support_of(
    vectors: Float[np.ndarray, "image d"],
    labels: Shaped[np.ndarray, " image"],
    keys: UInt64[np.ndarray, " image"] | None = None,
    keep: int = 0,
    *,
    has_scatter: bool = False,
) -> Support:
    """The support that a batch of examples makes; with its scatter for a head that estimates from it."""
    names, owner = np.unique(labels, return_inverse=True)
    sums, counts = _sums(vectors, owner, len(names))
    scatter = _scatter(vectors, owner, sums, counts) if has_scatter else None
    if keys is None:
        kept: Kept = np.zeros((0, vectors.shape[1])), np.zeros(0, np.int64), np.zeros(0, np.uint64)
    else:
        kept = kept_of(vectors, owner, keys, keep)
    return Support(names, sums, counts, *kept, scatter, len(vectors) - len(names))


def kept_of(
    vectors: Float[np.ndarray, "image d"],
    owner: Int[np.ndarray, " image"],
    keys: UInt64[np.ndarray, " image"],
    keep: int,
) -> Kept:
    """Examples, their classes and keys: of each class those with the smallest keys, at most `keep`."""
    chosen, kept_owner = _smallest(keys, owner, keep)
    is_all = np.array_equal(chosen, np.arange(len(vectors)))  # then they are not copied
    return (vectors if is_all else vectors[chosen]).astype(np.float64, copy=False), kept_owner, keys[chosen]


def scatter_of(
    vectors: Float[np.ndarray, "image d"], owner: Int[np.ndarray, " image"], way: int
) -> Float[np.ndarray, "d d"]:
    """How images vary about the means of their classes, summed over images."""
    return _scatter(vectors, owner, *_sums(vectors, owner, way))


def keys_of(rows: Float[np.ndarray, "image feature"]) -> UInt64[np.ndarray, " image"]:
    """A hash of each row's numbers, the same for float32 and float64 and for 0 and -0."""
    keys = np.empty(len(rows), np.uint64)
    for start in range(0, len(rows), HASHED):  # their copies in double precision are never all in memory
        part = rows[start : start + HASHED].astype(np.float64, order="C")
        part += 0.0
        digests = b"".join([blake2b(row, digest_size=8).digest() for row in part])
        keys[start : start + HASHED] = np.frombuffer(digests, ">u8")
    return keys


def _sums(
    vectors: Float[np.ndarray, "image d"], owner: Int[np.ndarray, " image"], way: int
) -> tuple[Float[np.ndarray, "way d"], Int[np.ndarray, " way"]]:
    sums, counts = torch.zeros(way, vectors.shape[1], dtype=torch.float64), np.bincount(owner, minlength=way)
    if counts.max(initial=0) == 1:  # as where one more is learned: torch would wake its threads
        sums.numpy()[owner] = vectors
        return sums.numpy(), counts
    for start in range(0, len(vectors), PART):  # those in single precision are never all copied
        part = torch.from_numpy(np.require(vectors[start : start + PART], np.float64, "W"))
        sums.index_add_(0, torch.from_numpy(owner[start : start + PART]), part)
    return sums.numpy(), counts


def _scatter(
    vectors: Float[np.ndarray, "image d"],
    owner: Int[np.ndarray, " image"],
    sums: Float[np.ndarray, "way d"],
    counts: Int[np.ndarray, " way"],
) -> Float[np.ndarray, "d d"]:
    if len(vectors) == len(counts):  # each is the mean of its class
        return np.broadcast_to(0.0, 2 * vectors.shape[1:])
    means, scatter = sums / counts[:, None], np.zeros(2 * vectors.shape[1:])
    room = np.empty((min(PART, len(vectors)), vectors.shape[1]))  # once: new memory costs as much as the products
    for start in range(0, len(vectors), PART):
        here = vectors[start : start + PART]
        inside = np.take(means, owner[start : start + PART], 0, out=room[: len(here)], mode="clip")
        np.subtract(here, inside, out=inside)
        dsyrk(1.0, inside.T, 1.0, scatter.T, overwrite_c=True)  # one triangle; the other stays zero
    whole = scatter + scatter.T
    np.fill_diagonal(whole, scatter.diagonal())
    return whole


def _smallest(
    keys: UInt64[np.ndarray, " image"], owner: Int[np.ndarray, " image"], many: int
) -> tuple[Int[np.ndarray, " chosen"], Int[np.ndarray, " chosen"]]:
    """The examples with the `many` smallest keys of each class, in order of class, then key, and their classes."""
    order = np.lexsort((keys, owner))
    sorted_owner = owner[order]
    rank = np.arange(len(order)) - np.searchsorted(sorted_owner, sorted_owner)
    return order[rank < many], sorted_owner[rank < many]
