"""Files and folders appear whole or not at all.

A write goes to a hidden staging folder beside its target, is flushed to disk, and is then renamed into place. The
writing process locks its staging folder; the lock ends with the process, however it ends. An unlocked staging folder
was left by a crash, and the next writer removes it.
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
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anyshot.errors import BadInput, MissingFile, as_bad_input, os_error_as_bad_input

try:
    import fcntl
except ImportError:  # Windows has no such locks: nothing is locked there, and no leftovers are removed.
    fcntl = None  # type: ignore[assignment]

CLASSIFIER_CONFIG = "config.json"  # in the folder of every classifier
STAGING_PREFIX = ".anyshot-"
MAX_FILE_BYTES = 1 << 28  # of a picture or a table
MAX_JSON_BYTES = 1 << 24  # parsed values take up to a hundred times as much memory
_lock_holders: set[tuple[str, int]] = set()  # folders that this process has locked, and the thread that did


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write a file or folder to; on success it replaces `path` in one step.

    A reader sees the old or the new one at every moment, never a part. On failure nothing changes.

    Raises:
        BadInput: If `path` is a device or a pipe, or the system refuses the write.
    """
    with os_error_as_bad_input(f"could not write {path}"):
        path = Path(os.path.realpath(path)) if path.is_symlink() else path
        if path.exists() and not (path.is_file() or path.is_dir()):  # a file would take the place of /dev/null
            raise BadInput(f"could not write {path}: it is a device or a pipe; name a file.")
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)
        with staging_folder(path.parent) as staging:
            yield staging / "new"
            # Inside another staging folder, the writer of the outer folder flushes everything to disk.
            is_nested = any(part.startswith(STAGING_PREFIX) for part in path.parts)
            if not is_nested:
                _fsync_tree(staging / "new")
            _swap_into_place(staging, path)
            if not is_nested:
                _fsync(path.parent)


@contextlib.contextmanager
def locked(folder: Path, *, is_reentrant: bool = False) -> Iterator[None]:
    """Hold the lock of a folder, which is created if necessary; the lock ends with this process.

    Args:
        folder: The folder.
        is_reentrant: Whether a thread that holds the lock may take it again.

    Raises:
        BadInput: If the lock is held.
    """
    folder.mkdir(parents=True, exist_ok=True)
    holder = os.path.realpath(folder), threading.get_ident()
    if is_reentrant and holder in _lock_holders:
        yield
        return
    descriptor = _try_lock(folder)
    if descriptor is None:
        raise BadInput(f"another process is writing {folder}: wait for it, or choose another place.")
    _lock_holders.add(holder)
    try:
        yield
    finally:
        _lock_holders.remove(holder)
        os.close(descriptor)


def lock_existing(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Return the lock of a folder that will be read and then written; a new folder is locked when it is written."""
    return locked(folder) if folder.is_dir() else contextlib.nullcontext()


def move_into_place(new: Path, path: Path) -> None:
    """Flush a file or folder to disk and rename it to `path`, where nothing exists yet."""
    _fsync_tree(new)
    os.rename(new, path)
    _fsync(path.parent)


def remove_leftovers(parent: Path) -> None:
    """Remove staging folders of crashed processes; put back what one of them was about to replace."""
    if fcntl is None:
        return
    for staging in parent.glob(f"{STAGING_PREFIX}*.part"):
        with contextlib.suppress(OSError):
            if (descriptor := _try_lock(staging)) is not None:
                for old in (staging / "old").glob("*"):
                    if not (parent / old.name).exists():
                        os.rename(old, parent / old.name)
                shutil.rmtree(staging, ignore_errors=True)
                os.close(descriptor)


def _fsync_tree(path: Path) -> None:
    """Flush a file, or all files of a folder, to disk: otherwise a rename may get there before the contents do."""
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
    except OSError as error:  # Some file systems cannot do this for folders.
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _try_lock(folder: Path) -> int | None:
    """Return a descriptor that locks the folder while it is open; None if another process locked or removed it."""
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
    except OSError:  # A file system without locks: as if no other process were there.
        return descriptor
    os.close(descriptor)
    return None


@contextlib.contextmanager
def staging_folder(parent: Path) -> Iterator[Path]:
    """Yield a hidden folder to write to, which is removed afterwards, or by the next writer if this process dies."""
    descriptor = None
    while descriptor is None:  # Another process may have removed it before we locked it.
        staging = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, suffix=".part", dir=parent))
        descriptor = _try_lock(staging)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        os.close(descriptor)


def _swap_into_place(staging: Path, path: Path) -> None:
    """Rename what was written to its place; an older folder goes into the staging folder, which is removed next."""
    if not ((staging / "new").is_dir() and path.exists()):
        os.replace(staging / "new", path)
    elif not _exchange(staging / "new", path):  # Two renames; `remove_leftovers` undoes the first one alone.
        (staging / "old").mkdir()
        os.rename(path, staging / "old" / path.name)
        os.rename(staging / "new", path)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two paths in one step (Linux, renameat2); return False where the system cannot."""
    current_folder, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    sys.audit("os.rename", str(one), str(other), -1, -1)  # as the functions of os do
    try:
        call = ctypes.CDLL(None).renameat2
        return call(current_folder, os.fsencode(one), current_folder, os.fsencode(other), exchange) == 0
    except (OSError, AttributeError, TypeError):
        return False


def builtin_study_folders() -> list[Path]:
    """Return the folders that may hold the studies of the package: when installed, and in the repository."""
    package = Path(__file__).resolve().parent
    return [folder for folder in (package / "studies", package.parents[1] / "studies") if folder.is_dir()]


def find_builtin_models() -> dict[str, Path]:
    """Return the folders of the trained models that come with anyshot, by their names with and without their ids."""
    folders = [
        file.parent
        for studies in builtin_study_folders()
        for file in sorted(studies.glob("ready/*/*/model.safetensors"))
    ]
    return {name: folder for folder in folders for name in (folder.name, folder.name.rpartition("-")[0])}


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, atomically; bytes of file names that are no text are written as escapes."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def check_file(path: Path) -> None:
    """Raise MissingFile if there is no such file."""
    if not path.is_file():
        raise MissingFile(f"there is no file {path}.")


def check_source(path: Path) -> None:
    """Raise BadInput if there is no file or folder at a path, or only a pipe or a device."""
    if not path.is_dir() and not path.is_file():
        raise BadInput(f"there is no file or folder {path}.")


def check_classifier(folder: Path) -> None:
    """Raise MissingFile if a folder holds no classifier."""
    if not (folder / CLASSIFIER_CONFIG).is_file():
        raise MissingFile(f"there is no classifier {folder}: name a folder that `anyshot fit` made.")


def read_bytes(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the bytes of a regular file; pipes and devices, which may never end, are refused.

    Raises:
        MissingFile: If there is no such file.
        BadInput: If it is no regular file, too large, or may not be read.
    """
    with os_error_as_bad_input(f"could not read {path}"):
        if not path.exists():
            raise MissingFile(f"there is no file {path}.")
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)  # to open a pipe must not wait for its other end
        with open(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BadInput(f"{path} is not a regular file.")
            if status.st_size > max_bytes:
                raise BadInput(f"{path} has {status.st_size >> 20} MB: at most {max_bytes >> 20} MB are read.")
            return file.read(max_bytes)


def read_text(path: Path, max_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the text of a regular file in UTF-8."""
    with as_bad_input(UnicodeDecodeError, f"{path} is not a text file in UTF-8", "."):
        return read_bytes(path, max_bytes).decode("utf-8")


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return the object in a JSON file; a key that stands twice in an object is refused."""
    with as_bad_input((ValueError, RecursionError), f"{path} is not a JSON file", "; was it cut short?"):
        value = json.loads(read_text(path, max_bytes), object_pairs_hook=_unique_keys)
    if not isinstance(value, dict):
        raise BadInput(f"{path} holds a {type(value).__name__}: an object with names was expected.")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key stands twice in an object")
    return value
