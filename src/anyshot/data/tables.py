"""Own images or embeddings in a table: CSV, TSV or Parquet, one row per item."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from anyshot.data.archives import inside
from anyshot.data.packing import Item, Source
from anyshot.data.store import SPLITS
from anyshot.errors import BadInput, unknown

PATHS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path")
LABELS = ("label", "labels", "class", "class_name", "category", "target", "y")
SPLIT_NAMES = {name: name for name in SPLITS} | {"valid": "val", "validation": "val", "dev": "val"}
Columns = dict[str, Any]  # lists or arrays


def read_table(
    path: Path, root: Path | None = None, path_column: str = "", label_column: str = "", split_column: str = ""
) -> Source:
    """Rows of a path and a label (and a split). Paths are relative to `root`, the table's folder by default."""
    columns = read_columns(path)
    folder = root or path.parent
    names = column(columns, path_column, PATHS, "path", path)
    labels = label_text(column(columns, label_column, LABELS, "label", path), path)
    splits = split_text(columns, split_column, path)
    items = [
        Item(str(name), label, split, inside(folder, str(name), path).read_bytes)
        for name, label, split in zip(names, labels, splits, strict=True)
    ]
    return Source(items)


def read_columns(path: Path) -> Columns:
    """The columns of a CSV, TSV or Parquet file, all as long as each other."""
    if not path.is_file():
        raise BadInput(f"there is no file {path}.")
    if path.suffix.lower() in (".parquet", ".pq"):
        return _parquet(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not a table of comma-separated values in UTF-8 ({error}).") from None
    rows = [row for row in rows if row]
    if len(rows) < 2:
        raise BadInput(f"{path} needs a row of column names and rows below it.")
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise BadInput(f"row {number} of {path} has {len(row)} values, the first has {len(rows[0])}.")
    return {name.strip(): [row[index] for row in rows[1:]] for index, name in enumerate(rows[0])}


def _parquet(path: Path) -> Columns:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise BadInput("reading Parquet needs pyarrow: pip install 'anyshot[parquet]'.") from None
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise BadInput(f"{path} is not a Parquet file ({str(error).splitlines()[0]}).") from None
    return {name: table.column(name).to_pylist() for name in table.column_names}


def column(columns: Columns, name: str, usual: Sequence[str], what: str, path: Path) -> Any:
    """The column of this name or, without one, the first of the usual names for what it holds."""
    if name:
        if name not in columns:
            raise BadInput(f"{path}: {unknown('column', name, columns)}")
        return columns[name]
    for candidate, values in columns.items():
        if candidate.lower() in usual:
            return values
    among = f" among {', '.join(columns)}" if columns else ""
    raise BadInput(f"{path} has no {what} column{among}: name it with --{what}-column.")


def label_text(labels: Iterable[Any], path: Path) -> list[str]:
    """Labels as class names; any text is one, but there must be some."""
    text = ["" if label is None else str(label).strip() for label in labels]
    if "" in text:
        raise BadInput(f"item {text.index('') + 1} of {path} has no label.")
    return text


def split_text(columns: Columns, name: str, path: Path) -> list[str | None]:
    """The split of each row, or None for all where no column says so."""
    if not name and "split" not in columns:
        return [None] * len(next(iter(columns.values())))
    values = [str(value).strip().lower() for value in column(columns, name, ("split",), "split", path)]
    for value in values:
        if value not in SPLIT_NAMES:
            raise BadInput(f"{path}: {unknown('split', value, SPLITS)}")
    return [SPLIT_NAMES[value] for value in values]
