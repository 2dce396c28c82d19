"""Pictures by the million to features: shard by shard, on one machine or on Ray, from any interruption to the same files.

    FEATURES/shards.json                what was embedded, by what, and how many shards there are
    FEATURES/shard-00000.safetensors    features, labels, names and splits of 1,024 pictures; those that could not be
                                        read are named with the reason

What a shard holds depends on its own pictures alone, and a shard appears whole or not at all: the same command goes on
with those that are missing, and any number of workers end with the same files.
"""

import hashlib
import os
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
from safetensors.numpy import save

from anyshot.data.folders import read_folder
from anyshot.data.packing import File, Item
from anyshot.data.pictures import SUFFIXES
from anyshot.data.tables import LABELS, column, label_text, read_table, split_text
from anyshot.errors import BadInput
from anyshot.files import held, read_json, whole, write_json
from anyshot.models.embedders import Embedder, embed_items, embedder
from anyshot.models.registry import registry_of
from anyshot.progress import progress

ROWS = 1024  # pictures of a shard
IMAGES = ("image", "images", "img", "picture", "bytes", "jpg", "png")

# -------------------------------------------------------------------------------------------------------------- sources


@dataclass(frozen=True)
class Member:
    """The bytes of a file inside an uncompressed tar file, when they are asked for."""

    path: Path
    start: int
    size: int

    def __call__(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read(self.size)


@dataclass(frozen=True)
class Cell:
    """The bytes of an image in a Parquet file, when they are asked for."""

    path: Path
    group: int
    row: int
    column: str

    def __call__(self) -> bytes:
        value = _group(self.path, self.group, self.column)[self.row].as_py()
        return value["bytes"] if isinstance(value, dict) else value


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
        return read_table(source).items
    raise BadInput(f"{source} is no folder of pictures, table (.csv, .tsv, .parquet) or tar file.")


def _members(path: Path) -> list[Item]:
    """Of a tar file: the class is in KEY.cls or KEY.txt beside KEY.jpg, or else the folder that a picture is in."""
    pictures: list[tuple[str, Member]] = []
    words: dict[str, str] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for one in tar:
                name = PurePosixPath(one.name)
                if one.isfile() and name.suffix.lower() in SUFFIXES:
                    pictures.append((one.name, Member(path, one.offset_data, one.size)))
                elif one.isfile() and name.suffix in (".cls", ".txt") and one.size < 4096:
                    file = tar.extractfile(one)
                    words[str(name.with_suffix(""))] = file.read().decode("utf-8", "replace").strip() if file else ""
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BadInput(f"{path} cannot be read ({error}): tar shards are uncompressed tar files.") from None
    items = []
    for name, member in pictures:
        label = words.get(str(PurePosixPath(name).with_suffix(""))) or PurePosixPath(name).parent.name
        if not label:
            raise BadInput(f"{name} of {path} has no class: neither a .cls file beside it nor a folder.")
        items.append(Item(f"{path.name}/{name}", label, None, member))
    return items


def _cells(path: Path) -> list[Item]:
    """Of a Parquet file with a column of images; none where it has no such column."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise BadInput("reading Parquet needs pyarrow: pip install 'anyshot[parquet]'.") from None
    try:
        file = pyarrow.parquet.ParquetFile(path)
        kinds = {field.name: field.type for field in file.schema_arrow}
        images = [name for name, kind in kinds.items() if name.lower() in IMAGES and not pyarrow.types.is_string(kind)]
        if not images:
            return []
        others = [name for name in kinds if name != images[0]]
        columns = {name: file.read([name]).column(name).to_pylist() for name in others if _is_plain(kinds[name])}
        groups = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
    except (pyarrow.ArrowException, OSError) as error:
        raise BadInput(f"{path} is not a Parquet file ({str(error).splitlines()[0]}).") from None
    labels = label_text(column(columns, "", LABELS, "label", path), path)
    splits = split_text(columns, "", path)
    places = ((group, row) for group, rows in enumerate(groups) for row in range(rows))
    return [
        Item(f"row {number}", label, split, Cell(path, *place, images[0]))
        for number, (place, label, split) in enumerate(zip(places, labels, splits, strict=True))
    ]


def _is_plain(kind: Any) -> bool:
    import pyarrow.types

    return bool(pyarrow.types.is_string(kind) or pyarrow.types.is_integer(kind) or pyarrow.types.is_large_string(kind))


# ------------------------------------------------------------------------------------------------------------ embedding


def embed_source(
    source: Path, out: Path, model: str, on: str = "here", workers: int = 0, using: Path | None = None
) -> str:
    """The `embed` verb: make the shards that are missing; says what there is."""
    items = list_items(source)
    if not items:
        raise BadInput(f"there are no pictures in {source}.")
    embeds = embedder(model, registry=registry_of(using))
    about = {
        "format": 1,
        "backbone": embeds.about["backbone"],
        "content": embeds.content,
        "pictures": len(items),
        "shards": -(-len(items) // ROWS),
        "source": _fingerprint(items),
    }
    out.mkdir(parents=True, exist_ok=True)
    with held(out):
        if (out / "shards.json").is_file() and read_json(out / "shards.json") != about:
            raise BadInput(f"{out} holds features of other pictures, or of another model: choose another folder.")
        if any(out.iterdir()) and not (out / "shards.json").is_file():
            raise BadInput(f"{out} has other things in it: choose another folder.")
        write_json(out / "shards.json", about)
        missing = [number for number in range(about["shards"]) if not _path(out, number).is_file()]
        with progress(f"embedding {len(items)} pictures", float(len(items))) as advance:
            advance(float(ROWS * (about["shards"] - len(missing))))
            tasks = [(number, items[number * ROWS : (number + 1) * ROWS]) for number in missing]
            for rows in _run(on, tasks, out, embeds, model, workers, using):
                advance(float(rows))
    skipped = sum(len(shard.skipped) for shard in read_shards(out))
    words = f"; {skipped} could not be read, and are named in the shards" if skipped else ""
    return f"{out}: {len(items) - skipped} pictures in {about['shards']} shards{words}."


def _run(
    on: str,
    tasks: Sequence[tuple[int, Sequence[Item]]],
    out: Path,
    embeds: Embedder,
    model: str,
    workers: int,
    using: Path | None,
) -> Iterator[int]:
    if on == "here":
        for number, items in tasks:
            yield write_shard(embeds, items, _path(out, number))
    elif on == "ray" or on.startswith("ray://"):
        yield from _on_ray(on, tasks, out.resolve(), model, workers, using)
    else:
        raise BadInput(f"pictures are embedded here, on ray or on ray://ADDRESS, not on {on!r}.")


class _Worker:
    """An embedder in a process of Ray's."""

    def __init__(self, model: str, using: Path | None, out: Path) -> None:
        self.embeds, self.out = embedder(model, registry=registry_of(using)), out

    def __call__(self, row: dict[str, Any]) -> dict[str, int]:
        number, items = row["item"]
        return {"rows": write_shard(self.embeds, items, _path(self.out, number))}


def _on_ray(
    on: str, tasks: Sequence[tuple[int, Sequence[Item]]], out: Path, model: str, workers: int, using: Path | None
) -> Iterator[int]:
    try:
        import ray
        import ray.data
    except ImportError:
        raise BadInput("`--on ray` needs the extra: pip install 'anyshot[ray]' 'ray[data]'.") from None
    started = not ray.is_initialized()
    if started:
        ray.init(None if on == "ray" else on, log_to_driver=False, logging_level="warning")
    try:
        many = workers or int(ray.cluster_resources().get("CPU", 1))
        ray.data.DataContext.get_current().enable_progress_bars = False
        shards = ray.data.from_items(list(tasks), override_num_blocks=max(1, len(tasks))) if tasks else None
        if shards is not None:
            arguments = {"model": model, "using": using, "out": out}
            done = shards.map(_Worker, fn_constructor_kwargs=arguments, concurrency=min(many, len(tasks)))
            for row in done.iter_rows():
                yield int(row["rows"])
    finally:
        if started:
            ray.shutdown()


def write_shard(embeds: Embedder, items: Sequence[Item], path: Path) -> int:
    """Embed the pictures of one shard; returns how many there were."""
    rows, read, skipped = [], [], []
    for part in embed_items(embeds, items):
        for one in part:
            if one.features is None:
                skipped.append(f"{one.item.name}: {one.why}")
            else:
                rows.append(np.atleast_2d(one.features).astype(np.float32))
                read.append(one.item)
    features = np.stack(rows) if rows else np.zeros((0, 1, 1), np.float32)
    tensors = {"features": features, "skipped": _text(skipped)}
    tensors |= {
        "labels": _text([item.class_name for item in read]),
        "names": _text([item.name for item in read]),
        "splits": _text([item.split or "" for item in read]),
    }
    with whole(path) as aside:
        aside.write_bytes(save(tensors))
    return len(items)


def _text(words: Sequence[str]) -> np.ndarray:
    """Texts as the bytes of lines; a line inside a text is written as a space."""
    lines = "\n".join(" ".join(word.splitlines()) for word in words)
    return np.frombuffer(lines.encode("utf-8", "surrogatepass"), np.uint8)


def _path(out: Path, number: int) -> Path:
    return out / f"shard-{number:05d}.safetensors"


def _fingerprint(items: Sequence[Item]) -> str:
    digest = hashlib.sha256()
    for item in items:
        size = os.path.getsize(item.read.path) if isinstance(item.read, File) and item.read.path.is_file() else 0
        digest.update(repr((item.name, item.class_name, item.split, size)).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:32]


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
    about = read_json(source / "shards.json")
    for number in range(int(about.get("shards", 0))):
        path = _path(source, number)
        if not path.is_file():
            raise BadInput(f"{source} is not whole, shard {number} is missing: run the same `anyshot embed` again.")
        try:
            with safe_open(path, framework="np") as file:
                labels, names, splits, skipped = (
                    _lines(file.get_tensor(name)) for name in ("labels", "names", "splits", "skipped")
                )
                rows = file.get_slice("features").get_shape()[0]
        except (SafetensorError, OSError, ValueError) as error:
            raise BadInput(f"{path} is damaged ({error}): remove it and run `anyshot embed` again.") from None
        splits = splits if len(splits) == rows else [""] * rows
        if not len(labels) == len(names) == rows:
            raise BadInput(f"{path} has {rows} vectors and {len(labels)} labels: remove it and embed again.")
        yield Shard(labels, names, [split or None for split in splits], skipped, _Features(path))


@dataclass(frozen=True)
class _Features:
    path: Path

    def __call__(self) -> np.ndarray:
        with safe_open(self.path, framework="np") as file:
            return file.get_tensor("features")


def _lines(data: np.ndarray) -> list[str]:
    text = data.tobytes().decode("utf-8", "surrogatepass")
    return text.split("\n") if text else []


def on_disk(source: Path, order: Sequence[int]) -> Float[np.ndarray, "example position channel"]:
    """The features of all shards as one array that stays on disk, an example at its place in `order`."""
    place = np.empty(len(order), np.int64)
    place[np.asarray(order)] = np.arange(len(order))
    array: np.memmap | None = None
    start = 0
    with tempfile.TemporaryFile() as file:  # gone when nobody looks at it any more
        for shard in read_shards(source):
            rows = shard.features()
            if not len(rows):
                continue
            if array is None:
                array = np.memmap(file, np.float32, "w+", shape=(len(order), *rows.shape[1:]))
            if rows.shape[1:] != array.shape[1:]:
                raise BadInput(f"the shards of {source} are not of the same shape.")
            array[place[start : start + len(rows)]] = rows
            start += len(rows)
    if array is None:
        raise BadInput(f"no picture of {source} could be read.")
    return array
