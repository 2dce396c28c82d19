"""Corrections: labels that a person has reviewed, as a table that is applied to examples or to a classifier.

    path,key,label,decision,new_label
    cat/7.jpg,a1b2c3d4e5f60718,cat,relabel,dog

The page of `anyshot advise` and that of `anyshot serve` write such tables; `anyshot fit`, `add` and `remove` take them.
An example is known by its path in the source, or by its key (`anyshot.classify.keys`) where the table has no path.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.images import ImageClassifier
from anyshot.classify.keys import hash_rows
from anyshot.data.source import Source
from anyshot.data.tables import read_columns
from anyshot.errors import BadInput, as_bad_input
from anyshot.text import count_noun, group_by, list_first

COLUMNS = ("path", "key", "label", "decision", "new_label")
DECISIONS = ("keep", "relabel", "drop")


class Correction(NamedTuple):
    """What a person decided on one example.

    Attributes:
        path: The name of the example in its source; may be empty where there is a key.
        key: The key of the example as 16 hexadecimal digits; may be empty where there is a path.
        label: The label that it has.
        decision: keep, relabel or drop.
        new_label: The label that it should have, where it is relabelled.
    """

    path: str
    key: str
    label: str
    decision: str
    new_label: str = ""

    @property
    def example(self) -> tuple[str, str, str]:
        """What the example is known by: its path, or else its key, and its label."""
        return self.path, "" if self.path else self.key, self.label


def read_corrections(path: str | Path) -> list[Correction]:
    """Read a table of corrections (.csv, .tsv or .parquet).

    Raises:
        BadInput: A decision is unknown or incomplete, or two rows decide differently on one example.
    """
    columns = read_columns(Path(path))
    if "decision" not in columns:
        raise BadInput(f"{path} has no column named decision: a table of corrections has {', '.join(COLUMNS)}.")
    count = len(next(iter(columns.values())))
    cells = (columns.get(name) or [""] * count for name in COLUMNS)
    corrections = [Correction(*(str(cell or "").strip() for cell in row)) for row in zip(*cells, strict=True)]
    for number, one in enumerate(corrections, 2):
        _check(one, f"row {number} of {path}")
    for (example, _, label), rows in group_by(corrections, lambda one: one[:3]).items():
        if len(set(rows)) > 1:
            raise BadInput(f"{path} decides differently on {example or rows[0].key} of {label} in two rows.")
    return list(dict.fromkeys(corrections))


def _check(one: Correction, where: str) -> None:
    """Raise a BadInput if a correction is incomplete."""
    if one.decision not in DECISIONS:
        raise BadInput(f"{where} decides {one.decision!r}: a decision is keep, relabel or drop.")
    if not (one.path or one.key) or (one.decision == "relabel" and not one.new_label):
        raise BadInput(f"{where} must name a path or key, and for relabel a new_label.")
    with as_bad_input(ValueError, f"{where} has the key {one.key!r}, not 16 hexadecimal digits."):
        int(one.key or "0", 16)


def apply_corrections(source: Source, corrections: str | Path | Sequence[Correction]) -> Source:
    """Return a source with its labels corrected, without the examples that are dropped.

    Args:
        source: Labelled examples (`anyshot.open_source`). It needs features where the corrections have keys only.
        corrections: A table of corrections, or its path.

    Raises:
        BadInput: The corrections are of an example that the source does not have, or drop all of them.
    """
    if isinstance(corrections, str | Path):
        corrections = read_corrections(corrections)
    index = _index_examples(source, corrections)
    labels: dict[int, str] = {}
    for one in corrections:
        rows = index.get(one.example)
        if rows is None:
            raise BadInput(
                f"there is no example {one.path or one.key} of {one.label!r} to correct: were the corrections made for "
                "other examples?"
            )
        labels |= dict.fromkeys(rows, {"keep": one.label, "drop": "", "relabel": one.new_label}[one.decision])
    rest = [row for row in range(len(source.items)) if labels.get(row) != ""]
    if not rest:
        raise BadInput("the corrections drop every example.")
    chosen = source.select(rest)
    items = [replace(i, class_name=labels.get(row, i.class_name)) for row, i in zip(rest, chosen.items, strict=True)]
    return replace(chosen, items=items)


def find_confirmed(source: Source, corrections: Sequence[Correction]) -> list[bool]:
    """Return of each example of a corrected source whether a person kept its label."""
    index = _index_examples(source, corrections)
    rows = {row for one in corrections if one.decision == "keep" for row in index.get(one.example, ())}
    return [row in rows for row in range(len(source.items))]


def _index_examples(source: Source, corrections: Sequence[Correction]) -> dict[tuple[str, str, str], list[int]]:
    """Return the rows of the examples, by what corrections know them by."""
    items = source.items
    index = group_by(range(len(items)), lambda row: (items[row].name, "", items[row].class_name))
    if source.has_features and not all(one.path for one in corrections):
        keys = hash_rows(source.features.reshape(len(items), -1)).tolist()
        index |= group_by(range(len(keys)), lambda row: ("", f"{keys[row]:016x}", items[row].class_name))
    return index


def describe_corrections(corrections: Sequence[Correction], table: Path, classes: Sequence[str]) -> str:
    """Return how many labels were changed, how many kept, and which new ones are none of the classes before."""
    kept = sum(one.decision == "keep" for one in corrections)
    parts = [f"{count_noun(len(corrections) - kept, 'correction')} of {table} applied"]
    parts += [f"{count_noun(kept, 'label')} kept"] if kept else []
    new = sorted({one.new_label for one in corrections if one.decision == "relabel"} - set(classes))
    parts += [f"{count_noun(len(new), 'new class')} ({list_first(new)})"] if new else []
    return f"  {', '.join(parts)}."


def move_example(
    classifier: FewShotClassifier | ImageClassifier, label: Any, key: int, new_label: Any, x: Any = None
) -> None:
    """Move an example of a classifier to another class.

    Args:
        classifier: The classifier.
        label: The class that has the example.
        key: The key of the example.
        new_label: The class that it should be in, known or new.
        x: The features of the example, needed where it is no exemplar.
    """
    removed: Any = classifier.take_out(label, key, x)  # with a classifier of pictures, thumbnails too
    classifier.put_back(removed.rename(new_label))
