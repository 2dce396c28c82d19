"""A whole set in one .npz: labels, class_names, class_split, and images in one of three encodings.

raw      images: uint8 "image height width channel"
jpeg     blob and offsets: one JPEG per image
mosaic   blob and offsets: one JPEG sheet per class, of counts[class] tiles of side `tile`, `columns` to a row
"""

import io
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from anyshot.data.archives import check_zip
from anyshot.data.packing import Item, Source
from anyshot.data.store import SPLITS
from anyshot.errors import BadInput, choose

Read = Callable[[], bytes | np.ndarray]


def read_npz(path: Path) -> Source:
    """The images as they are: what was resized once is not resized again."""
    if not path.is_file():
        raise BadInput(f"there is no file {path}.")
    check_zip(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        encoding = str(arrays["encoding"]) if "encoding" in arrays else "raw"
        reads = choose("encoding", encoding, ENCODINGS)(arrays)
        labels, names, splits = (arrays[key] for key in ("labels", "class_names", "class_split"))
        if len(reads) != len(labels) or len(names) != len(splits) or not set(splits.tolist()) <= set(SPLITS):
            raise ValueError(f"{len(reads)} images, {len(labels)} labels, {len(names)} names, {len(splits)} splits")
        items = [
            Item(f"{path.name}[{index}]", str(names[label]), str(splits[label]), read)
            for index, (label, read) in enumerate(zip(labels.tolist(), reads, strict=True))
        ]
    except KeyError as error:
        raise BadInput(f"{path} has no {error}: labels, class_names and class_split are needed, and images.") from None
    except (ValueError, IndexError, OSError, EOFError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} does not fit together ({error}).") from None
    return Source(items, None)


def _raw(arrays: dict[str, Any]) -> list[Read]:
    images = arrays["images"]
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise ValueError(f"images are {images.dtype} {images.shape}, not uint8 (image, height, width, channel)")
    images = images if images.ndim == 4 else images[..., None]
    return [partial(images.__getitem__, index) for index in range(len(images))]


def _pieces(arrays: dict[str, Any]) -> list[np.ndarray]:
    blob, offsets = arrays["blob"], arrays["offsets"].astype(np.int64)
    if (np.diff(offsets) < 0).any() or offsets[0] < 0 or offsets[-1] > len(blob):
        raise ValueError("offsets do not lie in order inside the blob")
    return [blob[start:stop] for start, stop in pairwise(offsets)]


def _jpeg(arrays: dict[str, Any]) -> list[Read]:
    return [piece.tobytes for piece in _pieces(arrays)]


def _mosaic(arrays: dict[str, Any]) -> list[Read]:
    sheets, tile, columns = _pieces(arrays), int(arrays["tile"]), int(arrays["columns"])

    @lru_cache(maxsize=8)
    def decoded(number: int) -> UInt8[np.ndarray, "height width 3"]:
        return np.asarray(Image.open(io.BytesIO(sheets[number].tobytes())).convert("RGB"))

    def read(number: int, index: int) -> UInt8[np.ndarray, "tile tile 3"]:
        row, column = divmod(index, columns)
        cut = decoded(number)[row * tile : (row + 1) * tile, column * tile : (column + 1) * tile]
        if cut.shape != (tile, tile, 3):
            raise ValueError(f"the sheet has no tile {index}")
        return cut

    return [partial(read, number, index) for number, count in enumerate(arrays["counts"]) for index in range(count)]


ENCODINGS: dict[str, Callable[[dict[str, Any]], list[Read]]] = {"raw": _raw, "jpeg": _jpeg, "mosaic": _mosaic}
