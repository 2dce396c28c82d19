"""`anyshot pack KIND SOURCE`: the kinds of sources, and the one way from any of them to a store."""

import contextlib
import inspect
import shutil
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from anyshot.data.archives import is_archive, unpack
from anyshot.data.embeddings import VECTORS, pack_features
from anyshot.data.packing import Embedding, Source, pack_images, packing_folder
from anyshot.data.pictures import Fit
from anyshot.data.store import Store, check_free
from anyshot.errors import BadInput, choose

READERS = {
    "cub": "benchmarks.read_cub",
    "mini": "benchmarks.read_mini",
    "tiered": "benchmarks.read_tiered",
    "meta-inat": "benchmarks.read_meta_inat",
    "folder": "folders.read_folder",
    "table": "tables.read_table",
    "huggingface": "huggingface.read_huggingface",
    "features": "embeddings.read_features",
    "npz": "npz.read_npz",
}
HOLD = {
    "folder": "images in class folders",
    "table": "paths and labels of images",
    "huggingface": "a data set saved to disk",
    "features": "vectors and labels",
    "npz": "images in arrays",
}
BY_SUFFIX = {
    **dict.fromkeys((".csv", ".tsv"), ("table",)),
    **dict.fromkeys((".parquet", ".pq"), ("table", "features")),
    **dict.fromkeys((".npy", ".safetensors"), ("features",)),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".gz"), ("folder", "huggingface")),
}


def pack(
    kind: str,
    source: Path,
    out: Path,
    size: int | None = None,
    fit: Fit | None = None,
    split: Sequence[int | float] = (0.6, 0.2, 0.2),
    seed: int = 0,
    workers: int = 0,
    embedding: Embedding | None = None,
    **options: Any,
) -> Store:
    """Read a source of some kind and write a store: of its images, or with an `embedding` of their features. `options`
    are those of the kind's reader."""
    module, name = choose("kind", kind, READERS).split(".")
    reader = getattr(import_module(f"anyshot.data.{module}"), name)
    check_free(out)
    if size is not None and not 1 <= size <= 1024:
        raise BadInput(f"a size of {size} is not sensible: images are stored as squares of 1 to 1024 pixels.")
    given = _given(kind, reader, options)
    if "feature_column" not in given:  # who names the array of vectors knows what the file holds
        _check_fit(kind, source)
    contents: Any  # a Source, or Embeddings
    if kind not in ("npz", "features", "table") and is_archive(source):
        contents = _read_archive(source, packing_folder(out), partial(reader, **given))
    else:
        contents = reader(source, **given)
    if kind == "features":
        if size is not None or fit is not None or embedding is not None:
            raise BadInput("--size, --fit and --embed are for images, not for features.")
        return pack_features(contents, out, split, seed)
    if embedding is not None and (size is not None or fit is not None):
        raise BadInput("--size and --fit are for stored images; what --embed names has a size of its own.")
    about = {"kind": kind, "source": source.name, "split": list(split), "seed": seed}
    about |= contents.about
    contents = replace(contents, size=size or contents.size, fit=fit or contents.fit, about=about)
    return pack_images(contents, out, split, seed, workers, embedding)


def _check_fit(kind: str, source: Path) -> None:
    """A source that is plainly of another kind gets the sentence that names it; others are the reader's to judge."""
    fitting = _fitting(kind, source)
    if fitting and kind not in fitting:
        uses = " or ".join(f"`anyshot pack {fit}` ({HOLD[fit]})" for fit in fitting)
        raise BadInput(f"{source} is not a source of kind {kind!r}: use {uses}.")


def _fitting(kind: str, source: Path) -> tuple[str, ...]:
    """The kinds that a source has the looks of; none where it could be anything, this kind too."""
    if source.is_dir():
        if any((source / name).is_file() for name in ("dataset_dict.json", "state.json")):
            return ("huggingface",)
        return ("folder",) if kind in ("table", "features", "npz") else ()
    if not source.is_file():
        return ()
    if source.suffix.lower() == ".npz":
        return _npz_kinds(source)
    # A benchmark's files have any name; the reader of features names the suffixes it reads.
    if kind not in HOLD or kind == "features":
        return ()
    return BY_SUFFIX.get(source.suffix.lower(), ())


def _npz_kinds(source: Path) -> tuple[str, ...]:
    """By the names of its arrays: images, vectors, or either where the names leave it open."""
    try:
        with zipfile.ZipFile(source) as file:
            names = {name.removesuffix(".npy").lower() for name in file.namelist()}
    except (zipfile.BadZipFile, OSError):
        names = set()
    images, vectors = bool(names & {"images", "blob"}), bool(names & set(VECTORS))
    return ("npz", "features") if images == vectors else ("npz",) if images else ("features",)


def _read_archive(archive: Path, packing: Path, read: Callable[[Path], Source]) -> Source:
    """Read what an archive holds; unpacked files of an interrupted pack are taken as they are, of a bad one removed."""
    folder = packing / "unpacked"
    done = folder / ".unpacked"
    try:
        if not done.is_file():
            unpack(archive, folder)
            done.touch()
        return read(folder)
    except BadInput:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # kept if it holds the progress of an interrupted pack
            packing.rmdir()
        raise


def _given(kind: str, reader: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given; one that this kind does not have is refused."""
    given = {name: value for name, value in options.items() if value}
    for name in given:
        if name not in inspect.signature(reader).parameters:
            raise BadInput(f"--{name.replace('_', '-')} is not an option of kind {kind!r}.")
    return given
