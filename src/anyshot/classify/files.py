"""Classifiers as folders: safetensors, JSON and a model card, laid out as a Hugging Face repository; nothing can run.

    classifier.safetensors   sums, counts, keys, exemplars; what the head learned; the basis of a projection
    config.json              the estimator's arguments, the labels, and a fingerprint of every other file
    README.md                the model card

A save writes a whole new version into a hidden folder inside, reads it back, and then moves its files into place.
Whoever finds that hidden folder (after a crash) finishes the move. Other files in the folder are never touched.

Upload it with `huggingface_hub.upload_folder(folder_path=..., repo_id=...)`; a downloaded snapshot loads as it is.
"""

import contextlib
import hashlib
import json
import math
import os
import shutil
import time
import unicodedata
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from anyshot.classify.card import write_card
from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.keys import KeySet
from anyshot.classify.support import Exemplars, Support
from anyshot.data.arrays import WIDEST
from anyshot.errors import BadInput, as_bad_input
from anyshot.files import MAX_JSON_BYTES, atomic_write, read_text, write_json
from anyshot.models.model import read_tensors, write_tensors
from anyshot.models.registry import BUILTIN, Registry
from anyshot.text import count_noun

FORMAT = 4  # 1 to 3 have no fingerprints and keys of exemplars only, of another kind; 2 and 3 have labels as tensors
TENSORS, CONFIG, CARD = "classifier.safetensors", "config.json", "README.md"
OWN_FILES = (
    TENSORS, CARD, "backbone.json", "backbone.onnx", "backbone.safetensors", "model.safetensors",
    "thumbnails.safetensors", CONFIG,
)  # fmt: skip
MAY_BE_GONE = ("thumbnails.safetensors",)  # files that a folder does without
STAGED = ".saving"  # the hidden folder of a version that is complete and not yet in place
LABELS_IN_JSON = 16_384  # classes whose labels config.json lists; those of more are tensors
ARGUMENTS = ("head", "embed", "readout", "scale", "reject", "keep")
LABEL_KINDS = "iufbU"  # integers, floats, booleans and text: what JSON can carry and no code can hide in
MOST_LETTERS = WIDEST // 4  # of a label: the most that is read
ATTEMPTS, WAIT_SECONDS = 20, 0.05  # of a load that meets a save
AGAIN = ": save it again."
T = TypeVar("T")


# --------------------------------------------------------------------------------------------------------------- saving


def save_folder(
    classifier: FewShotClassifier,
    path: Path,
    about: Mapping[str, Any] | None = None,
    write_more: Callable[[Path], None] | None = None,
) -> None:
    """Write a classifier to a folder, as a whole or not at all.

    Args:
        classifier: The classifier.
        path: The folder. Its mode, and files that are not ours, stay as they are.
        about: What the card says of the backbone.
        write_more: Writes more files of `OWN_FILES` into a folder.
    """
    check_destination(path)
    _check_labels(classifier.classes_)

    def write(folder: Path) -> None:
        folder.mkdir()
        config = _write_tensors(classifier, folder)
        write_card(classifier, folder / CARD, about or {})
        if write_more is not None:
            write_more(folder)
        config["card"] = _hash_file(folder / CARD)
        config["files"] = {file.name: _hash_file(file) for file in sorted(folder.iterdir()) if file.name != CARD}
        write_json(folder / CONFIG, config | {"fingerprint": _hash_config(config)})
        read_folder(folder, lambda config: read_classifier(folder, config, classifier.registry, is_probed=False))

    if not path.exists():
        with atomic_write(path) as aside:
            write(aside)
        return
    finish_save(path)
    is_card_edited = _is_card_edited(path)
    with atomic_write(path / STAGED) as aside:
        write(aside)
        if is_card_edited:
            (aside / CARD).unlink()
    finish_save(path)


def finish_save(folder: Path) -> None:
    """Move the files of a complete new version into place; each process that finds one may do so."""
    staged = folder / STAGED
    if not (staged.is_dir() and not staged.is_symlink()):
        return
    with contextlib.suppress(OSError):  # another process is faster, or we may not write here
        if (staged / CONFIG).is_file():
            for name in {*OWN_FILES} - _files_of(staged) - {CARD}:
                (folder / name).unlink(missing_ok=True)
        for name in OWN_FILES:  # the configuration last: it names all others
            with contextlib.suppress(FileNotFoundError):
                os.replace(staged / name, folder / name)
        shutil.rmtree(staged, ignore_errors=True)


def _files_of(folder: Path) -> set[str]:
    """Return the names of the files that a configuration lists, and its own."""
    with contextlib.suppress(BadInput):
        return {*_read_config(folder).get("files", {}), CONFIG}
    return set(OWN_FILES)


def check_destination(path: Path) -> None:
    """Raise BadInput where something else than a classifier is in a classifier's place."""
    is_classifier = all((path / name).is_file() for name in (CONFIG, TENSORS)) or (path / STAGED).is_dir()
    if path.exists() and any(path.iterdir() if path.is_dir() else [path]) and not is_classifier:
        raise BadInput(f"{path} is there already and is not a classifier: choose another folder.")


def describe_existing(path: Path) -> str:
    """Return a sentence about the classifier that is replaced by one saved at `path`; empty where there is none."""
    check_destination(path)
    if not (path / CONFIG).is_file():
        return ""
    try:
        counts = read_tensors(path / TENSORS)[0]["counts"]
        return (
            f" It replaces the one that was there ({count_noun(len(counts), 'class')}, {int(counts.sum())} examples)."
        )
    except (BadInput, KeyError, TypeError, RuntimeError):
        return " It replaces the one that was there, which could not be read."


def _check_labels(labels: np.ndarray) -> None:
    if labels.dtype.kind not in LABEL_KINDS:
        raise BadInput(f"labels of type {labels.dtype} cannot be saved: use text or numbers.")
    for label in labels.tolist() if labels.dtype.kind == "U" else ():
        if len(label) > MOST_LETTERS:
            raise BadInput(f"the class name {label[:40]!r}... has {len(label)} letters: at most {MOST_LETTERS} do.")
        if label and all(unicodedata.category(letter)[0] in "CZ" for letter in label):
            raise BadInput(f"the class name {label!r} is invisible: use letters that can be seen.")


def _is_card_edited(folder: Path) -> bool:
    """Return whether somebody has changed the card since it was written."""
    with contextlib.suppress(BadInput, OSError):
        written = _read_config(folder).get("card")
        return (folder / CARD).is_file() and written is not None and written != _hash_file(folder / CARD)
    return False


def _write_tensors(classifier: FewShotClassifier, folder: Path) -> dict[str, Any]:
    """Write the tensors, and return the configuration."""
    support = classifier.state_.support
    labels = support.labels
    has_listed = len(labels) <= LABELS_IN_JSON
    tensors = {f"parameters.{name}": value for name, value in classifier.learned_.items()}
    tensors |= {f"fitted.{name}": value for name, value in classifier.fitted_.items()} | _support_tensors(support)
    write_tensors(folder / TENSORS, tensors | ({} if has_listed else _label_tensors(labels)))
    config: dict[str, Any] = {
        "library": "anyshot",
        "format": FORMAT,
        **{name: getattr(classifier, name) for name in ARGUMENTS},
        "positions": classifier.positions_,
        "features": classifier.n_features_in_,
        "labels": labels.tolist() if has_listed else None,
        "label_type": labels.dtype.str,
    }
    if classifier.head not in BUILTIN.heads:
        config["made_with"] = (classifier.registry or BUILTIN).file
    if hasattr(classifier, "feature_names_in_"):
        config["feature_names"] = classifier.feature_names_in_.tolist()
    return config


def _support_tensors(support: Support) -> dict[str, torch.Tensor]:
    exemplars, (keys, rows) = support.exemplars, support.all_keys
    single = exemplars.vectors.astype(np.float32)
    vectors = single if np.array_equal(single, exemplars.vectors) else exemplars.vectors
    arrays = {
        "sums": support.sums,
        "counts": support.counts,
        "kept": vectors,
        "owner": exemplars.owner,
        "keys": exemplars.keys.view(np.int64),
        "groups": exemplars.groups.view(np.int64),
        "example_keys": keys.view(np.int64),
        "example_counts": np.bincount(rows, minlength=len(support)),
        "freedom": np.array(support.degrees_of_freedom),
    }
    if support.second_moment is not None:  # that of the examples that are no exemplars
        arrays["moment"] = support.second_moment - exemplars.vectors.T @ exemplars.vectors
    return {name: torch.from_numpy(np.require(array, requirements="W")) for name, array in arrays.items()}


def _label_tensors(labels: np.ndarray) -> dict[str, torch.Tensor]:
    """Return labels as numbers, or as UTF-8 and where each ends."""
    if labels.dtype.kind != "U":
        return {"labels": torch.from_numpy(labels)}
    texts = [label.encode("utf-8", "surrogatepass") for label in labels.tolist()]
    ends = np.cumsum([len(text) for text in texts])
    return {"labels": torch.from_numpy(np.frombuffer(b"".join(texts), np.uint8).copy()), "ends": torch.from_numpy(ends)}


# --------------------------------------------------------------------------------------------------------- fingerprints


def _hash_file(path: Path) -> str:
    """Return the size and the hash of a file."""
    with path.open("rb") as file:
        return f"{path.stat().st_size}-{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _hash_config(config: Mapping[str, Any]) -> str:
    """Return a hash of a configuration, which does not depend on how its JSON is written."""
    rest = {name: value for name, value in config.items() if name != "fingerprint"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def sign_folder(folder: Path) -> None:
    """Set the fingerprints of a folder whose files were changed on purpose."""
    config = _read_config(folder)
    config["files"] = {name: _hash_file(folder / name) for name in config["files"] if (folder / name).is_file()}
    write_json(folder / CONFIG, config | {"fingerprint": _hash_config(config)})


def _check_fingerprints(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise BadInput where files of a folder do not belong together."""
    apart = f"{folder} is not a whole classifier ({{}}): save it again."
    if config.get("fingerprint") != _hash_config(config):
        raise BadInput(apart.format("config.json was changed, and its parts do not fit"))
    files = config["files"]
    if not isinstance(files, dict) or not {TENSORS} <= files.keys() <= set(OWN_FILES):
        raise BadInput(apart.format("config.json does not name its files"))
    for name, digest in files.items():
        if not (folder / name).is_file() and name in MAY_BE_GONE:
            continue
        is_there = (folder / name).is_file() and str(digest).startswith(f"{(folder / name).stat().st_size}-")
        if not is_there or _hash_file(folder / name) != digest:  # the size first: a file may be of a terabyte
            raise BadInput(apart.format(f"config.json and {name} do not fit together"))


# -------------------------------------------------------------------------------------------------------------- loading


def load_folder(folder: Path, registry: Registry | None = None) -> FewShotClassifier:
    """Return a classifier from its folder; one with a head that is not ours needs the registry of its file."""
    return read_folder(folder, lambda config: read_classifier(folder, config, registry))


def read_folder(folder: Path, read: Callable[[Mapping[str, Any]], T]) -> T:
    """Return what `read` makes of a folder with this configuration, while all its files are of one version."""
    for attempt in range(ATTEMPTS):
        finish_save(folder)
        before = read_version(folder)
        try:
            config = _read_config(folder)
            with as_bad_input((KeyError, TypeError), f"{folder} is not a whole classifier", AGAIN):
                if config["library"] != "anyshot" or config["format"] not in range(1, FORMAT + 1):
                    readable = f"this version of anyshot reads formats 1 to {FORMAT}"
                    raise BadInput(f"{folder} is of format {config['format']}: {readable}.")
                if config["format"] == FORMAT:
                    _check_fingerprints(folder, config)
            result = read(config)
        except (BadInput, OSError):
            if (read_version(folder) == before and not (folder / STAGED).exists()) or attempt == ATTEMPTS - 1:
                raise
        else:
            if read_version(folder) == before:
                return result
        time.sleep(WAIT_SECONDS)
    raise BadInput(f"{folder} is written to again and again: load it later.")


def read_version(folder: Path) -> tuple[int, int] | None:
    """Return what changes whenever a classifier is saved to a folder; None where there is none."""
    with contextlib.suppress(OSError):
        about = (folder / CONFIG).stat()
        return about.st_ino, about.st_mtime_ns
    return None


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG

    def check_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a name is there twice")
        return dict(pairs)

    with as_bad_input((ValueError, RecursionError), f"{path} is not a JSON file", "; was it cut short?"):
        config = json.loads(read_text(path, MAX_JSON_BYTES), object_pairs_hook=check_names)
    if not isinstance(config, dict):
        raise BadInput(f"{path} holds a {type(config).__name__}: an object with names was expected.")
    return config


def read_classifier(
    folder: Path, config: Mapping[str, Any], registry: Registry | None, *, is_probed: bool = True
) -> FewShotClassifier:
    """Return a classifier from the tensors of its folder and its configuration (see `read_folder`)."""
    tensors, _ = read_tensors(folder / TENSORS)
    unreadable = (KeyError, TypeError, ValueError, OverflowError, SyntaxError)
    with as_bad_input(unreadable, f"{folder} is not a whole classifier", AGAIN):
        arguments = {name: config[name] for name in ARGUMENTS}
        positions, features = config["positions"], config["features"]
        _check_arguments(positions, features, arguments)
        if (file := config.get("made_with")) and arguments["head"] not in (registry or BUILTIN).heads:
            raise BadInput(f"{folder} was made with {file}, which has its head: name that file, --using {file}.")
        has_scatter = (registry or BUILTIN).head(arguments["head"]).estimator is not None
        labels = _read_labels(config, tensors, folder)
        support = _read_support(labels, tensors, arguments["keep"], has_scatter, folder)
    # Tensors of other shapes or types fail in any way, in any head.
    with as_bad_input(Exception, f"{folder} is not a whole classifier", AGAIN):
        learned, fitted = _read_values(tensors, "parameters."), _read_values(tensors, "fitted.")
        if "basis" in tensors:  # as it was written before readouts had names for what they fit
            fitted["basis"] = tensors["basis"].numpy()
        classifier = FewShotClassifier(
            positions=positions, parameters=learned or None, base=fitted or None, registry=registry, **arguments
        )
        classifier.restore(support, features)
        if "feature_names" in config:
            classifier.feature_names_in_ = np.array(config["feature_names"], object)
            if classifier.feature_names_in_.shape != (features,):
                raise ValueError("its feature_names are not as many as its features")
        if is_probed:
            _probe(classifier, features)
    return classifier


def _read_values(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, np.ndarray]:
    """Return the tensors whose names begin with a prefix; they have to be finite."""
    values = {name.removeprefix(prefix): v.numpy() for name, v in tensors.items() if name.startswith(prefix)}
    if not all(np.isfinite(value).all() for value in values.values()):
        raise ValueError("a value is not finite")
    return values


def _probe(classifier: FewShotClassifier, features: int) -> None:
    """Raise ValueError where a logit is not finite: all that was read fits together, if it is."""
    with warnings.catch_warnings():  # of scikit-learn, that rows without names come to a classifier with them
        warnings.simplefilter("ignore", UserWarning)
        vectors = classifier.vectors(np.ones((1, features)))
    state = classifier.state_
    if state.is_large:  # whose scale is fitted when it is needed
        counts, bound = state.support.counts[:8], state.learned
        means = torch.from_numpy(state.support.sums[:8] / counts[:, None])
        logits = bound.score(
            torch.from_numpy(vectors), bound.head.refined(means, torch.from_numpy(counts), bound.parameters)
        ).numpy()
    else:
        logits = classifier.logits_of(vectors)
    if not np.isfinite(logits).all():
        raise ValueError("its logits are not finite")


def _read_labels(config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], folder: Path) -> np.ndarray:
    """Return labels from the configuration, or of many classes from the tensors."""
    kind = np.dtype(config["label_type"])
    if kind.kind not in LABEL_KINDS or kind.itemsize > WIDEST:
        raise BadInput(f"{folder} has labels of type {config['label_type']}: they must be text or numbers.")
    is_listed = config["labels"] is not None
    labels = np.array(config["labels"], kind) if is_listed else tensors["labels"].numpy()
    if is_listed or kind.kind != "U":
        if labels.ndim != 1 or labels.dtype != kind or (is_listed and labels.tolist() != config["labels"]):
            raise ValueError("its labels are not of their type")
        return labels
    return _decode_labels(labels, tensors["ends"].numpy(), kind)


def _decode_labels(labels: np.ndarray, ends: np.ndarray, kind: np.dtype[Any]) -> np.ndarray:
    """Return texts from their UTF-8 and where each ends."""
    data = labels.tobytes()
    are_rows = labels.ndim == ends.ndim == 1 and ends.dtype == np.int64
    if not are_rows or (np.diff(ends, prepend=0) < 0).any() or ends[-1] != len(data):
        raise ValueError("its labels do not end where they should")
    starts = np.concatenate([[0], ends[:-1]]).tolist()
    texts = [data[a:b].decode("utf-8", "surrogatepass") for a, b in zip(starts, ends.tolist(), strict=True)]
    if max(map(len, texts)) * 4 > kind.itemsize:
        raise ValueError("its labels are longer than they say")
    return np.array(texts, kind)


def _check_arguments(positions: Any, features: Any, arguments: Mapping[str, Any]) -> None:
    """Check types, and that numbers are finite; names and ranges are for the classifier to judge."""
    if type(positions) is not int or type(features) is not int or not 0 < positions <= features < 1 << 28:
        raise ValueError(f"{positions} positions, {features} features")
    if not all(isinstance(arguments[name], str) for name in ("head", "readout")):
        raise ValueError("its head or readout is no name")
    if not isinstance(arguments["embed"], str | None):
        raise ValueError("its embed is no name")
    scale, reject, keep = arguments["scale"], arguments["reject"], arguments["keep"]
    if scale is not None and not (isinstance(scale, int | float) and math.isfinite(scale) and scale > 0):
        raise ValueError(f"a scale of {scale}")
    if not isinstance(reject, int | float) or type(keep) is not int:
        raise ValueError(f"reject is {reject}, keep {keep}")


def _read_support(
    labels: np.ndarray, tensors: Mapping[str, torch.Tensor], keep: int, has_scatter: bool, folder: Path
) -> Support:
    """Return the classes; sizes have to agree and indices to point into what is there."""
    sums, counts, vectors, owner, keys = (tensors[name].numpy() for name in ("sums", "counts", "kept", "owner", "keys"))
    unfit = f"{folder} is not a whole classifier ({{}}): save it again."
    if not (_have_shapes(labels, sums, counts, vectors, owner, keys) and _are_sound(labels, sums, counts, owner)):
        raise BadInput(unfit.format("its classes and tensors do not fit"))
    if not np.isfinite(vectors.sum()) or (len(keys) and not keep):
        raise BadInput(unfit.format("its exemplars do not fit"))
    groups = tensors["groups"].numpy() if "groups" in tensors else keys
    known = _read_keys(tensors, counts)
    if groups.shape != keys.shape or groups.dtype != np.int64 or known is None:
        raise BadInput(unfit.format("its keys and examples do not fit"))
    order = np.lexsort((keys.view(np.uint64), owner))
    vectors = vectors.astype(np.float64)[order]
    exemplars = Exemplars(vectors, owner, keys.view(np.uint64)[order], groups.view(np.uint64)[order])
    moment, freedom = _read_moment(tensors, sums, counts, vectors) if has_scatter else (None, 0)
    if freedom < 0:
        raise BadInput(unfit.format("its scatter does not fit"))
    return Support(
        labels,
        sums,
        counts,
        exemplars,
        known,
        keep=keep,
        has_scatter=has_scatter,
        second_moment=moment,
        degrees_of_freedom=freedom,
    )


def _have_shapes(labels: Any, sums: Any, counts: Any, vectors: Any, owner: Any, keys: Any) -> bool:
    way, many = len(labels), len(keys)
    are_shapes = labels.shape == counts.shape == (way,) and owner.shape == keys.shape == (many,)
    are_matrices = sums.ndim == vectors.ndim == 2 and (len(sums), len(vectors)) == (way, many)
    are_types = sums.dtype == np.float64 and vectors.dtype in (np.float64, np.float32)
    are_integers = counts.dtype == owner.dtype == keys.dtype == np.int64
    return are_shapes and are_matrices and are_types and are_integers and sums.shape[1] == vectors.shape[1]


def _are_sound(labels: np.ndarray, sums: np.ndarray, counts: np.ndarray, owner: np.ndarray) -> bool:
    way = len(labels)
    is_ordered = bool((np.diff(owner) >= 0).all()) and (not len(owner) or (owner[0] >= 0 and owner[-1] < way))
    if not is_ordered or not np.isfinite(sums.sum()) or len(np.unique(labels)) != way:
        return False
    return bool((counts > 0).all() and (counts >= np.bincount(owner, minlength=way)).all())


def _read_keys(tensors: Mapping[str, torch.Tensor], counts: np.ndarray) -> KeySet | None:
    """Return the keys of all examples; None where they do not fit.

    Files before format 4 have no such keys: their examples may count again when they are learned again.
    """
    if "example_keys" not in tensors:
        return KeySet()
    keys, known = tensors["example_keys"].numpy(), tensors["example_counts"].numpy()
    are_arrays = keys.ndim == 1 and known.shape == counts.shape and keys.dtype == known.dtype == np.int64
    if not are_arrays or (known < 0).any() or (known > counts).any() or known.sum() != len(keys):
        return None
    return KeySet(keys.view(np.uint64), np.repeat(np.arange(len(counts)), known))


def _read_moment(
    tensors: Mapping[str, torch.Tensor], sums: np.ndarray, counts: np.ndarray, vectors: np.ndarray
) -> tuple[np.ndarray | None, int]:
    """Return the second moment of all examples, and the degrees of freedom; -1 if they do not fit.

    Files have that of the examples that are no exemplars; before format 4 the scatter within classes instead.
    """
    freedom = tensors.get("freedom", torch.tensor(-1)).numpy()
    matrix = next((tensors[name].numpy() for name in ("moment", "scatter") if name in tensors), None)
    fits = matrix is None or (matrix.shape == 2 * sums.shape[1:] and bool(np.isfinite(matrix).all()))
    is_needed = "groups" not in tensors or counts.sum() > len(vectors)
    if not fits or freedom.shape != () or freedom.dtype.kind != "i" or (matrix is None and is_needed):
        return None, -1
    if matrix is not None:
        matrix = matrix + (vectors.T @ vectors if "moment" in tensors else (sums.T / counts) @ sums)
    return matrix, int(freedom)
