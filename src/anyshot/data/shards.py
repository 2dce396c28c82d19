"""Pictures and features in shards: tar files and Parquet files of many pictures in, files of features to be read again.

FEATURES/shards.json                what was embedded, by what, and how many shards there are
FEATURES/shard-00000.safetensors    features, labels, names and splits of 1,024 pictures; those that could not be
                                    read are named with the reason
"""

import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError, safe_open

from anyshot.data.archives import check_end
from anyshot.data.folders import read_folder
from anyshot.data.packer import Item
from anyshot.data.pictures import SUFFIXES
from anyshot.data.tables import LABELS, check_labels, open_parquet, pick_column, read_image_table, read_splits
from anyshot.errors import BadInput, as_bad_input
from anyshot.files import MAX_FILE_BYTES, read_json

IMAGES = ("image", "images", "img", "picture", "bytes", "jpg", "png")

# -------------------------------------------------------------------------------------------------------------- sources


@dataclass(frozen=True)
class TarMember:
    """The bytes of a file inside an uncompressed tar file, when they are asked for."""

    path: Path
    start: int
    size: int

    def __call__(self) -> bytes:
        if self.size > MAX_FILE_BYTES:
            raise BadInput(f"a picture of {self.size >> 20} MB: at most {MAX_FILE_BYTES >> 20} MB are read.")
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read(self.size)


@dataclass(frozen=True)
class ParquetCell:
    """The bytes of an image in a Parquet file, when they are asked for."""

    path: Path
    group: int
    row: int
    column: str

    def __call__(self) -> bytes:
        value = _group(self.path, self.group, self.column)[self.row].as_py()
        data = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(data, bytes):
            raise BadInput(f"row {self.row} has no bytes of a picture.")
        return data


@lru_cache(maxsize=4)
def _group(path: Path, group: int, name: str) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(path).read_row_group(group, [name]).column(name)


def list_items(source: Path) -> Sequence[Item]:
    """The pictures of a folder of class folders, a table of paths, a Parquet file of images, or tar shards."""
    tars = [source] if source.suffix == ".tar" else sorted(source.glob("*.tar")) if source.is_dir() else []
    if tars:
        return [item for tar in tars for item in _members(tar)]
    if source.is_dir():
        return read_folder(source).items
    if source.suffix.lower() in (".parquet", ".pq") and (items := _cells(source)):
        return items
    if source.suffix.lower() in (".csv", ".tsv", ".parquet", ".pq"):
        return read_image_table(source).items
    raise BadInput(f"{source} is no folder of pictures, table (.csv, .tsv, .parquet) or tar file.")


def _members(path: Path) -> list[Item]:
    """Of a tar file: the class is in KEY.cls or KEY.txt beside KEY.jpg, or else the folder that a picture is in."""
    pictures: list[tuple[str, TarMember]] = []
    words: dict[str, str] = {}
    damaged, are_plain = (tarfile.TarError, OSError, EOFError), ": tar shards are uncompressed tar files."
    with as_bad_input(damaged, f"{path} cannot be read", are_plain), tarfile.open(path, "r:") as tar:
        for one in tar:
            name = PurePosixPath(one.name)
            if one.isfile() and name.suffix.lower() in SUFFIXES:
                pictures.append((one.name, TarMember(path, one.offset_data, one.size)))
            elif one.isfile() and name.suffix in (".cls", ".txt") and one.size < 4096:
                file = tar.extractfile(one)
                words[str(name.with_suffix(""))] = file.read().decode("utf-8", "replace").strip() if file else ""
        check_end(tar)
    items = []
    for inside, member in pictures:
        label = words.get(str(PurePosixPath(inside).with_suffix(""))) or PurePosixPath(inside).parent.name
        if not label:
            raise BadInput(f"{inside} of {path} has no class: neither a .cls file beside it nor a folder.")
        items.append(Item(f"{path.name}/{inside}", label, None, member))
    return items


def _cells(path: Path) -> list[Item]:
    """Of a Parquet file with a column of images; none where it has no such column."""
    with open_parquet(path) as pyarrow:
        file = pyarrow.parquet.ParquetFile(path)
        kinds = {field.name: field.type for field in file.schema_arrow}
        images = [name for name, kind in kinds.items() if name.lower() in IMAGES and not pyarrow.types.is_string(kind)]
        if not images:
            return []
        others = [name for name in kinds if name != images[0]]
        columns = {name: file.read([name]).column(name).to_pylist() for name in others if _is_plain(kinds[name])}
        groups = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
    labels = check_labels(pick_column(columns, "", LABELS, "label", path), path)
    splits = read_splits(columns, "", path)
    places = ((group, row) for group, rows in enumerate(groups) for row in range(rows))
    return [
        Item(f"row {number}", label, split, ParquetCell(path, *place, images[0]))
        for number, (place, label, split) in enumerate(zip(places, labels, splits, strict=True))
    ]


def _is_plain(kind: Any) -> bool:
    import pyarrow.types

    return bool(pyarrow.types.is_string(kind) or pyarrow.types.is_integer(kind) or pyarrow.types.is_large_string(kind))


# -------------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Shard:
    """One file of features; these are read when they are asked for."""

    labels: list[str]
    names: list[str]
    splits: list[str | None]
    skipped: list[str]
    features: Callable[[], Float[np.ndarray, "example position channel"]]


def is_shards(source: Path) -> bool:
    """Whether a folder holds shards of features."""
    return (source / "shards.json").is_file()


def read_shards(source: Path) -> Iterator[Shard]:
    """The shards of a folder, one after the other; all of them must be there."""
    many = read_json(source / "shards.json").get("shards")
    if type(many) is not int or many < 1:
        raise BadInput(f"{source}/shards.json does not say how many shards there are: run `anyshot embed` again.")
    for number in range(many):
        path = shard_path(source, number)
        if not path.is_file():
            raise BadInput(f"{source} is not whole, shard {number} is missing: run the same `anyshot embed` again.")
        yield _read_shard(path)


def _read_shard(path: Path) -> Shard:
    damaged, again = (SafetensorError, OSError, ValueError), ": run the same `anyshot embed` again."
    with as_bad_input(damaged, f"{path} is damaged", again), safe_open(path, framework="np") as file:
        labels, names, splits, skipped = (
            _lines(file.get_tensor(name)) for name in ("labels", "names", "splits", "skipped")
        )
        features = file.get_slice("features")
        kind, shape = features.get_dtype(), features.get_shape()
    if kind != "F32" or len(shape) != 3 or not shape[0] == len(labels) == len(names):
        raise BadInput(f"{path} holds no vectors that fit its {len(labels)} labels: embed the pictures again.")
    splits = splits if len(splits) == len(labels) else [""] * len(labels)
    return Shard(labels, names, [split or None for split in splits], skipped, _Features(path))


def is_shard(path: Path) -> bool:
    """Whether a shard is there, whole: a damaged one is a missing one."""
    try:
        _read_shard(path)
    except BadInput:
        return False
    return True


@dataclass(frozen=True)
class _Features:
    path: Path

    def __call__(self) -> np.ndarray:
        with safe_open(self.path, framework="np") as file:
            return file.get_tensor("features")


def _lines(data: np.ndarray) -> list[str]:
    text = data.tobytes().decode("utf-8", "surrogatepass")
    return text.split("\n") if text else []


def memory_map_shards(source: Path, order: Sequence[int]) -> Float[np.ndarray, "example position channel"]:
    """The features of all shards as one array that stays on disk, an example at its place in `order`."""
    place = np.empty(len(order), np.int64)
    place[np.asarray(order)] = np.arange(len(order))
    array: np.memmap | None = None
    start = 0
    with _nameless(source) as file:  # gone when nobody looks at it any more
        for shard in read_shards(source):
            rows = shard.features()
            if not len(rows):
                continue
            if array is None:
                array = np.memmap(file, np.float32, "w+", shape=(len(order), *rows.shape[1:]))
            if rows.shape[1:] != array.shape[1:]:
                raise BadInput(f"the shards of {source} are not of the same shape.")
            if not np.isfinite(rows).all():
                raise BadInput(f"the shards of {source} have vectors with values that are not finite.")
            array[place[start : start + len(rows)]] = rows
            start += len(rows)
    if array is None:
        raise BadInput(f"no picture of {source} could be read.")
    return array


def _nameless(folder: Path) -> Any:
    """A file without a name, beside the shards where that may be: the folder for temporary files may be in memory."""
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError:
        return tempfile.TemporaryFile()


def shard_path(out: Path, number: int) -> Path:
    """The file of a shard."""
    return out / f"shard-{number:05d}.safetensors"
