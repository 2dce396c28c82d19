"""Files and folders appear whole or not at all: written aside, brought to the disk, then put in place in one step.

What is being written lies in a hidden room beside its place. A process holds its rooms by a lock that ends with it,
however it ends; so a room that nobody holds was left by a dead process, and whoever writes next to it clears it away.
"""

import contextlib
import ctypes
import errno
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anyshot.errors import BadInput, as_bad_input, os_error_as_bad_input

try:
    import fcntl
except ImportError:  # Windows: nothing is held, and nothing cleared away
    fcntl = None  # type: ignore[assignment]

STAGING_PREFIX = ".anyshot-"
MAX_FILE_BYTES = 1 << 28  # of a picture or a table
MAX_JSON_BYTES = 1 << 24  # its values take up to a hundred times as much memory


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write a file or folder to. On success it takes the place of `path`, and of a folder
    that is there: at every moment the old or the new one is there, whole. On failure it is removed."""
    try:
        path = Path(os.path.realpath(path)) if path.is_symlink() else path
        if path.exists() and not (path.is_file() or path.is_dir()):  # a file would take the place of /dev/null
            raise BadInput(f"could not write {path}: it is a device or a pipe; name a file.")
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)
        with _staging_folder(path.parent) as room:
            yield room / "new"
            is_inner = any(
                part.startswith(STAGING_PREFIX) for part in path.parts
            )  # whoever writes the folder around settles all
            if not is_inner:
                _fsync_tree(room / "new")
            _swap_into_place(room, path)
            if not is_inner:
                _fsync(path.parent)
    except OSError as error:
        raise BadInput(f"could not write {path}: {error.strerror or error}.") from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder, if need be, and hold it: whoever wants it too meanwhile is refused. The lock ends with us."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = _try_lock(folder)
    if descriptor is None:
        raise BadInput(f"another process is writing {folder}: wait for it, or choose another place.")
    try:
        yield
    finally:
        os.close(descriptor)


def move_into_place(new: Path, path: Path) -> None:
    """Put what is written where nothing is yet, in one step."""
    _fsync_tree(new)
    os.rename(new, path)
    _fsync(path.parent)


def _fsync_tree(path: Path) -> None:
    """Bring the bytes of a file, or of all files of a folder, to the disk: a rename may reach it before they do."""
    for folder, _, names in os.walk(path):
        for name in names:
            _fsync(Path(folder, name))
        _fsync(Path(folder))
    if path.is_file():
        _fsync(path)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some file systems cannot, of folders
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _try_lock(folder: Path) -> int | None:
    """What holds a folder for as long as it is open; None where another process does, or has just removed it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:  # a file system without locks: as if nobody else were there
        return descriptor
    os.close(descriptor)
    return None


@contextlib.contextmanager
def _staging_folder(parent: Path) -> Iterator[Path]:
    descriptor = None
    while descriptor is None:  # another may have cleared it away before we held it
        room = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, suffix=".part", dir=parent))
        descriptor = _try_lock(room)
    try:
        yield room
    finally:
        shutil.rmtree(room, ignore_errors=True)
        os.close(descriptor)


def remove_leftovers(parent: Path) -> None:
    """Remove what dead processes left; what one of them was about to replace is put back."""
    if fcntl is None:
        return
    for room in parent.glob(f"{STAGING_PREFIX}*.part"):
        with contextlib.suppress(OSError):
            if (descriptor := _try_lock(room)) is not None:
                for old in (room / "old").glob("*"):
                    if not (parent / old.name).exists():
                        os.rename(old, parent / old.name)
                shutil.rmtree(room, ignore_errors=True)
                os.close(descriptor)


def _swap_into_place(room: Path, path: Path) -> None:
    """Put what was written in its place; an older folder there goes into the room, which is about to be removed."""
    if not ((room / "new").is_dir() and path.exists()):
        os.replace(room / "new", path)
    elif not _exchange(room / "new", path):  # the next best: two steps, and `sweep` undoes the first alone
        (room / "old").mkdir()
        os.rename(path, room / "old" / path.name)
        os.rename(room / "new", path)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two paths in one step; False where the system cannot."""
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    sys.audit("os.rename", str(one), str(other), -1, -1)  # as the functions of os tell
    try:
        return ctypes.CDLL(None).renameat2(here, os.fsencode(one), here, os.fsencode(other), swap) == 0
    except (OSError, AttributeError, TypeError):  # another system or C library
        return False


def builtin_study_folders() -> list[Path]:
    """The folders that may hold the studies that come with anyshot: installed, and in the repository."""
    package = Path(__file__).resolve().parent
    return [folder for folder in (package / "studies", package.parents[1] / "studies") if folder.is_dir()]


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all; what of a name is no text (a file name may be any bytes) as \\udcXX."""
    with atomic_write(path) as aside:
        aside.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def check_file(path: Path) -> None:
    """Say so where there is no such file."""
    if not path.is_file():
        raise BadInput(f"there is no file {path}.")


def read_bytes(path: Path, most: int = MAX_FILE_BYTES) -> bytes:
    """The bytes of a plain file of at most so many; a pipe or a device, which may never end, is none."""
    how, missing = (
        os.O_RDONLY | getattr(os, "O_NONBLOCK", 0),
        as_bad_input(FileNotFoundError, f"there is no file {path}."),
    )
    with os_error_as_bad_input(f"could not read {path}"), missing, open(os.open(path, how), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise BadInput(f"{path} is no plain file.")
        if about.st_size > most:
            raise BadInput(f"{path} has {about.st_size >> 20} MB: at most {most >> 20} MB are read.")
        return file.read(most)


def read_text(path: Path, most: int = MAX_FILE_BYTES) -> str:
    """The text of a plain file in UTF-8."""
    with as_bad_input(UnicodeDecodeError, f"{path} is not a text file in UTF-8", "."):
        return read_bytes(path, most).decode("utf-8")


def read_json(path: Path, most: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The object in a JSON file."""
    with as_bad_input((ValueError, RecursionError), f"{path} is not a JSON file", "; was it cut short?"):
        value = json.loads(read_text(path, most))
    if not isinstance(value, dict):
        raise BadInput(f"{path} holds a {type(value).__name__}: an object with names was expected.")
    return value
