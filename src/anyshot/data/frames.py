"""Whole images of different sizes as one array: what a store packed with `--fit frame` holds.

The pixels lie one image after the other in one flat array on disk, uncompressed: to cut a training crop out of it takes
0.03 ms, to decode the same photo from JPEG 0.3 ms (150 pixels, one core).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from anyshot.data.pictures import evaluation_square


@dataclass(frozen=True)
class Frames:
    """Images that share their shorter side and their number of channels, and differ in the longer side.

    An index gives one whole image, a slice or an array of indices gives `Frames`. As a NumPy array they are their
    central squares, so that code which needs images of one size can read them too; `shape` is that of this array.

    Args:
        pixels: The values of all images, one image after the other, each "height width channel".
        sides: Height and width of each image.
        starts: Where each image begins in `pixels`; one after the other where this is not given.
    """

    pixels: UInt8[np.ndarray, " value"]
    sides: Int[np.ndarray, "image 2"]
    starts: Int[np.ndarray, " image"] = field(default_factory=lambda: np.empty(0, np.int64))
    channels: int = 0

    def __post_init__(self) -> None:
        if self.channels:
            return
        sides = self.sides.astype(np.int64)
        if sides.ndim != 2 or sides.shape[1] != 2 or not len(sides) or sides.min() < 1 or sides.max() > LONGEST_SIDE:
            raise ValueError("the sides of its images are not heights and widths")
        areas = sides.prod(1)
        channels, rest = divmod(len(self.pixels), int(areas.sum()))
        if rest or channels not in (1, 3) or len(set(sides.min(1).tolist())) != 1:
            raise ValueError("the sides of its images do not fit their pixels")
        for name, value in {
            "sides": sides,
            "starts": channels * (np.cumsum(areas) - areas),
            "channels": channels,
        }.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.sides)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int | np.integer):
            height, width = self.sides[index]
            start = self.starts[index]
            return self.pixels[start : start + height * width * self.channels].reshape(height, width, self.channels)
        return Frames(self.pixels, self.sides[index], self.starts[index], self.channels)

    def __iter__(self) -> Iterator[UInt8[np.ndarray, "height width channel"]]:
        return (self[index] for index in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the central squares of all images."""
        side = self.shape[1]
        squares = np.empty(self.shape, np.uint8)
        for square, frame in zip(squares, self, strict=True):
            top, left = ((length - side) // 2 for length in frame.shape[:2])
            square[:] = frame[top : top + side, left : left + side]
        return squares if dtype is None else squares.astype(dtype)

    @property
    def dtype(self) -> np.dtype:
        """The type of the values."""
        return self.pixels.dtype

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the central squares: "image side side channel"."""
        side = int(self.sides[:1].min(initial=LONGEST_SIDE))
        return len(self), side, side, self.channels

    @property
    def ndim(self) -> int:
        """The number of axes of the central squares."""
        return 4

    def evaluation_squares(self, side: int, margin: float) -> UInt8[np.ndarray, "image side side channel"]:
        """Return what a network of this input side is tested on (see `evaluation_square`)."""
        return np.stack([evaluation_square(frame, side, margin) for frame in self])

    def cut(self, boxes: Int[np.ndarray, "image 4"]) -> UInt8[np.ndarray, "image height width channel"]:
        """Cut one box (top, left, height, width) out of each image, padded below and to the right to the largest."""
        cuts = np.zeros((len(self), *boxes[:, 2:].max(0), self.channels), np.uint8)
        for cut, frame, (top, left, height, width) in zip(cuts, self, boxes.tolist(), strict=True):
            cut[:height, :width] = frame[top : top + height, left : left + width]
        return cuts


LONGEST_SIDE = 1 << 16  # pixels; a header that says more is damaged


def as_flat(images: Sequence[UInt8[np.ndarray, "height width channel"]]) -> UInt8[np.ndarray, " value"]:
    """Return the values of images one after the other, as `Frames` has them."""
    return np.concatenate([image.ravel() for image in images])
