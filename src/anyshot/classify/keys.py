"""Keys that identify examples by their content."""

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt64

from anyshot.arrays import split_rows
from anyshot.measure.groups import clean_group_names

HASHED_ROWS = 256  # rows that are hashed together, so that their float16 copies stay in the processor's cache
SHORT_ROW = 32  # numbers below which all digits count: rows of so few may differ by less than float16 can tell
FLOAT16_RANGE = 2.0**-14, 65520.0  # the smallest normal float16, and the first number that rounds to infinity
GAMMA, *MULTIPLIERS = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of splitmix64 (Steele et al. 2014)

Keys = UInt64[np.ndarray, " example"]


def hash_rows(rows: Float[np.ndarray, "example ..."]) -> Keys:
    """Return a key of 64 bits for each row of features: a hash of its numbers, rounded to float16.

    Rounding to float16 twice is the same as rounding once, so an example has the same key before and after its features
    were stored as float16, float32 or float64. Rows outside the range of float16 are first multiplied by a power of
    two, which is exact. The hash is not cryptographic: somebody who tries can make two examples collide.

    Short rows, such as [2048.0] and [2049.0], may be equal as float16. Below 32 numbers, the lower half of the key is
    therefore a hash of all digits. The upper half stays as it is, because exemplars are drawn in the order of keys.
    """
    flat = rows.reshape(len(rows), -1)
    parts = [_hash_part(flat[part]) for part in split_rows(len(flat), HASHED_ROWS)]
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def _hash_part(part: Float[np.ndarray, "example number"]) -> Keys:
    """Return the keys of rows that are few enough to be copied."""
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
    """Return a hash of each row of words; each place adds another number, so that the order of the words matters."""
    offsets = _mix(np.arange(1, words.shape[1] + 1, dtype=np.uint64) * np.uint64(GAMMA))
    return _mix(_mix(words + offsets).sum(1, dtype=np.uint64))


def _mix(words: UInt64[np.ndarray, "*any"]) -> UInt64[np.ndarray, "*any"]:
    """Spread every bit of each word over all of its bits, in place (the finaliser of splitmix64)."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(MULTIPLIERS[0])
    words ^= words >> np.uint64(27)
    words *= np.uint64(MULTIPLIERS[1])
    words ^= words >> np.uint64(31)
    return words


@lru_cache(maxsize=1 << 16)
def hash_label(label: Any) -> int:
    """Return a hash of a label: the same for a number of any type, and in every process."""
    text = label if isinstance(label, str) else repr(float(label)) if isinstance(label, int | float) else repr(label)
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def hash_groups(groups: Iterable[Any], keys: Keys) -> Keys:
    """Return a hash of the group of each example; its own key where it has no group."""
    names = clean_group_names(groups)
    hashes = {name: hash_label(name) for name in set(names) - {None}}
    return np.array([hashes.get(name, key) for name, key in zip(names, keys.tolist(), strict=True)], np.uint64)
