"""Rows of numbers in one piece of memory that grows where it lies, for what a classifier of many classes holds."""

from contextlib import suppress
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from anyshot.machine import release_memory

SMALL = 1 << 22  # bytes up to which rows are made room for as many again
MAPPED = 1 << 25  # bytes from which on the C library gives an array pages of its own, which grow without a copy


def make_room(holder: Any, name: str, rows: int) -> None:
    """Let an array that is an attribute have so many rows; new ones are zeros. It grows where it lies if nobody else
    looks at it: of a million classes there is no room for a copy. Who does look at it keeps what is there."""
    shape, nbytes = (rows, *getattr(holder, name).shape[1:]), getattr(holder, name).nbytes
    # What is small lies among other things, and has to be copied when they are in its way: once, while it is small.
    is_to_move = nbytes < MAPPED <= nbytes * rows // max(1, len(getattr(holder, name)))
    with suppress(ValueError):  # someone looks at it
        if not is_to_move:
            getattr(holder, name).resize(shape)
            return
    before = getattr(holder, name)
    if is_to_move:
        release_memory()  # what is free would be used first
    array = np.zeros(shape, before.dtype)
    array[: len(before)] = before
    setattr(holder, name, array)


class Pool:
    """Vectors that come and go: thousands of small arrays would leave holes when they go. They take half the memory
    where nothing is lost, as of float32 features as they are, and in a narrow pool."""

    def __init__(self, d: int) -> None:
        self._vectors, self._free, self._is_narrow = np.zeros((0, d), np.float32), list[int](), False

    def copy(self) -> "Pool":
        """Another that changes on its own."""
        other = Pool(0)
        other._vectors, other._free, other._is_narrow = self._vectors.copy(), list(self._free), self._is_narrow
        return other

    def narrow(self) -> None:
        """Round all vectors to float32, and those that come."""
        if not self._is_narrow:
            self._vectors, self._is_narrow = self._vectors.astype(np.float32, copy=False), True

    def put(self, vectors: Float[np.ndarray, "new d"], ahead: int = 0) -> Int[np.ndarray, " new"]:
        """Take vectors in; where they are. With room for more, where so many will come."""
        may_widen = self._vectors.dtype == np.float32 and not self._is_narrow
        if may_widen and not np.array_equal(vectors, vectors.astype(np.float32)):
            self._vectors = self._vectors.astype(np.float64)
        if len(self._free) < len(vectors):
            before = len(self._vectors)
            more = before if self._vectors.nbytes < SMALL else before // 8
            make_room(self, "_vectors", before + max(len(vectors) + ahead, more))
            self._free += range(len(self._vectors) - 1, before - 1, -1)
        stay = len(self._free) - len(vectors)
        slots = np.array(self._free[stay:][::-1], np.int64)
        del self._free[stay:]
        self._vectors[slots] = vectors
        return slots

    def drop(self, slots: Int[np.ndarray, " gone"]) -> None:
        """Forget what is in these places."""
        self._free += slots.tolist()

    @property
    def is_half_empty(self) -> bool:
        """Whether at least half of the room is of vectors that are gone."""
        return 0 < len(self._vectors) <= 2 * len(self._free)

    def pack(self, slots: Int[np.ndarray, " some"]) -> None:
        """Have the vectors of these places alone, from now on in this order."""
        self._vectors, self._free = self._vectors[slots], []

    def at(self, slots: Int[np.ndarray, " some"]) -> Float[np.ndarray, "some d"]:
        """The vectors in these places, as they are kept."""
        return self._vectors[slots]
