"""Small image files for the tests, each different from the others."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def pixels(seed, height=12, width=16):
    """A smooth random picture: survives compression, and two of them are never near duplicates."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def encoded(seed=0, height=12, width=16, kind="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(pixels(seed, height, width)).save(file, kind, **options)
    return file.getvalue()


def write(path, data=None, seed=0):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(seed) if data is None else data)
    return path


def class_folders(root, names, many=3):
    for number, name in enumerate(names):
        for index in range(many):
            write(root / name / f"{index}.png", seed=1000 * number + index)
    return root
