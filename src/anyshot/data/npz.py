"""Read a data set of images in one .npz file: labels, class_names, class_split, and images in one of three encodings.

raw      images: uint8 "image height width channel"
jpeg     blob and offsets: one JPEG per image
mosaic   blob and offsets: one JPEG sheet per class, of counts[class] tiles of side `tile`, `columns` to a row
"""

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from anyshot.data.archives import VALUE_ERRORS, read_npz
from anyshot.data.layout import PackOptions
from anyshot.data.pictures import decode_picture
from anyshot.data.source import Item, ReadPicture, Source
from anyshot.data.store import SPLITS
from anyshot.errors import BadInput, as_bad_input, look_up


def read_image_npz(path: Path, options: PackOptions, labelled: bool) -> Source:
    """List the images with their classes and splits; `pack` stores them without resizing them again."""
    arrays = read_npz(path)
    with as_bad_input(VALUE_ERRORS, f"{path} does not fit together", "."):
        readers = look_up("encoding", str(arrays.get("encoding", "raw")), ENCODINGS)(arrays)
        classes = _read_classes(arrays, path) if labelled else [("", None)] * len(readers)
        if len(readers) != len(classes):
            raise ValueError(f"{len(readers)} images, {len(classes)} labels")
    return Source(
        [
            Item(f"{path.name}[{index}]", *class_, read)
            for index, (class_, read) in enumerate(zip(classes, readers, strict=True))
        ],
        size=None,
    )


def _read_classes(arrays: dict[str, Any], path: Path) -> list[tuple[str, str | None]]:
    """Return the class name and the split of each image."""
    for name in {"labels", "class_names", "class_split"} - arrays.keys():
        raise BadInput(f"{path} has no {name!r}: labels, class_names and class_split are needed, and images.")
    labels, names, splits = (arrays[key] for key in ("labels", "class_names", "class_split"))
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or (labels < 0).any() or (labels >= len(names)).any():
        raise ValueError("a label is no index into class_names")
    if names.ndim != 1 or names.dtype.kind != "U" or names.shape != splits.shape or not {*splits.tolist()} <= {*SPLITS}:
        raise ValueError(f"class_names are not text, or class_split is not one of {', '.join(SPLITS)} for each")
    return [(str(names[label]), str(splits[label])) for label in labels]


def _read_raw(arrays: dict[str, Any]) -> list[ReadPicture]:
    images = arrays["images"]
    images = images[..., None] if images.ndim == 3 else images
    if images.dtype != np.uint8 or images.ndim != 4 or 0 in images.shape or images.shape[3] not in (1, 3):
        raise ValueError(f"images are {images.dtype} {images.shape}, not uint8 (image, height, width, 1 or 3 channels)")
    return [partial(images.__getitem__, index) for index in range(len(images))]


def _split_blob(arrays: dict[str, Any]) -> list[np.ndarray]:
    """Return the bytes between one offset and the next."""
    blob, offsets = arrays["blob"], arrays["offsets"].astype(np.int64)
    if blob.ndim != 1 or blob.dtype != np.uint8 or offsets.ndim != 1:
        raise ValueError("the blob is not a row of bytes, or its offsets are not a row of numbers")
    if (np.diff(offsets) < 0).any() or offsets[0] < 0 or offsets[-1] > len(blob):
        raise ValueError("offsets do not lie in order inside the blob")
    return [blob[start:stop] for start, stop in pairwise(offsets)]


def _read_mosaic(arrays: dict[str, Any]) -> list[ReadPicture]:
    sheets, tile, columns = _split_blob(arrays), int(arrays["tile"]), int(arrays["columns"])
    counts = arrays["counts"].astype(np.int64)
    fits = counts.shape == (len(sheets),) and counts.min() >= 0 and counts.sum() == len(arrays["labels"])
    if not fits or min(columns, tile) < 1:
        raise ValueError("the counts of its sheets are not those of its labels")

    @lru_cache(maxsize=8)
    def decode_sheet(number: int) -> UInt8[np.ndarray, "height width 3"]:
        return decode_picture(sheets[number].tobytes(), None, "crop")

    def read(number: int, index: int) -> UInt8[np.ndarray, "tile tile 3"]:
        row, column = divmod(index, columns)
        cut = decode_sheet(number)[row * tile : (row + 1) * tile, column * tile : (column + 1) * tile]
        if cut.shape != (tile, tile, 3):
            raise ValueError(f"the sheet has no tile {index}")
        return cut

    return [partial(read, number, index) for number, count in enumerate(counts) for index in range(count)]


ENCODINGS: dict[str, Callable[[dict[str, Any]], list[ReadPicture]]] = {
    "raw": _read_raw,
    "jpeg": lambda arrays: [piece.tobytes for piece in _split_blob(arrays)],
    "mosaic": _read_mosaic,
}
