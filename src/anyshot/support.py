"""What a deployed classifier remembers of its classes: a sum and a count each, as the law says, and a few examples.

Sums and counts only add, so batches come in any order and two machines' classes merge exactly. Calibration and the
reader's eye want examples too; of each class at most `keep` stay, those with the smallest keys. A key is a hash of the
example, so that which ones stay is a fair draw, yet depends on nothing but the set of examples itself.
"""

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from jaxtyping import Float, Int, Shaped, UInt64

from anyshot.errors import BadInput


@dataclass(frozen=True)
class Support:
    """Classes in order of their labels; kept examples in order of class, then key."""

    labels: Shaped[np.ndarray, " way"]
    sums: Float[np.ndarray, "way d"]
    counts: Int[np.ndarray, " way"]
    kept: Float[np.ndarray, "kept d"]
    owner: Int[np.ndarray, " kept"]
    """The class of each kept example, an index into the labels."""
    keys: UInt64[np.ndarray, " kept"]

    @property
    def kept_counts(self) -> Int[np.ndarray, " way"]:
        return np.bincount(self.owner, minlength=len(self.labels))

    def joined(self, other: "Support", keep: int) -> "Support":
        """The support of both: exactly what all examples together would have given."""
        if self.sums.shape[1] != other.sums.shape[1]:
            raise BadInput(
                f"classes of {self.sums.shape[1]} and of {other.sums.shape[1]} numbers cannot join: their examples "
                "must come from the same model and head."
            )
        if self.labels.dtype.kind in "US" and other.labels.dtype.kind in "US":
            labels = np.union1d(self.labels, other.labels)
        elif (self.labels.dtype.kind in "USO") != (other.labels.dtype.kind in "USO"):
            raise BadInput(f"labels like {self.labels[0]!r} and like {other.labels[0]!r} cannot be in one classifier.")
        else:
            labels = np.union1d(self.labels, other.labels)
        sums = np.zeros((len(labels), self.sums.shape[1]))
        counts = np.zeros(len(labels), np.int64)
        owners = []
        for part in (self, other):
            place = np.searchsorted(labels, part.labels)
            sums[place] += part.sums
            counts[place] += part.counts
            owners.append(place[part.owner])
        kept = np.concatenate([self.kept, other.kept])
        chosen, owner = _smallest(np.concatenate([self.keys, other.keys]), np.concatenate(owners), keep)
        keys = np.concatenate([self.keys, other.keys])[chosen]
        return Support(labels, sums, counts, kept[chosen], owner, keys)

    def without(self, labels: Shaped[np.ndarray, " removed"]) -> "Support":
        """The other classes."""
        stay = ~np.isin(self.labels, labels)
        here = stay[self.owner]
        owner = (np.cumsum(stay) - 1)[self.owner[here]]
        return Support(self.labels[stay], self.sums[stay], self.counts[stay], self.kept[here], owner, self.keys[here])

    def first(self, shot: int) -> "Support":
        """The classes as they would be with at most `shot` examples: sums of the first kept ones, nested in `shot`."""
        chosen, owner = _smallest(self.keys, self.owner, shot)
        sums, counts = _sums(self.kept[chosen], owner, len(self.labels))
        return Support(self.labels, sums, counts, self.kept[chosen], owner, self.keys[chosen])


def support_of(
    vectors: Float[np.ndarray, "image d"],
    keys: UInt64[np.ndarray, " image"],
    labels: Shaped[np.ndarray, " image"],
    keep: int,
) -> Support:
    """The support that a batch of examples makes."""
    names, owner = np.unique(labels, return_inverse=True)
    sums, counts = _sums(vectors, owner, len(names))
    chosen, kept_owner = _smallest(keys, owner, keep)
    return Support(names, sums, counts, vectors[chosen].astype(np.float64), kept_owner, keys[chosen])


def keys_of(rows: Float[np.ndarray, "image feature"]) -> UInt64[np.ndarray, " image"]:
    """A hash of each row's numbers, the same for float32 and float64 and for 0 and -0."""
    exact = np.ascontiguousarray(rows.astype(np.float64) + 0.0)
    return np.array([int.from_bytes(blake2b(row.data, digest_size=8).digest()) for row in exact], np.uint64)


def _sums(
    vectors: Float[np.ndarray, "image d"], owner: Int[np.ndarray, " image"], way: int
) -> tuple[Float[np.ndarray, "way d"], Int[np.ndarray, " way"]]:
    sums = np.zeros((way, vectors.shape[1]))
    np.add.at(sums, owner, vectors)
    return sums, np.bincount(owner, minlength=way)


def _smallest(
    keys: UInt64[np.ndarray, " image"], owner: Int[np.ndarray, " image"], many: int
) -> tuple[Int[np.ndarray, " chosen"], Int[np.ndarray, " chosen"]]:
    """The examples with the `many` smallest keys of each class, in order of class, then key, and their classes."""
    order = np.lexsort((keys, owner))
    sorted_owner = owner[order]
    rank = np.arange(len(order)) - np.searchsorted(sorted_owner, sorted_owner)
    return order[rank < many], sorted_owner[rank < many]
