"""Archives from the internet: unpacked file by file, inside their folder, as far as their size is plausible."""

import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from anyshot.errors import BadInput, as_bad_input, os_error_as_bad_input

BROKEN = (  # what reading a damaged archive raises
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
    EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError, MemoryError,
)  # fmt: skip
DOWNLOADED = "; was it downloaded whole?"
# Images hardly compress. A thousandfold, as in a zip bomb, is never a data set; small files may do as they like.
LARGEST_RATIO, ALWAYS_FINE = 100, 1 << 28
MOST_AFTER = 1 << 26  # bytes of nothing after the end of a tar file


def is_archive(path: Path) -> bool:
    """Whether a path is a zip or tar file. (None begins with a zero; tarfile would look for the end of such a file.)"""
    if not path.is_file():
        return False
    if zipfile.is_zipfile(path):
        return True
    with path.open("rb") as file:
        return file.read(1) != b"\0" and tarfile.is_tarfile(path)


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a zip or tar file into `folder` and return it; links and devices are left out."""
    limit = max(ALWAYS_FINE, LARGEST_RATIO * archive.stat().st_size)
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


def safe_join(folder: Path, name: str, where: Path) -> Path:
    """The path `name` below `folder`; a BadInput if it leads out of it."""
    if "\0" in name:
        raise BadInput(f"{where} names {name!r}, which is no name of a file.")
    path = Path(os.path.realpath(folder / name))  # (resolve would raise on links that lead in circles)
    if not path.is_relative_to(folder.resolve()):
        raise BadInput(f"{where} names {name!r}, which lies outside {folder}.")
    return path


def check_zip(path: Path) -> None:
    """Refuse a zip file (.npz is one) that declares an implausible size."""
    with as_bad_input((*BROKEN, OSError), f"{path} cannot be read", DOWNLOADED), zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > max(ALWAYS_FINE, LARGEST_RATIO * path.stat().st_size):
        raise BadInput(f"{path} unpacks to {size >> 20} MB: that is no set of images.")


def _members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """The name, declared size and contents of each file."""
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
            check_end(bundle_)


def check_end(bundle: tarfile.TarFile) -> None:
    """Whether a tar file ends where it says so: tarfile takes damage, or a cut between two files, for the end, and does
    not look at what follows a block of zeros."""
    stream = bundle.fileobj
    assert stream is not None
    stream.seek(bundle.offset)
    if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("it does not end as a tar file does")
    after = 0
    while block := stream.read(1 << 20):  # to the end of what is compressed, where its checksum is
        after += len(block)
        if after > MOST_AFTER or block.strip(b"\0"):
            raise tarfile.ReadError("it goes on after its end")
