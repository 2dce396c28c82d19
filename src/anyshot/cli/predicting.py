"""`anyshot predict`: classify pictures or features from any source, for people and for programs."""

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

from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.images import ImageClassifier, load_classifier
from anyshot.cli.options import ReadOptions
from anyshot.data.open import open_pictures, read_vectors
from anyshot.data.source import describe_notes
from anyshot.errors import BadInput
from anyshot.files import write_text
from anyshot.models.features import describe_unreadable, embed_items
from anyshot.progress import print_message, progress
from anyshot.tables import to_csv
from anyshot.text import count_noun, to_one_line

Format = Literal["table", "csv", "json"]
Answer = dict[str, Any]


def predict_sources(
    model: Path, sources: Sequence[Path], options: ReadOptions, format: Format, top: int | None, out: Path | None
) -> str:
    """Classify all that the sources hold, and report what could not be read.

    The arguments are those of the verb.
    """
    if top is None:
        top = 1 if format == "csv" else 3
    if top < 1:
        raise BadInput(f"the likeliest {top} classes cannot be shown: name a number from 1.")
    classifier = load_classifier(model, options.registry())
    if isinstance(classifier, FewShotClassifier):
        parts = [read_vectors(source, options.layout) for source in sources]
        answers = [one for part in parts for one in _answer(classifier, part.names, part.features, top)]
    else:
        answers = _classify_pictures(classifier, sources, top, options)
    text = FORMATS[format](answers)
    if out is None:
        return text
    write_text(out, text)
    return f"{out}: {count_noun(len(answers), 'answer')}.\n"


def _classify_pictures(
    classifier: ImageClassifier, sources: Sequence[Path], top: int, options: ReadOptions
) -> list[Answer]:
    answers: list[Answer] = []
    unreadable: list[str] = []
    with open_pictures(sources, options.layout) as pictures:
        items = pictures.items
        if not items:
            raise BadInput("there are no pictures to classify: give files, or folders with pictures in them.")
        print_message("\n".join(describe_notes(pictures)))
        with progress(f"classifying {len(items)} pictures", float(len(items))) as advance:
            for batch in embed_items(classifier.backbone, items, options.features()):
                unreadable += [one.why for one in batch if one.features is None]
                features = [one.features for one in batch if one.features is not None]
                names = [one.item.name for one in batch if one.features is not None]
                if names:
                    answers += _answer(classifier.classifier, names, np.stack(features), top)
                advance(float(len(batch)))
    print_message(describe_unreadable(unreadable))
    if not answers:
        raise BadInput(f"none of the {len(items)} pictures could be read.")
    return answers


def _answer(classifier: FewShotClassifier, names: Sequence[str], features: np.ndarray, top: int) -> Iterator[Answer]:
    """Yield an answer per example; every format shows the same ones.

    `nearest` is the likeliest class. Where the example looks like one of the classes (`is_known`), `class` is the same
    and `probability` its probability; otherwise both are None, because probabilities only compare the classes with each
    other. `best` holds the likeliest classes with these probabilities.
    """
    vectors = classifier.vectors(features)
    logits, evidence = classifier.logits_of(vectors), classifier.evidence_of(vectors)
    rows = zip(names, logits, softmax(logits, axis=1), evidence >= classifier.threshold_, strict=True)
    for name, row, probabilities, is_known in rows:
        order = np.argsort(-row)[:top]
        best = [
            {"class": classifier.classes_[place].item(), "probability": round(float(probabilities[place]), 6)}
            for place in order
        ]
        first = best[0] if is_known else {"class": None, "probability": None}
        yield {"image": name, **first, "is_known": bool(is_known), "nearest": best[0]["class"], "best": best}


def _to_table(answers: Sequence[Answer]) -> str:
    table = Table("image", "class", "probability", "then")
    for answer in answers:
        others = ", ".join(f"{one['class']} {one['probability']:.1%}" for one in answer["best"][1:])
        cells = answer["image"], str(answer["class"]), f"{answer['probability'] or 0:.1%}", others
        if not answer["is_known"]:
            nearest = ", ".join(str(one["class"]) for one in answer["best"])
            cells = answer["image"], "none of these", "-", f"nearest: {nearest}"
        table.add_row(*map(to_one_line, cells))
    out = io.StringIO()
    width = None if sys.stdout.isatty() else 160
    Console(file=out, width=width, markup=False, emoji=False).print(table)  # a class may be called [/red] or :cat:
    return out.getvalue()


def _to_csv(answers: Sequence[Answer]) -> str:
    """Return one line per answer; further classes are columns, and what is None is an empty cell."""
    columns = ["image", "class", "probability", "is_known", "nearest"]
    most = max((len(answer["best"]) for answer in answers), default=1)
    further = [f"{column}_{place}" for place in range(2, most + 1) for column in ("class", "probability")]
    lines = [[*columns, *further]]
    for answer in answers:
        cells = ["" if answer[column] is None else answer[column] for column in columns]
        lines.append([*cells, *(value for one in answer["best"][1:] for value in one.values())])
    return to_csv(lines)


def _to_json(answers: Sequence[Answer]) -> str:
    return json.dumps(answers, indent=2, ensure_ascii=False) + "\n"


FORMATS = {"table": _to_table, "csv": _to_csv, "json": _to_json}
