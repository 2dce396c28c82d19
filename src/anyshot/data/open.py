"""The front door: any path that a user names to one `Source`.

| kind        | what is at the path                                                        |
|-------------|----------------------------------------------------------------------------|
| store       | a folder that `anyshot pack` wrote, of images or of features               |
| shards      | a folder of features that `anyshot embed` wrote                            |
| features    | vectors in .npy, .npz, .safetensors or Parquet                             |
| folder      | pictures in class folders                                                  |
| archive     | a zip or compressed tar file of such a folder                              |
| tar         | an uncompressed tar file of pictures, or a folder of such files            |
| table       | paths of pictures in .csv, .tsv or Parquet                                 |
| parquet     | pictures in Parquet                                                        |
| huggingface | a data set that was saved to disk                                          |
| npz         | pictures as arrays                                                         |
| picture     | a single file                                                              |
"""

import contextlib
import inspect
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anyshot.data.archives import is_archive, is_plain_tar, unpack
from anyshot.data.features import FILE_READERS, SHARDS, VECTORS, read_feature_file, read_shard_folder
from anyshot.data.folders import read_folder, read_tars
from anyshot.data.layout import SourceOptions
from anyshot.data.npz import read_image_npz
from anyshot.data.source import NO_FEATURES, FileBytes, Item, Source, StoredImage
from anyshot.data.store import open_store
from anyshot.data.tables import (
    column_names,
    image_column_of,
    read_huggingface,
    read_image_parquet,
    read_image_table,
)
from anyshot.errors import BadInput, os_error_as_bad_input

TABLES = (".csv", ".tsv", ".tab")
PARQUET = (".parquet", ".pq")


def find_kind(path: Path, options: SourceOptions | None = None) -> str:
    """Return the kind of source at a path (see above), without reading it whole.

    Args:
        path: Any path that a user names.
        options: Names of columns; who names that of vectors says that the file holds some.

    Raises:
        BadInput: There is nothing at the path, or a pipe or a device.
    """
    if path.is_dir():
        return _kind_of_folder(path)
    if not path.is_file():
        raise BadInput(f"there is no file or folder {path}.")
    suffix = path.suffix.lower()
    if suffix in TABLES:
        return "table"
    if suffix in FILE_READERS:
        names_vectors = options is not None and bool(options.feature_column or options.labels)
        return "features" if names_vectors else _kind_of_arrays(path)
    if is_plain_tar(path) or (suffix == ".tar" and not is_archive(path)):
        return "tar"
    return "archive" if is_archive(path) else "picture"


def _kind_of_arrays(path: Path) -> str:
    """Return the kind of a file of arrays or columns, by their names."""
    if path.suffix.lower() == ".npz":
        holds_images, holds_vectors = inspect_npz(path)
        return "npz" if holds_images and not holds_vectors else "features"
    if path.suffix.lower() not in PARQUET or any(name.lower() in VECTORS for name in column_names(path)):
        return "features"
    return "parquet" if image_column_of(path) else "table"


def _kind_of_folder(path: Path) -> str:
    files = {"store": "store.json", "shards": SHARDS, "huggingface": "dataset_dict.json"}
    for kind, name in files.items():
        if (path / name).is_file():
            return kind
    with os_error_as_bad_input(f"could not read {path}"):
        if any(entry.is_dir() for entry in path.iterdir()):
            return "folder"
    if (path / "state.json").is_file():
        return "huggingface"
    return "tar" if any(path.glob("*.tar")) else "folder"


def inspect_npz(path: Path) -> tuple[bool, bool]:
    """Return whether an .npz file has arrays that are named as images are, and as vectors are."""
    names: set[str] = set()
    with contextlib.suppress(zipfile.BadZipFile, OSError), zipfile.ZipFile(path) as file:
        names = {name.removesuffix(".npy").lower() for name in file.namelist()}
    return bool(names & {"images", "blob"}), bool(names & set(VECTORS))


def has_features(path: Path, options: SourceOptions | None = None) -> bool:
    """Return whether a path holds features rather than pictures."""
    kind = find_kind(path, options)
    return kind in ("features", "shards") or (kind == "store" and open_store(path).is_features)


@contextlib.contextmanager
def open_source(path: Path, options: SourceOptions | None = None, labelled: bool = True) -> Iterator[Source]:
    """Open what lies at a path, whatever it is.

    Args:
        path: Any path that a user names.
        options: How the source is laid out, where that cannot be seen.
        labelled: Whether every example needs a class; without, all pictures or vectors are listed.

    Yields:
        The source. Pictures of an archive can be read until the end of the `with` block.
    """
    kind = find_kind(path, options)
    if kind != "archive":
        yield replace(_call(KINDS[kind], path, options, labelled), kind=kind)
        return
    with tempfile.TemporaryDirectory(prefix="anyshot-") as folder:
        source = _call(read_folder, unpack(path, Path(folder)), options, labelled)
        if not labelled:  # files are called by the archive, not by the folder that it is unpacked to
            items = [replace(item, name=item.name.replace(folder, str(path), 1)) for item in source.items]
            skipped = tuple((name.replace(f"{folder}/", "", 1), why) for name, why in source.skipped)
            source = replace(source, items=items, skipped=skipped)
        yield replace(source, kind=kind)


@contextlib.contextmanager
def open_pictures(paths: Sequence[Path], options: SourceOptions | None = None) -> Iterator[Source]:
    """Open the pictures of several paths as one source, without their classes."""
    with contextlib.ExitStack() as stack:
        sources = [stack.enter_context(open_source(path, options, labelled=False)) for path in paths]
        for path, source in zip(paths, sources, strict=True):
            if source.has_features:
                raise BadInput(f"{path} holds features, and this classifier is one of pictures.")
        yield Source(
            [item for source in sources for item in source.items],
            skipped=tuple(file for source in sources for file in source.skipped),
        )


def read_vectors(path: Path, options: SourceOptions | None = None) -> Source:
    """Read the features of a path, without their classes."""
    with open_source(path, options, labelled=False) as source:
        if not source.has_features:
            raise BadInput(f"{path} holds pictures, and this classifier is one of features.")
        return source


def _call(reader: Callable[..., Source], path: Path, options: SourceOptions | None, labelled: bool) -> Source:
    """Call a reader with the options that it has."""
    given: Mapping[str, Any] = {**vars(options or SourceOptions()), "labelled": labelled}
    return reader(path, **{name: given[name] for name in inspect.signature(reader).parameters if name in given})


def read_store(path: Path) -> Source:
    """Read a store.

    Where the store divides classes rather than pictures of a class, as `pack` does, its examples have no split.
    """
    store = open_store(path)
    by_class = len(set(store.class_names)) == len(store.class_names)
    items = []
    for row, (name, label) in enumerate(zip(store.names, store.labels, strict=True)):
        item = Item(name, store.class_names[label], None if by_class else store.class_split[label])
        items.append(item if store.is_features else replace(item, read=StoredImage(store, row)))
    return Source(items, features=np.asarray(store.items) if store.is_features else NO_FEATURES, store=store)


def read_picture(path: Path, labelled: bool = True) -> Source:
    """List a single file, which has no class."""
    if labelled:
        raise BadInput(f"{path} is a file: give the folder that it is in, or an archive (zip, tar) of that.")
    return Source([Item(str(path), "", None, FileBytes(path))])


KINDS: dict[str, Callable[..., Source]] = {
    "store": read_store,
    "shards": read_shard_folder,
    "features": read_feature_file,
    "folder": read_folder,
    "archive": read_folder,
    "tar": read_tars,
    "table": read_image_table,
    "parquet": read_image_parquet,
    "huggingface": read_huggingface,
    "npz": read_image_npz,
    "picture": read_picture,
}
