"""Open any path that a user names as a `Source`.

The kind of a path is found by its name and, in files of arrays and columns, by the names in it:

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

from anyshot.data.archives import find_archive_kind, unpack
from anyshot.data.benchmarks import read_cub, read_meta_inat, read_mini, read_tiered
from anyshot.data.features import FILE_READERS, SHARDS, VECTORS, read_feature_file, read_shard_folder
from anyshot.data.folders import check_folder, is_hidden, read_folder, read_tars
from anyshot.data.layout import PackOptions, SourceOptions
from anyshot.data.npz import read_image_npz
from anyshot.data.pictures import FileBytes
from anyshot.data.source import NO_FEATURES, Item, Source, check_content
from anyshot.data.store import open_store
from anyshot.data.tables import PARQUET, find_columns, read_huggingface, read_image_parquet, read_image_table
from anyshot.errors import BadInput, as_bad_input, look_up, os_error_as_bad_input
from anyshot.files import check_source

TABLES = (".csv", ".tsv", ".tab")


@dataclass(frozen=True)
class Kind:
    """How one kind of source is read, and whether `anyshot pack` takes its name.

    Attributes:
        read: Lists the examples of a path. Its last argument, `labelled`, says whether every example needs a class.
        options: The fields of `PackOptions` that it uses.
        accepts: The kinds of path that `anyshot pack NAME` reads; empty if NAME cannot be given there.
    """

    read: Callable[[Path, PackOptions, bool], Source]
    options: tuple[str, ...] = ()
    accepts: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------------------ finding a kind


def find_kind(path: Path, options: SourceOptions | None = None) -> str:
    """Return the kind of source at a path (see above); no picture or vector is read.

    Args:
        path: Any path that a user names.
        options: If they name a column or a label file of features, a file of arrays or columns is one of features.

    Raises:
        BadInput: There is nothing at the path, or a pipe or a device.
    """
    return _list_kinds(path, options)[0]


def _list_kinds(path: Path, options: SourceOptions | None) -> list[str]:
    """Return the kinds that a path can be read as, the likeliest first."""
    if path.is_dir():
        return [_find_folder_kind(path)]
    check_source(path)
    suffix = path.suffix.lower()
    if suffix in TABLES:
        return ["table"]
    if suffix in FILE_READERS:
        is_features = options is not None and bool(options.feature_column or options.labels)
        return ["features"] if is_features else _list_array_kinds(path)
    return [find_archive_kind(path) or ("tar" if suffix == ".tar" else "picture")]


def _list_array_kinds(path: Path) -> list[str]:
    """Return the kinds that a file can be read as, by the names of its arrays or columns, the likeliest first."""
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


# ----------------------------------------------------------------------------------------------------------- opening


@contextlib.contextmanager
def open_source(
    path: Path,
    options: SourceOptions | None = None,
    labelled: bool = True,
    pack_kind: str = "",
    workdir: Path | None = None,
) -> Iterator[Source]:
    """Open a path as a source, whatever its kind.

    Args:
        path: Any path that a user names.
        options: How the source is laid out, where that cannot be seen.
        labelled: Whether every example needs a class; if not, all pictures or vectors are listed.
        pack_kind: The KIND of `anyshot pack KIND`. An option that this kind does not use is then an error; otherwise it
            becomes a note of the source.
        workdir: Folder where an archive is unpacked and its files stay; by default they are temporary.

    Yields:
        The source. Pictures of an archive can be read until the end of the `with` block.
    """
    choices = options if isinstance(options, PackOptions) else PackOptions(**vars(options or SourceOptions()))
    kind = _choose_kind(path, choices, pack_kind)
    # `pack folder` and the like read each kind of path by its own reader. A benchmark or a data set has one reader,
    # and a file of unknown kind goes to the reader that the user named, for its error message.
    reader = pack_kind if pack_kind and (pack_kind not in SEVERAL_KINDS or kind == "picture") else kind
    notes = _check_options(path, choices, reader, pack_kind)
    needs_unpacking = kind == "archive" or (kind == "tar" and reader != "tar" and path.is_file())
    with _unpacked(path, workdir) if needs_unpacking else contextlib.nullcontext(path) as folder:
        source = KINDS[reader].read(folder, choices, labelled)
        if needs_unpacking and not labelled:  # names start with the archive, not with the folder it is unpacked to
            items = [replace(item, name=item.name.replace(str(folder), str(path), 1)) for item in source.items]
            skipped = tuple((name.replace(f"{folder}/", "", 1), why) for name, why in source.skipped)
            source = replace(source, items=items, skipped=skipped)
        yield replace(source, kind=kind, notes=(*notes, *source.notes))


def _choose_kind(path: Path, options: PackOptions, pack_kind: str) -> str:
    """Return the likeliest kind of a path, among those that `anyshot pack` accepts under the name `pack_kind`."""
    if not pack_kind:
        return find_kind(path, options)
    pack_kinds = {name: kind for name, kind in KINDS.items() if kind.accepts}
    accepts = look_up("kind", pack_kind, pack_kinds).accepts
    kinds = _list_kinds(path, options)
    # The reader judges a file of unknown kind, and, where it takes archives, any folder.
    readable = {*accepts, "picture", *(("folder",) if "archive" in accepts else ())}
    for kind in kinds:
        if kind in readable:
            return kind
    # Benchmarks are not recommended: they accept archives, but no kind of path is theirs alone.
    fitting = [name for name, kind in pack_kinds.items() if name in kind.accepts and {*kinds} & {*kind.accepts}]
    uses = " or ".join(f"`anyshot pack {name}`" for name in fitting)
    hint = f": use {uses}" if uses else f", but of kind {kinds[0]!r}"
    raise BadInput(f"{path} is not a source of kind {pack_kind!r}{hint}.")


def _check_options(path: Path, options: PackOptions, reader: str, pack_kind: str) -> list[str]:
    """Return a note for each given option that the reader does not use; `pack` refuses such options."""
    given = [one.name for one in fields(PackOptions) if getattr(options, one.name)]
    unused = [f"--{name.replace('_', '-')}" for name in given if name not in KINDS[reader].options]
    if unused and pack_kind:
        raise BadInput(f"{unused[0]} is not an option of kind {pack_kind!r}.")
    return [f"{name} is not used: {path} is of kind {reader}" for name in unused]


@contextlib.contextmanager
def _unpacked(archive: Path, workdir: Path | None) -> Iterator[Path]:
    """Unpack an archive to a temporary folder, or into `workdir`, where a later run finds the same version again."""
    temporary = tempfile.TemporaryDirectory(prefix="anyshot-") if workdir is None else contextlib.nullcontext(workdir)
    with temporary as parent:
        status, new = archive.stat(), Path(parent, "unpacking")
        folder = Path(parent, f"unpacked-{status.st_size}-{status.st_mtime_ns}")
        if not folder.is_dir():
            for older in Path(parent).glob("unpack*"):
                shutil.rmtree(older, ignore_errors=True)
            try:
                os.rename(unpack(archive, new), folder)
            finally:
                shutil.rmtree(new, ignore_errors=True)
        yield folder


@contextlib.contextmanager
def open_unlabelled(
    paths: Sequence[Path], options: SourceOptions | None = None, has_features: bool = False
) -> Iterator[Source]:
    """Open the pictures (or features) of several paths as one source, without their classes."""
    with contextlib.ExitStack() as stack:
        sources = [stack.enter_context(open_source(path, options, labelled=False)) for path in paths]
        for path, source in zip(paths, sources, strict=True):
            check_content(source, path, has_features)
        with as_bad_input(ValueError, "the features of these files are not all of one shape."):
            features = np.concatenate([source.features for source in sources]) if has_features else NO_FEATURES
        yield Source(
            [item for source in sources for item in source.items],
            features=features,
            notes=tuple(note for source in sources for note in source.notes),
            skipped=tuple(file for source in sources for file in source.skipped),
        )


# ------------------------------------------------------------------------------------------------------------- kinds


def read_store(path: Path, options: PackOptions, labelled: bool) -> Source:
    """List the images or features of a store.

    `pack` puts whole classes into train, val and test, so that no class has examples to learn from and to test with.
    The splits of such a store are not those of its examples, which have none.
    """
    store = open_store(path)
    has_class_splits = len(set(store.class_names)) == len(store.class_names) and not store.about.get("example_splits")
    splits = [None if has_class_splits else split for split in store.class_split]
    items = [
        Item(name, store.class_names[row], splits[row], group=group)
        for name, row, group in zip(store.names, store.labels, store.groups, strict=True)
    ]
    if store.is_features:
        return Source(items, features=np.asanyarray(store.items))
    items = [replace(item, read=partial(store.items.__getitem__, row)) for row, item in enumerate(items)]
    return Source(items, images=store.items)


def read_picture(path: Path, options: PackOptions, labelled: bool) -> Source:
    """List a single file, which has no class."""
    if labelled:
        check_folder(path)
    return Source([Item(str(path), "", None, FileBytes(path))])


SEVERAL_KINDS = ("folder", "table", "features")
"""Names in `anyshot pack` for several kinds of path, each with its own reader."""
ARCHIVES = ("archive", "tar")
COLUMNS = ("label_column", "split_column", "group_column")
LEVELS = ("depth", "group_depth")
KINDS = {
    "cub": Kind(read_cub, ("box",), ARCHIVES),
    "mini": Kind(read_mini, (), ARCHIVES),
    "tiered": Kind(read_tiered, (), ARCHIVES),
    "meta-inat": Kind(read_meta_inat, ("train_ids", "test_ids"), ARCHIVES),
    "folder": Kind(read_folder, LEVELS, ("folder", *ARCHIVES)),
    "table": Kind(read_image_table, ("root", "path_column", *COLUMNS), ("table", "parquet")),
    "huggingface": Kind(read_huggingface, ("image_column", "label_column"), ("huggingface", *ARCHIVES)),
    "features": Kind(read_feature_file, ("labels", "feature_column", *COLUMNS), ("features", "shards")),
    "npz": Kind(read_image_npz, (), ("npz",)),
    "archive": Kind(read_folder, LEVELS),
    "tar": Kind(read_tars, LEVELS),
    "parquet": Kind(read_image_parquet, ("image_column", *COLUMNS)),
    "shards": Kind(read_shard_folder),
    "store": Kind(read_store),
    "picture": Kind(read_picture),
}
