"""Read archives (zip, tar) and arrays (.npz, .npy) that are not trusted.

No file is written outside the target folder, an archive that unpacks to an implausible size is refused, nothing is
unpickled, and the header of an array is checked before its data.
"""

import contextlib
import io
import lzma
import math
import os
import shutil
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

import numpy as np
from jaxtyping import Shaped

from anyshot.errors import BadInput, as_bad_input, os_error_as_bad_input
from anyshot.files import MAX_FILE_BYTES, check_file

ARCHIVE_ERRORS = (  # what zipfile, tarfile and the decompressors raise for a damaged archive
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
    EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError, MemoryError,
)  # fmt: skip
READ_ERRORS = (*ARCHIVE_ERRORS, OSError, TypeError, SyntaxError, KeyError, AttributeError, tokenize.TokenError)
VALUE_ERRORS = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)  # of values of another kind
DOWNLOAD_HINT = "; was it downloaded whole?"
# An archive may unpack to MAX_RATIO times its size (image files hardly compress, zip bombs by 1000), and a small
# one to MIN_LIMIT bytes.
MAX_RATIO, MIN_LIMIT = 100, 1 << 28
MAX_PADDING = 1 << 26  # zero bytes after the end of a tar file, which GNU tar pads to a multiple of 10 KB
MAX_LABEL_BYTES = 4096  # of a .cls or .txt file in a tar file
MAX_VALUE_BYTES = 1 << 12  # of one value of an array; numpy pads every text to the longest, and labels are short


def find_archive_kind(path: Path) -> str:
    """Return "tar" for a tar file without compression, "archive" for a zip or compressed tar file, else ""."""
    if zipfile.is_zipfile(path):
        return "archive"
    with path.open("rb") as file:
        if file.read(1) == b"\0":  # tarfile would skip zero blocks up to the end of the file; no archive has them
            return ""
    modes: dict[str, Literal["r:", "r:*"]] = {"tar": "r:", "archive": "r:*"}
    for kind, mode in modes.items():
        with contextlib.suppress(tarfile.TarError), tarfile.open(path, mode):
            return kind
    return ""


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a zip or tar file into a folder, and return the folder; links and devices are left out."""
    size = 0  # as declared; zipfile and tarfile read no more of a file than it declares
    disk = os_error_as_bad_input(f"could not unpack {archive} to {folder}")
    with disk, as_bad_input(ARCHIVE_ERRORS, f"{archive} cannot be unpacked", DOWNLOAD_HINT):
        folder.mkdir(parents=True, exist_ok=True)
        for name, file_size, file in _members(archive):
            size += file_size
            check_unpacked_size(archive, size)
            target = safe_join(folder, name, archive)
            target.parent.mkdir(parents=True, exist_ok=True)
            with file, target.open("wb") as out:
                shutil.copyfileobj(file, out)
    return folder


def check_unpacked_size(archive: Path, size: int) -> None:
    """Raise a BadInput if an archive unpacks to an implausible number of bytes."""
    if size > max(MIN_LIMIT, MAX_RATIO * archive.stat().st_size):
        raise BadInput(f"{archive} unpacks to {size >> 20} MB or more: that is no set of images.")


def safe_join(folder: Path, name: str, where: Path, follows_links: bool = False, hint: str = "") -> Path:
    """Return the path of an untrusted file name below a folder.

    Args:
        folder: The folder.
        name: A relative path.
        where: The file that the name stands in, for messages.
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


def _members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield the name, the declared size and the contents of each file."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zip_file:
            for entry in zip_file.infolist():
                if not entry.is_dir():
                    yield entry.filename, entry.file_size, zip_file.open(entry)
    else:
        with tarfile.open(archive) as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isfile() else None
                if file is not None:
                    yield str(PurePosixPath(member.name)), member.size, file
            _check_end(tar)


def _check_end(tar: tarfile.TarFile) -> None:
    """Raise a ReadError unless a tar file ends with blocks of zeros, as the format demands.

    tarfile takes a damaged header, or a cut between two files, for the end, and ignores what follows a block of zeros.
    """
    stream = tar.fileobj
    assert stream is not None
    stream.seek(tar.offset)
    if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("it does not end as a tar file does")
    after = 0
    while block := stream.read(1 << 20):  # reading to the end makes the decompressor compare its checksum
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
        A function that reads each file, by the parts of its path; and the text of each small .cls and .txt file, by the
        parts of its path without the suffix.
    """
    members: dict[tuple[str, ...], Callable[[], bytes]] = {}
    texts: dict[tuple[str, ...], str] = {}
    with as_bad_input(READ_ERRORS, f"{path} cannot be read", DOWNLOAD_HINT), tarfile.open(path, "r:") as tar:
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


# -------------------------------------------------------------------------------------------------------------- arrays


def read_npz(path: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Read all arrays of an .npz file, by name."""
    check_file(path)
    arrays = {}
    with as_bad_input(READ_ERRORS, f"{path} cannot be read", DOWNLOAD_HINT), zipfile.ZipFile(path) as archive:
        check_unpacked_size(path, sum(entry.file_size for entry in archive.infolist()))
        for entry in archive.infolist():
            if entry.filename.endswith(".npy"):
                with archive.open(entry) as file:
                    _check_header(file, entry.file_size)
                    file.seek(0)
                    name = entry.filename.removesuffix(".npy")
                    arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
                    file.read()  # reading to the end makes zipfile compare the checksum
    return arrays


def read_npy(path: Path) -> Shaped[np.ndarray, "..."]:
    """Open the array of an .npy file, which stays on disk until it is indexed."""
    check_file(path)
    with as_bad_input(READ_ERRORS, f"{path} cannot be read", DOWNLOAD_HINT):
        with path.open("rb") as file:
            _check_header(file, os.fstat(file.fileno()).st_size)
        return np.load(path, mmap_mode="r", allow_pickle=False)


def _check_header(file: io.IOBase | IO[bytes], size: int) -> None:
    """Raise a ValueError unless the array takes as many bytes as there are, and holds plain values."""
    version = np.lib.format.read_magic(file)
    read: Any = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never read")
    if dtype.itemsize > MAX_VALUE_BYTES:
        raise ValueError(f"its values are of {dtype.itemsize} bytes each: at most {MAX_VALUE_BYTES} are read")
    if any(side < 0 for side in shape) or math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError(f"it says {shape} values of {dtype}, and has {size - file.tell()} bytes")
