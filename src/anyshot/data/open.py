"""The front door: any path that a user names to one `Source`.

| kind        | what is at the path                                                        |
|-------------|----------------------------------------------------------------------------|
| store       | a folder that `anyshot pack` or `anyshot embed` wrote                      |
| shards      | a folder of features that version 0.1 of `anyshot embed` wrote             |
| features    | vectors in .npy, .npz, .safetensors or Parquet                             |
| folder      | pictures in class folders                                                  |
| archive     | a zip or compressed tar file of such a folder                              |
| tar         | an uncompressed tar file of pictures, or a folder of such files            |
| table       | paths of pictures in .csv, .tsv or Parquet                                 |
| parquet     | pictures in Parquet                                                        |
| huggingface | a data set that was saved to disk                                          |
| npz         | pictures as arrays                                                         |
| picture     | a single file                                                              |

`anyshot pack` also reads cub, mini, tiered and meta-inat, which have to be named: they are folders or archives, too.
"""

import contextlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np

from anyshot.data.archives import is_archive, is_plain_tar, unpack
from anyshot.data.benchmarks import read_cub, read_meta_inat, read_mini, read_tiered
from anyshot.data.features import FILE_READERS, SHARDS, VECTORS, read_feature_file, read_shard_folder
from anyshot.data.folders import check_folder, is_hidden, read_folder, read_tars
from anyshot.data.frames import Frames
from anyshot.data.layout import PackOptions, SourceOptions
from anyshot.data.npz import read_image_npz
from anyshot.data.pictures import FileBytes
from anyshot.data.source import Item, Source
from anyshot.data.store import open_store
from anyshot.data.tables import find_columns, read_huggingface, read_image_parquet, read_image_table
from anyshot.errors import BadInput, look_up, os_error_as_bad_input

TABLES = (".csv", ".tsv", ".tab")
PARQUET = (".parquet", ".pq")


@dataclass(frozen=True)
class Kind:
    """A kind of source.

    Attributes:
        read: Lists the examples of a path; with False as its last argument also those without a class.
        options: The fields of `PackOptions` that it uses.
        packs: The kinds of source that `anyshot pack` reads under this name; none if it does not take the name.
        words: What such a source holds, for messages that recommend the name.
    """

    read: Callable[[Path, PackOptions, bool], Source]
    options: tuple[str, ...] = ()
    packs: tuple[str, ...] = ()
    words: str = ""


# ------------------------------------------------------------------------------------------------------ what it is


def find_kind(path: Path, options: SourceOptions | None = None) -> str:
    """Return the kind of source at a path (see above), by its names alone.

    Args:
        path: Any path that a user names.
        options: Names of columns; who names that of vectors says that the file holds some.

    Raises:
        BadInput: There is nothing at the path, or a pipe or a device.
    """
    return _list_kinds(path, options)[0]


def _list_kinds(path: Path, options: SourceOptions | None) -> list[str]:
    """Return the kinds that a path can be read as, the likeliest first."""
    if path.is_dir():
        return [_find_folder_kind(path)]
    if not path.is_file():
        raise BadInput(f"there is no file or folder {path}.")
    suffix = path.suffix.lower()
    if suffix in TABLES:
        return ["table"]
    if suffix in FILE_READERS:
        names_vectors = options is not None and bool(options.feature_column or options.labels)
        return ["features"] if names_vectors else _list_array_kinds(path)
    if is_plain_tar(path) or (suffix == ".tar" and not is_archive(path)):
        return ["tar"]
    return ["archive" if is_archive(path) else "picture"]


def _list_array_kinds(path: Path) -> list[str]:
    """Return the kinds that a file of arrays or columns can be read as, by their names."""
    suffix = path.suffix.lower()
    if suffix == ".npz":
        names: set[str] = set()
        with contextlib.suppress(zipfile.BadZipFile, OSError), zipfile.ZipFile(path) as file:
            names = {name.removesuffix(".npy").lower() for name in file.namelist()}
        has_images, has_vectors = bool(names & {"images", "blob"}), bool(names & set(VECTORS))
        if has_images == has_vectors:
            return ["features", "npz"]
        return ["npz"] if has_images else ["features"]
    if suffix not in PARQUET:
        return ["features"]
    columns, image_column = find_columns(path)
    pictures = "parquet" if image_column else "table"
    has_vectors = any(name.lower() in VECTORS for name in columns)
    return ["features", pictures] if has_vectors else [pictures, "features"]


def _find_folder_kind(path: Path) -> str:
    for kind, name in (("store", "store.json"), ("shards", SHARDS), ("huggingface", "dataset_dict.json")):
        if (path / name).is_file():
            return kind
    with os_error_as_bad_input(f"could not read {path}"):
        if any(entry.is_dir() for entry in path.iterdir() if not is_hidden(entry.name)):
            return "folder"
    if (path / "state.json").is_file():
        return "huggingface"
    return "tar" if any(path.glob("*.tar")) else "folder"


def has_features(path: Path, options: SourceOptions | None = None) -> bool:
    """Return whether a path holds features rather than pictures."""
    kind = find_kind(path, options)
    return kind in ("features", "shards") or (kind == "store" and open_store(path).is_features)


# --------------------------------------------------------------------------------------------------------- opening it


@contextlib.contextmanager
def open_source(
    path: Path,
    options: SourceOptions | None = None,
    labelled: bool = True,
    pack_kind: str = "",
    workdir: Path | None = None,
) -> Iterator[Source]:
    """Open what lies at a path, whatever it is.

    Args:
        path: Any path that a user names.
        options: How the source is laid out, where that cannot be seen.
        labelled: Whether every example needs a class; without, all pictures or vectors are listed.
        pack_kind: What the user says that it is: a kind of `anyshot pack`. Then an option that it does not use is an
            error; without, it becomes a note of the source.
        workdir: Folder where the files of an archive are unpacked, to be used again; by default they are temporary.

    Yields:
        The source. Pictures of an archive can be read until the end of the `with` block.
    """
    choices = options if isinstance(options, PackOptions) else PackOptions(**vars(options or SourceOptions()))
    kind = _choose_kind(path, choices, pack_kind)
    # The words folder, table and features stand for several kinds; those of benchmarks and data sets for one reader.
    reader = kind if pack_kind in ("", "folder", "table", "features") and kind != "picture" else pack_kind or kind
    notes = _check_options(path, choices, reader, pack_kind)
    if kind == "archive" or (kind == "tar" and reader != "tar" and path.is_file()):
        with _unpacked(path, workdir) as folder:
            source = KINDS[reader].read(folder, choices, labelled)
            if not labelled:  # files are called by the archive, not by the folder that it is unpacked to
                items = [replace(item, name=item.name.replace(str(folder), str(path), 1)) for item in source.items]
                skipped = tuple((name.replace(f"{folder}/", "", 1), why) for name, why in source.skipped)
                source = replace(source, items=items, skipped=skipped)
            yield replace(source, kind=kind, notes=(*notes, *source.notes))
    else:
        source = KINDS[reader].read(path, choices, labelled)
        yield replace(source, kind=kind, notes=(*notes, *source.notes))


def _choose_kind(path: Path, options: PackOptions, pack_kind: str) -> str:
    """Return the likeliest kind of a path, among those that the user's word stands for."""
    packable = {name: kind for name, kind in KINDS.items() if kind.packs}
    if not pack_kind:
        return find_kind(path, options)
    named = look_up("kind", pack_kind, packable)
    kinds = _list_kinds(path, options)
    # An unknown file is for the reader to judge, and any folder for that of folders, benchmarks and data sets.
    allowed = {*named.packs, "picture", *(("folder",) if "archive" in named.packs else ())}
    if fitting := [kind for kind in kinds if kind in allowed]:
        return fitting[0]
    uses = [
        f"`anyshot pack {name}` ({kind.words})"
        for name, kind in packable.items()
        if kind.words and not {*kinds}.isdisjoint(kind.packs)
    ]
    hint = f": use {' or '.join(uses)}" if uses else f", but of kind {kinds[0]!r}"
    raise BadInput(f"{path} is not a source of kind {pack_kind!r}{hint}.")


def _check_options(path: Path, options: PackOptions, reader: str, pack_kind: str) -> list[str]:
    """Return a note for each option that was given and that a reader does not use; `pack` refuses such options."""
    given = [one.name for one in fields(PackOptions) if getattr(options, one.name)]
    unused = [f"--{name.replace('_', '-')}" for name in given if name not in KINDS[reader].options]
    if unused and pack_kind:
        raise BadInput(f"{unused[0]} is not an option of kind {pack_kind!r}.")
    return [f"{name} is not used: {path} is of kind {reader}" for name in unused]


@contextlib.contextmanager
def _unpacked(archive: Path, workdir: Path | None) -> Iterator[Path]:
    """Unpack an archive, to a temporary folder or to stay in `workdir` under a name that tells its version."""
    if workdir is None:
        with tempfile.TemporaryDirectory(prefix="anyshot-") as temporary:
            yield unpack(archive, Path(temporary))
        return
    about = archive.stat()
    folder = workdir / f"unpacked-{about.st_size}-{about.st_mtime_ns}"
    if not folder.is_dir():
        for older in workdir.glob("unpack*"):
            shutil.rmtree(older, ignore_errors=True)
        try:
            os.rename(unpack(archive, workdir / "unpacking"), folder)
        finally:
            shutil.rmtree(workdir / "unpacking", ignore_errors=True)
    yield folder


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
            notes=tuple(note for source in sources for note in source.notes),
            skipped=tuple(file for source in sources for file in source.skipped),
        )


def read_vectors(path: Path, options: SourceOptions | None = None) -> Source:
    """Read the features of a path, without their classes."""
    with open_source(path, options, labelled=False) as source:
        if not source.has_features:
            raise BadInput(f"{path} holds pictures, and this classifier is one of features.")
        return source


# -------------------------------------------------------------------------------------------------------- the kinds


def read_store(path: Path, options: PackOptions, labelled: bool) -> Source:
    """List the images or features of a store.

    Where the store divides classes rather than pictures of a class, as `pack` does, its examples have no split.
    """
    store = open_store(path)
    is_divided = len(set(store.class_names)) == len(store.class_names) and not store.about.get("example_splits")
    splits = [None if is_divided else split for split in store.class_split]
    items = [
        Item(name, store.class_names[row], splits[row]) for name, row in zip(store.names, store.labels, strict=True)
    ]
    if store.is_features:
        return Source(items, features=np.asanyarray(store.items))
    items = [replace(item, read=partial(_read_stored, store.items, row)) for row, item in enumerate(items)]
    return Source(items, images=store.items)


def _read_stored(images: np.ndarray | Frames, row: int) -> np.ndarray:
    return np.array(images[row])


def read_picture(path: Path, options: PackOptions, labelled: bool) -> Source:
    """List a single file, which has no class."""
    if labelled:
        check_folder(path)
    return Source([Item(str(path), "", None, FileBytes(path))])


ARCHIVES = ("archive", "tar")
COLUMNS = ("label_column", "split_column")
KINDS = {
    "cub": Kind(read_cub, ("box",), ARCHIVES),
    "mini": Kind(read_mini, (), ARCHIVES),
    "tiered": Kind(read_tiered, (), ARCHIVES),
    "meta-inat": Kind(read_meta_inat, ("train_ids", "test_ids"), ARCHIVES),
    "folder": Kind(read_folder, ("depth",), ("folder", *ARCHIVES), "images in class folders"),
    "table": Kind(
        read_image_table, ("root", "path_column", *COLUMNS), ("table", "parquet"), "paths and labels of images"
    ),
    "huggingface": Kind(
        read_huggingface, ("image_column", "label_column"), ("huggingface", *ARCHIVES), "a data set saved to disk"
    ),
    "features": Kind(
        read_feature_file, ("labels", "feature_column", *COLUMNS), ("features", "shards"), "vectors and labels"
    ),
    "npz": Kind(read_image_npz, (), ("npz",), "images in arrays"),
    "archive": Kind(read_folder, ("depth",)),
    "tar": Kind(read_tars, ("depth",)),
    "parquet": Kind(read_image_parquet, ("image_column", *COLUMNS)),
    "shards": Kind(read_shard_folder),
    "store": Kind(read_store),
    "picture": Kind(read_picture),
}
