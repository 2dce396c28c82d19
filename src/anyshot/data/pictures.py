"""Any image file to a square of uint8 pixels: the part of the evaluation transform that no model has a say in.

crop     the shorter side to `size`, then the central square (CUB, mini-ImageNet, own images)
squash   the whole image to a square (meta-iNat)
"""

import contextlib
import io
import threading
from typing import Literal

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps

from anyshot.errors import BadInput

Fit = Literal["crop", "squash"]
Resample = Literal["bilinear", "bicubic"]
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
Box = tuple[float, float, float, float]  # left, top, right, bottom
# Not those that call another program (PostScript), nor those that Pillow can only recognise.
FORMATS = tuple(sorted(set(Image.registered_extensions().values()) & set(Image.OPEN) - {
    "EPS", "WMF", "BUFR", "GRIB", "HDF5", "MPEG", "FITS",
}))  # fmt: skip
SUFFIXES = frozenset(suffix for suffix, name in Image.registered_extensions().items() if name in FORMATS)
MOST_PIXELS = 64_000_000  # as they are decoded
LARGE = 8_000_000  # pictures of so many are decoded one at a time: each takes up to ten bytes per pixel
ROWS = 256
REDUCE = 8  # a photo this many times larger than what is stored is decoded at a reduced scale, never below half of that


def picture(
    data: bytes | np.ndarray, size: int | None, fit: Fit, box: Box | None = None, resample: Resample = "bilinear"
) -> UInt8[np.ndarray, "height width channel"]:
    """Decode, turn upright, convert to RGB, cut to `box`, fit to `size`; arrays of the right size stay as they are."""
    if isinstance(data, np.ndarray):
        if size is None or data.shape[:2] == (size, size):
            return data
        image = Image.fromarray(data.squeeze(2) if data.shape[2] == 1 else data)
        fitted = np.asarray(_fit(image, size, fit, resample))
        return fitted.reshape(*fitted.shape[:2], data.shape[2])
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    if size is not None and box is None and min(image.size) >= REDUCE * size:
        image.draft("RGB", (REDUCE // 2 * size, REDUCE // 2 * size))
    pixels = image.width * image.height
    if pixels > MOST_PIXELS:
        raise BadInput(f"it has {pixels // 1_000_000} million pixels: at most {MOST_PIXELS // 1_000_000} are read")
    with _one_large if pixels > LARGE else contextlib.nullcontext():
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        image = _to_rgb(image)
        if box is not None:
            image = image.crop(_clip(box, image.size))
        return np.asarray(image if size is None else _fit(image, size, fit, resample))


_one_large = threading.Lock()


def _fit(image: Image.Image, size: int, fit: Fit, resample: Resample) -> Image.Image:
    """One resize from the part of the image that is kept: as resizing all and then cutting, without making all."""
    box: Box = (0, 0, *image.size)
    if fit == "crop":
        shorter = min(image.size)
        left, right = _central(image.width, int(size * image.width / shorter), size)
        top, bottom = _central(image.height, int(size * image.height / shorter), size)
        box = (left, top, right, bottom)
    return image.resize((size, size), FILTERS[resample], box=box)


def _central(old: int, new: int, size: int) -> tuple[float, float]:
    """Where the central `size` pixels of a side begin and end, in pixels before that side goes from `old` to `new`."""
    start = round((new - size) / 2)
    return start * old / new, (start + size) * old / new


def _clip(box: Box, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """The box in whole pixels, at least one, inside the image."""
    left, top = (min(max(int(low), 0), side - 1) for low, side in zip(box[:2], size, strict=True))
    right, bottom = (
        min(max(round(high), low + 1), side) for high, low, side in zip(box[2:], (left, top), size, strict=True)
    )
    return left, top, right, bottom


def _to_rgb(image: Image.Image) -> Image.Image:
    """Grey becomes three equal channels, 16 bits become 8, what is transparent becomes white."""
    if image.mode in ("I;16", "I;16B", "I;16L", "I"):
        values = np.asarray(image)
        return Image.fromarray((values >> 8 if values.max() > 255 else values).clip(0, 255).astype(np.uint8)).convert(
            "RGB"
        )
    if image.has_transparency_data:
        opaque = Image.new("RGB", image.size)
        for top in range(0, image.height, ROWS):  # a strip at a time, as all at once would take four times the memory
            strip = image.crop((0, top, image.width, min(top + ROWS, image.height))).convert("RGBA")
            white = Image.new("RGBA", strip.size, "white")
            opaque.paste(Image.alpha_composite(white, strip).convert("RGB"), (0, top))
        return opaque
    return image.convert("RGB")
