"""Read uploads: one image as the body of a request, small enough, and really an image.

Nothing of an upload touches the disk: there is no form parser that spools it and no file name, and pictures are decoded
in memory by the decoders of a few formats, after their size in pixels has been read from the header.
"""

import asyncio
import contextlib
import io
import re
import time
import warnings
from collections.abc import AsyncIterator

from fastapi import HTTPException, Request
from PIL import Image
from starlette.requests import ClientDisconnect

from anyshot.data.pictures import FORMATS as DECODED_FORMATS
from anyshot.serve.limits import GRACE_SECONDS, MIN_BYTES_PER_SECOND, UPLOAD_SECONDS, ByteBudget

FORMATS = tuple(kind for kind in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "HEIF") if kind in DECODED_FORMATS)
MAX_BYTES = 20_000_000  # of one image: more than any phone's photo
MAX_PIXELS = 60_000_000
MAX_NAME_LENGTH = 100  # characters of a class name
MAX_LENGTH_DIGITS = 20  # of a Content-Length header, before it is converted to a number
# Control characters, and characters that hide text or change its direction.
HIDDEN = r"\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
NAME_PATTERN = rf"^[^{HIDDEN}]*[^\s{HIDDEN}][^{HIDDEN}]*$"  # no hidden character, and at least one that is seen


@contextlib.asynccontextmanager
async def read_image_upload(request: Request, budget: ByteBudget, max_bytes: int = MAX_BYTES) -> AsyncIterator[bytes]:
    """Yield the body of a request, an image; its bytes count against the budget until the context ends.

    Raises:
        HTTPException: 415 for another type, 413 if too large, 408 if it comes too slowly or is cut off, 503 if other
            uploads fill the budget.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not kind.startswith("image/"):
        # This also keeps other web pages out: a browser sends such a type to another host only if that host agrees.
        raise HTTPException(415, "Send one image as the body, with its type (image/jpeg, image/png, ...).")
    too_large = HTTPException(413, f"An image may have at most {max_bytes // 1_000_000} MB.")
    length = request.headers.get("content-length", "")
    is_announced = length.isascii() and length.isdigit()
    if is_announced and (len(length) > MAX_LENGTH_DIGITS or int(length) > max_bytes):
        raise too_large
    try:
        async with budget.reserve(int(length) if is_announced else max_bytes):
            body = await _read_body(request, max_bytes, too_large)
            check_image(body)
            yield body
    except TimeoutError:
        raise HTTPException(503, "Too many pictures are being sent: try again in a moment.") from None


async def _read_body(request: Request, max_bytes: int, too_large: HTTPException) -> bytes:
    """Return the body; an upload that stalls or trickles is cut off, since it would keep others waiting."""
    body, chunks, start = bytearray(), request.stream(), time.monotonic()
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            while True:
                async with asyncio.timeout(GRACE_SECONDS):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    return bytes(body)
                body += chunk
                if len(body) > max_bytes:
                    raise too_large
                if len(body) < MIN_BYTES_PER_SECOND * (time.monotonic() - start - GRACE_SECONDS):
                    raise TimeoutError
    except TimeoutError:
        raise HTTPException(408, "The upload was too slow.") from None
    except ClientDisconnect:
        raise HTTPException(408, "The upload was cut off.") from None


def check_image(data: bytes) -> None:
    """Raise an HTTPException unless the header is that of an image in one of the formats, of a bearable size."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            width, height = Image.open(io.BytesIO(data), formats=FORMATS).size
    except Image.DecompressionBombError:
        width, height = MAX_PIXELS, 2
    except (OSError, ValueError, SyntaxError):
        raise HTTPException(415, f"That is not an image; the formats are {', '.join(FORMATS)}.") from None
    if width * height > MAX_PIXELS:
        raise HTTPException(413, f"An image may have at most {MAX_PIXELS // 1_000_000} million pixels.")


def check_class_name(text: str) -> str:
    """Return the name of a new class with single spaces; raise an HTTPException if it is too long or not printable."""
    if len(text) > MAX_NAME_LENGTH or not re.fullmatch(NAME_PATTERN, text):
        raise HTTPException(422, f"A class needs a name of 1 to {MAX_NAME_LENGTH} printable characters.")
    return " ".join(text.split())
