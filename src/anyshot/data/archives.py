"""Unpack archives from the internet safely, and list uncompressed tar files, which need no unpacking.

No file is written outside the folder, and an archive that unpacks to an implausible size is refused.
"""

import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from anyshot.errors import BadInput, as_bad_input, os_error_as_bad_input
from anyshot.files import MAX_FILE_BYTES

BROKEN = (  # what reading a damaged archive raises
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
    EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError, MemoryError,
)  # fmt: skip
DOWNLOADED = "; was it downloaded whole?"
# An archive may unpack to so many times its size (images hardly compress, and zip bombs a thousandfold), or to so many
# bytes, where that is more.
MAX_RATIO, MIN_LIMIT = 100, 1 << 28
MAX_PADDING = 1 << 26  # zero bytes after the end of a tar file
MAX_LABEL_BYTES = 4096  # of a .cls or .txt file in a tar file


def is_archive(path: Path) -> bool:
    """Return whether a path is a zip or tar file."""
    return path.is_file() and (zipfile.is_zipfile(path) or _is_tar(path, "r:*"))


def is_plain_tar(path: Path) -> bool:
    """Return whether a path is a tar file without compression."""
    return path.is_file() and not zipfile.is_zipfile(path) and _is_tar(path, "r:")


def _is_tar(path: Path, mode: Literal["r:", "r:*"]) -> bool:
    try:
        with path.open("rb") as file:
            if file.read(1) == b"\0":  # no archive begins so, and tarfile would read such a file to its end
                return False
        with tarfile.open(path, mode):
            return True
    except tarfile.TarError:
        return False


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a zip or tar file into a folder, and return the folder; links and devices are left out."""
    limit = max(MIN_LIMIT, MAX_RATIO * archive.stat().st_size)
    written = declared = 0

    def check_size(size: int) -> None:
        if size > limit:
            raise BadInput(f"{archive} unpacks to more than {limit >> 20} MB: that is no set of images.")

    disk = os_error_as_bad_input(f"could not unpack {archive} to {folder}")
    with disk, as_bad_input(BROKEN, f"{archive} cannot be unpacked", DOWNLOADED):
        for name, size, file in _members(archive):
            declared += size
            check_size(declared)
            target = safe_join(folder, name, archive)
            target.parent.mkdir(parents=True, exist_ok=True)
            with file, target.open("wb") as out:
                while block := file.read(1 << 20):
                    written += len(block)
                    check_size(written)
                    out.write(block)
    return folder


def safe_join(folder: Path, name: str, where: Path, follows_links: bool = False, hint: str = "") -> Path:
    """Return the path of a name below a folder.

    Args:
        folder: The folder.
        name: A relative path from anyone's file.
        where: That file, for messages.
        follows_links: Whether links in the folder may lead out of it; the name itself never may.
        hint: What the user can do about a name that leads out of the folder.

    Raises:
        BadInput: The name leads out of the folder.
    """
    if "\0" in name:
        raise BadInput(f"{where} names {name!r}, which is no name of a file.")
    if follows_links:
        root, path = Path(os.path.abspath(folder)), Path(os.path.abspath(folder / name))
    else:
        root, path = folder.resolve(), Path(os.path.realpath(folder / name))  # (resolve would raise on circular links)
    if not path.is_relative_to(root):
        raise BadInput(f"{where} names {name!r}, which lies outside {folder}{hint}.")
    return path


def check_zip(path: Path) -> None:
    """Raise a BadInput for a zip file (.npz is one) that declares an implausible size."""
    with as_bad_input((*BROKEN, OSError), f"{path} cannot be read", DOWNLOADED), zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > max(MIN_LIMIT, MAX_RATIO * path.stat().st_size):
        raise BadInput(f"{path} unpacks to {size >> 20} MB: that is no set of images.")


def _members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield the name, the declared size and the contents of each file."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as bundle:
            for entry in bundle.infolist():
                if not entry.is_dir():
                    yield entry.filename, entry.file_size, bundle.open(entry)
    else:
        with tarfile.open(archive) as bundle_:
            for member in bundle_:
                file = bundle_.extractfile(member) if member.isfile() else None
                if file is not None:
                    yield str(PurePosixPath(member.name)), member.size, file
            _check_end(bundle_)


def _check_end(bundle: tarfile.TarFile) -> None:
    """Raise a ReadError if a tar file does not end where it says so.

    tarfile takes damage, or a cut between two files, for the end, and does not look at what follows a block of zeros.
    """
    stream = bundle.fileobj
    assert stream is not None
    stream.seek(bundle.offset)
    if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("it does not end as a tar file does")
    after = 0
    while block := stream.read(1 << 20):  # to the end of what is compressed, where its checksum is
        after += len(block)
        if after > MAX_PADDING or block.strip(b"\0"):
            raise tarfile.ReadError("it goes on after its end")


def _read_member(path: Path, start: int, size: int) -> bytes:
    """Return the bytes of a file inside an uncompressed tar file."""
    if size > MAX_FILE_BYTES:
        raise BadInput(f"a picture of {size >> 20} MB: at most {MAX_FILE_BYTES >> 20} MB are read.")
    with path.open("rb") as file:
        file.seek(start)
        return file.read(size)


def list_tar(path: Path) -> tuple[dict[tuple[str, ...], Callable[[], bytes]], dict[tuple[str, ...], str]]:
    """List the files of an uncompressed tar file.

    Returns:
        What reads each file, by its path, and the texts of small .cls and .txt files by their path without the suffix.
    """
    members: dict[tuple[str, ...], Callable[[], bytes]] = {}
    texts: dict[tuple[str, ...], str] = {}
    damaged = (tarfile.TarError, OSError, EOFError, ValueError)
    with as_bad_input(damaged, f"{path} cannot be read", DOWNLOADED), tarfile.open(path, "r:") as tar:
        for member in tar:
            if not member.isfile():
                continue
            name = PurePosixPath(member.name)
            if name.is_absolute() or ".." in name.parts or "\0" in member.name or not name.parts:
                raise BadInput(f"{path} names {member.name!r}, which lies outside it.")
            members[name.parts] = partial(_read_member, path, member.offset_data, member.size)
            if name.suffix in (".cls", ".txt") and member.size < MAX_LABEL_BYTES:
                file = tar.extractfile(member)
                texts[name.with_suffix("").parts] = file.read().decode("utf-8", "replace").strip() if file else ""
        _check_end(tar)
    return members, texts
