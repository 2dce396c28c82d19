"""Read and write features with labels: plain files (.npz, .npy, .safetensors, Parquet), and the shards of version 0.1.

Features are vectors "image channel", maps "image position channel", or maps "image channel height width".
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.numpy import load_file

from anyshot.data.archives import READ_ERRORS, VALUE_ERRORS, read_npy, read_npz
from anyshot.data.layout import PackOptions
from anyshot.data.source import Item, Source, order_by_split
from anyshot.data.tables import (
    LABELS,
    Columns,
    decode_text,
    pick_column,
    read_columns,
    read_groups,
    read_labels,
    use_pyarrow,
)
from anyshot.errors import BadInput, as_bad_input, look_up
from anyshot.files import atomic_write, read_json, read_text

VECTORS = ("features", "embeddings", "embedding", "vectors", "x", "feature", "vector")
GROUPS = "groups"  # the name of the array that says which examples belong together
SHARDS = "shards.json"
Features = Float[np.ndarray, "image position channel"]

# -------------------------------------------------------------------------------------------------------- plain files


def read_feature_file(path: Path, options: PackOptions, labelled: bool) -> Source:
    """Read a file of features with their labels, splits and names.

    Args:
        path: The file, with arrays or columns by name.
        options: The names of the columns, and `labels`, a second file with the labels: .npy, or text with one per line.
        labelled: Whether labels are needed; if not, only the features are read.
    """
    arrays = look_up("kind of embedding file", path.suffix.lower(), FILE_READERS)(path)
    # Without single values, such as the name of a network.
    columns = {name: values for name, values in arrays.items() if not isinstance(values, np.ndarray) or values.ndim}
    vectors = _check_vectors(pick_column(columns, options.feature_column, VECTORS, "feature", path), path)
    others = {name: values for name, values in columns.items() if len(values) == len(vectors)}
    names = [str(decode_text(name)) for name in others.get("names", ())]
    if not labelled:
        return Source([Item(name, "") for name in names or _name_rows(path, len(vectors))], features=vectors)
    if options.labels is not None:
        labels = _read_label_file(options.labels)
        columns = {"labels": labels}
        others, options = {**others, "labels": labels}, replace(options, label_column="labels")
    _check_number_of_labels(columns, len(vectors), options.label_column, path)
    names = names or [f"row {i}" for i in range(len(vectors))]
    labels_and_splits = read_labels(others, options, True, options.labels or path)
    rows = zip(names, labels_and_splits, read_groups(others, options, path, GROUPS), strict=True)
    return Source([Item(name, label, split, group=group) for name, (label, split), group in rows], features=vectors)


def _read_label_file(path: Path) -> list[Any]:
    """Return the labels of a .npy file, or of a text with one per line."""
    return list(np.atleast_1d(read_npy(path))) if path.suffix == ".npy" else read_text(path).splitlines()


def _check_number_of_labels(columns: Columns, vectors: int, label_column: str, path: Path) -> None:
    """Raise BadInput where the labels of a file are there, but not as many as the vectors."""
    wanted = (label_column,) if label_column else LABELS
    lengths = [len(values) for name, values in columns.items() if (name if label_column else name.lower()) in wanted]
    if lengths and vectors not in lengths:
        raise BadInput(f"{path} has {vectors} vectors, but there are {lengths[0]} labels.")


def _name_rows(path: Path, count: int) -> list[str]:
    """Return names for the rows of a file that has none."""
    return [f"{path.name}[{row}]" for row in range(count)] if count > 1 else [path.name]


def write_feature_file(path: Path, source: Source) -> None:
    """Write features with labels, names, splits and groups as plain arrays (.npz) or columns (.parquet)."""
    vectors = source.features[:, 0] if source.features.ndim == 3 and source.features.shape[1] == 1 else source.features
    columns: dict[str, Any] = {"labels": source.labels, "names": source.names}
    if any(source.splits):
        columns["split"] = [split or "train" for split in source.splits]
    if source.groups is not None:
        columns[GROUPS] = [group or "" for group in source.groups]
    with atomic_write(path) as temporary:
        if path.suffix.lower() == ".npz":
            with temporary.open("wb") as file:
                arrays: dict[str, Any] = {name: np.array(values) for name, values in columns.items()}
                np.savez(file, features=vectors, **arrays)
            return
        if vectors.ndim != 2:
            raise BadInput(
                f"{path} can hold one vector per picture, and these are maps of {vectors.shape[1]}: use .npz."
            )
        with use_pyarrow(path) as pyarrow:
            flat = pyarrow.array(np.ascontiguousarray(vectors).ravel())
            rows = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
            pyarrow.parquet.write_table(pyarrow.table({"features": rows, **columns}), temporary)


def _check_vectors(values: Any, path: Path) -> Features:
    """Return features "image position channel", after a check that they are finite numbers of one shape."""
    message = f"the vectors of {path} are not numbers, or not all as long as each other."
    with as_bad_input(VALUE_ERRORS, message):
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


def _read_safetensors(path: Path) -> Columns:
    with as_bad_input((SafetensorError, *READ_ERRORS), f"{path} cannot be read", "."):
        return load_file(path)


FILE_READERS: dict[str, Callable[[Path], Mapping[str, Any]]] = {
    ".npy": lambda path: {"features": read_npy(path)},
    ".npz": read_npz,
    ".safetensors": _read_safetensors,
    ".parquet": read_columns,
    ".pq": read_columns,
}

# ------------------------------------------------------------------------------------------------------------- shards


def read_shard_folder(path: Path, options: PackOptions, labelled: bool) -> Source:
    """Read the features that version 0.1 of `anyshot embed` wrote, in order of split, then class.

    The folder has `shards.json`, which says how many shards there are, and shard-00000.safetensors and so on, each with
    features, and with labels, names and splits as lines of text.
    """
    count = read_json(path / SHARDS).get("shards")
    if type(count) is not int or count < 1:
        raise BadInput(f"{path / SHARDS} does not say how many shards there are: embed the pictures again.")
    items, parts = list[Item](), list[Features]()
    for number in range(count):
        file = path / f"shard-{number:05d}.safetensors"
        if not file.is_file():
            raise BadInput(f"{path} is not whole, {file.name} is missing: embed the pictures again.")
        with as_bad_input((BadInput, KeyError, ValueError), f"{file} is damaged", ": embed the pictures again."):
            shard_items, features = _read_shard(file)
            items += shard_items
            parts += [_check_vectors(features, file)] if shard_items else []
    with as_bad_input(ValueError, f"the shards of {path} do not fit together", "."):
        order = order_by_split([replace(item, split=item.split or "test") for item in items])
        return Source([items[row] for row in order], features=np.concatenate(parts)[order])


def _read_shard(path: Path) -> tuple[list[Item], Features]:
    shard = _read_safetensors(path)
    names, labels, splits = (_decode_lines(shard[name]) for name in ("names", "labels", "splits"))
    rows = zip(names, labels, splits if any(splits) else [None] * len(labels), strict=True)
    features = shard["features"]
    if features.dtype != np.float32 or features.ndim != 3 or len(features) != len(labels):
        raise ValueError("it holds no vectors that fit its labels")
    return [Item(name, label, split or None) for name, label, split in rows], features


def _decode_lines(data: np.ndarray) -> list[str]:
    text = data.tobytes().decode("utf-8", "surrogatepass")
    return text.split("\n") if text else []
