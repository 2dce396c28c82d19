"""What the deploying verbs of the command line do, as functions that return what is printed."""

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.special import softmax

from anyshot.data.doctor import spread
from anyshot.data.embeddings import read_vectors
from anyshot.data.pictures import SUFFIXES
from anyshot.data.store import open_store
from anyshot.deploy.classifier import FewShotClassifier
from anyshot.deploy.image_classifier import HEAD, ImageClassifier
from anyshot.deploy.learned import Learned, accuracy_words
from anyshot.errors import BadInput
from anyshot.files import write_json, write_text
from anyshot.models.cache import FeatureCache
from anyshot.models.embedders import DEFAULT, embedder
from anyshot.models.examples import holds_features, read_examples
from anyshot.models.registry import PACKAGE, Registry
from anyshot.progress import progress

NONE = "none of these"
BATCH = 256


def fit_source(
    source: Path,
    model: str,
    out: Path,
    head: str,
    reject: float,
    keep: int,
    registry: Registry = PACKAGE,
    cache: FeatureCache | None = None,
) -> str:
    """Fit and save a classifier of a folder of pictures, or of features with labels."""
    if head:
        registry.head(head)  # before the work, to say early what is misspelt
    arguments: dict[str, Any] = {"reject": reject, "keep": keep} | ({"head": head} if head else {})
    learned = Learned()
    if holds_features(source):
        inner, what = _features_classifier(source, model, registry, arguments), "examples"
        examples = read_examples(source, None)
        inner.fit(examples.features, np.array(examples.labels)).save(out)
    else:
        classifier = ImageClassifier(model or DEFAULT, registry=registry, **arguments)
        with progress("learning", 1.0) as advance:
            classifier.fit(source, progress=advance, cache=cache, seen=learned.see)
        classifier.save(out)
        inner, what = classifier.classifier, "pictures"
    counts = inner.support_.counts
    words = f"{out}: {len(counts)} classes, {spread(int(counts.min()), int(counts.max()))} {what} each."
    return f"{words} {accuracy_words(inner, learned, out)}".rstrip()


def _features_classifier(
    source: Path, model: str, registry: Registry, arguments: Mapping[str, Any]
) -> FewShotClassifier:
    """A classifier of features that are there: with the head of a model that was trained on such, or with any other."""
    trained = _trained_head(model, registry, **arguments)
    if model and (trained is None or not _is_of_features(model, registry)):
        raise BadInput(f"{source} holds features already: leave the model out.")
    return trained or FewShotClassifier(**{"head": HEAD, "registry": registry, **arguments})


def open_classifier(folder: Path, registry: Registry = PACKAGE) -> ImageClassifier | FewShotClassifier:
    """A classifier from its folder, of pictures or of features."""
    if (folder / "config.json").is_file() and not (folder / "backbone.json").is_file():
        return FewShotClassifier.load(folder, registry)
    return ImageClassifier.load(folder, registry=registry)


def predict_images(
    model: Path,
    images: Sequence[Path],
    form: Literal["table", "csv", "json"],
    top: int,
    registry: Registry = PACKAGE,
) -> str:
    """Classify pictures, those of folders too, or the rows of files of features."""
    classifier = open_classifier(model, registry)
    rows: list[dict[str, Any]] = []
    if isinstance(classifier, FewShotClassifier):
        for path in images:
            vectors = np.asarray(open_store(path).items) if (path / "store.json").is_file() else read_vectors(path)
            named = [path.name if len(vectors) == 1 else f"{path.name}[{index}]" for index in range(len(vectors))]
            rows += _predictions(classifier, named, vectors, top)
        return _FORMS[form](rows)
    paths = list(_pictures(images))
    if not paths:
        raise BadInput("there are no pictures to classify: give files, or folders with pictures in them.")
    with progress("classifying", 1.0) as advance:
        for start in range(0, len(paths), BATCH):
            batch = paths[start : start + BATCH]
            rows += _predictions(classifier.classifier, list(map(str, batch)), classifier.features_of(batch), top)
            advance(len(batch) / len(paths))
    return _FORMS[form](rows)


def _predictions(
    inner: FewShotClassifier, names: Sequence[str], features: np.ndarray, top: int
) -> Iterator[dict[str, Any]]:
    vectors = inner.vectors(features)
    logits, evidence = inner.logits_of(vectors), inner.evidence_of(vectors)
    threshold = -np.inf if inner.coverage_ is None else inner.coverage_.threshold
    for name, row, sure, known in zip(names, logits, softmax(logits, axis=1), evidence >= threshold, strict=True):
        best = [(inner.classes_[place].item(), round(float(sure[place]), 6)) for place in np.argsort(-row)[:top]]
        yield {"image": name, "class": best[0][0], "is_known": bool(known), "best": best}


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


def examine(
    model: Path, source: Path, as_json: bool, registry: Registry = PACKAGE, cache: FeatureCache | None = None
) -> str:
    """How well a classifier does on labelled examples, as text or JSON."""
    from anyshot.deploy.testing import as_text, run_test

    classifier = open_classifier(model, registry)
    if isinstance(classifier, FewShotClassifier):
        if not holds_features(source):
            raise BadInput(f"{model} classifies features: {source} should be a file or a store of such, with labels.")
        inner, examples = classifier, read_examples(source, None)
    else:
        if holds_features(source):
            raise BadInput(f"{model} classifies pictures: {source} should be a folder of class folders of pictures.")
        inner, examples = classifier.classifier, read_examples(source, classifier.backbone, cache)
    result = run_test(inner, examples.features, examples.labels)
    return json.dumps(result.to_dict(), indent=2, ensure_ascii=False) if as_json else as_text(result)


def export(model: str, out: Path, registry: Registry = PACKAGE) -> str:
    """Write a classifier, with its backbone where it can be written, or a backbone alone, as an ONNX file."""
    from anyshot.deploy.onnx_export import export_backbone, export_onnx

    folder = Path(model)
    if not (folder / "config.json").is_file():
        if folder.is_dir() and not (folder / "model.safetensors").is_file():
            raise BadInput(f"{folder} is not an image classifier (it has no backbone.json): save one there first.")
        backbone = embedder(model, registry=registry)
        export_backbone(backbone, out)
        return f"{out}: images in, features out; --model takes it."
    classifier = open_classifier(folder, registry)
    if isinstance(classifier, ImageClassifier) and classifier.backbone.file is None:
        classifier.to_onnx(out)
        return f"{out}: images and prototypes in, logits and vectors out."
    inner = classifier.classifier if isinstance(classifier, ImageClassifier) else classifier
    export_onnx(inner, out)
    before = f"; {folder / 'backbone.onnx'} gives the features" if isinstance(classifier, ImageClassifier) else ""
    return f"{out}: features and prototypes in, logits and vectors out{before}."


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
    cache: FeatureCache | None = None,
    holdout: Path | None = None,
) -> str:
    """Advice for features, a store or a folder of pictures, as text; with `out` also as page, Markdown and JSON. With
    `holdout` it is tested on other examples, too."""
    from anyshot.deploy.advice import advise
    from anyshot.deploy.advice_page import as_html, as_markdown, as_text, shown_images
    from anyshot.deploy.advising import other_features, picture_of, thumbnails, times_of

    if way != "all" and not way.isdigit():
        raise BadInput(f"way is a number of classes or 'all', not {way!r}.")
    trained = _trained_head(model, registry)
    if holds_features(source):
        _features_classifier(source, model, registry, {})
        embeds, picture = None, None
    else:
        embeds = embedder(model or DEFAULT, registry=registry)
    if holdout is not None and holds_features(holdout) != (embeds is None):
        raise BadInput(f"{holdout} must be of the same kind as {source}: both pictures, or both features.")
    examples = read_examples(source, embeds, cache)
    held_out = None if holdout is None else read_examples(holdout, embeds, cache)
    features, labels, names = examples.features, examples.labels, examples.names
    if embeds is not None:
        picture = picture_of(examples, embeds)
    learned: dict[str, Any] = {
        "parameters": {} if trained is None else {trained.head: _floats(trained)},
        "embed": {trained.head: trained.embed} if trained is not None and trained.embed else {},
    }
    with progress("drawing episodes", 1.0) as advance:
        advice = advise(
            features,
            labels,
            heads or _with_own(trained, features),
            shots,
            "all" if way == "all" else int(way),
            episodes,
            seed,
            holdout=None if held_out is None else (held_out.features, held_out.labels),
            names=names,
            times=times_of(examples),
            picture=picture,
            registry=registry,
            progress=advance,
            **learned,
        )
    if embeds is not None:
        advice = replace(advice, other_features=other_features(advice, examples, embeds, learned, cache, registry))
    if out is not None:
        write_json(out / "advice.json", advice.to_dict())
        write_text(out / "advice.md", as_markdown(advice))
        write_text(out / "advice.html", as_html(advice, thumbnails(picture, shown_images(advice))))
    return as_text(advice)


def _trained_head(model: str, registry: Registry, **arguments: Any) -> FewShotClassifier | None:
    """A classifier of the model's own head, where it is one that anyshot trained."""
    trained = embedder(model, registry=registry).model if model else None
    return None if trained is None else FewShotClassifier.from_run(trained, registry=registry, **arguments)


def _is_of_features(model: str, registry: Registry) -> bool:
    """Whether a trained model reads features rather than pictures."""
    trained = embedder(model, registry=registry).model
    return trained is not None and trained.recipe.frozen


def _with_own(trained: FewShotClassifier | None, features: np.ndarray) -> list[str]:
    from anyshot.deploy.advice import heads_for

    usual = heads_for(features)
    return usual if trained is None else list(dict.fromkeys([trained.head, *usual]))


def _floats(trained: FewShotClassifier) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(np.asarray(v), dtype=torch.float32) for name, v in (trained.parameters or {}).items()}
