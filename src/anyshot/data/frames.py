"""Images of different sizes as one array: the items of a store that was packed with `--fit frame`.

The pixels are stored uncompressed, one image after the other: cutting a training crop takes 0.03 ms, decoding the same
photo from JPEG 0.3 ms (shorter side of 150 pixels, one core).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from anyshot.data.pictures import evaluation_square

LONGEST_SIDE = 1 << 16  # pixels; JPEG allows no more, and a store with a longer side is damaged


@dataclass(frozen=True)
class Frames:
    """Images that share their shorter side and their number of channels, and differ in the longer side.

    An integer index returns an image, a slice or an array of indices returns `Frames`. `np.asarray` returns the central
    squares, for code that needs images of one size; `shape`, `ndim` and `dtype` are those of that array.

    Args:
        pixels: The values of all images, one image after the other, each "height width channel".
        sides: Height and width of each image.
        starts: Where each image begins in `pixels`.
        channels: Values of a pixel, 1 or 3.
    """

    pixels: UInt8[np.ndarray, " value"]
    sides: Int[np.ndarray, "image 2"]
    starts: Int[np.ndarray, " image"]
    channels: int

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


def frames_from_flat(pixels: UInt8[np.ndarray, " value"], sides: np.ndarray) -> Frames:
    """Return images that lie one after the other in a flat array.

    Args:
        pixels: Their values.
        sides: Height and width of each image.

    Raises:
        ValueError: The two do not fit together.
    """
    if sides.ndim != 2 or sides.shape[1] != 2 or not len(sides) or sides.dtype.kind not in "iu":
        raise ValueError("the sides of its images are not a height and a width each")
    sides = sides.astype(np.int64)
    if sides.min() < 1 or sides.max() > LONGEST_SIDE or len(np.unique(sides.min(1))) > 1:
        raise ValueError("the shorter sides of its images are not the same")
    areas = sides.prod(1)
    channels, rest = divmod(len(pixels), int(areas.sum()))
    if rest or channels not in (1, 3):
        raise ValueError("the sides of its images do not fit their pixels")
    return Frames(pixels, sides, channels * (np.cumsum(areas) - areas), channels)
