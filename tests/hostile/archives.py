"""Archives: cut, damaged, leading out of their folder, larger than they look; given to `pack folder`."""

import bz2
import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from helpers import image_files

from hostile import spoil
from hostile.corpus import Case
from hostile.good import Good

TARS = ("photos.tar", "photos.tgz", "photos.tar.bz2", "photos.tar.xz")
NAMES = {
    "out of its folder": "../../evil.png",
    "an absolute path": "/tmp/anyshot-evil.png",
    "a name with a zero": "ant/a\0b.png",
    "a very long name": "ant/" + "x" * 300 + ".png",
    "a very deep name": "ant/" + "d/" * 3000 + "a.png",
}


def cases(good: Good) -> Iterator[Case]:
    for name in ("photos.zip", *TARS):
        whole = (good / name).read_bytes()
        for words in ("empty", "cut in half", "zeros", "random bytes", "a picture", "a text"):
            yield packed(f"{name}: {words}", name, spoil.BROKEN[words](whole))
        yield packed(f"{name}: cut at its last tenth", name, whole[: len(whole) * 9 // 10])
        yield packed(f"{name}: without its last byte", name, whole[:-1], may_do=name == "photos.tar")
        for seed in range(2):
            yield packed(f"{name}: bytes changed ({seed})", name, spoil.flips(seed, 3)(whole), may_do=True)
    plain = (good / "photos.tar").read_bytes()
    yield packed("a tar that ends between two files", "a.tar", plain[: _second_member(plain)])
    yield packed("a damaged head in a tar", "a.tar", _damaged_head(plain))
    yield packed("a damaged head in a tar.gz", "a.tgz", gzip.compress(_damaged_head(plain)))
    yield packed("a damaged head in a tar.bz2", "a.tar.bz2", bz2.compress(_damaged_head(plain)))
    yield packed("a tar.gz with a wrong checksum", "a.tgz", _wrong_checksum((good / "photos.tgz").read_bytes()))
    for words, name in NAMES.items():
        yield packed(f"zip: {words}", "a.zip", zipped({"ant/a.png": image_files.encoded(1), name: b"x"}))
        yield packed(f"tar: {words}", "a.tar", tarred({"ant/a.png": image_files.encoded(1), name: b"x"}))
    yield packed("a zip bomb", "a.zip", zipped({"ant/a.png": bytes(1 << 29)}))
    yield packed("a zip that lies about sizes", "a.zip", _lying(zipped({"ant/a.png": bytes(1 << 20)})))
    yield packed("a gzip bomb", "a.tgz", gzip.compress(tarred({"ant/a.png": bytes(1 << 28)}), 9))
    yield packed("a zip with a password", "a.zip", _encrypted(zipped({"ant/a.png": image_files.encoded(1)})))
    yield packed(
        "a zip of an unknown compression", "a.zip", _compression(zipped({"ant/a.png": image_files.encoded(1)}))
    )
    yield packed("a tar of links alone", "a.tar", _links())
    yield packed("an empty zip", "a.zip", zipped({}))
    yield packed("an empty tar", "a.tar", tarred({}))
    yield packed("a zip without pictures", "a.zip", zipped({"ant/read.txt": b"hello"}))
    yield packed("a file and a folder of one name", "a.zip", zipped({"ant": b"x", "ant/a.png": image_files.encoded(1)}))


def packed(name: str, file: str, data: bytes, may_do: bool = False) -> Case:
    def make(folder: Path) -> list[str]:
        (folder / file).write_bytes(data)
        return ["pack", "folder", file, "-o", "store", "--no-doctor"]

    return Case(name, make, may_do)


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo("x")
            entry.filename, entry.compress_type = name, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return out.getvalue()


def tarred(files: dict[str, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _links() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, target, kind in (("ant/a.png", "/etc/passwd", tarfile.SYMTYPE), ("ant/b.png", "x", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
    return out.getvalue()


def _second_member(plain: bytes) -> int:
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        return [member.offset for member in archive if member.isfile()][5]


def _damaged_head(plain: bytes) -> bytes:
    place = _second_member(plain)
    return plain[: place + 10] + b"\xff" * 20 + plain[place + 30 :]


def _wrong_checksum(data: bytes) -> bytes:
    return data[:-8] + b"\1\2\3\4" + data[-4:]


def _everywhere(data: bytes, change: Callable[[bytearray, int, int], None]) -> bytes:
    """Both heads of every file of a zip changed: before its contents, and at the end."""
    spoiled = bytearray(data)
    for mark, shift in ((b"PK\3\4", 0), (b"PK\1\2", 2)):
        place = -1
        while (place := data.find(mark, place + 1)) >= 0:
            change(spoiled, place, shift)
    return bytes(spoiled)


def _encrypted(data: bytes) -> bytes:
    def change(spoiled: bytearray, place: int, shift: int) -> None:
        spoiled[place + 6 + shift] |= 1

    return _everywhere(data, change)


def _compression(data: bytes) -> bytes:
    def change(spoiled: bytearray, place: int, shift: int) -> None:
        spoiled[place + 8 + shift] = 77

    return _everywhere(data, change)


def _lying(data: bytes) -> bytes:
    def change(spoiled: bytearray, place: int, shift: int) -> None:
        spoiled[place + 22 + shift : place + 26 + shift] = (10).to_bytes(4, "little")

    return _everywhere(data, change)
