"""Own embeddings: vectors and labels from .npy, .npz, .safetensors or Parquet to a feature store.

Vectors are "image channel", or "image position channel", or maps "image channel height width" as networks give them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.numpy import load_file

from anyshot.data.arrays import read_npy, read_npz
from anyshot.data.packer import number_classes, order_labels
from anyshot.data.shards import is_shards, memory_map_shards, read_shards
from anyshot.data.store import Store, write_store
from anyshot.data.tables import LABELS, Columns, check_labels, decode_text, pick_column, read_columns, read_splits
from anyshot.errors import BadInput, as_bad_input, look_up
from anyshot.files import check_file, read_text

VECTORS = ("features", "embeddings", "embedding", "vectors", "x", "feature", "vector")


@dataclass(frozen=True)
class Embeddings:
    """Vectors, the class name of each, and its split where the file says so."""

    features: Float[np.ndarray, "image position channel"]
    labels: list[str]
    splits: list[str | None]


def read_feature_file(
    path: Path, labels: Path | None = None, feature_column: str = "", label_column: str = "", split_column: str = ""
) -> Embeddings:
    """Vectors with labels from the same file, or from a second one (`labels`: .npy, or text, one label per line)."""
    if is_shards(path) and labels is None:
        shards = list(read_shards(path))
        names = [label for shard in shards for label in shard.labels]
        return Embeddings(
            memory_map_shards(path, range(len(names))), names, [split for one in shards for split in one.splits]
        )
    columns = _columns(path)
    vectors = _stack(pick_column(columns, feature_column, VECTORS, "feature", path), path)
    others = {name: values for name, values in columns.items() if len(values) == len(vectors)}
    names = pick_column(others, label_column, LABELS, "label", path) if labels is None else _label_file(labels)
    if len(names) != len(vectors):
        raise BadInput(f"{path} has {len(vectors)} vectors, but there are {len(names)} labels.")
    splits = read_splits({**others, "": names}, split_column, path)
    return Embeddings(vectors, check_labels([decode_text(name) for name in names], labels or path), splits)


def read_vectors(path: Path, feature_column: str = "") -> Float[np.ndarray, "image position channel"]:
    """Vectors alone, whatever else the file holds."""
    return _stack(pick_column(_columns(path), feature_column, VECTORS, "feature", path), path)


def _columns(path: Path) -> Columns:
    check_file(path)
    columns = look_up("kind of embedding file", path.suffix.lower(), READERS)(path)
    single = [name for name, values in columns.items() if isinstance(values, np.ndarray) and not values.ndim]
    return {name: values for name, values in columns.items() if name not in single}


def pack_features(embeddings: Embeddings, out: Path, fractions: Sequence[int | float], seed: int) -> Store:
    """Write the vectors in order of split, then class."""
    order, placed = order_labels(embeddings.labels, embeddings.splits, fractions, seed)
    chunks = (embeddings.features[order[start : start + 4096]] for start in range(0, len(order), 4096))
    return write_store(out, chunks, *number_classes(placed), names=[f"row {item.name}" for item in placed], notes=[])


def _stack(values: Any, path: Path) -> Float[np.ndarray, "image position channel"]:
    uneven = f"the vectors of {path} are not numbers, or not all as long as each other."
    with as_bad_input((ValueError, TypeError, OverflowError), uneven):
        if isinstance(values, np.ndarray) and values.dtype.kind not in "fiu":
            raise TypeError
        vectors = np.asarray(values, np.float32)
    if vectors.ndim == 2:
        vectors = vectors[:, None]
    elif vectors.ndim == 4:
        vectors = vectors.reshape(*vectors.shape[:2], -1).transpose(0, 2, 1)
    if vectors.ndim != 3 or 0 in vectors.shape:
        raise BadInput(f"the vectors of {path} have the shape {vectors.shape}: (image, channel) was expected.")
    if not np.isfinite(vectors).all():
        bad = int((~np.isfinite(vectors)).any((1, 2)).argmax())
        raise BadInput(f"vector {bad} of {path} has values that are not finite.")
    return np.ascontiguousarray(vectors)


def _label_file(path: Path) -> Any:
    if path.suffix == ".npy":
        return list(np.atleast_1d(read_npy(path)))
    return read_text(path).splitlines()


def _safetensors(path: Path) -> Columns:
    unreadable = (SafetensorError, OSError, TypeError, KeyError, ValueError, AttributeError)
    with as_bad_input(unreadable, f"{path} cannot be read", "."):
        return load_file(path)


READERS: dict[str, Callable[[Path], Mapping[str, Any]]] = {
    ".npy": lambda path: {"features": read_npy(path)},
    ".npz": read_npz,
    ".safetensors": _safetensors,
    ".parquet": read_columns,
    ".pq": read_columns,
}
