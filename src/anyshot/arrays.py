"""Rows of arrays: in blocks that bound the memory of temporary copies, and ranked within their classes."""

import numpy as np
from jaxtyping import Int


def split_rows(count: int, size: int) -> list[slice]:
    """Return slices that cover `count` rows in order, each of `size` rows or, at the end, fewer."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def rank_in_class(class_index: Int[np.ndarray, " row"]) -> Int[np.ndarray, " row"]:
    """Return how many rows of the same class come before each row; the classes must be in ascending order."""
    return np.arange(len(class_index)) - np.searchsorted(class_index, class_index)
