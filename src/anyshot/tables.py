"""Rows: tables as CSV, one row per cell, and how their values are shown. Nothing here imports torch."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

from anyshot.errors import BadInput, as_bad_input
from anyshot.files import atomic_write, read_text
from anyshot.text import format_number

Row = dict[str, Any]
WHOLE_NUMBERS = {"train_shot", "test_shot", "own_shot", "seed", "seeds", "models", "way", "queries", "episodes"}
MOST_TEXT = 1 << 26  # bytes: its values take up to twenty times as much memory
WORDS = {"data", "backbone", "head", "readout", "model"}


def round_row(row: Mapping[str, Any], digits: int = 4) -> Row:
    """The row, its fractions to so many digits."""
    return {name: round(value, digits) if isinstance(value, float) else value for name, value in row.items()}


def to_csv(lines: Iterable[Sequence[Any]]) -> str:
    """Lines of cells as the text of a CSV file."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(lines)
    return file.getvalue()


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV; the columns are those of the first row, and an unknown value (NaN) is an empty cell."""
    with atomic_write(path) as aside, aside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: "" if _is_nan(value) else value for name, value in row.items()} for row in rows)


def format_table(rows: Sequence[Mapping[str, Any]], path: Path | None = None) -> str:
    """Rows in columns for a terminal, written as CSV too where a path is given."""
    if path is not None:
        write_table(path, rows)
    cells = [
        list(rows[0]),
        *([format_number(v) if isinstance(v, float) else str(v) for v in row.values()] for row in rows),
    ]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and isnan(value)


def read_table(path: Path) -> list[Row]:
    """Read rows back with their types: shots and counts are int, words str, everything else float where it is one."""
    if not path.is_file():
        raise BadInput(f"there is no table {path}.")
    lines = csv.DictReader(io.StringIO(read_text(path, MOST_TEXT), newline=""))
    rows: list[Row] = []
    with as_bad_input(csv.Error, f"{path} is not a table of comma-separated values", "."):
        for row in lines:
            if None in row or None in row.values():
                raise BadInput(f"line {lines.line_num} of {path} is not as long as the first: was it cut short?")
            rows.append({key: _value(key, text) for key, text in row.items()})
    return rows


def as_written(row: Mapping[str, Any]) -> Row:
    """A row as it will be when it has been written and read."""
    return {key: _value(key, "" if _is_nan(value) else str(value)) for key, value in row.items()}


def _value(key: str, text: str) -> Any:
    if key in WORDS or text == "":
        return text
    try:
        return int(text) if key in WHOLE_NUMBERS else float(text)
    except ValueError:
        return text
