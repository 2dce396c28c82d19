"""Read uploads: one image as the body of a request, small enough, and really an image.

Nothing of an upload touches the disk: there is no form parser that spools it and no file name, and pictures are decoded
in memory by the decoders of a few formats, after their size in pixels has been read from the header.
"""

import asyncio
import contextlib
import io
import re
import warnings
from collections.abc import AsyncIterator

from fastapi import HTTPException, Request
from PIL import Image
from starlette.requests import ClientDisconnect

from anyshot.data.pictures import FORMATS as DECODED_FORMATS

FORMATS = tuple(kind for kind in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "HEIF") if kind in DECODED_FORMATS)
MAX_BYTES = 20_000_000  # of one image: more than any phone's photo
MAX_PIXELS = 60_000_000  # of one image
MAX_UPLOADS = 8  # images that are read or worked on at once: others wait, so that memory is bounded
UPLOAD_SECONDS = 30.0  # until an image is complete: a slower client would keep others waiting
WAIT_SECONDS = 60.0  # that an upload waits for others to finish
MAX_NAME_LENGTH = 100  # characters of a class name
# Control characters, and characters that hide text or change its direction.
HIDDEN = r"\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
TOO_LARGE = HTTPException(413, f"An image may have at most {MAX_BYTES // 1_000_000} MB.")
NAME_PATTERN = rf"^[^{HIDDEN}]*[^\s{HIDDEN}][^{HIDDEN}]*$"  # no hidden character, and at least one that is seen


@contextlib.asynccontextmanager
async def read_image_upload(request: Request, slots: asyncio.Semaphore) -> AsyncIterator[bytes]:
    """Yield the body of a request, an image; it takes up one of the slots until the context ends.

    Raises:
        HTTPException: 415 for another type, 413 if too large, 408 if it comes too slowly or is cut off, 503 if other
            uploads take up all slots.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not kind.startswith("image/"):
        # This also keeps other web pages out: a browser sends such a type to another host only if that host agrees.
        raise HTTPException(415, "Send one image as the body, with its type (image/jpeg, image/png, ...).")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > MAX_BYTES:
        raise TOO_LARGE
    try:
        await asyncio.wait_for(slots.acquire(), WAIT_SECONDS)
    except TimeoutError:
        raise HTTPException(503, "Too many pictures are being sent: try again in a moment.") from None
    try:
        body = await _read_body(request)
        check_image(body)
        yield body
    finally:
        slots.release()


async def _read_body(request: Request) -> bytes:
    """Return the body of a request, which must come in time and not be too large."""
    body = bytearray()
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise TOO_LARGE
    except TimeoutError:
        raise HTTPException(408, "The upload was too slow.") from None
    except ClientDisconnect:
        raise HTTPException(408, "The upload was cut off.") from None
    return bytes(body)


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
