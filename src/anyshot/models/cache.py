"""A cache of features on disk, by hashes of the picture and of the network.

    FOLDER/NETWORK/KEY.bin    the features of one picture: four bytes of a checksum, then the contents of an .npy file

Files are written atomically and never changed, so any number of threads and processes may share the folder. Features in
a file that is damaged in any way count as missing and are computed anew. When the folder outgrows its limit, the least
recently used files are removed. Where the folder cannot be read or written, nothing is cached, and nothing fails.
"""

import contextlib
import io
import os
import uuid
import zlib
from hashlib import blake2b
from pathlib import Path

import numpy as np
from jaxtyping import Float

from anyshot.files import read_bytes

LIMIT = 2_000_000_000  # bytes of the cache: some 390,000 pictures of the default network
Features = Float[np.ndarray, "..."]


def cache_folder() -> Path:
    """Return the folder of the cache: $ANYSHOT_CACHE, or the user's folder for caches."""
    if folder := os.environ.get("ANYSHOT_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anyshot" / "features"


def hash_picture(data: bytes | np.ndarray, *preparation: object) -> str:
    """Return the key of a picture: a hash of its bytes or pixels, and of how it is prepared (its box)."""
    digest = blake2b(digest_size=16)
    if isinstance(data, np.ndarray):
        digest.update(f"{data.dtype.str} {data.shape}".encode())
        data = np.ascontiguousarray(data).tobytes()
    digest.update(data)
    digest.update(repr(preparation).encode())
    return digest.hexdigest()


class FeatureCache:
    """A folder of features.

    Args:
        folder: Where they are; `cache_folder()` by default.
        limit: Bytes that the folder may hold.
    """

    def __init__(self, folder: Path | None = None, limit: int = LIMIT) -> None:
        self.folder, self.limit = folder or cache_folder(), limit
        self._room = 0  # bytes that can be added before the folder has to be looked at

    def get(self, network: str, key: str) -> Features | None:
        """Return the features of a picture; None where they are missing, damaged or not finite.

        Args:
            network: The fingerprint of the network.
            key: The hash of the picture.
        """
        path = self.folder / network / f"{key}.bin"
        with contextlib.suppress(Exception):  # a damaged file can fail in any way
            data = read_bytes(path)
            with contextlib.suppress(OSError):  # the cache of another user may be read-only
                os.utime(path)
            features = np.load(io.BytesIO(data[4:]), allow_pickle=False)
            if data[:4] == _checksum(key, data[4:]) and np.isfinite(features).all():
                return features
        return None

    def add(self, network: str, key: str, features: Features) -> None:
        """Write the features of a picture; do nothing where that is impossible."""
        file = io.BytesIO()
        np.save(file, features)
        data = file.getvalue()
        with contextlib.suppress(OSError):
            (self.folder / network).mkdir(parents=True, exist_ok=True)
            temporary = self.folder / network / f"{uuid.uuid4().hex}.part"
            temporary.write_bytes(_checksum(key, data) + data)
            os.replace(temporary, self.folder / network / f"{key}.bin")
            self._room -= len(data)
            if self._room < 0:
                self.shrink()

    def shrink(self) -> None:
        """Remove the least recently used files where the folder is beyond its limit, to nine tenths of that."""
        files = []
        with contextlib.suppress(OSError):  # the folder cannot be read
            for path in self.folder.glob("*/*"):
                with contextlib.suppress(OSError):  # another process has removed it
                    files.append((path.stat().st_mtime, path.stat().st_size, path))
        total = sum(size for _, size, _ in files)
        target = self.limit if total <= self.limit else 0.9 * self.limit
        for _, size, path in sorted(files):
            if total <= target:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
        self._room = self.limit - total


def _checksum(key: str, data: bytes) -> bytes:
    return zlib.crc32(data, zlib.crc32(key.encode())).to_bytes(4, "little")
