"""Classifiers as folders: safetensors, JSON and a model card, laid out as a Hugging Face repository; nothing can run.

    classifier.safetensors   sums, counts, kept examples; what the head learned; the basis of a projection
    config.json              the estimator's arguments and the labels
    README.md                the model card

Upload it with `huggingface_hub.upload_folder(folder_path=..., repo_id=...)`; a downloaded snapshot loads as it is.
"""

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyshot.data.arrays import WIDEST
from anyshot.data.doctor import counted
from anyshot.deploy.bursts import find_bursts
from anyshot.deploy.calibration import QUERIES
from anyshot.deploy.classifier import FewShotClassifier
from anyshot.deploy.support import Support
from anyshot.errors import BadInput, explaining
from anyshot.files import read_json, whole, write_json, write_text
from anyshot.models.model import read_tensors, write_tensors
from anyshot.models.registry import PACKAGE, Registry
from anyshot.show.pages import fill

FORMATS = (1, 2, 3)  # 2: of many classes, whose labels are tensors and whose examples are kept of some;
# 3: these are float32 where nothing is lost
MANY = 16_384  # classes
LISTED = 1000  # classes in the card
ARGUMENTS = ("head", "embed", "readout", "scale", "reject", "keep")
LEAST_DRAWS, MOST_DRAWS = 3, 30  # of examples, for the accuracy at fewer shots
OPERATIONS = 4e9  # that they may take for a shot: about a second
AGAIN = ": save it again."
LABEL_KINDS = "iufbU"  # integers, floats, booleans and text: what JSON can carry and no code can hide in


@contextlib.contextmanager
def saved(path: Path) -> Iterator[Path]:
    """Yield a folder to fill, which then becomes `path`, whole; an earlier classifier there gives way, nothing else."""
    check_place(path)
    with whole(path) as aside:
        aside.mkdir()
        yield aside


def check_place(path: Path) -> None:
    """Say so where something else than a classifier lies in a classifier's place."""
    is_classifier = (path / "config.json").is_file() and (path / "classifier.safetensors").is_file()
    if path.exists() and any(path.iterdir() if path.is_dir() else [path]) and not is_classifier:
        raise BadInput(f"{path} is there already and is not a classifier: choose another folder.")


def what_lies_at(path: Path) -> str:
    """What gives way to a classifier that is saved there, in a sentence; something else than a classifier does not."""
    check_place(path)
    if not (path / "config.json").is_file():
        return ""
    try:
        counts = read_tensors(path / "classifier.safetensors")[0]["counts"]
        return f" It replaces the one that was there ({counted(len(counts), 'class')}, {int(counts.sum())} examples)."
    except (BadInput, KeyError, TypeError, RuntimeError):
        return " It replaces the one that was there, which could not be read."


def write_classifier(classifier: FewShotClassifier, folder: Path) -> None:
    """The tensors and the configuration, into a folder that is there."""
    many = len(classifier.ledger_) > MANY
    support = classifier.ledger_.as_arrived() if many else classifier.support_
    if support.labels.dtype.kind not in LABEL_KINDS:
        raise BadInput(f"labels of type {support.labels.dtype} cannot be saved: use text or numbers.")
    tensors = {f"parameters.{name}": value for name, value in classifier.learned_.items()}
    tensors |= {f"fitted.{name}": value for name, value in classifier.fitted_.items()} | _support_tensors(support)
    write_tensors(folder / "classifier.safetensors", tensors | (_label_tensors(support.labels) if many else {}))
    config = {
        "library": "anyshot",
        "format": 3 if many else 1,
        **{name: getattr(classifier, name) for name in ARGUMENTS},
        "positions": classifier.positions_,
        "features": classifier.n_features_in_,
        "labels": None if many else support.labels.tolist(),
        "label_type": support.labels.dtype.str,
    }
    registry = classifier.registry or PACKAGE
    if classifier.head not in PACKAGE.heads:
        config["made_with"] = registry.file
    if hasattr(classifier, "feature_names_in_"):
        config["feature_names"] = classifier.feature_names_in_.tolist()
    write_json(folder / "config.json", config)


def read_classifier(folder: Path, registry: Registry | None = None) -> FewShotClassifier:
    """A classifier from its folder; one with a head that is not ours needs the registry of the file that has it."""
    config = read_json(folder / "config.json")
    tensors, _ = read_tensors(folder / "classifier.safetensors")
    unreadable = (KeyError, TypeError, ValueError, OverflowError, SyntaxError)
    with explaining(unreadable, f"{folder} is not a whole classifier", AGAIN):
        if config["library"] != "anyshot" or config["format"] not in FORMATS:
            raise BadInput(f"{folder} is of format {config['format']}: this version of anyshot reads formats 1 to 3.")
        support = _read_support(_read_labels(config, tensors, folder), tensors, folder)
        arguments = {name: config[name] for name in ARGUMENTS}
        positions, features = config["positions"], config["features"]
        _check_arguments(positions, features, **arguments)
    if (file := config.get("made_with")) and arguments["head"] not in (registry or PACKAGE).heads:
        raise BadInput(f"{folder} was made with {file}, which has its head: name that file, --using {file}.")
    # Tensors of other shapes or types fail in any way, in any head.
    with explaining(Exception, f"{folder} is not a whole classifier", AGAIN):
        learned, fitted = (
            {name.partition(".")[2]: v.numpy() for name, v in tensors.items() if name.startswith(part)}
            for part in ("parameters.", "fitted.")
        )
        if "basis" in tensors:  # as it was written before readouts had names for what they fit
            fitted["basis"] = tensors["basis"].numpy()
        if not all(np.isfinite(value).all() for value in (*learned.values(), *fitted.values())):
            raise ValueError("a value is not finite")
        classifier = FewShotClassifier(
            positions=positions, parameters=learned or None, base=fitted or None, registry=registry, **arguments
        )
        classifier.restore(support, features)
        if "feature_names" in config:
            classifier.feature_names_in_ = np.array(config["feature_names"], object)
            if classifier.feature_names_in_.shape != (features,):
                raise ValueError("its feature_names are not as many as its features")
        with warnings.catch_warnings():  # of scikit-learn, that rows without names come to a classifier with them
            warnings.simplefilter("ignore", UserWarning)
            logits = _probe(classifier, features)  # all that was read fits together, if this is a number
        if not np.isfinite(logits).all():
            raise ValueError("its logits are not finite")
    return classifier


def _probe(classifier: FewShotClassifier, features: int) -> np.ndarray:
    """A logit; of many classes, whose scale is settled when it is asked for, one of a few."""
    if not classifier.settled_.is_large:
        return classifier.logits(np.ones((1, features)))
    vectors = classifier.vectors(np.ones((1, features)))
    ledger, law = classifier.ledger_, classifier.learned_reading_
    means = torch.from_numpy(ledger.sums[:8] / ledger.counts[:8, None])
    refined = law.head.refined(means, torch.from_numpy(ledger.counts[:8]), law.parameters)
    return law.head.score(torch.from_numpy(vectors), refined).numpy()


def _support_tensors(support: Support) -> dict[str, torch.Tensor]:
    arrays = {"sums": support.sums, "counts": support.counts, "kept": support.examples, "owner": support.owner}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    tensors["keys"] = torch.from_numpy(support.keys.view(np.int64))
    if support.scatter is not None:
        tensors |= {"scatter": torch.from_numpy(support.scatter), "freedom": torch.tensor(support.freedom)}
    return tensors


def _label_tensors(labels: np.ndarray) -> dict[str, torch.Tensor]:
    """Labels as numbers, or as UTF-8 and where each ends."""
    if labels.dtype.kind != "U":
        return {"labels": torch.from_numpy(labels)}
    texts = [label.encode("utf-8", "surrogatepass") for label in labels.tolist()]
    ends = np.cumsum([len(text) for text in texts])
    return {"labels": torch.from_numpy(np.frombuffer(b"".join(texts), np.uint8).copy()), "ends": torch.from_numpy(ends)}


def _read_labels(config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], folder: Path) -> np.ndarray:
    """Labels from the configuration, or of many classes from the tensors."""
    kind = np.dtype(config["label_type"])
    if kind.kind not in LABEL_KINDS or kind.itemsize > WIDEST:
        raise BadInput(f"{folder} has labels of type {config['label_type']}: they must be text or numbers.")
    in_words = config["format"] == 1
    labels = np.array(config["labels"], kind) if in_words else tensors["labels"].numpy()
    if in_words or kind.kind != "U":
        if labels.ndim != 1 or labels.dtype != kind or (in_words and labels.tolist() != config["labels"]):
            raise ValueError("its labels are not of their type")
        return labels
    data, ends = labels.tobytes(), tensors["ends"].numpy()
    are_rows = labels.ndim == ends.ndim == 1 and ends.dtype == np.int64
    if not are_rows or (np.diff(ends, prepend=0) < 0).any() or ends[-1] != len(data):
        raise ValueError("its labels do not end where they should")
    starts = np.concatenate([[0], ends[:-1]]).tolist()
    texts = [data[a:b].decode("utf-8", "surrogatepass") for a, b in zip(starts, ends.tolist(), strict=True)]
    if max(map(len, texts)) * 4 > kind.itemsize:
        raise ValueError("its labels are longer than they say")
    return np.array(texts, kind)


def _check_arguments(
    positions: Any, features: Any, *, head: Any, embed: Any, readout: Any, scale: Any, reject: Any, keep: Any
) -> None:
    """Types, and that numbers are finite; names and ranges are for the classifier to judge."""
    if type(positions) is not int or type(features) is not int or not 0 < positions <= features < 1 << 28:
        raise ValueError(f"{positions} positions, {features} features")
    if not (isinstance(head, str) and isinstance(readout, str) and isinstance(embed, str | None)):
        raise ValueError("its head, readout or embed is no name")
    if scale is not None and not (isinstance(scale, int | float) and math.isfinite(scale) and scale > 0):
        raise ValueError(f"a scale of {scale}")
    if not isinstance(reject, int | float) or type(keep) is not int:
        raise ValueError(f"reject is {reject}, keep {keep}")


def _read_support(labels: np.ndarray, tensors: Mapping[str, torch.Tensor], folder: Path) -> Support:
    """Sizes agree and indices point into what is there: a damaged file is told apart before it is used."""
    stored = (tensors[name].numpy() for name in ("sums", "counts", "kept", "owner", "keys"))
    sums, counts, examples, owner, keys = stored
    way, many = len(labels), len(keys)
    if not (
        labels.shape == counts.shape == (way,)
        and owner.shape == keys.shape == (many,)
        and sums.ndim == examples.ndim == 2
        and (len(sums), len(examples)) == (way, many)
        and sums.shape[1] == examples.shape[1]
        and sums.dtype == np.float64
        and examples.dtype in (np.float64, np.float32)
        and counts.dtype == owner.dtype == keys.dtype == np.int64
        and np.isfinite(sums.sum())
        and np.isfinite(examples.sum())
        and (np.diff(owner) >= 0).all()
        and (not many or (owner[0] >= 0 and owner[-1] < way))
        and (counts > 0).all()
        and (counts >= np.bincount(owner, minlength=way)).all()
        and len(np.unique(labels)) == way
    ):
        raise BadInput(f"{folder} is not a whole classifier (its classes and tensors do not fit): save it again.")
    support = Support(labels, sums, counts, examples, owner, keys.view(np.uint64))
    if "scatter" not in tensors:
        return support
    scatter, freedom = tensors["scatter"].numpy(), tensors.get("freedom", torch.tensor(-1)).numpy()
    fits = scatter.shape == 2 * sums.shape[1:] and np.isfinite(scatter).all()
    if not fits or freedom.shape != () or freedom.dtype.kind != "i" or freedom < 0:
        raise BadInput(f"{folder} is not a whole classifier (its scatter does not fit): save it again.")
    return replace(support, scatter=scatter, freedom=int(freedom))


# ----------------------------------------------------------------------------------------------------------------- card


def write_card(classifier: FewShotClassifier, folder: Path, about: Mapping[str, Any]) -> None:
    """The model card. `about` may name the backbone, where it classifies pictures, its data and its sensitivity."""
    settled, labels = classifier.settled_, classifier.classes_
    counts = classifier.ledger_.counts[settled.order[:LISTED]]
    is_measured = not settled.is_large  # of many classes only what was asked for
    card = fill(
        Path(__file__).with_name("card.md"),
        classifier=classifier,
        about=about,
        of_pictures="backbone" in about,
        many=len(labels),
        rows=[(_cell(label), many) for label, many in zip(labels[:LISTED], counts, strict=True)],
        is_measured=is_measured,
        shots="\n".join(_shot_lines(classifier)) if is_measured else "",
        calibration=_calibration(classifier) if is_measured else "",
        coverage=classifier.coverage_ if is_measured or "coverage" in settled.__dict__ else None,
        percent="{:.1%}".format,
    )
    write_text(folder / "README.md", card)


def _shot_lines(classifier: FewShotClassifier) -> list[str]:
    """Leave-one-out accuracy at fewer shots, on the kept examples themselves, in the mean over draws of them; of photos
    of one moment a draw has one, or its siblings would recognise it."""
    support = classifier.settled_.sample[0]
    group = find_bursts(support.examples, support.owner)
    most = int(_moments(support, group.group).min()) - 1
    if most < 1 or len(support.labels) < 2:
        what = "is a single burst of one moment" if group.told_by else "has a single example"
        return [f"Some class {what}: nothing can be left out to measure it."]
    shots = sorted({*(2**power for power in range(10) if 2**power < most), most})
    rng, rows = np.random.default_rng(0), []
    for shot in shots:
        draws = _draws(support, shot, estimates=classifier.reading_.head.estimator is not None)
        orders = (_siblings_last(rng, group.group) for _ in range(draws))
        right = [_are_right(classifier, replace(support, keys=keys).first(shot + 1)) for keys in orders]
        rows.append(f"| {shot} | {np.concatenate(right).mean():.1%} | {len(right[0])} | {draws} |")
    once = ", no two of one burst at once" if group.told_by else ""
    return [
        f"Of the examples above, each left out alone{once}; those of other days and sources are mostly harder.",
        "",
        "| shot | accuracy, leaving one out | examples asked | mean of so many draws |",
        "|---|---|---|---|",
        *rows,
    ]


def _are_right(classifier: FewShotClassifier, support: Support) -> np.ndarray:
    """Of each example that is asked, whether it is told right."""
    answers, owner = classifier.left_out(support)
    return answers == owner


def _siblings_last(rng: np.random.Generator, group: np.ndarray) -> np.ndarray:
    """Keys at random: the smallest are drawn, and so of one moment no second image where there are others."""
    order = rng.permutation(len(group))
    siblings = np.ones(len(order), bool)
    siblings[order[np.unique(group[order], return_index=True)[1]]] = False
    return (np.argsort(order) + np.where(siblings, len(order), 0)).astype(np.uint64)


def _moments(support: Support, group: np.ndarray) -> np.ndarray:
    """How many bursts, or images alone, each class has."""
    pairs = np.unique(np.stack([support.owner, group]), axis=1)
    return np.bincount(pairs[0], minlength=len(support.labels))


def _draws(support: Support, shot: int, *, estimates: bool) -> int:
    """How often examples are drawn: as often as is cheap, and once where there is but one way."""
    if int(support.kept_counts.max()) <= shot + 1:
        return 1
    way, d = support.sums.shape
    images = way * (shot + 1)
    operations = min(images, max(QUERIES, 2 * way)) * way * d
    if estimates:
        operations = d**3 + images * d**2 + 2 * operations
    return max(LEAST_DRAWS, min(MOST_DRAWS, int(OPERATIONS / operations)))


def _calibration(classifier: FewShotClassifier) -> str:
    if not classifier.calibrated_:
        return f"They are not calibrated: the scale of the logits, {classifier.scale_:.4g}, was given or guessed."
    error = f"the expected calibration error on them is {classifier.support_calibration_error():.1%}."
    return f"The scale of the logits, {classifier.scale_:.4g}, is fitted by leaving examples out; {error}"


def _cell(label: Any) -> str:
    """A label inside a table of Markdown, whatever is in it."""
    return "".join(f"&#{ord(c)};" if c in "|<>&`*_[]\\\n\r" else c for c in str(label))
