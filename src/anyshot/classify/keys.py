"""Keys that identify examples by their content, and sets of them."""

from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped, UInt64

HASHED_ROWS = 256  # rows that are hashed together, so that their float16 copies stay in the processor's cache
SHORT_ROW = 32  # numbers below which all digits count: rows of so few may differ by less than float16 can tell
FLOAT16_RANGE = 2.0**-14, 65520.0  # the smallest normal float16, and the first number that rounds to infinity
ODD, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of splitmix64 (Steele et al., 2014)

Keys = UInt64[np.ndarray, " example"]
Rows = Int[np.ndarray, " example"]
Pairs = tuple[UInt64[np.ndarray, " pair"], Int[np.ndarray, " pair"]]


def hash_rows(rows: Float[np.ndarray, "example ..."]) -> Keys:
    """Return a key of 64 bits for each row of features: a hash of its numbers as float16.

    Rounding to float16 twice is the same as rounding once, so an example has the same key before and after its features
    were stored as float16, float32 or float64. (Rows of unit length would not do: the rounding changes the length, and
    any grid has numbers that lie at its edges.) Rows outside the range of float16 are multiplied by a power of two
    first, which is exact. The hash is not cryptographic: it tells examples apart that nobody made to collide.

    In a row of fewer than 32 numbers, such as [2048.0] and [2049.0], float16 alone would make one of two examples: the
    lower half of its key is a hash of all digits. The upper half keeps the order of keys, by which exemplars are drawn.
    """
    flat = rows.reshape(len(rows), -1)
    parts = [_hash_part(flat[start : start + HASHED_ROWS]) for start in range(0, len(flat), HASHED_ROWS)]
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def _hash_part(part: Float[np.ndarray, "example number"]) -> Keys:
    exact = np.require(part, np.float64, "C") + 0.0 if part.shape[1] < SHORT_ROW else None  # minus zero is zero
    largest = np.maximum(part.max(1, initial=0), -part.min(1, initial=0))
    is_outside = (largest >= FLOAT16_RANGE[1]) | ((largest < FLOAT16_RANGE[0]) & (largest > 0))
    if is_outside.any():
        exponents = np.where(is_outside, -np.frexp(largest.astype(np.float64))[1], 0)
        part = np.ldexp(part.astype(np.float64), exponents[:, None])
    half = torch.from_numpy(np.require(part, requirements=["C", "W"])).half().numpy().view(np.int16)
    half[half == np.int16(-(2**15))] = 0  # minus zero is zero
    half = np.pad(half, ((0, 0), (0, -half.shape[1] % 4)))
    keys = _hash_words(half.view(np.uint64))
    if exact is None:
        return keys
    return (keys >> np.uint64(32) << np.uint64(32)) | (_hash_words(exact.view(np.uint64)) >> np.uint64(32))


def _hash_words(words: UInt64[np.ndarray, "example word"]) -> Keys:
    return _mix(_mix(words + _offsets(words.shape[1])).sum(1, dtype=np.uint64))


@lru_cache(maxsize=8)
def _offsets(many: int) -> UInt64[np.ndarray, " word"]:
    """Return a different number for each place of a row, so that the order of its numbers counts."""
    return _mix(np.arange(1, many + 1, dtype=np.uint64) * np.uint64(ODD))


def _mix(words: UInt64[np.ndarray, "*any"]) -> UInt64[np.ndarray, "*any"]:
    """Spread every bit of each word over all of its bits, in place (the finaliser of splitmix64)."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(FIRST)
    words ^= words >> np.uint64(27)
    words *= np.uint64(SECOND)
    words ^= words >> np.uint64(31)
    return words


def hash_label(label: Any) -> int:
    """Return a hash of a label: the same for a number of any type, and in every process."""
    text = label if isinstance(label, str) else repr(float(label)) if isinstance(label, int | float) else repr(label)
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def hash_groups(groups: Shaped[np.ndarray, " example"]) -> Keys:
    """Return a hash of the group of each example."""
    names, place = np.unique(groups, return_inverse=True)
    return np.array([hash_label(name) for name in names.tolist()], np.uint64)[place.reshape(-1)]


class KeySet:
    """A set of pairs of a key and the row of a class, in 16 bytes each.

    The pairs lie in a few arrays sorted by key, each less than half as long as the one before: adding merges arrays of
    similar length, so that a pair is moved about log(n) times in all, and a search looks into about log(n) arrays.
    """

    def __init__(self, keys: Keys | None = None, rows: Rows | None = None) -> None:
        self._parts: list[Pairs] = []
        if keys is not None and rows is not None:
            self.add(keys, rows)

    def __len__(self) -> int:
        return sum(len(keys) for keys, _ in self._parts)

    def copy(self) -> "KeySet":
        """Return another set of the same pairs, which shares the arrays: they are never written to."""
        other = KeySet()
        other._parts = list(self._parts)
        return other

    def contains(self, keys: Keys, rows: Rows) -> Bool[np.ndarray, " example"]:
        """Return which of the pairs are in the set."""
        is_here = np.zeros(len(keys), bool)
        for part in self._parts:
            is_here |= _find(part, keys, rows) >= 0
        return is_here

    def rows_of(self, key: int) -> list[int]:
        """Return the rows of the classes that have this key."""
        wanted = np.uint64(key)
        return sorted(
            row
            for keys, rows in self._parts
            for row in rows[np.searchsorted(keys, wanted) : np.searchsorted(keys, wanted, "right")].tolist()
        )

    def add(self, keys: Keys, rows: Rows) -> None:
        """Add pairs that are not in the set."""
        if not len(keys):
            return
        order = np.argsort(keys, kind="stable")
        parts = [*self._parts, (keys[order], rows[order])]
        while len(parts) > 1 and len(parts[-2][0]) <= 2 * len(parts[-1][0]):
            keys, rows = (np.concatenate(pair) for pair in zip(parts.pop(), parts.pop(), strict=True))
            order = np.argsort(keys, kind="stable")
            parts.append((keys[order], rows[order]))
        self._parts = parts

    def remove(self, keys: Keys, rows: Rows) -> None:
        """Remove pairs; those that are not in the set are ignored."""
        parts = []
        for part in self._parts:
            places = _find(part, keys, rows)
            gone = places[places >= 0]
            parts.append((np.delete(part[0], gone), np.delete(part[1], gone)))
        self._parts = [part for part in parts if len(part[0])]

    def renumber(self, new_rows: Rows) -> None:
        """Give each row another number; those that become -1 are removed with their keys."""
        moved = [(keys, new_rows[rows]) for keys, rows in self._parts]
        self._parts = [(keys[rows >= 0], rows[rows >= 0]) for keys, rows in moved]

    def arrays(self) -> tuple[Keys, Rows]:
        """Return all keys and their rows, in order of the rows, then of the keys."""
        keys = np.concatenate([np.zeros(0, np.uint64), *(keys for keys, _ in self._parts)])
        rows = np.concatenate([np.zeros(0, np.int64), *(rows for _, rows in self._parts)])
        order = np.lexsort((keys, rows))
        return keys[order], rows[order]


def _find(part: Pairs, keys: Keys, rows: Rows) -> Int[np.ndarray, " example"]:
    """Return the place of each pair in an array of pairs sorted by key; -1 where it is not there."""
    sorted_keys, sorted_rows = part
    places, found = np.searchsorted(sorted_keys, keys), np.full(len(keys), -1)
    pending = np.flatnonzero(places < len(sorted_keys))
    while len(pending):  # one turn, but for keys that several classes have
        here = places[pending]
        pending, here = (values[sorted_keys[here] == keys[pending]] for values in (pending, here))
        is_same = sorted_rows[here] == rows[pending]
        found[pending[is_same]] = here[is_same]
        pending = pending[~is_same]
        places[pending] += 1
        pending = pending[places[pending] < len(sorted_keys)]
    return found
