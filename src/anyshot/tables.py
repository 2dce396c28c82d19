"""Tables: what their columns are, what identifies a cell, and how they are read and written as CSV.

A row says where an accuracy comes from (the fields of `CellKey`), how it was measured (test shot, way, queries,
episodes) and what it is (accuracy in percent, and its intervals). Nothing here imports torch.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

from anyshot.errors import BadInput, as_bad_input
from anyshot.files import atomic_write, read_text
from anyshot.text import format_number

Row = dict[str, Any]
MAX_TEXT_BYTES = 1 << 26  # bytes of a file that is read: its values take up to twenty times as much memory

# Columns that name a row, in whichever published table they appear: texts, then whole numbers.
TEXT_NAMES = ("data", "backbone", "head", "readout", "against", "against_readout", "score", "parameter")
NUMBER_NAMES = ("train_shot", "seed", "test_shot", "own_shot")
ROW_NAMES = (*TEXT_NAMES, *NUMBER_NAMES)
# Types of columns; those that are not listed hold floats.
TYPES: dict[str, type] = dict.fromkeys((*TEXT_NAMES, "model", "learner", "mixed", "printed"), str)
TYPES |= dict.fromkeys((*NUMBER_NAMES, "way", "queries", "episodes", "seeds", "models", "epoch"), int)
# Values of columns that tables of earlier versions lack.
DEFAULTS: Row = {"data": "", "backbone": "", "readout": "own", "train_shot": 0, "seed": 0, "model": ""}


class GridKey(NamedTuple):
    """What names a grid: a head, and how it is read, in a setting (data and backbone)."""

    data: str
    backbone: str
    head: str
    readout: str = "own"

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "GridKey":
        """Return the key of the grid that a row belongs to."""
        return cls(*(row[name] for name in GridKey._fields))

    @property
    def setting(self) -> str:
        """The data and the backbone."""
        return f"{self.data}/{self.backbone}" if self.backbone else self.data

    @property
    def name(self) -> str:
        """The head, and the readout where it is not the head's own."""
        return self.head if self.readout == "own" else f"{self.head} ({self.readout})"

    def __str__(self) -> str:
        return f"{self.name} on {self.setting}"


class CellKey(NamedTuple):
    """What names a tested model: its grid, the shot it was trained for (0: unknown), and the seed of its training."""

    data: str
    backbone: str
    head: str
    readout: str
    train_shot: int
    seed: int

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "CellKey":
        """Return the key of a row, with defaults for the columns that it lacks."""
        return cls(*(row.get(name, DEFAULTS.get(name)) for name in cls._fields))

    @property
    def grid(self) -> GridKey:
        """The grid that it is a column of."""
        return GridKey(*self[:4])


# Tables that were written before they had the columns of a head, and the paper's, only name the head.
KNOWN_HEADS = {
    "proto": ("proto", "Euclidean"),
    "cosine-proto": ("proto", "cosine"),
    "feat": ("feat", "Euclidean"),
    "cosine-feat": ("feat", "cosine"),
    "frn": ("frn", "dot"),
    "frn-old": ("frn-old", "dot"),
    "cosine-frn": ("frn", "cosine"),
}


def add_head_columns(row: Mapping[str, Any]) -> Row:
    """Return the row with the columns that describe its head.

    They are the head that it is an alternative of (`learner`), the `score` that it is trained with, and the shots that
    it was trained with at random (`mixed`).
    """
    if "learner" in row:
        return dict(row)
    head = row["head"].removesuffix("-mixed")
    learner, score = KNOWN_HEADS.get(head, (head, ""))
    return {"score": score, **row, "learner": learner, "mixed": "" if head == row["head"] else "mixed"}


def round_row(row: Mapping[str, Any], digits: int = 4) -> Row:
    """Return the row with its fractions rounded."""
    return {name: round(value, digits) if isinstance(value, float) else value for name, value in row.items()}


def to_csv(lines: Iterable[Sequence[Any]]) -> str:
    """Return lines of cells as the text of a CSV file."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(lines)
    return file.getvalue()


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV; the columns are those of the first row, and an unknown value (NaN) is an empty cell."""
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: "" if _is_nan(value) else value for name, value in row.items()} for row in rows)


def format_table(rows: Sequence[Mapping[str, Any]], path: Path | None = None) -> str:
    """Return rows in columns for a terminal; also write them as CSV where a path is given."""
    if path is not None:
        write_table(path, rows)
    lines = [list(rows[0])]
    lines += [[format_number(v) if isinstance(v, float) else str(v) for v in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def read_table(path: Path, *, optional: bool = False) -> list[Row]:
    """Read the rows of a CSV file; a value that is not of its column's type stays text.

    Args:
        path: The file.
        optional: Whether there are no rows where there is no file.
    """
    if optional and not path.exists():
        return []
    lines = csv.DictReader(io.StringIO(read_text(path, MAX_TEXT_BYTES), newline=""))
    rows: list[Row] = []
    with as_bad_input(csv.Error, f"{path} is not a table of comma-separated values", "."):
        for row in lines:
            if None in row or None in row.values():
                raise BadInput(f"line {lines.line_num} of {path} is not as long as the first: was it cut short?")
            rows.append({name: _parse(name, text) for name, text in row.items()})
    return rows


def as_written(row: Mapping[str, Any]) -> Row:
    """Return a row as it will be when it has been written and read."""
    return {name: _parse(name, "" if _is_nan(value) else str(value)) for name, value in row.items()}


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and isnan(value)


def _parse(name: str, text: str) -> Any:
    try:
        return TYPES.get(name, float)(text) if text else ""
    except ValueError:
        return text
