"""Whether one picture is a copy of another: cropped, shifted, turned, mirrored, resized, brighter or darker.

The middle of one picture, at several angles and scales and mirrored, is searched for everywhere in the other, on small
grey thumbnails. Where it is found, larger thumbnails are aligned, and their details are correlated: two photos of one
thing agree in large forms, two copies of one photo in every detail. Correlation ignores brightness and contrast.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, UInt8
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

Pose = tuple[float, float, int]
POSES: list[Pose] = [(scale, float(angle), mirror) for scale in SCALES for angle in ANGLES for mirror in (1, -1)]


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
        rows, columns = _grid(PATCH, 1.0)
        points = np.stack([np.stack(_transform(rows, columns, *pose)) for pose in POSES], 1) + (SIDE - 1) / 2
        return _normalize(_sample(self.small, points).reshape(len(POSES), -1))

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
    rows, columns = _grid(GRID, LARGE / 2 / GRID)
    row, column = ((start + PATCH / 2) * (LARGE / SIDE) - 0.5 for start in corner)

    def points(change: Float[np.ndarray, " 4"]) -> tuple[np.ndarray, np.ndarray]:
        """Return points of both that belong together, after a change of scale (log), angle, row and column."""
        scale, angle, mirror = pose
        turned = _transform(rows, columns, scale * float(np.exp(change[0])), angle + float(change[1]), mirror)
        shifted = np.stack([rows + row + change[2], columns + column + change[3]])
        return np.stack(turned) + (LARGE - 1) / 2, shifted

    def loss(change: Float[np.ndarray, " 4"]) -> float:
        here, there = points(change)
        return -_correlation(_sample(one.grey, here), _sample(other.grey, there))

    start = np.vstack([np.zeros(4), np.diag([0.06, 0.05, 1.5, 1.5])])  # steps of the search: half of the grid of poses
    best = minimize(loss, start[0], method="Nelder-Mead", options={"maxfev": 120, "initial_simplex": start})
    if -best.fun < LEAST_ALIGNED:
        return 0.0
    here, there = points(best.x)
    details = (
        np.stack([_sample(colour, at) for colour in sketch.details]) for sketch, at in ((one, here), (other, there))
    )
    return max(_correlation(*details), 0.0)


def _sample(image: np.ndarray, points: np.ndarray) -> np.ndarray:
    return map_coordinates(image, points, order=1, mode="nearest")


def _grid(count: int, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of count x count points about the origin."""
    at = step * (np.arange(count) - (count - 1) / 2)
    rows, columns = np.meshgrid(at, at, indexing="ij")
    return rows, columns


def _transform(
    rows: np.ndarray, columns: np.ndarray, scale: float, angle: float, mirror: int
) -> tuple[np.ndarray, np.ndarray]:
    cos, sin = scale * np.cos(angle), scale * np.sin(angle)
    return cos * rows - sin * mirror * columns, sin * rows + cos * mirror * columns


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation; 0 where one of them is flat."""
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / max(np.sqrt((a**2).sum() * (b**2).sum()), 1e-6))


def _normalize(rows: Float[np.ndarray, "row value"]) -> Float[np.ndarray, "row value"]:
    rows = rows - rows.mean(1, keepdims=True)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.where(length >= FLAT * rows.shape[1] ** 0.5, rows / np.maximum(length, 1e-6), 0.0).astype(np.float32)
