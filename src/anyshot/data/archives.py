"""Archives from the internet: unpacked file by file, inside their folder, as far as their size is plausible."""

import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from anyshot.errors import BadInput

# Images hardly compress. A thousandfold, as in a zip bomb, is never a data set; small files may do as they like.
LARGEST_RATIO, ALWAYS_FINE = 100, 1 << 30


def is_archive(path: Path) -> bool:
    """Whether a path is a zip or tar file."""
    return path.is_file() and (zipfile.is_zipfile(path) or tarfile.is_tarfile(path))


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a zip or tar file into `folder` and return it; links and devices are left out."""
    limit = max(ALWAYS_FINE, LARGEST_RATIO * archive.stat().st_size)
    written = 0
    try:
        for name, file in _members(archive):
            target = inside(folder, name, archive)
            target.parent.mkdir(parents=True, exist_ok=True)
            with file, target.open("wb") as out:
                while block := file.read(1 << 20):
                    written += len(block)
                    if written > limit:
                        raise BadInput(f"{archive} unpacks to more than {limit >> 20} MB: that is no set of images.")
                    out.write(block)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise BadInput(f"{archive} cannot be unpacked ({error}); was it downloaded whole?") from None
    except OSError as error:
        raise BadInput(f"could not unpack {archive} to {folder}: {error.strerror or error}.") from error
    return folder


def inside(folder: Path, name: str, where: Path) -> Path:
    """The path `name` below `folder`; a BadInput if it leads out of it."""
    path = (folder / name).resolve()
    if "\0" in name or not path.is_relative_to(folder.resolve()):
        raise BadInput(f"{where} names {name!r}, which lies outside {folder}.")
    return path


def check_zip(path: Path) -> None:
    """Refuse a zip file (.npz is one) that declares an implausible size."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, OSError) as error:
        raise BadInput(f"{path} cannot be read ({error}); was it downloaded whole?") from None
    if size > max(ALWAYS_FINE, LARGEST_RATIO * path.stat().st_size):
        raise BadInput(f"{path} unpacks to {size >> 20} MB: that is no set of images.")


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as bundle:
            for entry in bundle.infolist():
                if not entry.is_dir():
                    yield entry.filename, bundle.open(entry)
    else:
        with tarfile.open(archive) as bundle_:
            for member in bundle_:
                file = bundle_.extractfile(member) if member.isfile() else None
                if file is not None:
                    yield str(PurePosixPath(member.name)), file
