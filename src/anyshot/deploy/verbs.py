"""What the deploying verbs of the command line do, as functions that return what is printed."""

import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.special import softmax

from anyshot.data.doctor import spread
from anyshot.data.embeddings import read_features
from anyshot.data.folders import read_folder
from anyshot.data.pictures import SUFFIXES
from anyshot.data.store import open_store
from anyshot.deploy.classifier import FewShotClassifier
from anyshot.deploy.image_classifier import ImageClassifier
from anyshot.errors import BadInput
from anyshot.files import write_json, write_text
from anyshot.models.embedders import DEFAULT, embedder
from anyshot.models.registry import PACKAGE, Registry
from anyshot.progress import progress

NONE = "none of these"
BATCH = 256


def fit_folder(
    folder: Path, model: str, out: Path, head: str, reject: float, keep: int, registry: Registry = PACKAGE
) -> str:
    """Fit and save a classifier of a folder of pictures."""
    if head:
        registry.head(head)  # before the work, to say early what is misspelt
    arguments: dict[str, Any] = {"reject": reject, "keep": keep} | ({"head": head} if head else {})
    classifier = ImageClassifier(model, registry=registry, **arguments)
    with progress("learning", 1.0) as advance:
        classifier.fit(folder, progress=advance)
    classifier.save(out)
    counts, coverage = classifier.classifier.support_.counts, classifier.classifier.coverage_
    words = f"{out}: {len(counts)} classes, {spread(int(counts.min()), int(counts.max()))} pictures each."
    if coverage is not None and len(counts) > 1:
        error = classifier.classifier.support_calibration_error()
        words += (
            f" Left out, {coverage.accuracy_of_all:.1%} of the pictures are classified rightly; "
            f"expected calibration error {error:.1%}."
        )
    return words


def predict_images(
    model: Path,
    images: Sequence[Path],
    form: Literal["table", "csv", "json"],
    top: int,
    registry: Registry = PACKAGE,
) -> str:
    """Classify pictures, those of folders too."""
    classifier = ImageClassifier.load(model, registry=registry)
    paths = list(_pictures(images))
    if not paths:
        raise BadInput("there are no pictures to classify: give files, or folders with pictures in them.")
    rows: list[dict[str, Any]] = []
    with progress("classifying", 1.0) as advance:
        for start in range(0, len(paths), BATCH):
            batch = paths[start : start + BATCH]
            rows += _predictions(classifier, batch, top)
            advance(len(batch) / len(paths))
    return _FORMS[form](rows)


def _predictions(classifier: ImageClassifier, paths: Sequence[Path], top: int) -> Iterator[dict[str, Any]]:
    inner = classifier.classifier
    vectors = inner.vectors(classifier.features_of(paths))
    logits, evidence = inner.logits_of(vectors), inner.evidence_of(vectors)
    threshold = -np.inf if inner.coverage_ is None else inner.coverage_.threshold
    for path, row, sure, known in zip(paths, logits, softmax(logits, axis=1), evidence >= threshold, strict=True):
        best = [(inner.classes_[place].item(), round(float(sure[place]), 6)) for place in np.argsort(-row)[:top]]
        yield {"image": str(path), "class": best[0][0], "is_known": bool(known), "best": best}


def _pictures(images: Sequence[Path]) -> Iterator[Path]:
    for path in images:
        if path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        elif path.is_file():
            yield path
        else:
            raise BadInput(f"there is no file or folder {path}.")


def _table(rows: Sequence[dict[str, Any]]) -> str:
    table = Table("image", "class", "probability", "then")
    for row in rows:
        (name, sure), *others = row["best"]
        then = ", ".join(f"{other} {chance:.1%}" for other, chance in others)
        table.add_row(row["image"], str(name) if row["is_known"] else f"{NONE} ({name}?)", f"{sure:.1%}", then)
    out = io.StringIO()
    width = None if sys.stdout.isatty() else 160
    Console(file=out, width=width).print(table)
    return out.getvalue()


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["image", "class", "probability", "is_known"])
    for row in rows:
        writer.writerow([row["image"], row["class"], row["best"][0][1], row["is_known"]])
    return out.getvalue()


def _json(rows: Sequence[dict[str, Any]]) -> str:
    named = [{**row, "best": [{"class": name, "probability": p} for name, p in row["best"]]} for row in rows]
    return json.dumps(named, indent=2, ensure_ascii=False) + "\n"


_FORMS = {"table": _table, "csv": _csv, "json": _json}


# --------------------------------------------------------------------------------------------------------------- advice


def advise_source(
    source: Path,
    model: str,
    heads: Sequence[str],
    shots: Sequence[int],
    way: str,
    episodes: int,
    seed: int,
    out: Path | None,
    registry: Registry = PACKAGE,
) -> str:
    """Advice for features, a store or a folder of pictures, as text; with `out` also as page, Markdown and JSON."""
    from anyshot.deploy.advice import advise
    from anyshot.deploy.advice_page import as_html, as_markdown, as_text

    if way != "all" and not way.isdigit():
        raise BadInput(f"way is a number of classes or 'all', not {way!r}.")
    trained = _trained_head(model, registry)
    features, labels, names = _labelled(source, model, registry)
    with progress("drawing episodes", 1.0) as advance:
        advice = advise(
            features,
            labels,
            heads or _with_own(trained, features),
            shots,
            "all" if way == "all" else int(way),
            episodes,
            seed,
            parameters={} if trained is None else {trained.head: _floats(trained)},
            embed={trained.head: trained.embed} if trained is not None and trained.embed else {},
            registry=registry,
            progress=advance,
        )
    if out is not None:
        write_json(out / "advice.json", advice.to_dict())
        write_text(out / "advice.md", as_markdown(advice, names))
        write_text(out / "advice.html", as_html(advice, names))
    return as_text(advice, names)


def _labelled(source: Path, model: str, registry: Registry) -> tuple[np.ndarray, list[str], list[str]]:
    """Features, labels and names of images, from whatever holds them."""
    if (source / "store.json").is_file():
        store = open_store(source)
        labels = [store.class_names[label] for label in store.labels]
        names = [f"item {index}" for index in range(len(labels))]
        if store.is_features:
            if model:
                raise BadInput(f"{source} holds features already: leave the model out.")
            return np.asarray(store.items), labels, names
        with progress("embedding", float(len(labels))) as advance:
            return embedder(model or DEFAULT, registry=registry).features(store.items, advance), labels, names
    if source.is_dir():
        items = read_folder(source).items
        read = ImageClassifier(model or DEFAULT, registry=registry)
        pieces, labels, names = [], [], []
        with progress("embedding", 1.0) as advance:
            for start in range(0, len(items), BATCH):
                pairs = list(read.decoded(items[start : start + BATCH]))
                labels += [item.class_name for _, item in pairs]
                names += [item.name for _, item in pairs]
                if pairs:
                    pieces.append(read.features(np.stack([pixels for pixels, _ in pairs])))
                advance(BATCH / len(items))
        if not pieces:
            raise BadInput(f"no picture of {source} can be read.")
        return np.concatenate(pieces), labels, names
    found = read_features(source)
    return found.features, list(found.labels), [f"row {index}" for index in range(len(found.labels))]


def _trained_head(model: str, registry: Registry) -> FewShotClassifier | None:
    """A classifier of the model's own head, where it is one that anyshot trained."""
    trained = embedder(model, registry=registry).model if model else None
    return None if trained is None else FewShotClassifier.from_run(trained, registry=registry)


def _with_own(trained: FewShotClassifier | None, features: np.ndarray) -> list[str]:
    from anyshot.deploy.advice import heads_for

    usual = heads_for(features)
    return usual if trained is None else list(dict.fromkeys([trained.head, *usual]))


def _floats(trained: FewShotClassifier) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(np.asarray(v), dtype=torch.float32) for name, v in (trained.parameters or {}).items()}
