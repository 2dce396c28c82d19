"""Decode any image file to uint8 RGB pixels and resize it.

Grey levels of more than 8 bits, and fractions, are scaled to bytes. There are three ways to fit an image to a `size`:

crop     the shorter side to `size`, then the central square (CUB, mini-ImageNet, own images)
squash   the whole image to a square (meta-iNat)
frame    the whole image, its aspect ratio kept, the shorter side to `size`
"""

import contextlib
import io
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Shaped, UInt8
from PIL import Image, ImageFile, ImageOps, TiffImagePlugin, UnidentifiedImageError

from anyshot.errors import BadInput
from anyshot.files import read_bytes

try:  # the extra `heic`: what phones save
    from pillow_heif import register_heif_opener

    register_heif_opener(thumbnails=False)
except ImportError:
    pass

Fit = Literal["crop", "squash", "frame"]
Resample = Literal["bilinear", "bicubic"]
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels
COMMON_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "HEIF")
# The formats that are read. EPS and WMF are left out because Pillow calls another program to read them, the others
# because Pillow recognises them without being able to read them. A file that is valid in several formats is opened in
# the first: common formats come first, so that the check of an upload and the decoder see the same picture.
FORMATS = tuple(sorted(set(Image.registered_extensions().values()) & set(Image.OPEN) - {
    "EPS", "WMF", "BUFR", "GRIB", "HDF5", "MPEG", "FITS",
}, key=lambda name: (name not in COMMON_FORMATS, name)))  # fmt: skip
SUFFIXES = frozenset(suffix for suffix, name in Image.registered_extensions().items() if name in FORMATS)
MAX_PIXELS = 64_000_000  # of a picture as it is decoded: 192 MB of red, green and blue
LEAST_SIDE = 8  # pixels of the shorter side of a picture that shows anything; icons have 16, the digits of sklearn 8
LARGE = 8_000_000  # pixels; larger pictures are decoded one at a time, as each takes up to 13 bytes per pixel
DEPTHS = (8, 10, 12, 14, 16)  # bits of a grey level that cameras and microscopes use
WIDEST_FRAME = 4  # longer over shorter side of a frame; of wider images the middle is stored (CUB has at most 3.6)
# A JPEG whose shorter side is at least REDUCE times `size` is decoded at a reduced scale, of at least REDUCE / 2 times
# `size`: decoding is then several times faster, and resizing from there hardly differs (tests/data/test_sources.py).
REDUCE = 8


@dataclass(frozen=True, slots=True)
class FileBytes:
    """Reads the bytes of a file."""

    path: Path

    def __call__(self) -> bytes:
        """Return the bytes."""
        return read_bytes(self.path)


def decode_picture(
    data: bytes | np.ndarray, size: int | None, fit: Fit, box: Box | None = None, resample: Resample = "bilinear"
) -> UInt8[np.ndarray, "height width channel"]:
    """Decode a picture, turn it upright by its EXIF orientation, convert it to RGB, cut it to `box`, fit it to `size`.

    Args:
        data: An encoded picture, or pixels "height width channel", which are only fitted.
        size: The side to fit it to, in pixels; None leaves it as it is.
        fit: How (see above).
        box: The part of the picture to use.
        resample: The filter that resizes it.
    """
    if isinstance(data, np.ndarray):
        if size is None or data.shape[:2] == (size, size):
            return data
        fitted = np.asarray(_fit(Image.fromarray(data.squeeze(2) if data.shape[2] == 1 else data), size, fit, resample))
        return fitted.reshape(*fitted.shape[:2], data.shape[2])
    image: Image.Image = _open(data)
    if size is not None and box is None and min(image.size) >= REDUCE * size:
        image.draft("RGB", (REDUCE // 2 * size, REDUCE // 2 * size))
    pixels = image.width * image.height
    if pixels > MAX_PIXELS:
        raise BadInput(f"it has {pixels // 1_000_000} million pixels: at most {MAX_PIXELS // 1_000_000} are read")
    with _large_picture_lock if pixels > LARGE else contextlib.nullcontext():
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        image = _to_rgb(_scale_deep_tiff(image, data))
        if box is not None:
            image = image.crop(_clip(box, image.size))
        return np.asarray(image if size is None else _fit(image, size, fit, resample))


_large_picture_lock = threading.Lock()


def _open(picture: bytes | Path) -> ImageFile.ImageFile:
    """Open an encoded picture or its file, of which the header is read.

    From now on Pillow does not warn in this process of odd metadata, which cameras write, or of large pictures, for
    which `MAX_PIXELS` is the limit. (Warning filters belong to a process: threads cannot set and restore them.)
    """
    warnings.filterwarnings("ignore", module="PIL")
    return Image.open(io.BytesIO(picture) if isinstance(picture, bytes) else picture, formats=FORMATS)


def _fit(image: Image.Image, size: int, fit: Fit, resample: Resample) -> Image.Image:
    """Resize an image and cut its centre, in one call of Pillow with the same result as two."""
    if fit == "squash":
        return image.resize((size, size), FILTERS[resample])
    longest = size if fit == "crop" else WIDEST_FRAME * size
    spans, lengths = [], []
    for side in image.size:  # width, height
        resized = int(size * side / min(image.size))
        length = min(resized, longest)
        start = round((resized - length) / 2)
        spans.append((start * side / resized, (start + length) * side / resized))
        lengths.append(length)
    (left, right), (top, bottom) = spans
    return image.resize((lengths[0], lengths[1]), FILTERS[resample], box=(left, top, right, bottom))


def picture_size(picture: bytes | Path | np.ndarray) -> tuple[int, ...]:
    """Return the two sides of a picture; of an encoded picture only the header is read."""
    if isinstance(picture, np.ndarray):
        return picture.shape[:2]
    with _open(picture) as image:
        return image.size


def is_too_small(read: Callable[[], bytes | np.ndarray]) -> bool:
    """Return whether a picture has too few pixels to show anything; of a file, only the header is read."""
    try:
        return min(picture_size(read.path if isinstance(read, FileBytes) else read())) < LEAST_SIDE
    except Exception:  # a broken picture can fail in any way, and is no small one
        return False


def evaluation_square(
    image: bytes | np.ndarray, side: int, margin: float, box: Box | None = None, resample: Resample = "bilinear"
) -> UInt8[np.ndarray, "side side channel"]:
    """Return the evaluation input of a network: Resize(side * margin), then CenterCrop(side).

    An image (or box) whose shorter side is at most `side` is resized to `side` instead. The paper has a side of 84 and
    a margin of 92 / 84.
    """
    shorter = min(picture_size(image)) if box is None else min(box[2] - box[0], box[3] - box[1])
    resized = round(side * margin) if shorter > side else side
    start = round((resized - side) / 2)
    middle = slice(start, start + side)
    return decode_picture(image, resized, "crop", box, resample)[middle, middle]


def _clip(box: Box, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return a box in whole pixels, inside the image and at least one pixel wide and high."""
    left, top = min(max(int(box[0]), 0), size[0] - 1), min(max(int(box[1]), 0), size[1] - 1)
    right, bottom = min(max(round(box[2]), left + 1), size[0]), min(max(round(box[3]), top + 1), size[1])
    return left, top, right, bottom


def describe_failure(name: object, error: Exception, data: bytes | np.ndarray) -> str:
    """Return the sentence for a picture that could not be read; `data` are its bytes or pixels, if there are any."""
    return f"{name} cannot be read as an image: {explain_unreadable(error, data).rstrip('.')}."


def explain_unreadable(error: Exception, data: bytes | np.ndarray = b"") -> str:
    """Return why a picture could not be read; `data` are its bytes or pixels, if there are any."""
    start = data[:64] if isinstance(data, bytes) else b""
    if isinstance(error, BadInput):
        return str(error)[:200]
    if start[4:8] == b"ftyp" and start[8:12] in (b"heic", b"heix", b"hevc", b"mif1", b"msf1", b"heim", b"heis"):
        can_read = "HEIF" in FORMATS
        return (
            "it is HEIC, damaged or cut short" if can_read else "it is HEIC, which `pip install 'anyshot[heic]'` reads"
        )
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format" if start.strip(b"\0") else "there is nothing in it"
    if isinstance(error, IsADirectoryError):
        return "it is a folder; name the pictures in it"
    if isinstance(error, OSError) and "truncated" in str(error):
        return "it is cut short"
    return f"{type(error).__name__}: {error}"[:200]


def _scale_deep_tiff(image: Image.Image, data: bytes) -> Image.Image:
    """Scale the levels of a colour TIFF of 10 to 14 bits that are stored in 16; return any other image as it is.

    Pillow reads only the upper byte of the 16 bits, which makes such a picture almost black. Told the opposite byte
    order, it reads the lower byte: both together are the level.
    """
    if not isinstance(image, TiffImagePlugin.TiffImageFile) or image.mode != "RGB":
        return image
    if max(image.tag_v2.get(258, (8,))) <= 8 or (upper := np.asarray(image)).max() >= 1 << (DEPTHS[-2] - 8):
        return image
    lower = Image.open(io.BytesIO(data), formats=("TIFF",))
    assert isinstance(lower, ImageFile.ImageFile)
    tiles = []
    for tile in lower.tile:
        mode, *more = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        if not str(mode).startswith("RGB;16"):
            return image
        is_little_endian = mode[-1] == "L" or (mode[-1] == "N" and sys.byteorder == "little")
        args = ("RGB;16B" if is_little_endian else "RGB;16L", *more)
        tiles.append(tile._replace(args=args if isinstance(tile[3], tuple) else args[0]))
    lower.tile = tiles
    ImageOps.exif_transpose(lower, in_place=True)
    return Image.fromarray(_to_bytes(upper.astype(np.uint16) << 8 | np.asarray(lower)))


def _to_bytes(values: Shaped[np.ndarray, "..."]) -> UInt8[np.ndarray, "..."]:
    """Scale grey levels of any depth to bytes.

    Integers are divided by the range of the smallest of `DEPTHS` that holds the brightest. Fractions up to 1 are
    multiplied by 255, those up to 255 are rounded. Values outside these ranges are scaled from the darkest to the
    brightest.
    """
    if values.dtype.kind == "f":
        values = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = values.min(), values.max()
    if low < 0 or high > (255 if values.dtype.kind == "f" else 65535):
        values, low, high = values.astype(np.float64) - low, 0, float(high) - float(low)
        return (values * (255 / high) if high > 0 else values).round().astype(np.uint8)
    if values.dtype.kind == "f":
        return (values * 255 if high <= 1 else values).round().astype(np.uint8)
    bits = next(bits for bits in DEPTHS if int(high) < 1 << bits)
    return (values >> (bits - 8)).astype(np.uint8)


def _to_rgb(image: Image.Image) -> Image.Image:
    """Return an image in RGB: grey as three equal channels, deeper levels as bytes, transparent parts white."""
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_to_bytes(np.asarray(image))).convert("RGB")
    if image.has_transparency_data:
        alpha = image.convert("RGBA").getchannel("A")
        opaque = Image.new("RGB", image.size, "white")
        opaque.paste(image.convert("RGB"), mask=alpha)
        return opaque
    return image.convert("RGB")


def to_picture(image: UInt8[np.ndarray, "height width channel"]) -> Image.Image:
    """Return an image, grey or in colour, as a picture in colour."""
    return Image.fromarray(np.broadcast_to(image, (*image.shape[:2], 3)))


# Tags of the EXIF standard: the sub-directory of camera data, DateTimeOriginal and DateTime.
EXIF, ORIGINAL, CHANGED = 0x8769, 0x9003, 0x0132


def capture_time(read: Callable[[], bytes | np.ndarray]) -> float | None:
    """Return when a photo was taken, in seconds; None where it does not say.

    Cameras know no time zone, so only differences of these times have a meaning.

    Args:
        read: Returns the picture; of a file, only the header is read.
    """
    try:
        source = read.path if isinstance(read, FileBytes) else read()
        if isinstance(source, np.ndarray):
            return None
        with _open(source) as image:
            exif = image.getexif()
            text = exif.get_ifd(EXIF).get(ORIGINAL) or exif.get(CHANGED)
        return datetime.strptime(str(text)[:19], "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except Exception:  # metadata are written by anything, and broken in any way
        return None
