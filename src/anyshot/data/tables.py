"""Read tables with one example per row.

These are CSV, TSV or Parquet files with paths of pictures, Parquet files with encoded pictures, and Hugging Face data
sets (`save_to_disk`).
"""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from anyshot.data.archives import safe_join
from anyshot.data.layout import PackOptions
from anyshot.data.pictures import FileBytes
from anyshot.data.source import Item, Source
from anyshot.data.store import SPLIT_NAMES, SPLITS
from anyshot.errors import BadInput, as_bad_input, describe_unknown_name
from anyshot.files import read_bytes, read_text
from anyshot.tables import MAX_TEXT_BYTES
from anyshot.text import count_noun, group_by, list_first

# Usual names of columns of paths, labels and encoded images, in lower case.
PATHS = (
    "path", "paths", "file", "files", "filename", "file_name", "filepath", "file_path", "image", "images", "image_path",
    "image_name", "img", "picture", "photo",
)  # fmt: skip
LABELS = ("label", "labels", "class", "class_name", "category", "target", "y")
IMAGES = ("image", "images", "img", "picture", "bytes", "jpg", "png")
Columns = dict[str, Any]  # a list or an array for each name
PARQUET = (".parquet", ".pq")
MAX_LISTED = 20  # names of columns in a message
# Limits of a Parquet file, of which a small one can declare any number of repeated values; bytes are uncompressed.
MAX_ROWS, MAX_VALUES, MAX_BYTES = 1 << 22, 1 << 26, 1 << 30


def read_image_table(path: Path, options: PackOptions, labelled: bool) -> Source:
    """List the pictures that a table names, with their labels and splits.

    Args:
        path: The table, a row per picture.
        options: The names of the columns, and `root`, the folder that paths are relative to. By default that is the
            table's folder, and then links may not lead out of it.
        labelled: Whether labels are needed; if not, only the paths are read.
    """
    columns = read_columns(path)
    names = [str(name) for name in pick_column(columns, options.path_column, PATHS, "path", path)]
    has_root, folder = options.root is not None, options.root or path.parent
    hint = "" if has_root else "; with --root FOLDER, paths are relative to that folder and its links are followed"
    labels, groups = read_labels(columns, options, labelled, path), read_groups(columns, options, path)
    files = [FileBytes(safe_join(folder, name, path, has_root, hint)) for name in names]
    if names and not any(file.path.exists() for file in files):
        raise BadInput(
            f"none of the pictures that {path} names is in {folder} (the first: {names[0]}): name the folder that its "
            "paths begin in, --root FOLDER."
        )
    items = [
        Item(name, label, split, file, group=group)
        for name, file, (label, split), group in zip(names, files, labels, groups, strict=True)
    ]
    return Source(items, notes=tuple(_describe_repeated(items)))


def _describe_repeated(items: Sequence[Item]) -> Iterator[str]:
    """Yield notes on the pictures that a table names more than once, and on those with different labels."""
    groups = [rows for rows in group_by(items, lambda item: item.read).values() if len(rows) > 1]
    labels_of = {rows[0].name: sorted({row.class_name for row in rows}) for rows in groups}
    conflicts = [f"{name}: {' and '.join(labels)}" for name, labels in labels_of.items() if len(labels) > 1]
    if groups:
        yield f"the table names {count_noun(len(groups), 'picture')} more than once ({list_first(list(labels_of))})"
    if conflicts:
        yield f"{count_noun(len(conflicts), 'picture')} of them under different labels ({list_first(conflicts)})"


def read_image_parquet(path: Path, options: PackOptions, labelled: bool) -> Source:
    """List the pictures of a Parquet file that has a column of encoded images, with their labels and splits."""
    image_column = options.image_column or find_columns(path)[1]
    columns = _read_parquet(path, image_column)
    with use_pyarrow(path) as pyarrow:
        metadata = pyarrow.parquet.read_metadata(path)
        sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    labels = read_labels(columns, options, True, path) if labelled else [("", None)] * sum(sizes)
    groups = read_groups(columns, options, path) if columns else [""] * sum(sizes)
    positions = ((part, row) for part, rows in enumerate(sizes) for row in range(rows))
    return Source([
        Item(f"row {number}", label, split, partial(_read_parquet_cell, path, part, row, image_column), group=group)
        for number, ((part, row), (label, split), group) in enumerate(zip(positions, labels, groups, strict=True))
    ])  # fmt: skip


def _read_parquet_cell(path: Path, group: int, row: int, column: str) -> bytes:
    """Return the bytes of an image, by its row in a row group of a Parquet file."""
    value = _read_row_group(path, group, column)[row].as_py()
    data = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(data, bytes):
        raise BadInput(f"row {row} has no bytes of a picture.")
    return data


@lru_cache(maxsize=4)
def _read_row_group(path: Path, group: int, name: str) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(path).read_row_group(group, [name]).column(name)


def find_columns(path: Path) -> tuple[list[str], str]:
    """Return the names of all columns of a Parquet file, and the name of that with encoded images, or ""."""
    with use_pyarrow(path) as pyarrow:
        schema, types = pyarrow.parquet.read_schema(path), pyarrow.types
        is_encoded = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_struct)
        images = [one.name for one in schema if one.name.lower() in IMAGES and any(is_(one.type) for is_ in is_encoded)]
        return list(schema.names), images[0] if images else ""


@contextmanager
def use_pyarrow(path: Path) -> Iterator[Any]:
    """Yield the module pyarrow; its exceptions about the Parquet file become BadInput."""
    with as_bad_input(ImportError, "reading Parquet needs pyarrow: pip install 'anyshot[parquet]'."):
        import pyarrow
        import pyarrow.parquet
    kinds = (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError)
    with as_bad_input(kinds, f"{path} is not a Parquet file", "."):
        yield pyarrow


def read_columns(path: Path) -> Columns:
    """Return the columns of a CSV, TSV or Parquet file, all of one length."""
    return _read_parquet(path) if path.suffix.lower() in PARQUET else _read_delimited(path)


def _check_distinct(names: Sequence[str], path: Path) -> None:
    if len(set(names)) < len(names):
        raise BadInput(f"{path} has two columns of the name {max(names, key=names.count)!r}.")


def _read_delimited(path: Path) -> Columns:
    text = io.StringIO(read_text(path, MAX_TEXT_BYTES).removeprefix("\ufeff"), newline="")
    with as_bad_input(csv.Error, f"{path} is not a table of comma-separated values", "."):
        rows = csv.reader(text, delimiter=_guess_delimiter(text, path), strict=True)
        nonempty = (row for row in rows if row)
        names = [name.strip() for name in next(nonempty, [])]
        _check_distinct(names, path)
        columns: list[list[str]] = [[] for _ in names]
        for row in nonempty:
            if len(row) != len(names):
                raise BadInput(f"row {rows.line_num} of {path} has {len(row)} values, the first has {len(names)}.")
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    if not columns or not columns[0]:
        raise BadInput(f"{path} needs a row of column names and rows below it.")
    return dict(zip(names, columns, strict=True))


def _guess_delimiter(text: io.StringIO, path: Path) -> str:
    """Return the most frequent of comma, semicolon and tab in the first row; the suffix decides where there is none."""
    first = next((line for line in text if line.strip()), "")
    text.seek(0)
    default = "\t" if path.suffix.lower() in (".tsv", ".tab") else ","
    return max((default, ",", ";", "\t"), key=first.count)


def _read_parquet(path: Path, images: str = "") -> Columns:
    """Return the columns of a Parquet file, without that of images."""
    with use_pyarrow(path) as pyarrow:
        metadata = pyarrow.parquet.read_metadata(path)
        names = [name for name in metadata.schema.to_arrow_schema().names if name != images]
        _check_distinct(names, path)
        groups = [metadata.row_group(index) for index in range(min(metadata.num_row_groups, MAX_ROWS))]
        chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
        chunks = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] != images]
        values, size = sum(chunk.num_values for chunk in chunks), sum(chunk.total_uncompressed_size for chunk in chunks)
        if metadata.num_rows > MAX_ROWS or values > MAX_VALUES or size > MAX_BYTES:
            raise BadInput(
                f"{path} has {metadata.num_rows} rows of {values} values, {size >> 20} MB: that is too much."
            )
        table = pyarrow.parquet.read_table(path, columns=names)
        return {name: _column_values(table.column(name)) for name in names}


def _column_values(column: Any) -> Any:
    """Return the values of a column: vectors of one length as an array, everything else as a list."""
    import pyarrow

    kind = column.type
    if pyarrow.types.is_list(kind) or pyarrow.types.is_fixed_size_list(kind) or pyarrow.types.is_large_list(kind):
        with suppress(ValueError, TypeError):  # the vectors differ in length, or one is missing
            if (vectors := np.stack(column.to_numpy(zero_copy_only=False))).dtype.kind in "fiu":
                return vectors
    return column.to_pylist()


def pick_column(columns: Columns, name: str, usual: Sequence[str], what: str, path: Path) -> Any:
    """Return the column that the user named or, where none is named, the first with a usual name.

    Args:
        columns: The columns by name.
        name: The name that the user gave, or "".
        usual: Names that such a column usually has, in lower case.
        what: What the column holds, which is also the name of its option: --WHAT-column.
        path: The file, for messages.
    """
    if name:
        if name not in columns:
            raise BadInput(f"{path}: {describe_unknown_name('column', name, columns)}")
        return columns[name]
    for candidate, values in columns.items():
        if candidate.lower() in usual:
            return values
    cut = ", ..." if len(columns) > MAX_LISTED else ""
    among = f" among {', '.join(islice(columns, MAX_LISTED))}{cut}" if columns else ""
    hint = ". Such a table names pictures; vectors belong in a .npz or .parquet file" if what == "path" else ""
    raise BadInput(f"{path} has no {what} column{among}: name it with --{what}-column{hint}.")


def decode_text(value: Any) -> Any:
    """Return bytes as text, and anything else as it is."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _read_cell_text(value: Any) -> str:
    """Return the text of a cell; empty for None and NaN, which stand for a missing value."""
    is_missing = value is None or (isinstance(value, float | np.floating) and np.isnan(value))
    return "" if is_missing else str(decode_text(value)).strip()


def check_labels(labels: Iterable[Any], path: Path) -> list[str]:
    """Return labels as class names.

    Raises:
        BadInput: A label is empty, or several values in one.
    """
    names = []
    for number, label in enumerate(labels, 1):
        if isinstance(label, list | tuple | dict | np.ndarray):
            raise BadInput(f"the label of item {number} of {path} is several values: give one text or number.")
        names.append(_read_cell_text(label))
        if not names[-1]:
            raise BadInput(f"item {number} of {path} has no label.")
    return names


def read_labels(columns: Columns, options: PackOptions, labelled: bool, path: Path) -> Sequence[tuple[str, str | None]]:
    """Return the label and the split of each row; "" and None if labels are not needed, no split without its column."""
    if not labelled:
        return [("", None)] * len(next(iter(columns.values())))
    labels = check_labels(pick_column(columns, options.label_column, LABELS, "label", path), path)
    if not options.split_column and not any(name.lower() == "split" for name in columns):
        return [(label, None) for label in labels]
    words = pick_column(columns, options.split_column, ("split",), "split", path)
    splits = [str(decode_text(word)).strip().lower() for word in words]
    for word in splits:
        if word not in SPLIT_NAMES:
            raise BadInput(f"{path}: {describe_unknown_name('split', word, SPLITS)}")
    return [(label, SPLIT_NAMES[word]) for label, word in zip(labels, splits, strict=True)]


def read_groups(columns: Columns, options: PackOptions, path: Path, usual: str = "") -> list[str]:
    """Return the group of each row, by the column that the user named; "" without one, and for an empty cell.

    Args:
        columns: All columns by name.
        options: Their `group_column` is the column to read.
        path: The file, for messages.
        usual: The column to read where the user named none, if there is such a column.
    """
    name = options.group_column or (usual if usual in columns else "")
    if not name:
        return [""] * len(next(iter(columns.values())))
    return [_read_cell_text(value) for value in pick_column(columns, name, (), "group", path)]


def read_huggingface(path: Path, options: PackOptions, labelled: bool) -> Source:
    """List the pictures of a data set with their labels and, where it has several parts, their splits."""
    with as_bad_input(ImportError, "a Hugging Face data set needs datasets: pip install 'anyshot[huggingface]'."):
        import datasets
    # The library raises exceptions of many kinds.
    with as_bad_input(Exception, f"{path} is not a data set saved by save_to_disk", "."):
        loaded = datasets.load_from_disk(str(path))
    parts = dict(loaded) if isinstance(loaded, datasets.DatasetDict) else {"": loaded}
    splits = [SPLIT_NAMES.get(name.lower()) if len(parts) > 1 else None for name in parts]  # a single part is no split
    if len(parts) > 1 and (None in splits or len(set(splits)) < len(parts)):
        raise BadInput(f"{path} has splits {', '.join(parts)}: train, validation and test are understood.")
    return Source([
        item
        for split, part in zip(splits, parts.values(), strict=True)
        for item in _list_part(part, split, path, options, labelled)
    ])  # fmt: skip


def _list_part(part: Any, split: str | None, path: Path, options: PackOptions, labelled: bool) -> list[Item]:
    """List the pictures of one part of a Hugging Face data set."""
    import datasets

    image_name = _pick_name(part, options.image_column, datasets.Image, PATHS, "image", path)
    if not isinstance(part.features[image_name], datasets.Image):
        raise BadInput(f"column {image_name!r} of {path} holds {part.features[image_name]}, not images.")
    raw = part.cast_column(image_name, datasets.Image(decode=False))
    labels = [""] * len(part)
    if labelled:
        label_name = _pick_name(part, options.label_column, datasets.ClassLabel, LABELS, "label", path)
        values, feature = part.select_columns([label_name])[label_name], part.features[label_name]
        has_names = isinstance(feature, datasets.ClassLabel)
        labels = check_labels([feature.int2str(value) for value in values] if has_names else values, path)
    return [
        Item(f"{split or path.name}[{index}]", label, split, partial(_read_cell, raw, image_name, index, path))
        for index, label in enumerate(labels)
    ]


def _pick_name(part: Any, given: str, type_: type, usual: Sequence[str], what: str, path: Path) -> str:
    """Return the name of a column: the one given, or the first of a type, or the first with a usual name."""
    first_of_type = next((name for name, feature in part.features.items() if isinstance(feature, type_)), "")
    return pick_column({name: name for name in part.features}, given or first_of_type, usual, what, path)


def _read_cell(raw: Any, name: str, index: int, path: Path) -> bytes:
    """Return an encoded image, from the data set or from a file beside it."""
    image = raw[index][name]
    return image["bytes"] or read_bytes(safe_join(path.parent, image["path"], path))
