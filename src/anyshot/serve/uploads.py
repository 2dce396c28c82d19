"""What a client may send: one image as the body of a request, small enough, and truly an image.

Nothing of it touches the disk: no form parser spools it, no name of a file is sent, and pictures are decoded in memory
by the decoders of a few formats only, after their size in pixels has been read from the header.
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

from anyshot.data.pictures import FORMATS as DECODED
from anyshot.serve.limits import UPLOAD_SECONDS, ByteBudget

FORMATS = tuple(kind for kind in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "HEIF") if kind in DECODED)
MOST_BYTES = 20_000_000
MOST_PIXELS = 60_000_000
MOST_NAME = 100
# Neither a terminal's codes nor what hides a text or turns it round; and somewhere a character that is seen.
HIDDEN = r"\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
NAME = rf"^[^{HIDDEN}]*[^\s{HIDDEN}][^{HIDDEN}]*$"
MOST_DIGITS = 20  # of a length


@contextlib.asynccontextmanager
async def uploaded(request: Request, budget: ByteBudget, most: int = MOST_BYTES) -> AsyncIterator[bytes]:
    """The body of a request, an image of at most `most` bytes; what is not is refused as early as it shows. The body is
    read when there is room for it among all that are being worked on."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not kind.startswith("image/"):
        # Also what keeps other web pages out: a browser sends such a type to another host only if that host agrees.
        raise HTTPException(415, "Send one image as the body, with its type (image/jpeg, image/png, ...).")
    too_large = HTTPException(413, f"An image may have at most {most // 1_000_000} MB.")
    length = request.headers.get("content-length", "")
    is_said = length.isascii() and length.isdigit()
    if is_said and (len(length) > MOST_DIGITS or int(length) > most):
        raise too_large
    try:
        async with budget.room(int(length) if is_said else most):
            body = await _body(request, most, too_large)
            check_image(body)
            yield body
    except TimeoutError:
        raise HTTPException(503, "Too many pictures are being sent: try again in a moment.") from None


async def _body(request: Request, most: int, too_large: HTTPException) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise HTTPException(408, "The picture took too long to come.") from None
    except ClientDisconnect:
        raise HTTPException(408, "The picture was cut off.") from None
    return bytes(body)


def check_image(data: bytes) -> None:
    """Whether the header is that of an image in one of the formats, of a bearable size."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            width, height = Image.open(io.BytesIO(data), formats=FORMATS).size
    except Image.DecompressionBombError:
        width, height = MOST_PIXELS, 2
    except (OSError, ValueError, SyntaxError):
        raise HTTPException(415, f"That is not an image; the formats are {', '.join(FORMATS)}.") from None
    if width * height > MOST_PIXELS:
        raise HTTPException(413, f"An image may have at most {MOST_PIXELS // 1_000_000} million pixels.")


def class_name(text: str) -> str:
    """The name of a new class as a client gave it: any text that can be shown, not too long."""
    if len(text) > MOST_NAME or not re.fullmatch(NAME, text):
        raise HTTPException(422, f"A class needs a name of 1 to {MOST_NAME} printable characters.")
    return " ".join(text.split())
