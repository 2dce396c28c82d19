"""Rows of numbers in one piece of memory that grows where it lies, for what a classifier of many classes holds."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int


def make_room(holder: Any, name: str, rows: int) -> None:
    """Let an array that is an attribute have so many rows; new ones are zeros. It grows where it lies if nobody else
    looks at it: of a million classes there is no room for a copy. Who does look at it keeps what is there."""
    shape = (rows, *getattr(holder, name).shape[1:])
    try:
        getattr(holder, name).resize(shape)
    except ValueError:
        before = getattr(holder, name)
        array = np.zeros(shape, before.dtype)
        array[: len(before)] = before
        setattr(holder, name, array)


class Pool:
    """Vectors that come and go: thousands of small arrays would leave holes when they go. They take half the memory
    where nothing is lost, as of float32 features as they are."""

    def __init__(self, d: int) -> None:
        self._vectors, self._free = np.zeros((0, d), np.float32), list[int]()

    def copy(self) -> "Pool":
        """Another that changes on its own."""
        other = Pool(0)
        other._vectors, other._free = self._vectors.copy(), list(self._free)
        return other

    def put(self, vectors: Float[np.ndarray, "new d"]) -> Int[np.ndarray, " new"]:
        """Take vectors in; where they are."""
        if self._vectors.dtype == np.float32 and not np.array_equal(vectors, vectors.astype(np.float32)):
            self._vectors = self._vectors.astype(np.float64)
        if len(self._free) < len(vectors):
            before = len(self._vectors)
            make_room(self, "_vectors", before + max(len(vectors), before // 8))
            self._free += range(len(self._vectors) - 1, before - 1, -1)
        slots = np.array([self._free.pop() for _ in range(len(vectors))], np.int64)
        self._vectors[slots] = vectors
        return slots

    def drop(self, slots: Int[np.ndarray, " gone"]) -> None:
        """Forget what is in these places."""
        self._free += slots.tolist()

    def at(self, slots: Int[np.ndarray, " some"]) -> Float[np.ndarray, "some d"]:
        """The vectors in these places, in float32 where nothing is lost."""
        return self._vectors[slots]
