"""Tell whether two pictures are copies of one photo, also cropped, turned, mirrored or brighter.

The middle of one, at several angles and scales and mirrored, is searched for everywhere in the other, on small grey
thumbnails. Where it is found, larger thumbnails are aligned, and their details are correlated: two photos of one thing
agree in large forms, two copies of one photo in every detail. Correlation ignores brightness and contrast.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Complex, Float, UInt8
from PIL.Image import Resampling
from scipy.ndimage import gaussian_filter, map_coordinates
from scipy.optimize import minimize

from anyshot.data.pictures import to_picture

SIDE, PATCH = 24, 12  # pixels of a small thumbnail, and of the middle that is searched for
LARGE, GRID = 96, 24  # pixels of a large thumbnail, and points per row of its middle that are aligned
# Angles (radians) and scales of the search: an alignment refines what lies between two of them. With these and the
# three thresholds 72 of 72 planted copies were found, and no false one among 2,927 birds (docs/log/advice.md); no entry
# of the log compares them with other values.
ANGLES = np.deg2rad([0.0, 5.0, -5.0, 10.0, -10.0, 15.0, -15.0, 90.0, 180.0, 270.0])
SCALES = (0.72, 0.85, 1.0, 1.18, 1.39)
LEAST_FOUND = 0.7  # correlation of small thumbnails from which large ones are aligned
LEAST_ALIGNED = 0.97  # correlation of large thumbnails from which their details are compared
COPY_SIMILARITY = 0.83  # correlation of details from which two pictures are copies
FLAT = 5.0  # grey levels: a patch with a smaller standard deviation cannot be recognised; not tuned

Points = Complex[np.ndarray, "*point"]  # row + 1j * column, so that to turn and stretch is to multiply
Pose = tuple[float, float, bool]  # scale, angle, whether it is mirrored
POSES: list[Pose] = [(scale, float(angle), mirror) for scale in SCALES for angle in ANGLES for mirror in (False, True)]


@dataclass(frozen=True)
class PictureSketch:
    """Thumbnails of a picture, and what the comparison makes of them, computed on first use."""

    pixels: UInt8[np.ndarray, "side side 3"]

    @staticmethod
    def from_image(image: UInt8[np.ndarray, "height width channel"]) -> "PictureSketch":
        """Return the sketch of a picture of any size, grey or in colour."""
        return PictureSketch(np.asarray(to_picture(image).resize((LARGE, LARGE), Resampling.BOX)))

    @cached_property
    def small(self) -> Float[np.ndarray, "side side"]:
        """The small thumbnail, grey."""
        return self.pixels.mean(2, dtype=np.float32).reshape(SIDE, LARGE // SIDE, SIDE, LARGE // SIDE).mean((1, 3))

    @cached_property
    def middles(self) -> Float[np.ndarray, "pose value"]:
        """The middle of the small thumbnail in every pose; each of length one."""
        points = np.stack([_transform(_grid(PATCH, 1.0), *pose) for pose in POSES])
        return _normalize(_sample(self.small, points, (SIDE - 1) / 2).reshape(len(POSES), -1))

    @cached_property
    def windows(self) -> Float[np.ndarray, "place value"]:
        """Every window of the small thumbnail that is as large as a middle; each of length one."""
        windows = np.lib.stride_tricks.sliding_window_view(self.small, (PATCH, PATCH))
        return _normalize(windows.reshape(-1, PATCH * PATCH))

    @cached_property
    def grey(self) -> Float[np.ndarray, "side side"]:
        """The large thumbnail, grey and slightly blurred."""
        return gaussian_filter(self.pixels.mean(2, dtype=np.float32), 1.0)

    @cached_property
    def details(self) -> list[Float[np.ndarray, "side side"]]:
        """The large thumbnail without its large forms, by colour."""
        large = self.pixels.astype(np.float32)
        return list(np.moveaxis(large - gaussian_filter(large, (4, 4, 0)), 2, 0))


def compare_pictures(one: PictureSketch, other: PictureSketch) -> float:
    """Return the correlation of the details of two pictures where they agree best, from 0 to 1.

    It is 0 where nothing of one is found in the other. From COPY_SIMILARITY on they are copies of one picture.
    """
    forwards, backwards = one.middles @ other.windows.T, other.middles @ one.windows.T
    if max(forwards.max(), backwards.max()) < LEAST_FOUND:
        return 0.0
    if backwards.max() > forwards.max():
        one, other, forwards = other, one, backwards
    pose, window = divmod(int(forwards.argmax()), forwards.shape[1])
    return _align(one, other, POSES[pose], divmod(window, SIDE - PATCH + 1))


def _align(one: PictureSketch, other: PictureSketch, pose: Pose, corner: tuple[int, int]) -> float:
    """Align the middle of `one` with the window of `other` that starts at a corner, and correlate their details."""
    grid, (scale, angle, is_mirrored) = _grid(GRID, LARGE / 2 / GRID), pose
    row, column = ((start + PATCH / 2) * (LARGE / SIDE) - 0.5 for start in corner)

    def correlate(change: Float[np.ndarray, " 4"], images: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> float:
        """Correlate images of both where they meet, after a change of scale (log), angle, row and column."""
        turned = _transform(grid, scale * np.exp(change[0]), angle + change[1], is_mirrored)
        here = [_sample(image, turned, (LARGE - 1) / 2) for image in images]
        there = [_sample(image, grid, row + change[2], column + change[3]) for image in others]
        return _compute_correlation(np.stack(here), np.stack(there))

    start = np.vstack([np.zeros(4), np.diag([0.06, 0.05, 1.5, 1.5])])  # steps of the search: half of the grid of poses
    options = {"maxfev": 120, "initial_simplex": start}
    best = minimize(lambda x: -correlate(x, [one.grey], [other.grey]), start[0], method="Nelder-Mead", options=options)
    if -best.fun < LEAST_ALIGNED:
        return 0.0
    return max(correlate(best.x, one.details, other.details), 0.0)


def _sample(image: np.ndarray, points: Points, row: float, column: float | None = None) -> np.ndarray:
    """Return the values of an image at points about a centre; its column is the number of its row by default."""
    places = points.real + row, points.imag + (row if column is None else column)
    return map_coordinates(image, places, order=1, mode="nearest")


def _grid(count: int, step: float) -> Points:
    """Return a square grid of count x count points about the origin."""
    offsets = step * (np.arange(count) - (count - 1) / 2)
    return offsets[:, None] + 1j * offsets


def _transform(points: Points, scale: float, angle: float, is_mirrored: bool) -> Points:
    """Return points mirrored, turned and stretched about the origin."""
    return scale * np.exp(1j * angle) * (points.conj() if is_mirrored else points)


def _compute_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation; 0 where one of them is flat."""
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / max(np.sqrt((a**2).sum() * (b**2).sum()), 1e-6))


def _normalize(rows: Float[np.ndarray, "row value"]) -> Float[np.ndarray, "row value"]:
    """Return rows without their means and of length one; 0 where a row is flat."""
    rows = rows - rows.mean(1, keepdims=True)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.where(length >= FLAT * rows.shape[1] ** 0.5, rows / np.maximum(length, 1e-6), 0.0).astype(np.float32)
