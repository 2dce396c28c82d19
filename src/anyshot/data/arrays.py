"""Read .npy and .npz files that are not trusted: nothing is unpickled, and the header is checked before the data."""

import io
import math
import os
import tokenize
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import Shaped

from anyshot.data.archives import ARCHIVE_ERRORS, DOWNLOAD_HINT, check_unpacked_size
from anyshot.errors import as_bad_input
from anyshot.files import check_file

MAX_VALUE_BYTES = 1 << 12  # of one value; numpy pads every text of an array to the longest, and labels are short


def read_npz(path: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Read all arrays of an .npz file, by name."""
    check_file(path)
    arrays = {}
    with as_bad_input(_READ_ERRORS, f"{path} cannot be read", DOWNLOAD_HINT), zipfile.ZipFile(path) as archive:
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
    with as_bad_input(_READ_ERRORS, f"{path} cannot be read", DOWNLOAD_HINT):
        with path.open("rb") as file:
            _check_header(file, os.fstat(file.fileno()).st_size)
        return np.load(path, mmap_mode="r", allow_pickle=False)


_READ_ERRORS = (*ARCHIVE_ERRORS, OSError, TypeError, SyntaxError, KeyError, AttributeError, tokenize.TokenError)


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
