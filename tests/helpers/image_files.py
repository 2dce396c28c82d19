"""Small image files for the tests, each different from the others."""

import io
import struct
import zlib
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


def deep_tiff(values, big=False, compressed=False):
    """A TIFF of 16 bits per channel "height width 3", byte by byte: Pillow can read such files, not write them."""
    order = ">" if big else "<"
    height, width, channels = values.shape
    strip = values.astype(f"{order}u2").tobytes()
    strip = zlib.compress(strip) if compressed else strip
    entries = [
        (256, 4, 1, width), (257, 4, 1, height), (258, 3, channels, 0), (259, 3, 1, 8 if compressed else 1),
        (262, 3, 1, 2), (273, 4, 1, 0), (277, 3, 1, channels), (278, 4, 1, height), (279, 4, 1, len(strip)),
    ]  # fmt: skip
    bits = 8 + 2 + 12 * len(entries) + 4
    place = {258: bits, 273: bits + 2 * channels}
    rows = b""
    for tag, kind, many, value in entries:
        value = place.get(tag, value)
        short = kind == 3 and many == 1
        rows += struct.pack(
            f"{order}HHI" + ("HH" if short else "I"), tag, kind, many, *((value, 0) if short else (value,))
        )
    head = struct.pack(f"{order}2sHI", b"MM" if big else b"II", 42, 8) + struct.pack(f"{order}H", len(entries))
    return head + rows + bytes(4) + struct.pack(f"{order}{channels}H", *[16] * channels) + strip
