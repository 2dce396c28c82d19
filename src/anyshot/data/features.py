"""Features with labels on disk: plain files (.npz, .npy, .safetensors, Parquet), and folders of shards for millions.

Features are vectors "image channel", maps "image position channel", or maps "image channel height width".

    FEATURES/shards.json                what was embedded, by what, and how many shards there are
    FEATURES/shard-00000.safetensors    features, labels, names and splits of 1,024 pictures; those that could not be
                                        read are named with the reason
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from anyshot.data.arrays import read_npy, read_npz
from anyshot.data.source import Item, Source, order_by_split
from anyshot.data.tables import (
    LABELS,
    Columns,
    check_labels,
    decode_text,
    open_parquet,
    pick_column,
    read_columns,
    read_splits,
)
from anyshot.errors import BadInput, as_bad_input, look_up
from anyshot.files import atomic_write, check_file, read_json, read_text

VECTORS = ("features", "embeddings", "embedding", "vectors", "x", "feature", "vector")
SHARDS = "shards.json"
Features = Float[np.ndarray, "image position channel"]

# -------------------------------------------------------------------------------------------------------- plain files


def read_feature_file(
    path: Path,
    labels: Path | None = None,
    feature_column: str = "",
    label_column: str = "",
    split_column: str = "",
    labelled: bool = True,
) -> Source:
    """Read vectors with their labels.

    Args:
        path: The file: arrays or columns by name.
        labels: A second file with the labels: .npy, or text with one label per line.
        feature_column: The array or column of vectors.
        label_column: The array or column of class names.
        split_column: The array or column of splits.
        labelled: Whether labels are needed; without, only the vectors are read.
    """
    columns = _read_arrays(path)
    vectors = _check_vectors(pick_column(columns, feature_column, VECTORS, "feature", path), path)
    if not labelled:
        many = len(vectors) > 1
        return Source(
            [Item(f"{path.name}[{i}]" if many else path.name, "") for i in range(len(vectors))], features=vectors
        )
    others = {name: values for name, values in columns.items() if len(values) == len(vectors)}
    given = pick_column(others, label_column, LABELS, "label", path) if labels is None else _read_label_file(labels)
    if len(given) != len(vectors):
        raise BadInput(f"{path} has {len(vectors)} vectors, but there are {len(given)} labels.")
    class_names = check_labels([decode_text(name) for name in given], labels or path)
    splits = read_splits({**others, "": given}, split_column, path)
    names = [str(decode_text(name)) for name in others.get("names", ())] or [f"row {i}" for i in range(len(vectors))]
    return Source([Item(*row) for row in zip(names, class_names, splits, strict=True)], features=vectors)


def write_feature_file(path: Path, source: Source) -> None:
    """Write features with labels, names and splits as plain arrays (.npz) or columns (.parquet)."""
    vectors = source.features[:, 0] if source.features.ndim == 3 and source.features.shape[1] == 1 else source.features
    columns: dict[str, Any] = {"labels": source.labels, "names": source.names}
    if any(source.splits):
        columns["split"] = [split or "train" for split in source.splits]
    with atomic_write(path) as aside:
        if path.suffix.lower() == ".npz":
            with aside.open("wb") as file:
                arrays: dict[str, Any] = {name: np.array(values) for name, values in columns.items()}
                np.savez(file, features=vectors, **arrays)
            return
        if vectors.ndim != 2:
            raise BadInput(
                f"{path} can hold one vector per picture, and these are maps of {vectors.shape[1]}: use .npz."
            )
        with open_parquet(path) as pyarrow:
            flat = pyarrow.array(np.ascontiguousarray(vectors).ravel())
            rows = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
            pyarrow.parquet.write_table(pyarrow.table({"features": rows, **columns}), aside)


def _read_arrays(path: Path) -> Columns:
    """Return the arrays or columns of a file that have one value per example."""
    check_file(path)
    columns = look_up("kind of embedding file", path.suffix.lower(), FILE_READERS)(path)
    return {name: values for name, values in columns.items() if not isinstance(values, np.ndarray) or values.ndim}


def _check_vectors(values: Any, path: Path) -> Features:
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


def _read_label_file(path: Path) -> Any:
    if path.suffix == ".npy":
        return list(np.atleast_1d(read_npy(path)))
    return read_text(path).splitlines()


def _read_safetensors(path: Path) -> Columns:
    unreadable = (SafetensorError, OSError, TypeError, KeyError, ValueError, AttributeError)
    with as_bad_input(unreadable, f"{path} cannot be read", "."):
        return load_file(path)


FILE_READERS: dict[str, Callable[[Path], Mapping[str, Any]]] = {
    ".npy": lambda path: {"features": read_npy(path)},
    ".npz": read_npz,
    ".safetensors": _read_safetensors,
    ".parquet": read_columns,
    ".pq": read_columns,
}

# ------------------------------------------------------------------------------------------------------------- shards


@dataclass(frozen=True)
class Shard:
    """One file of a folder of shards."""

    path: Path
    items: list[Item]
    skipped: list[str]

    def features(self) -> Features:
        """Read the features."""
        with safe_open(self.path, framework="np") as file:
            return file.get_tensor("features")


def read_shard_folder(path: Path) -> Source:
    """Read a folder of shards, in order of split, then class; the features stay on disk."""
    shards = list(read_shards(path))
    items = [item for shard in shards for item in shard.items]
    order = order_by_split([replace(item, split=item.split or "test") for item in items])
    return Source([items[row] for row in order], features=_memory_map(path, shards, order))


def read_shards(path: Path) -> Iterator[Shard]:
    """Yield the shards of a folder.

    Raises:
        BadInput: A shard is missing or damaged.
    """
    count = read_json(path / SHARDS).get("shards")
    if type(count) is not int or count < 1:
        raise BadInput(f"{path / SHARDS} does not say how many shards there are: run `anyshot embed` again.")
    for number in range(count):
        if not shard_path(path, number).is_file():
            raise BadInput(f"{path} is not whole, shard {number} is missing: run the same `anyshot embed` again.")
        yield _read_shard(shard_path(path, number))


def shard_path(folder: Path, number: int) -> Path:
    """Return the path of a shard."""
    return folder / f"shard-{number:05d}.safetensors"


def is_shard(path: Path) -> bool:
    """Return whether a path is a shard that can be read."""
    try:
        _read_shard(path)
    except BadInput:
        return False
    return True


def write_shard(path: Path, source: Source) -> None:
    """Write features and their examples as one shard; skipped pictures are named in it."""
    features = source.features.astype(np.float32) if source.has_features else np.zeros((0, 1, 1), np.float32)
    tensors = {
        "features": features if features.ndim == 3 else features[:, None],
        "skipped": _encode_lines([f"{name}: {why}" for name, why in source.skipped]),
        "labels": _encode_lines(source.labels),
        "names": _encode_lines(source.names),
        "splits": _encode_lines([split or "" for split in source.splits]),
    }
    with atomic_write(path) as aside:
        aside.write_bytes(save(tensors))


def _read_shard(path: Path) -> Shard:
    damaged, again = (SafetensorError, OSError, ValueError), ": run the same `anyshot embed` again."
    with as_bad_input(damaged, f"{path} is damaged", again), safe_open(path, framework="np") as file:
        names, labels, splits, skipped = (
            _decode_lines(file.get_tensor(name)) for name in ("names", "labels", "splits", "skipped")
        )
        features = file.get_slice("features")
        kind, shape = features.get_dtype(), features.get_shape()
    if kind != "F32" or len(shape) != 3 or not shape[0] == len(labels) == len(names):
        raise BadInput(f"{path} holds no vectors that fit its {len(labels)} labels: embed the pictures again.")
    splits = splits if len(splits) == len(labels) else [""] * len(labels)
    rows = zip(names, labels, splits, strict=True)
    return Shard(path, [Item(name, label, split or None) for name, label, split in rows], skipped)


def _memory_map(folder: Path, shards: Sequence[Shard], order: Sequence[int]) -> Features:
    """Return the features of all shards in this order, as one array in a temporary file."""
    place = np.empty(len(order), np.int64)
    place[np.asarray(order)] = np.arange(len(order))
    array: np.memmap | None = None
    start = 0
    with _open_temporary(folder) as file:  # it has no name, and is gone when the array is
        for shard in shards:
            rows = shard.features()
            if not len(rows):
                continue
            if array is None:
                array = np.memmap(file, np.float32, "w+", shape=(len(order), *rows.shape[1:]))
            if rows.shape[1:] != array.shape[1:]:
                raise BadInput(f"the shards of {folder} are not of the same shape.")
            if not np.isfinite(rows).all():
                raise BadInput(f"the shards of {folder} have vectors with values that are not finite.")
            array[place[start : start + len(rows)]] = rows
            start += len(rows)
    if array is None:
        raise BadInput(f"no picture of {folder} could be read.")
    return array


def _open_temporary(folder: Path) -> Any:
    """Open a temporary file beside the shards, where that is possible: the system's folder may be in memory."""
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError:
        return tempfile.TemporaryFile()


def _encode_lines(texts: Sequence[str]) -> np.ndarray:
    """Return texts as the bytes of lines; a line break inside a text becomes a space."""
    lines = "\n".join(" ".join(text.splitlines()) for text in texts)
    return np.frombuffer(lines.encode("utf-8", "surrogatepass"), np.uint8)


def _decode_lines(data: np.ndarray) -> list[str]:
    text = data.tobytes().decode("utf-8", "surrogatepass")
    return text.split("\n") if text else []
