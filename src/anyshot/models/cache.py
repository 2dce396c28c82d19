"""Features that were computed once, kept by the content of the picture and of what embedded it.

    FOLDER/BACKBONE/*.safetensors    the keys of some pictures, their features, a checksum of each

Files appear whole and are never changed, so any number of processes may share the folder and one that is killed leaves
nothing broken. A file that is cut short or gone, a row whose checksum does not fit: such features are not there, and
computed anew. Where the folder outgrows its bound, the files go that were not used for longest.
"""

import contextlib
import os
import threading
import time
import uuid
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from anyshot.errors import BadInput
from anyshot.files import atomic_write

BOUND = 2_000_000_000  # bytes: some 380,000 pictures of 1280 numbers
ROWS = 1024  # of a file, at most
MOST_OPEN = 4  # files that are in memory as far as they were read
FORGOTTEN = 86_400.0  # seconds after which a file that was never finished is removed
Features = Float[np.ndarray, "..."]


def cache_folder() -> Path:
    """Where features are kept unless another folder is named: $ANYSHOT_CACHE, or the user's folder for such things."""
    if named := os.environ.get("ANYSHOT_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anyshot" / "features"


def hash_picture(data: bytes | np.ndarray, *how: object) -> bytes:
    """What a picture is known by: its bytes, or its pixels and their shape, and what else its features depend on."""
    digest = blake2b(digest_size=16)
    if isinstance(data, np.ndarray):
        digest.update(f"{data.dtype.str} {data.shape}".encode())
        data = np.ascontiguousarray(data).tobytes()
    digest.update(data)
    digest.update(repr(how).encode())
    return digest.digest()


class FeatureCache:
    """A folder of features.

    Args:
        folder: Where they lie; `cache_folder()` where None.
        bound: Bytes that the folder may hold.
    """

    def __init__(self, folder: Path | None = None, bound: int = BOUND) -> None:
        self.folder, self.bound = folder or cache_folder(), bound

    @contextlib.contextmanager
    def of(self, backbone: str) -> "Iterator[CachedFeatures]":
        """The features of one backbone, by the hash of its content; those that are added are kept at the end, however
        it comes."""
        stored = CachedFeatures(self, backbone)
        try:
            yield stored
        finally:
            stored.flush()

    def shrink(self) -> None:
        """Remove the files that were not used for longest, until the folder is within its bound."""
        files: list[tuple[float, int, Path]] = []
        for path in self.folder.glob("*/*"):
            with contextlib.suppress(OSError):  # another process may have removed it
                about = path.stat()
                if path.suffix == ".safetensors":
                    files.append((about.st_mtime, about.st_size, path))
                elif path.suffix == ".part" and time.time() - about.st_mtime > FORGOTTEN:
                    path.unlink()
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.bound:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size


class CachedFeatures:
    """The features of one backbone in a cache; threads may share it."""

    def __init__(self, cache: FeatureCache, backbone: str) -> None:
        self._cache, self._folder = cache, cache.folder / backbone
        self._files: list[Path] = []
        self._open: dict[int, Any] = {}
        self._places: dict[bytes, tuple[int, int]] = {}
        self._used: set[int] = set()
        self._new: dict[bytes, Features] = {}
        self._lock = threading.Lock()
        for path in sorted(self._folder.glob("*.safetensors")):
            with contextlib.suppress(SafetensorError, OSError, ValueError):
                keys = safe_open(path, framework="np").get_tensor("keys")
                for row, key in enumerate(keys):
                    self._places[key.tobytes()] = len(self._files), row
                self._files.append(path)

    def get(self, key: bytes) -> Features | None:
        """The features of a picture, where they are there and whole."""
        with self._lock:
            if key in self._new:
                return self._new[key]
            if key not in self._places:
                return None
            number, row = self._places[key]
            if number not in self._used:
                self._used.add(number)
                with contextlib.suppress(OSError):
                    os.utime(self._files[number])
            try:
                file = self._file(number)
                features = file.get_slice("features")[row : row + 1][0]
                checksum = int(file.get_slice("checksums")[row : row + 1][0])
            except (SafetensorError, OSError, ValueError, IndexError):
                return None
        return features if zlib.crc32(features.tobytes(), zlib.crc32(key)) == checksum else None

    def _file(self, number: int) -> Any:
        """An open file. What is read of it stays in memory until it is closed, so that few are open: neighbours among
        pictures are mostly neighbours in a file."""
        if number not in self._open:
            if len(self._open) == MOST_OPEN:
                del self._open[next(iter(self._open))]
            self._open[number] = safe_open(self._files[number], framework="np")
        return self._open[number]

    def add(self, key: bytes, features: Features) -> None:
        """Keep the features of a picture."""
        with self._lock:
            self._new[key] = np.ascontiguousarray(features)
            full = len(self._new) >= ROWS
        if full:
            self.flush()

    def flush(self) -> None:
        """Write what was added; where it cannot be written, it is not kept."""
        with self._lock:
            rows, self._new = self._new, {}
            for shape in {(row.shape, row.dtype) for row in rows.values()}:
                self._write({key: row for key, row in rows.items() if (row.shape, row.dtype) == shape})
        if rows:
            self._cache.shrink()

    def _write(self, rows: dict[bytes, Features]) -> None:
        keys = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)
        checksums = np.array([zlib.crc32(row.tobytes(), zlib.crc32(key)) for key, row in rows.items()], np.uint32)
        data = save({"keys": keys, "checksums": checksums, "features": np.stack(list(rows.values()))})
        path = self._folder / f"{uuid.uuid4().hex}.safetensors"
        with contextlib.suppress(BadInput, OSError, SafetensorError):
            with atomic_write(path) as aside:
                aside.write_bytes(data)
            for row, key in enumerate(rows):
                self._places[key] = len(self._files), row
            self._files.append(path)
