"""Decode any image file to uint8 pixels and fit it to a size, as all models need it.

The levels of deeper pictures (12 and 16 bits, fractions) are scaled by their range. An image is fitted in three ways:

crop     the shorter side to `size`, then the central square (CUB, mini-ImageNet, own images)
squash   the whole image to a square (meta-iNat)
frame    the whole image, its aspect ratio kept, the shorter side to `size`
"""

import contextlib
import io
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
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
Box = tuple[float, float, float, float]  # left, top, right, bottom
COMMON_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "HEIF")
# Not those that call another program (PostScript), nor those that Pillow can only recognise. A file that fits several
# formats is opened as the first: common formats come first, so that every reader opens it as the same.
FORMATS = tuple(sorted(set(Image.registered_extensions().values()) & set(Image.OPEN) - {
    "EPS", "WMF", "BUFR", "GRIB", "HDF5", "MPEG", "FITS",
}, key=lambda name: (name not in COMMON_FORMATS, name)))  # fmt: skip
SUFFIXES = frozenset(suffix for suffix, name in Image.registered_extensions().items() if name in FORMATS)
MAX_PIXELS = 64_000_000  # of a picture as it is decoded: 192 MB of red, green and blue
LARGE = 8_000_000  # pictures of so many pixels are decoded one at a time: each takes up to ten bytes per pixel
STRIP_ROWS = 256  # rows of a transparent picture that are put on white at a time
DEPTHS = (8, 10, 12, 14, 16)  # bits of a grey level, as cameras and microscopes have them
WIDEST_FRAME = 4  # longer over shorter side of a frame; of wider images the middle is kept (CUB has at most 3.6)
REDUCE = 8  # a photo this many times larger than what is stored is decoded at a reduced scale, never below half of that


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
    """Decode a picture, turn it upright, convert it to RGB, cut it to `box` and fit it to `size`.

    An array is only fitted, and not even that if it has the right size.
    """
    if isinstance(data, np.ndarray):
        if size is None or data.shape[:2] == (size, size):
            return data
        image = Image.fromarray(data.squeeze(2) if data.shape[2] == 1 else data)
        fitted = np.asarray(_fit(image, size, fit, resample))
        return fitted.reshape(*fitted.shape[:2], data.shape[2])
    with _silent_pillow():
        image = Image.open(io.BytesIO(data), formats=FORMATS)
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
_filter_lock, _filter_users, _saved_filters = threading.Lock(), 0, warnings.catch_warnings()


@contextlib.contextmanager
def _silent_pillow() -> Iterator[None]:
    """Silence Pillow's warnings, of odd metadata and of large pictures, which we limit ourselves.

    Filters of warnings belong to the process, so the first thread that decodes sets them and the last restores them.
    """
    global _filter_users, _saved_filters
    with _filter_lock:
        _filter_users += 1
        if _filter_users == 1:
            _saved_filters = warnings.catch_warnings()
            _saved_filters.__enter__()
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            warnings.filterwarnings("ignore", category=UserWarning, module="PIL")
    try:
        yield
    finally:
        with _filter_lock:
            _filter_users -= 1
            if _filter_users == 0:
                _saved_filters.__exit__(None, None, None)


def _fit(image: Image.Image, size: int, fit: Fit, resample: Resample) -> Image.Image:
    """Resize and cut in one step: the result is that of resizing the whole image and cutting its centre."""
    box: Box = (0, 0, *image.size)
    shorter = min(image.size)
    if fit == "frame":
        width, height = (min(int(size * side / shorter), WIDEST_FRAME * size) for side in image.size)
        left, right = _central(image.width, int(size * image.width / shorter), width)
        top, bottom = _central(image.height, int(size * image.height / shorter), height)
        return image.resize((width, height), FILTERS[resample], box=(left, top, right, bottom))
    if fit == "crop":
        left, right = _central(image.width, int(size * image.width / shorter), size)
        top, bottom = _central(image.height, int(size * image.height / shorter), size)
        box = (left, top, right, bottom)
    return image.resize((size, size), FILTERS[resample], box=box)


def picture_size(picture: bytes | np.ndarray) -> tuple[int, ...]:
    """Return the two sides of a picture, of which only the header is read."""
    if isinstance(picture, np.ndarray):
        return picture.shape[:2]
    with _silent_pillow():
        return Image.open(io.BytesIO(picture), formats=FORMATS).size


def evaluation_square(
    image: bytes | np.ndarray, side: int, margin: float, box: Box | None = None, resample: Resample = "bilinear"
) -> UInt8[np.ndarray, "side side channel"]:
    """Return what a network is tested on: the shorter side at `margin` times `side`, cut to the central square.

    An image (or box) whose shorter side is at most `side` is resized to just that. With a side of 84 and a margin of
    92 / 84 this is the paper's Resize(92) and CenterCrop(84).
    """
    size = picture_size(image)
    shorter = min(size) if box is None else min(box[2] - box[0], box[3] - box[1])
    larger = round(side * margin) if shorter > side else side
    start = round((larger - side) / 2)
    middle = slice(start, start + side)
    return decode_picture(image, larger, "crop", box, resample)[middle, middle]


def _central(old: int, new: int, size: int) -> tuple[float, float]:
    """Return where the central `size` of `new` pixels begin and end on a side of `old` pixels."""
    start = round((new - size) / 2)
    return start * old / new, (start + size) * old / new


def _clip(box: Box, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return a box in whole pixels, at least one, inside the image."""
    left, top = (min(max(int(low), 0), side - 1) for low, side in zip(box[:2], size, strict=True))
    right, bottom = (
        min(max(round(high), low + 1), side) for high, low, side in zip(box[2:], (left, top), size, strict=True)
    )
    return left, top, right, bottom


def describe_failure(name: object, error: Exception, data: bytes | np.ndarray) -> str:
    """Return the sentence for a picture that could not be read; `data` is what was read of it."""
    return f"{name} cannot be read as an image: {explain_unreadable(error, data).rstrip('.')}."


def explain_unreadable(error: Exception, data: bytes | np.ndarray = b"") -> str:
    """Return why a picture could not be read; `data` is what was read of it."""
    start = data[:64] if isinstance(data, bytes) else b""
    if isinstance(error, BadInput):
        return str(error)[:200]
    if isinstance(error, UnidentifiedImageError):
        if start[4:8] == b"ftyp" and start[8:12] in (b"heic", b"heix", b"hevc", b"mif1", b"msf1", b"heim", b"heis"):
            return "it is HEIC, which `pip install 'anyshot[heic]'` reads"
        return "not an image of a known format" if start.strip(b"\0") else "there is nothing in it"
    if isinstance(error, OSError) and "truncated" in str(error):
        return "it is cut short"
    return f"{type(error).__name__}: {error}"[:200]


def _scale_deep_tiff(image: Image.Image, data: bytes) -> Image.Image:
    """Return a colour TIFF of 16 bits, of which Pillow reads the upper bytes, scaled by the range of its levels.

    A TIFF that uses the whole range, and any other image, is returned as it is.
    """
    if not isinstance(image, TiffImagePlugin.TiffImageFile) or image.mode != "RGB":
        return image
    if max(image.tag_v2.get(258, (8,))) <= 8 or (upper := np.asarray(image)).max() >= 1 << (DEPTHS[-2] - 8):
        return image
    lower = Image.open(io.BytesIO(data), formats=("TIFF",))
    assert isinstance(lower, ImageFile.ImageFile)
    tiles = []
    for tile in lower.tile:  # the lower bytes are what Pillow keeps where the order of bytes is the other one
        mode, *more = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        if not str(mode).startswith("RGB;16"):
            return image
        first = mode[-1] == "L" or (mode[-1] == "N" and sys.byteorder == "little")
        args = ("RGB;16B" if first else "RGB;16L", *more)
        tiles.append(tile._replace(args=args if isinstance(tile[3], tuple) else args[0]))
    lower.tile = tiles
    ImageOps.exif_transpose(lower, in_place=True)
    return Image.fromarray(_to_bytes(upper.astype(np.uint16) << 8 | np.asarray(lower)))


def _to_bytes(values: Shaped[np.ndarray, "..."]) -> UInt8[np.ndarray, "..."]:
    """Return grey levels of any depth as bytes.

    Whole numbers have the fewest bits that hold the brightest, of those that cameras have; fractions go from 0 to 1;
    values in neither range go from the darkest to the brightest.
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
        opaque = Image.new("RGB", image.size)
        for top in range(
            0, image.height, STRIP_ROWS
        ):  # a strip at a time, as all at once would take four times the memory
            strip = image.crop((0, top, image.width, min(top + STRIP_ROWS, image.height))).convert("RGBA")
            white = Image.new("RGBA", strip.size, "white")
            opaque.paste(Image.alpha_composite(white, strip).convert("RGB"), (0, top))
        return opaque
    return image.convert("RGB")


# Tags of the EXIF standard: the folder of camera data, when the photo was taken, when the file was changed.
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
        with (
            _silent_pillow(),
            Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image,
        ):
            exif = image.getexif()
            text = exif.get_ifd(EXIF).get(ORIGINAL) or exif.get(CHANGED)
        return datetime.strptime(str(text)[:19], "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except Exception:  # metadata are written by anything, and broken in any way
        return None
