"""Corrections: labels that a person has reviewed, as a table that is applied to examples or to a classifier.

    path,key,label,decision,new_label
    cat/7.jpg,a1b2c3d4e5f60718,cat,relabel,dog

The page of `anyshot advise` and that of `anyshot serve` write such tables; `anyshot fit`, `add` and `remove` take them.
An example is known by its path in the source, or by its key (`anyshot.classify.keys`) where the table has no path.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.images import ImageClassifier
from anyshot.classify.keys import hash_rows
from anyshot.data.source import Item, Source
from anyshot.data.tables import read_columns
from anyshot.errors import BadInput, as_bad_input
from anyshot.models.cache import FeatureCache
from anyshot.models.embedders import Embedder
from anyshot.models.features import embed_pictures
from anyshot.progress import print_message
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

    def apply(self, item: Item) -> Item:
        """Return an example with its label confirmed or corrected; it must not be one that is dropped."""
        if self.decision == "keep":
            return replace(item, is_confirmed=True)
        return replace(item, class_name=self.new_label, is_confirmed=False)


def read_corrections(path: str | Path) -> list[Correction]:
    """Read a table of corrections (.csv, .tsv or .parquet).

    Raises:
        BadInput: A decision is unknown or incomplete, or two rows decide differently on one example.
    """
    return list(_number_corrections(path))


def _number_corrections(path: str | Path) -> dict[Correction, int]:
    """Return the corrections of a table, each with the number of its first row; the row of names is the first."""
    columns = read_columns(Path(path))
    if "decision" not in columns:
        raise BadInput(f"{path} has no column named decision: a table of corrections has {', '.join(COLUMNS)}.")
    count = len(next(iter(columns.values())))
    cells = (columns.get(name) or [""] * count for name in COLUMNS)
    corrections = [Correction(*(str(cell or "").strip() for cell in row)) for row in zip(*cells, strict=True)]
    numbers: dict[Correction, int] = {}
    for number, one in enumerate(corrections, 2):
        _check_correction(one, f"row {number} of {path}")
        numbers.setdefault(one, number)
    for (example, _, label), rows in group_by(corrections, lambda one: one[:3]).items():
        if len(set(rows)) > 1:
            raise BadInput(f"{path} decides differently on {example or rows[0].key} of {label} in two rows.")
    return numbers


def _check_correction(correction: Correction, where: str) -> None:
    """Raise BadInput if a correction is incomplete."""
    if correction.decision not in DECISIONS:
        raise BadInput(f"{where} decides {correction.decision!r}: a decision is keep, relabel or drop.")
    if not (correction.path or correction.key) or (correction.decision == "relabel" and not correction.new_label):
        raise BadInput(f"{where} must name a path or key, and for relabel a new_label.")
    with as_bad_input(ValueError, f"{where} has the key {correction.key!r}, not 16 hexadecimal digits."):
        int(correction.key or "0", 16)


def apply_corrections(source: Source, corrections: str | Path | Sequence[Correction]) -> Source:
    """Return a source with its labels corrected or confirmed, without the examples that are dropped.

    Args:
        source: Labelled examples (`anyshot.open_source`). It needs features where the corrections have keys only.
        corrections: A table of corrections, or its path.

    Raises:
        BadInput: The corrections are of an example that the source does not have, or drop all of them.
    """
    table, numbers = corrections, dict[Correction, int]()
    if isinstance(corrections, str | Path):
        numbers = _number_corrections(corrections)
        corrections = list(numbers)
    items = source.items
    index = group_by(range(len(items)), lambda row: (items[row].name, "", items[row].class_name))
    if source.has_features and not all(one.path for one in corrections):
        keys = hash_rows(source.features.reshape(len(items), -1)).tolist()
        index |= group_by(range(len(keys)), lambda row: ("", f"{keys[row]:016x}", items[row].class_name))
    decisions: dict[int, Correction] = {}
    for one in corrections:
        rows = index.get(one.example)
        if rows is None:
            where = f"row {numbers[one]} of {table}: " if one in numbers else ""
            raise BadInput(where + _describe_unknown(one, index))
        decisions |= dict.fromkeys(rows, one)
    rest = [row for row in range(len(items)) if row not in decisions or decisions[row].decision != "drop"]
    if not rest:
        raise BadInput("the corrections drop every example.")
    corrected = [decisions[row].apply(items[row]) if row in decisions else items[row] for row in rest]
    return replace(source.select(rest), items=corrected)


def _describe_unknown(correction: Correction, examples: Iterable[tuple[str, str, str]]) -> str:
    """Return the sentence for a correction that fits none of the examples, each given by its path, key and label."""
    labels = [repr(label) for path, key, label in examples if (path, key) == correction.example[:2]]
    hint = f"its label is {' or '.join(labels)}." if labels else "were the corrections made for other examples?"
    what = f"{correction.path or correction.key} of {correction.label!r}"
    return f"there is no example {what} to correct: {hint}"


def apply_tables(
    source: Source, tables: Sequence[Path], backbone: Embedder | None = None, cache: FeatureCache | None = None
) -> Source:
    """Apply tables of corrections one after the other, and print how many labels each changes and keeps.

    Pictures are embedded first where a table knows them by their keys, which are hashes of features.
    """
    for table in tables:
        corrections = read_corrections(table)
        if backbone is not None and not source.has_features and not all(one.path for one in corrections):
            source = embed_pictures(backbone, source.items, cache, say=print_message)
        corrected = apply_corrections(source, table)
        print_message(_describe_corrections(corrections, table, source.labels))
        source = corrected
    return source


def _describe_corrections(corrections: Sequence[Correction], table: Path, classes: Sequence[str]) -> str:
    """Return how many labels are changed, how many are kept, and which of the new labels are new classes."""
    n_kept = sum(one.decision == "keep" for one in corrections)
    parts = [f"{count_noun(len(corrections) - n_kept, 'correction')} of {table} applied"]
    parts += [f"{count_noun(n_kept, 'label')} kept"] if n_kept else []
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
