"""Whether one picture is a copy of another: cropped, shifted, turned, mirrored, resized, brighter or darker.

The middle of one picture, at several turns and sizes and mirrored, is looked for at every place of the other, on small
grey copies of both. Where it is found, larger copies are laid upon each other as exactly as they go, and their details
compared: two photos of one thing agree in the large, two copies of one photo in every detail. Only how parts vary
together counts, so that brightness and contrast do not.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image
from scipy.ndimage import gaussian_filter, map_coordinates
from scipy.optimize import minimize

SIDE, PATCH = 24, 12  # pixels of a small copy, and of the middle that is looked for
LARGE, GRID = 96, 24  # pixels of a larger copy, and the points of its middle that are laid upon the other, a row
TURNS = np.deg2rad([0.0, 5.0, -5.0, 10.0, -10.0, 15.0, -15.0, 90.0, 180.0, 270.0])
SIZES = (0.72, 0.85, 1.0, 1.18, 1.39)
VARIANTS = [(size, float(turn), mirror) for size in SIZES for turn in TURNS for mirror in (1, -1)]
FLAT = 5.0  # grey levels: what varies by less cannot be recognised
WORTH_A_LOOK = 0.7  # correlation of small copies, from which it is worth to look at larger ones
LAID = 0.97  # and of larger ones, for one to lie upon the other
COPY_SIMILARITY = 0.83  # correlation of the details of two copies of one picture


@dataclass(frozen=True)
class PictureSketch:
    """A picture as small copies of it."""

    pixels: UInt8[np.ndarray, "side side 3"]

    @staticmethod
    def of(image: UInt8[np.ndarray, "height width channel"]) -> "PictureSketch":
        """The sketch of a picture of any size, in grey or colour."""
        picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).convert("RGB")
        return PictureSketch(np.asarray(picture.resize((LARGE, LARGE), Image.Resampling.BOX)))

    @cached_property
    def large(self) -> Float[np.ndarray, "side side 3"]:
        """In colour, of LARGE pixels."""
        return self.pixels.astype(np.float32)

    @cached_property
    def small(self) -> Float[np.ndarray, "side side"]:
        """Grey, of SIDE pixels."""
        cells = self.large.mean(2).reshape(SIDE, LARGE // SIDE, SIDE, LARGE // SIDE)
        return cells.mean((1, 3))

    @cached_property
    def middles(self) -> Float[np.ndarray, "variant value"]:
        """The middle as it would look in every variant; each of length one."""
        rows, columns = _grid(PATCH, 1.0)
        places = np.stack([np.stack(_turned(rows, columns, *variant)) for variant in VARIANTS], 1) + (SIDE - 1) / 2
        return _unit(map_coordinates(self.small, places, order=1, mode="nearest").reshape(len(VARIANTS), -1))

    @cached_property
    def windows(self) -> Float[np.ndarray, "place value"]:
        """Every part that is as large as a middle; each of length one."""
        parts = np.lib.stride_tricks.sliding_window_view(self.small, (PATCH, PATCH))
        return _unit(parts.reshape(-1, PATCH * PATCH))

    @cached_property
    def grey(self) -> Float[np.ndarray, "side side"]:
        """Grey, of LARGE pixels, a little blurred."""
        return gaussian_filter(self.large.mean(2), 1.0)

    @cached_property
    def details(self) -> Float[np.ndarray, "side side 3"]:
        """What is left when the large forms are taken away."""
        return self.large - gaussian_filter(self.large, (4, 4, 0))


def compare_pictures(one: PictureSketch, other: PictureSketch) -> float:
    """How far two pictures agree in their details where one lies best upon the other, from 0 to 1; 0 where nothing of
    one is found in the other. From COPY on they are copies of one picture.
    """
    here, there = one.middles @ other.windows.T, other.middles @ one.windows.T
    if max(here.max(), there.max()) < WORTH_A_LOOK:
        return 0.0
    middle, place, seen = (one, other, here) if here.max() >= there.max() else (other, one, there)
    variant, where = divmod(int(seen.argmax()), seen.shape[1])
    return _laid_upon(middle, place, VARIANTS[variant], divmod(where, SIDE - PATCH + 1))


def _laid_upon(
    one: PictureSketch, other: PictureSketch, variant: tuple[float, float, int], corner: tuple[int, int]
) -> float:
    """The middle of `one` laid upon the part of `other` that starts at a corner: size, turn and place are refined."""
    size, turn, mirror = variant
    step, times = LARGE / 2 / GRID, LARGE / SIDE
    rows, columns = _grid(GRID, step)
    row, column = ((start + PATCH / 2) * times - 0.5 for start in corner)

    def coordinates(moved: Float[np.ndarray, " 4"], of_one: bool) -> tuple[np.ndarray, np.ndarray]:
        if of_one:
            y, x = _turned(rows, columns, size * float(np.exp(moved[0])), turn + float(moved[1]), mirror)
            return y + (LARGE - 1) / 2, x + (LARGE - 1) / 2
        return rows + row + moved[2], columns + column + moved[3]

    def apart(moved: Float[np.ndarray, " 4"]) -> float:
        a, b = (
            map_coordinates(sketch.grey, coordinates(moved, of_one=sketch is one), order=1, mode="nearest")
            for sketch in (one, other)
        )
        return -_together(a, b)

    start = np.vstack([np.zeros(4), np.diag([0.06, 0.05, 1.5, 1.5])])
    best = minimize(apart, start[0], method="Nelder-Mead", options={"maxfev": 120, "initial_simplex": start})
    if -best.fun < LAID:
        return 0.0
    a, b = (
        np.stack([
            map_coordinates(
                sketch.details[..., colour], coordinates(best.x, of_one=sketch is one), order=1, mode="nearest"
            )
            for colour in range(3)
        ])
        for sketch in (one, other)
    )  # fmt: skip
    return max(_together(a, b), 0.0)


def _grid(many: int, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of so many points about the middle."""
    at = step * (np.arange(many) - (many - 1) / 2)
    rows, columns = np.meshgrid(at, at, indexing="ij")
    return rows, columns


def _turned(
    rows: np.ndarray, columns: np.ndarray, size: float, turn: float, mirror: int
) -> tuple[np.ndarray, np.ndarray]:
    cos, sin = size * np.cos(turn), size * np.sin(turn)
    return cos * rows - sin * mirror * columns, sin * rows + cos * mirror * columns


def _together(a: np.ndarray, b: np.ndarray) -> float:
    """Correlation; 0 where one of them is flat."""
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / max(np.sqrt((a**2).sum() * (b**2).sum()), 1e-6))


def _unit(rows: Float[np.ndarray, "row value"]) -> Float[np.ndarray, "row value"]:
    rows = rows - rows.mean(1, keepdims=True)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.where(length >= FLAT * rows.shape[1] ** 0.5, rows / np.maximum(length, 1e-6), 0.0).astype(np.float32)
