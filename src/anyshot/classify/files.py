"""Classifiers as folders: safetensors, JSON and a model card, laid out as a Hugging Face repository; nothing can run.

    config.json            the estimator's arguments, the labels, hashes of the files below, and a fingerprint of it all
                           (also the labels of pictures that a person has confirmed)
    version-FINGERPRINT/   classifier.safetensors and a copy of the card; of pictures also backbone and thumbnails
    README.md              the model card

A save writes a new version beside the old one, reads it back, replaces config.json, which names the version, and then
removes the old one. A load therefore sees one version, and a save that is killed changes nothing. Files that are not
ours are never touched. Only this module knows the names of the files and what is in them.

Upload a folder with `huggingface_hub.upload_folder(folder_path=..., repo_id=..., delete_patterns="version-*")`; a
downloaded snapshot loads as it is.
"""

import contextlib
import hashlib
import json
import math
import shutil
import unicodedata
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from anyshot.classify.calibration import to_tensor
from anyshot.classify.card import write_card
from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.support import Exemplars, Support
from anyshot.classify.topk import compute_prototypes
from anyshot.data.archives import MAX_VALUE_BYTES
from anyshot.errors import BadInput, as_bad_input, os_error_as_bad_input
from anyshot.files import CLASSIFIER_CONFIG as CONFIG
from anyshot.files import atomic_write, check_classifier, locked, read_json, staging_folder, write_json
from anyshot.models.embedders import DEFAULT_EMBEDDER, Embed, Embedder, load_embedder
from anyshot.models.model import read_tensors, write_tensors
from anyshot.models.registry import BUILTIN, Registry
from anyshot.text import count_noun

FORMAT = 5
OLD_FORMATS = (1, 2, 3)  # of version 0.1: all files beside config.json, no fingerprints, keys of exemplars only
TENSORS, CARD, THUMBNAILS = "classifier.safetensors", "README.md", "thumbnails.safetensors"
VERSION = "version-"  # prefix of a version's folder; the first 16 digits of the fingerprint follow
BACKBONE, ONNX_BACKBONE = "backbone.json", "backbone.onnx"
MODEL, BASE_MODEL = "model.safetensors", "backbone.safetensors"  # a trained model, and the one that it is built on
BACKBONE_FILES = BACKBONE, ONNX_BACKBONE, BASE_MODEL, MODEL
OPTIONAL_FILES = (CARD, THUMBNAILS)  # a user may delete these from a version
ARGUMENTS: dict[str, tuple[type, ...]] = {  # arguments of the classifier in config.json, and what JSON has for them
    "head": (str,),
    "embed": (str, type(None)),
    "readout": (str,),
    "scale": (int, float, type(None)),
    "reject": (int, float),
    "keep": (int,),
    "positions": (int,),
}
CHECKED_CLASSES = 1024  # classes whose logits are computed after a load, to see that all parts fit together
MAX_CONFIG_BYTES = 1 << 26  # two million class names; parsed values take up to twenty times as much memory
LABEL_KINDS = "iufbU"  # NumPy's integers, floats, booleans and text, which JSON can hold and which can run no code
MAX_LABEL_LENGTH = MAX_VALUE_BYTES // 4  # characters of a class name; longer ones could not be read again
SHAPES = {  # types and axes of the tensors; their names are those of format 1 (`_to_tensors` says what they hold)
    "sums": ("f8", "class vector"),
    "counts": ("i8", "class"),
    "kept": ("f4 f8", "exemplar vector"),
    "owner": ("i8", "exemplar"),
    "keys": ("i8", "exemplar"),
    "groups": ("i8", "exemplar"),
    "example_keys": ("i8", "key"),
    "example_counts": ("i8", "class"),
    "freedom": ("i8", ""),
    "moment": ("f8", "vector vector"),
}
T = TypeVar("T")


# --------------------------------------------------------------------------------------------------------------- saving


def save_folder(
    classifier: FewShotClassifier,
    path: Path,
    backbone: Embedder | None = None,
    thumbnails: Mapping[int, bytes] | None = None,
    confirmed: Collection[tuple[int, Any]] = (),
) -> None:
    """Write a classifier to a folder, as a whole or not at all.

    Args:
        classifier: The classifier.
        path: The folder. Its mode, and files that are not ours, stay as they are.
        backbone: What embeds pictures, where it is a classifier of pictures.
        thumbnails: JPEGs of the exemplars by their keys.
        confirmed: The keys and labels of examples whose label a person has confirmed; only those that are there are
            written.

    Raises:
        BadInput: If something else is in its place, another process writes it, or it could not be read again.
    """
    check_destination(path)
    _check_labels(classifier.classes_)
    with os_error_as_bad_input(f"could not write {path}"), contextlib.ExitStack() as stack:
        folder = path
        if path.exists():
            stack.enter_context(locked(path, is_reentrant=True))
        else:
            folder = stack.enter_context(atomic_write(path))
            folder.mkdir()
        staging = stack.enter_context(staging_folder(folder))
        files = staging / "files"
        files.mkdir()
        write_tensors(files / TENSORS, _to_tensors(classifier))
        write_card(classifier, files / CARD, {} if backbone is None else backbone.about)
        if backbone is not None:
            _write_backbone(files, backbone)
            jpegs = {f"{key:016x}": np.frombuffer(jpeg, np.uint8).copy() for key, jpeg in (thumbnails or {}).items()}
            write_tensors(files / THUMBNAILS, {key: torch.from_numpy(jpeg) for key, jpeg in jpegs.items()})
        config = _to_config(classifier)
        if rows := [pair for pair in confirmed if pair[1] in classifier.support_.labels_with(pair[0])]:
            config["confirmed"] = sorted([f"{key:016x}", np.asarray(label).item()] for key, label in rows)
        config["files"] = {file.name: _hash_file(file) for file in sorted(files.iterdir())}
        config["fingerprint"] = _hash_config(config)
        files.rename(_version_folder(staging, config))
        write_json(staging / CONFIG, config)
        read_folder(staging, lambda files, config: _read_classifier(files, config, classifier.registry))
        _replace_version(staging, folder, config)


def _write_backbone(folder: Path, backbone: Embedder) -> None:
    """Write what names the backbone, and the backbone itself where it is not one that can be named."""
    about = {"side": backbone.side, "name": backbone.name, "content": backbone.fingerprint, **backbone.about}
    write_json(folder / BACKBONE, about)
    if backbone.file is not None:
        (folder / ONNX_BACKBONE).write_bytes(backbone.file)
    if backbone.pixel_model not in (None, backbone.model):
        backbone.pixel_model.save(folder / BASE_MODEL)
    if backbone.model is not None:
        backbone.model.save(folder / MODEL)


def _replace_version(staging: Path, folder: Path, config: Mapping[str, Any]) -> None:
    """Move a complete version into a folder, and remove the one before."""
    version, old_versions = _version_folder(folder, config), _list_versions(folder)  # two after a save that was killed
    is_old = False
    with contextlib.suppress(BadInput):  # a damaged configuration, or none
        is_old = _read_config(folder)["format"] in OLD_FORMATS
    cards = [_hash_file(old / CARD) for old in old_versions if (old / CARD).is_file()]
    is_edited = bool(cards) and (folder / CARD).is_file() and _hash_file(folder / CARD) not in cards
    with atomic_write(version) as new:
        (staging / version.name).rename(new)
    with atomic_write(folder / CONFIG) as new:  # from now on this version is the one that is loaded
        (staging / CONFIG).rename(new)
    if not is_edited:
        with atomic_write(folder / CARD) as new:
            shutil.copyfile(version / CARD, new)
    for old in old_versions:
        if old != version:
            shutil.rmtree(old, ignore_errors=True)
    if is_old:
        for name in (TENSORS, THUMBNAILS, *BACKBONE_FILES):
            (folder / name).unlink(missing_ok=True)


def _list_versions(folder: Path) -> list[Path]:
    """Return the folders of all versions in a classifier's folder."""
    return [path for path in folder.glob(VERSION + 16 * "[0-9a-f]") if path.is_dir() and not path.is_symlink()]


def check_destination(path: Path) -> None:
    """Raise BadInput where something else than a classifier is in a classifier's place, or a file in a folder's."""
    if file := next((parent for parent in path.parents if parent.is_file()), None):
        raise BadInput(f"{path} cannot be written: {file} is a file, not a folder.")
    is_empty = not path.exists() or (path.is_dir() and not any(path.iterdir()))
    is_ours = (path / CONFIG).is_file() and ((path / TENSORS).is_file() or bool(_list_versions(path)))
    if not is_empty and not is_ours:
        raise BadInput(f"{path} is there already and is not a classifier: choose another folder.")


def describe_existing(path: Path) -> str:
    """Return a sentence about the classifier that is replaced by one saved at `path`; empty where there is none."""
    check_destination(path)
    if not (path / CONFIG).is_file():
        return ""
    try:
        counts = read_folder(path, lambda files, _: read_tensors(files / TENSORS)[0]["counts"])
        return (
            f" It replaces the one that was there ({count_noun(len(counts), 'class')}, {int(counts.sum())} examples)."
        )
    except (BadInput, KeyError, TypeError, RuntimeError):
        return " It replaces the one that was there, which could not be read."


def _check_labels(labels: np.ndarray) -> None:
    """Raise BadInput for labels that could not be read again."""
    if labels.dtype.kind not in LABEL_KINDS:
        raise BadInput(f"labels of type {labels.dtype} cannot be saved: use text or numbers.")
    for label in labels.tolist() if labels.dtype.kind == "U" else ():
        if len(label) > MAX_LABEL_LENGTH:
            raise BadInput(f"the class name {label[:40]!r}... has {len(label)} letters: at most {MAX_LABEL_LENGTH} do.")
        if label and all(unicodedata.category(letter)[0] in "CZ" for letter in label):
            raise BadInput(f"the class name {label!r} is invisible: use letters that can be seen.")


def _to_config(classifier: FewShotClassifier) -> dict[str, Any]:
    """Return the content of config.json that comes from the classifier itself."""
    labels = classifier.state_.support.labels
    config: dict[str, Any] = {
        "library": "anyshot",
        "format": FORMAT,
        **{name: getattr(classifier, name) for name in ARGUMENTS},
        "positions": classifier.positions_,
        "features": classifier.n_features_in_,
        "labels": labels.tolist(),
        "label_type": labels.dtype.str,
    }
    if classifier.head not in BUILTIN.heads:
        config["made_with"] = (classifier.registry or BUILTIN).file
    if hasattr(classifier, "feature_names_in_"):
        config["feature_names"] = classifier.feature_names_in_.tolist()
    return config


def _to_tensors(classifier: FewShotClassifier) -> dict[str, torch.Tensor]:
    """Return the tensors of a classifier; vectors of exemplars are float32 where that loses no digit."""
    support = classifier.state_.support
    exemplars, (keys, rows) = support.exemplars, support.all_keys
    float32 = exemplars.vectors.astype(np.float32)
    arrays = {
        "sums": support.sums,
        "counts": support.counts,
        "kept": float32 if np.array_equal(float32, exemplars.vectors) else exemplars.vectors,
        "owner": exemplars.class_index,
        "keys": exemplars.keys.view(np.int64),
        "groups": exemplars.groups.view(np.int64),
        "example_keys": keys.view(np.int64),
        "example_counts": np.bincount(rows, minlength=len(support)),
        "freedom": np.array(support.degrees_of_freedom),
    }
    if isinstance(support.rest_moment, np.ndarray):
        arrays["moment"] = support.rest_moment
    return {name: to_tensor(array) for name, array in arrays.items()} | to_parameter_tensors(classifier)


def to_parameter_tensors(classifier: FewShotClassifier) -> dict[str, torch.Tensor]:
    """Return the parameters of the head, and what was fitted on base classes, as tensors that a file can hold."""
    tensors = {f"parameters.{name}": value for name, value in classifier.parameters_.items()}
    return tensors | {f"fitted.{name}": value for name, value in classifier.fitted_.items()}


# --------------------------------------------------------------------------------------------------------- fingerprints


def _hash_file(path: Path) -> str:
    """Return the size and the hash of a file."""
    with path.open("rb") as file:
        return f"{path.stat().st_size}-{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _hash_config(config: Mapping[str, Any]) -> str:
    """Return a hash of a configuration, which does not depend on how its JSON is written."""
    rest = {name: value for name, value in config.items() if name != "fingerprint"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def _check_fingerprints(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise ValueError where files of a folder do not belong together."""
    if config["fingerprint"] != _hash_config(config):
        raise ValueError("config.json was changed, and its parts do not fit")
    files, names = _version_folder(folder, config), config["files"]
    if not {TENSORS} <= names.keys() <= {TENSORS, *OPTIONAL_FILES, *BACKBONE_FILES}:
        raise ValueError("config.json does not name its files")
    for name, digest in names.items():
        if not (files / name).is_file() and name in OPTIONAL_FILES:
            continue
        is_there = (files / name).is_file() and digest.startswith(f"{(files / name).stat().st_size}-")
        if not is_there or _hash_file(files / name) != digest:  # the size first: a file may be of a terabyte
            raise ValueError(f"config.json and {name} do not fit together")


def _version_folder(folder: Path, config: Mapping[str, Any]) -> Path:
    """Return the folder of the version that a configuration names."""
    return folder / f"{VERSION}{config['fingerprint'][:16]}" if config["format"] == FORMAT else folder


# -------------------------------------------------------------------------------------------------------------- loading


def load_folder(folder: Path, registry: Registry | None = None) -> FewShotClassifier:
    """Return a classifier from its folder; one with a head that is not ours needs the registry of its file."""
    return read_folder(folder, lambda files, config: _check_logits(folder, _read_classifier(files, config, registry)))


def load_image_folder(
    folder: Path, backbone: "str | Path | Embed | Embedder | None", registry: Registry | None
) -> tuple[Embedder, FewShotClassifier, dict[int, bytes], frozenset[tuple[int, Any]]]:
    """Return the backbone, the classifier of its features, the thumbnails and the confirmed labels of a classifier.

    Args:
        folder: The folder.
        backbone: The backbone, where it is not in the folder (a function).
        registry: Needed for a head or a backbone that is not ours.
    """
    if not has_backbone(folder):
        raise BadInput(f"{folder} is not an image classifier (it has no backbone.json): save one there first.")
    return read_folder(
        folder,
        lambda files, config: (
            _read_backbone(files, backbone, registry),
            _check_logits(folder, _read_classifier(files, config, registry)),
            _read_thumbnails(files / THUMBNAILS),
            _read_confirmed(folder, config),
        ),
    )


def read_folder(folder: Path, read: Callable[[Path, Mapping[str, Any]], T]) -> T:
    """Return what `read` makes of the files and the configuration of a folder, all of one version."""
    while True:
        before = read_save_stamp(folder)
        try:
            config = _read_config(folder)
            if config["format"] == FORMAT:
                with _errors_as_bad_input(folder, KeyError, TypeError, ValueError, AttributeError):
                    _check_fingerprints(folder, config)
            return read(_version_folder(folder, config), config)
        except (BadInput, OSError):
            if read_save_stamp(folder) == before:
                raise  # else it was saved meanwhile, and is read again


def is_classifier(folder: Path) -> bool:
    """Return whether a folder holds a classifier, of pictures or of features."""
    return (folder / CONFIG).is_file()


def find_current_version(folder: Path) -> Path:
    """Return the folder with the files of the version that is loaded."""
    return _version_folder(folder, _read_config(folder))


def find_onnx_backbone(folder: Path) -> Path:
    """Return the path of the ONNX file that embeds pictures for a saved classifier."""
    return find_current_version(folder) / ONNX_BACKBONE


def has_backbone(folder: Path) -> bool:
    """Return whether a folder holds a classifier of pictures."""
    config = _read_config(folder)
    with _errors_as_bad_input(folder, KeyError, TypeError):
        return BACKBONE in config["files"] if config["format"] == FORMAT else (folder / BACKBONE).is_file()


def read_save_stamp(folder: Path) -> tuple[int, int] | None:
    """Return the inode and the time of the last save, by which two saves differ; None where there is none."""
    with contextlib.suppress(OSError):
        about = (folder / CONFIG).stat()
        return about.st_ino, about.st_mtime_ns
    return None


def _errors_as_bad_input(folder: Path, *kinds: type[Exception]) -> contextlib.AbstractContextManager[None]:
    """Re-raise errors about missing or unexpected values in a folder as BadInput."""
    return as_bad_input(kinds, f"{folder} is not a whole classifier", ": save it again.")


def _read_config(folder: Path) -> dict[str, Any]:
    """Return config.json; its format is one that can be read."""
    check_classifier(folder)
    config = read_json(folder / CONFIG, MAX_CONFIG_BYTES)
    with _errors_as_bad_input(folder, KeyError, TypeError):
        if config["library"] != "anyshot" or config["format"] not in (*OLD_FORMATS, FORMAT):
            readable = ", ".join(map(str, (*OLD_FORMATS, FORMAT)))
            raise BadInput(f"{folder} is of format {config['format']}: this version reads formats {readable}.")
    return config


def _read_classifier(folder: Path, config: Mapping[str, Any], registry: Registry | None) -> FewShotClassifier:
    """Return a classifier from the files of a version and its configuration (see `read_folder`)."""
    tensors = {name: value.numpy() for name, value in read_tensors(folder / TENSORS)[0].items()}
    # Tensors of other shapes or types than expected may raise anything, in any head.
    with _errors_as_bad_input(folder, Exception):
        arguments, features = _read_arguments(config), config["features"]
        if (file := config.get("made_with")) and arguments["head"] not in (registry or BUILTIN).heads:
            raise BadInput(f"{folder} was made with {file}, which has its head: name that file, --using {file}.")
        has_scatter = (registry or BUILTIN).head(arguments["head"]).estimator is not None
        support = _read_support(_read_labels(config, tensors), tensors, arguments["keep"], has_scatter)
        parameters, base = from_parameter_tensors(tensors)
        classifier = FewShotClassifier(parameters=parameters, base=base, registry=registry, **arguments)
        classifier.restore(support, features)
        if "feature_names" in config:
            classifier.feature_names_in_ = np.array(config["feature_names"], object)
            if classifier.feature_names_in_.shape != (features,):
                raise ValueError("its feature_names are not as many as its features")
    return classifier


def _check_logits(folder: Path, classifier: FewShotClassifier) -> FewShotClassifier:
    """Return a classifier that was read, or raise BadInput where its logits cannot be computed or are not finite."""
    with _errors_as_bad_input(folder, Exception):
        state = classifier.state_
        rows = np.arange(min(len(state.support), CHECKED_CLASSES))
        prototypes = compute_prototypes(state.head, state.support, rows)
        query = torch.from_numpy(classifier._embed(np.ones((1, classifier.n_features_in_))))
        if not state.head.score(state.head.transform(query), prototypes).isfinite().all():
            raise ValueError("its logits are not finite")
    return classifier


def _read_backbone(
    folder: Path, backbone: "str | Path | Embed | Embedder | None", registry: Registry | None
) -> Embedder:
    """Return the given backbone, or else the one that a version names or holds."""
    about = read_json(folder / BACKBONE)
    side, description = about.pop("side", None), about.get("backbone", "")
    name, content = about.pop("name", ""), about.pop("content", "")
    are_texts = all(isinstance(value, str) for value in (description, name, content))
    if type(side) is not int or not 0 < side <= 4096 or not are_texts:
        raise BadInput(f"{folder}/{BACKBONE} does not say of which pictures: side, name, backbone.")
    fetch = backbone is not None  # Loading a stranger's classifier downloads nothing, unless the user names a backbone.
    source = _find_backbone(folder, name, description) if backbone is None else backbone
    needs = f"{folder} needs {description}{f', content {content[:12]}' if content else ''}"
    with warnings.catch_warnings(), as_bad_input(BadInput, needs, "."):
        warnings.simplefilter("ignore", UserWarning)  # The user saw warnings about the backbone when it was fitted.
        embedder = load_embedder(source, side, registry or BUILTIN, fetch=fetch)
    if content and embedder.fingerprint and embedder.fingerprint != content:
        raise BadInput(
            f"{folder} was made with {description}, content {content[:12]}, and {embedder.name or 'the backbone'} has "
            f"content {embedder.fingerprint[:12]} here: its features would not fit."
        )
    return replace(embedder, about=about)


def _find_backbone(folder: Path, name: str, description: str) -> str | Path:
    """Return the name of a version's backbone, or the path of the one that it holds."""
    if name.partition(":")[0] not in ("", DEFAULT_EMBEDDER, "timm"):
        raise BadInput(f"{folder}/{BACKBONE} names {name!r}: name the backbone yourself, as backbone=...")
    if name:
        return name
    if (folder / MODEL).is_file():
        return folder
    if (folder / ONNX_BACKBONE).is_file():
        return folder / ONNX_BACKBONE
    raise BadInput(f"the backbone of {folder} is a function ({description}): give it as backbone=... again.")


def _read_thumbnails(path: Path) -> dict[int, bytes]:
    """Return the thumbnails by the keys of their examples; none where the file was deleted."""
    tensors = read_tensors(path)[0] if path.is_file() else {}
    with as_bad_input((ValueError, TypeError), f"{path} does not hold pictures: save it again."):
        return {int(key, 16): jpeg.numpy().tobytes() for key, jpeg in tensors.items()}


def _read_confirmed(folder: Path, config: Mapping[str, Any]) -> frozenset[tuple[int, Any]]:
    """Return the keys and labels of the examples whose label a person has confirmed."""
    with _errors_as_bad_input(folder, TypeError, ValueError):
        return frozenset((int(key, 16), label) for key, label in config.get("confirmed", ()))


def from_parameter_tensors(
    tensors: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray] | None, dict[str, np.ndarray] | None]:
    """Return the arguments `parameters` and `base` of a classifier from tensors that `to_parameter_tensors` named."""
    parameters, base = (
        {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        for prefix in ("parameters.", "fitted.")
    )
    if not all(np.isfinite(value).all() for value in (*parameters.values(), *base.values())):
        raise ValueError("a value is not finite")
    return parameters or None, base or None


def _read_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the classifier, of the right types; the classifier itself checks names and ranges."""
    for name, kinds in {**ARGUMENTS, "features": (int,)}.items():
        if type(config[name]) not in kinds:  # True is no number here
            raise ValueError(f"its {name} is {config[name]!r:.40}")
    if not 0 < config["positions"] <= config["features"] < 1 << 28:
        raise ValueError(f"{config['positions']} positions, {config['features']} features")
    if config["scale"] is not None and not 0 < config["scale"] < math.inf:
        raise ValueError(f"a scale of {config['scale']}")
    return {name: config[name] for name in ARGUMENTS}


def _read_labels(config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the labels; old formats have those of many classes as tensors."""
    kind = np.dtype(config["label_type"])
    if kind.kind not in LABEL_KINDS or kind.itemsize > MAX_VALUE_BYTES:
        raise ValueError(f"labels of type {config['label_type']}: they must be text or numbers")
    texts = config["labels"]
    if texts is None:
        texts = tensors["labels"].tolist()
        if kind.kind == "U":  # UTF-8, and where each ends
            data, bounds = tensors["labels"].tobytes(), [0, *tensors["ends"].tolist()]
            if tensors["labels"].ndim != 1 or bounds != sorted(bounds):
                raise ValueError("its labels do not end where they should")
            texts = [data[start:stop].decode("utf-8", "surrogatepass") for start, stop in pairwise(bounds)]
    labels = np.array(texts, kind)
    if labels.ndim != 1 or labels.tolist() != texts or len(set(texts)) < len(texts):
        raise ValueError("its labels are not of their type, or not all different")
    return labels


def _read_support(labels: np.ndarray, tensors: Mapping[str, np.ndarray], keep: int, has_scatter: bool) -> Support:
    """Return the classes; sizes have to agree and indices to point into what is there."""
    arrays = _upgrade_tensors({name: tensors[name] for name in (*SHAPES, "scatter") if name in tensors})
    _check_shapes(arrays, len(labels))
    _check_indices(arrays, keep)
    counts, class_index = arrays["counts"], arrays["owner"]
    if has_scatter and (arrays["freedom"] < 0 or ("moment" not in arrays and counts.sum() > len(class_index))):
        raise ValueError("its scatter does not fit")
    keys, groups, all_keys = (arrays[name].view(np.uint64) for name in ("keys", "groups", "example_keys"))
    return Support.from_arrays(
        labels,
        arrays["sums"],
        counts,
        Exemplars(arrays["kept"].astype(np.float64), class_index, keys, groups),
        (all_keys, np.repeat(np.arange(len(counts)), arrays["example_counts"])),
        keep=keep,
        has_scatter=has_scatter,
        rest_moment=arrays["moment"] if has_scatter and "moment" in arrays else 0.0,
        degrees_of_freedom=int(arrays["freedom"]) if has_scatter else 0,
    )


def _check_indices(arrays: Mapping[str, np.ndarray], keep: int) -> None:
    """Raise ValueError where exemplars or keys do not fit the classes and the numbers of their examples."""
    counts, class_index, key_counts = arrays["counts"], arrays["owner"], arrays["example_counts"]
    is_in_order = (np.diff(class_index, prepend=0, append=len(counts) - 1) >= 0).all()
    has_unexpected = len(class_index) and not keep
    if not is_in_order or has_unexpected or (counts < np.bincount(class_index, minlength=len(counts))).any():
        raise ValueError("its exemplars do not fit")
    is_possible = (counts > 0).all() and (key_counts >= 0).all() and (key_counts <= counts).all()
    if not is_possible or key_counts.sum() != len(arrays["example_keys"]):
        raise ValueError("its counts and keys do not fit")


def _upgrade_tensors(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the tensors of old formats as those of today.

    They lack the keys of all examples, which may therefore count again when they are learned again, and have the
    scatter within classes instead of the second moment of the examples that are no exemplars.
    """
    if "groups" in arrays:
        return arrays
    nothing = np.zeros(0, np.int64)
    new = {"groups": arrays["keys"], "example_keys": nothing, "example_counts": 0 * arrays["counts"]}
    if "scatter" in arrays:
        sums, vectors = arrays["sums"], arrays["kept"].astype(np.float64)
        new["moment"] = arrays["scatter"] + (sums.T / arrays["counts"]) @ sums - vectors.T @ vectors
    return {"freedom": np.array(-1)} | arrays | new


def _check_shapes(arrays: Mapping[str, np.ndarray], n_classes: int) -> None:
    """Raise ValueError where a tensor is missing, not finite, or of another kind or shape than the others need."""
    sizes = {"class": n_classes}
    for name, (kinds, axes) in SHAPES.items():
        if name == "moment" and name not in arrays:
            continue
        array, names = arrays[name], axes.split()
        shape = tuple(sizes.setdefault(*pair) for pair in zip(names, array.shape, strict=False))
        if array.dtype.str[1:] not in kinds.split() or array.shape != shape or len(names) != len(shape):
            raise ValueError(f"its classes and tensors do not fit: {name} is {array.dtype} of shape {array.shape}")
        if not np.isfinite(array.sum()):
            raise ValueError(f"its {name} are not finite")
