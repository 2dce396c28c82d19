"""A cache of features on disk, by hashes of the picture and of the network.

    FOLDER/NETWORK/*.safetensors    keys, features and checksums of up to 1024 pictures

Files are written atomically and never changed, so any number of processes may share the folder. Features in a file or
a row that is damaged in any way count as missing and are computed anew. When the folder outgrows its limit, the least
recently used files are removed. Where the folder cannot be read or written, nothing is cached, and nothing fails.
"""

import contextlib
import os
import threading
import uuid
import zlib
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from anyshot.errors import BadInput
from anyshot.files import atomic_write

LIMIT = 2_000_000_000  # bytes of the cache: some 380,000 pictures of the default network
ROWS = 1024  # most pictures of a file: 5 MB with the default network
UNREADABLE = (SafetensorError, OSError, ValueError, IndexError)
Features = Float[np.ndarray, "..."]


def cache_folder() -> Path:
    """Return the folder of the cache: $ANYSHOT_CACHE, or the user's folder for caches."""
    if named := os.environ.get("ANYSHOT_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anyshot" / "features"


def hash_picture(data: bytes | np.ndarray, *preparation: object) -> bytes:
    """Return the key of a picture: a hash of its bytes or pixels, and of how it is prepared (its box)."""
    digest = blake2b(digest_size=16)
    if isinstance(data, np.ndarray):
        digest.update(f"{data.dtype.str} {data.shape}".encode())
        data = np.ascontiguousarray(data).tobytes()
    digest.update(data)
    digest.update(repr(preparation).encode())
    return digest.digest()


class FeatureCache:
    """A folder of features.

    Args:
        folder: Where they are; `cache_folder()` by default.
        limit: Bytes that the folder may hold.
    """

    def __init__(self, folder: Path | None = None, limit: int = LIMIT) -> None:
        self.folder, self.limit = folder or cache_folder(), limit

    @contextlib.contextmanager
    def open(self, network: str, shape: Callable[[], tuple[int, ...]] | None = None) -> "Iterator[CachedFeatures]":
        """Open the features of one network; what was added is written at the end, also after an exception.

        Args:
            network: The fingerprint of the network.
            shape: Returns the shape of the network's features of one picture; called only if there are cached ones.
        """
        cached = CachedFeatures(self, network, shape)
        try:
            yield cached
        finally:
            cached.flush()

    def shrink(self) -> None:
        """Remove the least recently used files until the folder is within its limit."""
        files: list[tuple[float, int, Path]] = []
        for path in list_files(self.folder, "*/*.safetensors"):
            with contextlib.suppress(OSError):  # another process may have removed it
                files.append((path.stat().st_mtime, path.stat().st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.limit:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size


def list_files(folder: Path, pattern: str) -> list[Path]:
    """Return the plain files of a folder; none where it cannot be read."""
    try:
        return sorted(path for path in folder.glob(pattern) if path.is_file())
    except OSError:
        return []


class CachedFeatures:
    """The features of one network in a cache; threads may share it."""

    def __init__(self, cache: FeatureCache, network: str, shape: Callable[[], tuple[int, ...]] | None = None) -> None:
        self._cache, self._folder = cache, cache.folder / network
        self._places: dict[bytes, tuple[Path, int]] = {}  # the file and the row of each key
        self._new: dict[bytes, Features] = {}
        self._lock = threading.Lock()
        paths = list_files(self._folder, "*.safetensors")
        expected = list(shape()) if paths and shape is not None else None
        for path in paths:
            with contextlib.suppress(*UNREADABLE), safe_open(path, framework="np") as file:
                if expected is None or file.get_slice("features").get_shape()[1:] == expected:
                    self._places |= {key.tobytes(): (path, row) for row, key in enumerate(file.get_tensor("keys"))}

    def get(self, key: bytes) -> Features | None:
        """Return the features of a picture; None where they are missing or damaged."""
        with self._lock:
            if key in self._new:
                return self._new[key]
            if key not in self._places:
                return None
            path, row = self._places[key]
            with contextlib.suppress(OSError):  # the cache of another user may be read-only
                os.utime(path)
            try:
                with safe_open(path, framework="np") as file:
                    features = file.get_slice("features")[row : row + 1][0]
                    checksum = int(file.get_slice("checksums")[row : row + 1][0])
            except UNREADABLE:
                return None
        is_valid = _checksum(key, features) == checksum and features.dtype.kind == "f" and np.isfinite(features).all()
        return features if is_valid else None

    def add(self, key: bytes, features: Features) -> None:
        """Add the features of a picture; they are written to disk some at a time."""
        with self._lock:
            self._new[key] = np.ascontiguousarray(features)
            is_full = len(self._new) >= ROWS
        if is_full:
            self.flush()

    def flush(self) -> None:
        """Write the added features, one file for each shape and type; do nothing where that is impossible."""
        with self._lock:
            rows, self._new = self._new, {}
            for kind in {(row.shape, row.dtype) for row in rows.values()}:
                self._write({key: row for key, row in rows.items() if (row.shape, row.dtype) == kind})
        if rows:
            self._cache.shrink()

    def _write(self, rows: dict[bytes, Features]) -> None:
        keys = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)
        checksums = np.array([_checksum(key, row) for key, row in rows.items()], np.uint32)
        data = save({"keys": keys, "checksums": checksums, "features": np.stack(list(rows.values()))})
        path = self._folder / f"{uuid.uuid4().hex}.safetensors"
        with contextlib.suppress(BadInput, OSError, SafetensorError):
            with atomic_write(path) as temporary:
                temporary.write_bytes(data)
            self._places |= {key: (path, row) for row, key in enumerate(rows)}


def _checksum(key: bytes, features: Features) -> int:
    return zlib.crc32(features.tobytes(), zlib.crc32(key))
