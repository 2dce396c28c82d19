"""When a photo was taken, as its file says."""

import io
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
from PIL import Image

from anyshot.data.packing import File

EXIF, ORIGINAL, CHANGED = 0x8769, 0x9003, 0x0132


def taken(read: Callable[[], bytes | np.ndarray]) -> float | None:
    """Seconds, for differences of times within a set (cameras know no time zone); None where the file does not say.

    Args:
        read: Gives the image, as readers list it; of a file, only the head is read.
    """
    try:
        source = read.path if isinstance(read, File) else read()
        if isinstance(source, np.ndarray):
            return None
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            exif = image.getexif()
            words = exif.get_ifd(EXIF).get(ORIGINAL) or exif.get(CHANGED)
        return datetime.strptime(str(words)[:19], "%Y:%m:%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except Exception:  # metadata are written by anything, and broken in any way
        return None
