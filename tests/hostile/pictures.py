"""Pictures: damaged, of absurd size, of other kinds, or none; given to `predict`, `fit` and `pack`."""

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from helpers import image_files
from PIL import Image

from hostile import spoil
from hostile.corpus import Case
from hostile.good import Good

KINDS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, rows: int = 1, depth: int = 8, colour: int = 2, extra: bytes = b"") -> bytes:
    """A PNG that says it is so large, with so many rows of nothing in it."""
    bits = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colour, 1) * depth
    packer = zlib.compressobj(9)
    row = bytes(1 + (width * bits + 7) // 8)
    pixels = b"".join(packer.compress(row) for _ in range(rows)) + packer.flush()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + extra + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def gif(width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.new("P", (4, 4)).save(out, "GIF")
    return out.getvalue()[:6] + struct.pack("<HH", width, height) + out.getvalue()[10:]


def bomb_text() -> bytes:
    """A comment that unpacks to a hundred megabytes."""
    packer = zlib.compressobj(9)
    text = b"".join(packer.compress(bytes(1 << 20)) for _ in range(100)) + packer.flush()
    return png(8, 8, 8, extra=chunk(b"zTXt", b"comment\0\0" + text) * 20)


def forged() -> dict[str, bytes]:
    """Pictures that lie."""
    return {
        "a PNG of 60,000 x 60,000 pixels": png(60_000, 60_000),
        "a PNG of 16,000 x 16,000 pixels, all of them there": png(16_000, 16_000, 16_000, 1, 0),
        "a PNG of 2^31 pixels a side": png((1 << 31) - 1, (1 << 31) - 1, 0),
        "a PNG without width": png(0, 10),
        "a PNG with a depth of 5": png(8, 8, 8, depth=5),
        "a PNG without rows": png(8, 8, 0),
        "a GIF of 65,535 x 65,535 pixels": gif(65_535, 65_535),
        "a BMP of 2^31 x 2^31 pixels": b"BM"
        + struct.pack("<IHHIIiiHHIIiiII", 70, 0, 0, 54, 40, (1 << 31) - 1, (1 << 31) - 1, 1, 24, 0, 0, 0, 0, 0, 0)
        + bytes(16),
        "a TIFF of 2^20 x 2^20 pixels": tiff(1 << 20, 1 << 20),
        "a PPM of 99,999 x 99,999 pixels": b"P6 99999 99999 255\n" + bytes(100),
        "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(%pipe%touch ran) (w) file\n",
        "SVG": b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"><rect width="9" height="9"/></svg>',
        "a Python file": b"import os\nos.mkdir('ran')\n",
    }


def tiff(width: int, height: int) -> bytes:
    tags = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 8),
            (277, 3, 1, 1), (278, 4, 1, height), (279, 4, 1, 100)]  # fmt: skip
    body = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags) + bytes(4)
    return b"II*\0" + struct.pack("<I", 8) + body + bytes(100)


def cases(good: Good) -> Iterator[Case]:
    for kind in KINDS:
        whole = image_files.encoded(1, 40, 50, kind)
        for words in ("empty", "cut in half", "cut after ten bytes", "zeros"):
            yield predicted(good, f"{kind}: {words}", spoil.BROKEN[words](whole), f".{kind.lower()}")
        for words in ("a byte changed (0)", "ten bytes changed (1)", "halves swapped"):
            yield predicted(good, f"{kind}: {words}", spoil.CHANGED[words](whole), f".{kind.lower()}", may_do=True)
    for words in ("random bytes", "a text", "a web page", "an archive", "a pickle"):
        yield predicted(good, f"{words} as a picture", spoil.BROKEN[words](image_files.encoded()), ".png")
    for words, data in forged().items():
        yield predicted(good, words, data, ".png")
    yield predicted(good, "a comment that unpacks to gigabytes", bomb_text(), ".png", may_do=True)
    for words, how in spoil.PLACES.items():
        yield Case(f"predict: {words}", lambda folder, how=how: _placed(good, folder, how), may_do=words == "a folder")
    for verb in ("pack", "fit"):
        for words, data in list(forged().items())[:7]:
            yield Case(f"{verb}: only {words}", lambda folder, verb=verb, data=data: _folder(good, folder, verb, data))
    yield Case("fit: no pictures", lambda folder: _bare(folder, "fit"))
    yield Case("pack: no pictures", lambda folder: _bare(folder, "pack"))
    yield Case("predict --top -1", lambda folder: _top(good, folder, "-1"))
    yield Case("predict --top 0", lambda folder: _top(good, folder, "0"))


def predicted(good: Good, name: str, data: bytes, suffix: str, may_do: bool = False) -> Case:
    def make(folder: Path) -> list[str]:
        (folder / f"bad{suffix}").write_bytes(data)
        return ["predict", str(good / "of-pictures"), f"bad{suffix}"]

    return Case(name, make, may_do)


def _placed(good: Good, folder: Path, how) -> list[str]:
    how(folder / "bad.png")
    return ["predict", str(good / "of-pictures"), "bad.png"]


def _folder(good: Good, folder: Path, verb: str, data: bytes) -> list[str]:
    for name in ("ant", "bee", "cat"):
        image_files.write(folder / "photos" / name / "0.png", data)
    return [verb, *(["folder"] if verb == "pack" else []), "photos", "--out", "made", *_model(good, verb)]


def _model(good: Good, verb: str) -> list[str]:
    return ["--model", str(good / "model"), "--no-cache"] if verb == "fit" else ["--no-doctor"]


def _bare(folder: Path, verb: str) -> list[str]:
    (folder / "photos" / "ant").mkdir(parents=True)
    return [verb, *(["folder"] if verb == "pack" else []), "photos", "--out", "made"]


def _top(good: Good, folder: Path, top: str) -> list[str]:
    image_files.write(folder / "a.png", seed=3)
    return ["predict", str(good / "of-pictures"), "a.png", "--top", top]
