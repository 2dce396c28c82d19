"""`anyshot predict`: pictures or features, from wherever they are, to classes, for people and for programs."""

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
from anyshot.classify.images import ImageClassifier
from anyshot.data.layout import SourceOptions
from anyshot.data.open import open_pictures, read_vectors
from anyshot.data.source import describe_skipped
from anyshot.errors import BadInput
from anyshot.files import write_text
from anyshot.models.cache import FeatureCache
from anyshot.models.features import describe_unreadable, embed_items
from anyshot.progress import OnMessage, no_message, progress
from anyshot.tables import to_csv
from anyshot.text import count_noun, to_one_line

NONE = "none of these"
Form = Literal["table", "csv", "json"]


def predict_sources(
    classifier: ImageClassifier | FewShotClassifier,
    sources: Sequence[Path],
    form: Form,
    top: int | None = None,
    out: Path | None = None,
    layout: SourceOptions | None = None,
    cache: FeatureCache | None = None,
    say: OnMessage = no_message,
) -> str:
    """Classify what is there and say what could not be read. `top` is how many of the likeliest classes are shown:
    one in a CSV file and three elsewhere by default. With `out`, the answers are in that file instead."""
    layout = layout or SourceOptions()
    if top is None:
        top = 1 if form == "csv" else 3
    if top < 1:
        raise BadInput(f"the likeliest {top} classes cannot be shown: name a number from 1.")
    if isinstance(classifier, FewShotClassifier):
        rows = [row for source in sources for row in _of_features(classifier, source, top, layout)]
    else:
        rows = _of_pictures(classifier, sources, top, layout, cache, say)
    text = _FORMS[form](rows)
    if out is None:
        return text
    write_text(out, text)
    return f"{out}: {count_noun(len(rows), 'answer')}.\n"


def _of_features(
    classifier: FewShotClassifier, source: Path, top: int, layout: SourceOptions
) -> Iterator[dict[str, Any]]:
    vectors = read_vectors(source, layout)
    return predict_rows(classifier, vectors.names, vectors.features, top)


def _of_pictures(
    classifier: ImageClassifier,
    sources: Sequence[Path],
    top: int,
    layout: SourceOptions,
    cache: FeatureCache | None,
    say: OnMessage,
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    unread: list[str] = []
    with open_pictures(sources, layout) as pictures:
        items = pictures.items
        if not items:
            raise BadInput("there are no pictures to classify: give files, or folders with pictures in them.")
        say("\n".join(describe_skipped(pictures.skipped)))
        with progress(f"classifying {len(items)} pictures", float(len(items))) as advance:
            for part in embed_items(classifier.backbone, items, cache):
                readable = [one for one in part if one.features is not None]
                unread += [one.why for one in part if one.features is None]
                if readable:
                    features = np.stack([one.features for one in readable if one.features is not None])
                    rows += predict_rows(classifier.classifier, [one.item.name for one in readable], features, top)
                advance(float(len(part)))
    say(describe_unreadable(unread))
    if not rows:
        raise BadInput(f"none of the {len(items)} pictures could be read.")
    return rows


def predict_rows(
    inner: FewShotClassifier, names: Sequence[str], features: np.ndarray, top: int
) -> Iterator[dict[str, Any]]:
    """A row per example: its class, None where it looks like none of them, and the likeliest few with the probabilities
    that they have if it is of one of them."""
    vectors = inner.vectors(features)
    logits, evidence = inner.logits_of(vectors), inner.evidence_of(vectors)
    is_of_these = evidence >= inner.threshold_
    for name, row, sure, is_known in zip(names, logits, softmax(logits, axis=1), is_of_these, strict=True):
        best = [(inner.classes_[place].item(), round(float(sure[place]), 6)) for place in np.argsort(-row)[:top]]
        yield {"image": name, "class": best[0][0] if is_known else None, "is_known": bool(is_known), "best": best}


def _table(rows: Sequence[dict[str, Any]]) -> str:
    table = Table("image", "class", "probability", "then")
    for row in rows:
        (name, sure), *others = row["best"]
        cells = row["image"], str(name), f"{sure:.1%}", ", ".join(f"{other} {chance:.1%}" for other, chance in others)
        if not row["is_known"]:  # its chances are those of the classes against each other, and say nothing of this
            cells = row["image"], NONE, "-", f"nearest: {', '.join(str(other) for other, _ in row['best'])}"
        table.add_row(*map(to_one_line, cells))
    out = io.StringIO()
    width = None if sys.stdout.isatty() else 160
    Console(file=out, width=width, markup=False, emoji=False).print(table)  # a class may be called [/red] or :cat:
    return out.getvalue()


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    more = max((len(row["best"]) for row in rows), default=1)
    others = [f"{what}_{place}" for place in range(2, more + 1) for what in ("class", "probability")]
    lines = [["image", "class", "probability", "is_known", "nearest", *others]]
    for row in rows:
        (nearest, sure), *then = row["best"]
        answer = (nearest, sure) if row["is_known"] else (NONE, "")
        lines.append([row["image"], *answer, row["is_known"], nearest, *(value for pair in then for value in pair)])
    return to_csv(lines)


def _json(rows: Sequence[dict[str, Any]]) -> str:
    named = [{**row, "best": [{"class": name, "probability": p} for name, p in row["best"]]} for row in rows]
    return json.dumps(named, indent=2, ensure_ascii=False) + "\n"


_FORMS = {"table": _table, "csv": _csv, "json": _json}
