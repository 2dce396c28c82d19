"""Glyphs, a synthetic data set: characters of random strokes, drawn in seconds from a seed.

A class is a handful of random Bezier strokes. An image jitters their control points, applies an affine map, draws them
with a pen of random width among strokes of no class, and adds noise. `difficulty` scales everything that makes images
of one class differ. The images of a class depend only on the seed and its number.
"""

from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from anyshot.data.store import Store, open_store, write_store
from anyshot.errors import BadInput

SPLIT_CLASSES = {"train": 120, "val": 40, "test": 40}
POINTS = 24  # along a stroke


def glyphs(
    path: Path,
    split_classes: dict[str, int] = SPLIT_CLASSES,
    images: int = 64,
    difficulty: float = 1.0,
    size: int = 28,
    seed: int = 0,
) -> Store:
    """Open the store of glyphs at `path`, drawing it first where it is missing."""
    if (path / "store.json").is_file():
        return open_store(path)
    if images < 1 or size < 8 or difficulty < 0 or min(split_classes.values()) < 0:
        raise BadInput("glyphs need at least 1 image per class, 8 pixels per side and a difficulty of 0 or more.")
    splits = [split for split, count in split_classes.items() for _ in range(count)]
    labels = np.repeat(np.arange(len(splits)), images)
    drawn = (draw_class(number, images, difficulty, size, seed) for number in range(len(splits)))
    names = [f"glyph-{number:04d}" for number in range(len(splits))]
    return write_store(path, drawn, labels, names, splits, source="glyphs", difficulty=difficulty, seed=seed)


def draw_class(
    number: int, images: int, difficulty: float = 1.0, size: int = 28, seed: int = 0
) -> UInt8[np.ndarray, "image height width 1"]:
    """Draw the images of one class, white on black."""
    rng = np.random.default_rng([seed, number])
    shape = _strokes(rng, int(rng.integers(2, 5)))
    jitter = shape + 0.18 * difficulty * rng.normal(size=(images, *shape.shape))
    glyph = _curves(_affine(rng, jitter, difficulty))
    stray = _curves(np.stack([_strokes(rng, 2, spread=0.3) + rng.uniform(-0.8, 0.8, size=2) for _ in range(images)]))
    width = 0.05 * np.exp(0.23 * difficulty * rng.normal(size=(images, 1, 1)))
    strength = rng.uniform(0.3, 1.0, size=(images, 1, 1)) * min(difficulty, 1.0)
    ink = _ink(glyph, width, size) + strength * _ink(stray, width, size)
    grey = (1 - np.exp(-ink)) * rng.uniform(1 - 0.4 * min(difficulty, 1.0), 1.0, size=(images, 1, 1))
    noisy = grey + 0.14 * difficulty * rng.normal(size=grey.shape)
    return (noisy.clip(0, 1) * 255).astype(np.uint8)[..., None]


def _strokes(rng: np.random.Generator, count: int, spread: float = 1.0) -> Float[np.ndarray, "stroke 4 2"]:
    """Draw the control points of cubic Bezier strokes around the square [-1, 1]."""
    return spread * rng.uniform(-1.1, 1.1, size=(count, 4, 2))


def _affine(
    rng: np.random.Generator, points: Float[np.ndarray, "image stroke 4 2"], difficulty: float
) -> Float[np.ndarray, "image stroke 4 2"]:
    """Turn, stretch, shear and move each image."""
    turn = 0.35 * difficulty * rng.normal(size=len(points))
    stretch = 0.85 * np.exp(0.17 * difficulty * rng.normal(size=(len(points), 2)))
    shear = 0.23 * difficulty * rng.normal(size=len(points))
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]).transpose(2, 0, 1)
    scaling = np.zeros((len(points), 2, 2))
    scaling[:, 0, 0], scaling[:, 1, 1], scaling[:, 0, 1] = stretch[:, 0], stretch[:, 1], shear
    shift = 0.14 * difficulty * rng.normal(size=(len(points), 1, 1, 2))
    return points @ (rotation @ scaling)[:, None] + shift


def _curves(control: Float[np.ndarray, "image stroke 4 2"]) -> Float[np.ndarray, "image point 2"]:
    """Return points along cubic Bezier curves."""
    t = np.linspace(0, 1, POINTS)
    weights = np.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], -1)
    return (weights @ control).reshape(len(control), -1, 2)


def _ink(
    points: Float[np.ndarray, "image point 2"], width: Float[np.ndarray, "image 1 1"], size: int
) -> Float[np.ndarray, "image size size"]:
    """Draw a Gaussian blot at every point; it separates into a row and a column, so this is one matrix product."""
    pixels = np.linspace(-1.1, 1.1, size)
    row, column = (np.exp(-(((points[..., axis, None] - pixels) / width) ** 2) / 2) for axis in (1, 0))
    return row.mT @ column
