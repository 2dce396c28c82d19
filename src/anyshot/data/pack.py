"""`anyshot pack KIND SOURCE`: the kinds of sources, and the one way from any of them to a store."""

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
from anyshot.data.open import describe_notes, describe_source
from anyshot.data.packer import Embedding, Source, open_packing_folder, pack_images
from anyshot.data.pictures import Fit
from anyshot.data.shards import is_shards
from anyshot.data.store import Store, hash_file
from anyshot.errors import BadInput, look_up
from anyshot.files import write_text
from anyshot.progress import OnMessage, no_message

READERS = {  # what reads each kind, and what a source of it holds; those of a benchmark hold files of any name
    "cub": ("benchmarks.read_cub", ""),
    "mini": ("benchmarks.read_mini", ""),
    "tiered": ("benchmarks.read_tiered", ""),
    "meta-inat": ("benchmarks.read_meta_inat", ""),
    "folder": ("folders.read_folder", "images in class folders"),
    "table": ("tables.read_image_table", "paths and labels of images"),
    "huggingface": ("tables.read_huggingface", "a data set saved to disk"),
    "features": ("embeddings.read_feature_file", "vectors and labels"),
    "npz": ("npz.read_image_npz", "images in arrays"),
}
FRAME_SIDE = 256  # pixels of a frame's shorter side: no resized crop of a 4:3 photo (0.08 of its area) is below 84x84
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
    say: OnMessage = no_message,
    **options: Any,
) -> Store:
    """Read a source of some kind and write a store: of its images, or with an `embedding` of their features. What was
    understood of it is said before the work; `options` are those of the kind's reader."""
    module, name = look_up("kind", kind, READERS)[0].split(".")
    reader = getattr(import_module(f"anyshot.data.{module}"), name)
    given = _given(kind, reader, options)
    if "feature_column" not in given:  # who names the array of vectors knows what the file holds
        _check_fit(kind, source)
    _check_images(kind, size, fit, embedding)
    with open_packing_folder(out) as folder:
        contents: Any  # a Source, or Embeddings
        if kind not in ("npz", "features", "table") and is_archive(source):
            stamp = hash_file(source)
            contents = _read_archive(source, stamp, folder, partial(reader, **given))
        else:
            contents = reader(source, **given)
            stamp = hash_file(source) if kind != "features" and source.is_file() else ""
        if kind == "features":
            return pack_features(contents, out, split, seed)
        say(describe_source(contents, source))
        about = {"kind": kind, "source": source.name, "split": list(split), "seed": seed, **contents.about}
        square = {"size": size or (FRAME_SIDE if fit == "frame" else contents.size), "fit": fit or contents.fit}
        contents = replace(contents, **square, about=about, stamp=stamp, notes=tuple(describe_notes(contents)))
        return pack_images(contents, out, split, seed, workers, embedding)


def _check_images(kind: str, size: int | None, fit: Fit | None, embedding: Embedding | None) -> None:
    """Whether what is asked of the stored images goes together, and with the kind."""
    if size is not None and not 1 <= size <= 1024:
        raise BadInput(f"a size of {size} is not sensible: images are stored as squares of 1 to 1024 pixels.")
    is_square = size is not None or fit is not None
    if kind == "features" and (is_square or embedding is not None):
        raise BadInput("--size, --fit and --embed are for images, not for features.")
    if embedding is not None and is_square:
        raise BadInput("--size and --fit are for stored images; what --embed names has a size of its own.")


def _check_fit(kind: str, source: Path) -> None:
    """A source that is plainly of another kind gets the sentence that names it; others are the reader's to judge."""
    fitting = _fitting(kind, source)
    if fitting and kind not in fitting:
        uses = " or ".join(f"`anyshot pack {fit}` ({READERS[fit][1]})" for fit in fitting)
        raise BadInput(f"{source} is not a source of kind {kind!r}: use {uses}.")


def _fitting(kind: str, source: Path) -> tuple[str, ...]:
    """The kinds that a source has the looks of; none where it could be anything, this kind too."""
    if source.is_dir():
        if is_shards(source):
            return ("features",)
        if any((source / name).is_file() for name in ("dataset_dict.json", "state.json")):
            return ("huggingface",)
        return ("folder",) if kind in ("table", "features", "npz") else ()
    if not source.is_file():
        return ()
    if source.suffix.lower() == ".npz":
        return _npz_kinds(source)
    if not READERS[kind][1] or kind == "features":  # the reader of features names the suffixes it reads
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


def _read_archive(archive: Path, stamp: str, packing: Path, read: Callable[[Path], Source]) -> Source:
    """Read what an archive holds; what an interrupted pack of the same archive unpacked is taken as it is."""
    folder, done = packing / "unpacked", packing / "unpacked.txt"  # the second says of which archive the first is all
    try:
        if not done.is_file() or done.read_text(encoding="utf-8") != stamp:
            _forget(folder, done)
            unpack(archive, folder)
            write_text(done, stamp)
        return read(folder)
    except BadInput:
        _forget(folder, done)
        raise


def _forget(folder: Path, done: Path) -> None:
    done.unlink(missing_ok=True)  # before what it vouches for
    shutil.rmtree(folder, ignore_errors=True)


def _given(kind: str, reader: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given; one that this kind does not have is refused."""
    given = {name: value for name, value in options.items() if value}
    for name in given:
        if name not in inspect.signature(reader).parameters:
            raise BadInput(f"--{name.replace('_', '-')} is not an option of kind {kind!r}.")
    return given
