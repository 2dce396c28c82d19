"""What the deploying verbs of the command line do, as functions that return what is printed."""

import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.special import softmax

from anyshot.data.pictures import SUFFIXES
from anyshot.errors import BadInput
from anyshot.image_classifier import ImageClassifier
from anyshot.progress import progress

NONE = "none of these"
BATCH = 256


def fit_folder(folder: Path, model: str, out: Path, head: str, reject: float, keep: int) -> str:
    """Fit and save a classifier of a folder of pictures."""
    arguments: dict[str, Any] = {"reject": reject, "keep": keep} | ({"head": head} if head else {})
    classifier = ImageClassifier(model, **arguments)
    with progress("learning", 1.0) as advance:
        classifier.fit(folder, progress=advance)
    classifier.save(out)
    counts, coverage = classifier.classifier.support_.counts, classifier.classifier.coverage_
    words = f"{out}: {len(counts)} classes, {counts.min()} to {counts.max()} pictures each."
    if coverage is not None:
        words += f" Left out, {coverage.accuracy_of_all:.1%} of the pictures are classified rightly."
    return words


def predict_images(model: Path, images: Sequence[Path], form: Literal["table", "csv", "json"], top: int) -> str:
    """Classify pictures, those of folders too."""
    classifier = ImageClassifier.load(model)
    paths = list(_pictures(images))
    if not paths:
        raise BadInput("there are no pictures to classify: give files, or folders with pictures in them.")
    rows: list[dict[str, Any]] = []
    with progress("classifying", len(paths)) as advance:
        for start in range(0, len(paths), BATCH):
            batch = paths[start : start + BATCH]
            rows += _predictions(classifier, batch, top)
            advance(len(batch))
    return _FORMS[form](rows)


def _predictions(classifier: ImageClassifier, paths: Sequence[Path], top: int) -> Iterator[dict[str, Any]]:
    inner = classifier.classifier
    logits = inner.logits(classifier.features_of(paths))
    threshold = -np.inf if inner.coverage_ is None else inner.coverage_.threshold
    for path, row, sure in zip(paths, logits, softmax(logits, axis=1), strict=True):
        best = [(inner.classes_[place].item(), round(float(sure[place]), 6)) for place in np.argsort(-row)[:top]]
        yield {"image": str(path), "class": best[0][0], "is_known": bool(row.max() >= threshold), "best": best}


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
