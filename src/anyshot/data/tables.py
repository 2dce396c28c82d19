"""Own images or embeddings in a table, one row per item: CSV, TSV or Parquet; or a Hugging Face data set that was saved
to disk (`save_to_disk`)."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from anyshot.data.archives import safe_join
from anyshot.data.packer import FileBytes, Item, Source
from anyshot.data.store import SPLIT_NAMES, SPLITS
from anyshot.errors import BadInput, as_bad_input, describe_unknown_name
from anyshot.files import check_file, read_bytes, read_text

PATHS = (
    "path", "paths", "file", "files", "filename", "file_name", "filepath", "file_path", "image", "images", "image_path",
    "image_name", "img", "picture", "photo",
)  # fmt: skip
LABELS = ("label", "labels", "class", "class_name", "category", "target", "y")
Columns = dict[str, Any]  # lists or arrays
SHOWN = 20  # columns, in a sentence
MOST_TEXT = 1 << 26  # bytes of a table: its values take up to twenty times as much memory
MOST_ROWS, MOST_VALUES = 1 << 22, 1 << 26  # of a Parquet file, where repeated values take no room


def read_image_table(
    path: Path, root: Path | None = None, path_column: str = "", label_column: str = "", split_column: str = ""
) -> Source:
    """Rows of a path and a label (and a split). Paths are relative to `root`, the table's folder by default."""
    columns = read_columns(path)
    folder = root or path.parent
    names = pick_column(columns, path_column, PATHS, "path", path)
    labels = check_labels(pick_column(columns, label_column, LABELS, "label", path), path)
    splits = read_splits(columns, split_column, path)
    items = [
        Item(str(name), label, split, FileBytes(safe_join(folder, str(name), path)))
        for name, label, split in zip(names, labels, splits, strict=True)
    ]
    return Source(items)


def read_paths(path: Path, root: Path | None = None, path_column: str = "") -> list[Item]:
    """The pictures that a table names, whatever else it says of them."""
    names = pick_column(read_columns(path), path_column, PATHS, "path", path)
    return [Item(str(name), "", None, FileBytes(safe_join(root or path.parent, str(name), path))) for name in names]


def column_names(path: Path) -> list[str]:
    """The names of the columns of a Parquet file."""
    with open_parquet(path) as pyarrow:
        return list(pyarrow.parquet.read_schema(path).names)


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """pyarrow, while a Parquet file is read; what it raises says that this is none."""
    with as_bad_input(ImportError, "reading Parquet needs pyarrow: pip install 'anyshot[parquet]'."):
        import pyarrow
        import pyarrow.parquet
    kinds = (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError)
    with as_bad_input(kinds, f"{path} is not a Parquet file", "."):
        yield pyarrow


def read_columns(path: Path) -> Columns:
    """The columns of a CSV, TSV or Parquet file, all as long as each other."""
    check_file(path)
    names, columns = (_parquet if path.suffix.lower() in (".parquet", ".pq") else _delimited)(path)
    if len(set(names)) < len(names):
        raise BadInput(f"{path} has two columns of the name {max(names, key=names.count)!r}.")
    return dict(zip(names, columns, strict=True))


def _delimited(path: Path) -> tuple[list[str], list[list[str]]]:
    text = io.StringIO(read_text(path, MOST_TEXT).removeprefix("\ufeff"), newline="")
    with as_bad_input(csv.Error, f"{path} is not a table of comma-separated values", "."):
        rows = csv.reader(text, delimiter=_delimiter(text, path), strict=True)
        filled = (row for row in rows if row)
        names = [name.strip() for name in next(filled, [])]
        columns: list[list[str]] = [[] for _ in names]
        for number, row in enumerate(filled, 2):
            if len(row) != len(names):
                raise BadInput(f"row {number} of {path} has {len(row)} values, the first has {len(names)}.")
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    if not columns or not columns[0]:
        raise BadInput(f"{path} needs a row of column names and rows below it.")
    return names, columns


def _delimiter(text: io.StringIO, path: Path) -> str:
    """What the first row separates most of its names by: commas, semicolons or tabs, whatever the file is called."""
    first = next((line for line in text if line.strip()), "")
    text.seek(0)
    usual = "\t" if path.suffix.lower() in (".tsv", ".tab") else ","
    return max((usual, ",", ";", "\t"), key=first.count)


def _parquet(path: Path) -> tuple[list[str], list[Any]]:
    with open_parquet(path) as pyarrow:
        about = pyarrow.parquet.read_metadata(path)
        groups = [about.row_group(index) for index in range(min(about.num_row_groups, MOST_ROWS))]
        values = sum(group.column(index).num_values for group in groups for index in range(group.num_columns))
        size = sum(group.total_byte_size for group in groups)
        if about.num_rows > MOST_ROWS or values > MOST_VALUES or size > 1 << 30:
            raise BadInput(f"{path} has {about.num_rows} rows of {values} values, {size >> 20} MB: that is too much.")
        table = pyarrow.parquet.read_table(path)
        return table.column_names, [_values(column) for column in table.columns]


def _values(column: Any) -> Any:
    """The values of a column: vectors as one array where they are as long as each other, else whatever they are."""
    import pyarrow

    kind = column.type
    if pyarrow.types.is_list(kind) or pyarrow.types.is_fixed_size_list(kind) or pyarrow.types.is_large_list(kind):
        one = column.combine_chunks()
        one = one.combine_chunks() if isinstance(one, pyarrow.ChunkedArray) else one
        inner = one.flatten()
        is_number = pyarrow.types.is_floating(inner.type) or pyarrow.types.is_integer(inner.type)
        even = len(one) and len(inner) % len(one) == 0 and len(set(one.value_lengths().to_pylist())) == 1
        if is_number and even and not one.null_count and not inner.null_count:
            return inner.to_numpy(zero_copy_only=False).reshape(len(one), -1)
    return column.to_pylist()


def pick_column(columns: Columns, name: str, usual: Sequence[str], what: str, path: Path) -> Any:
    """The column of this name or, without one, the first of the usual names for what it holds."""
    if name:
        if name not in columns:
            raise BadInput(f"{path}: {describe_unknown_name('column', name, columns)}")
        return columns[name]
    for candidate, values in columns.items():
        if candidate.lower() in usual:
            return values
    among = f" among {', '.join(islice(columns, SHOWN))}" if columns else ""
    raise BadInput(f"{path} has no {what} column{among}: name it with --{what}-column.")


def decode_text(value: Any) -> Any:
    """Bytes as text; anything else as it is."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def check_labels(labels: Iterable[Any], path: Path) -> list[str]:
    """Labels as class names; any text is one, but there must be some."""
    text = ["" if label is None else str(label).strip() for label in labels]
    if "" in text:
        raise BadInput(f"item {text.index('') + 1} of {path} has no label.")
    return text


def read_splits(columns: Columns, name: str, path: Path) -> list[str | None]:
    """The split of each row, or None for all where no column says so."""
    if not name and "split" not in columns:
        return [None] * len(next(iter(columns.values())))
    values = [str(value).strip().lower() for value in pick_column(columns, name, ("split",), "split", path)]
    for value in values:
        if value not in SPLIT_NAMES:
            raise BadInput(f"{path}: {describe_unknown_name('split', value, SPLITS)}")
    return [SPLIT_NAMES[value] for value in values]


def read_huggingface(path: Path, image_column: str = "", label_column: str = "") -> Source:
    """Each named split of the data set; one that is not train, validation or test has its classes divided."""
    with as_bad_input(ImportError, "a Hugging Face data set needs datasets: pip install 'anyshot[huggingface]'."):
        import datasets
    if not path.is_dir():
        raise BadInput(f"there is no folder {path}.")
    with as_bad_input(
        Exception, f"{path} is not a data set saved by save_to_disk", "."
    ):  # the library raises many kinds
        loaded = datasets.load_from_disk(str(path))
    parts: dict[str | None, Any] = {None: loaded}
    if isinstance(loaded, datasets.DatasetDict):
        parts = {SPLIT_NAMES.get(name.lower()): part for name, part in loaded.items()}
        if len(loaded) == 1:  # one part is no split: its classes are divided
            parts = {None: next(iter(loaded.values()))}
        elif None in parts or len(parts) < len(loaded):
            raise BadInput(f"{path} has splits {', '.join(loaded)}: train, validation and test are understood.")
    items = [item for split, part in parts.items() for item in _items(part, split, path, image_column, label_column)]
    return Source(items)


def _items(part: Any, split: str | None, path: Path, image_column: str, label_column: str) -> list[Item]:
    import datasets

    image_name = _column(part, image_column, datasets.Image, PATHS, "image", path)
    label_name = _column(part, label_column, datasets.ClassLabel, LABELS, "label", path)
    if not isinstance(part.features[image_name], datasets.Image):
        raise BadInput(f"column {image_name!r} of {path} holds {part.features[image_name]}, not images.")
    raw = part.cast_column(image_name, datasets.Image(decode=False))
    values, named = part.select_columns([label_name])[label_name], part.features[label_name]
    text = [named.int2str(value) for value in values] if isinstance(named, datasets.ClassLabel) else list(values)
    return [
        Item(f"{split or path.name}[{index}]", label, split, partial(_bytes, raw, image_name, index, path))
        for index, label in enumerate(check_labels(text, path))
    ]


def _column(part: Any, given: str, type_: type, usual: Sequence[str], what: str, path: Path) -> str:
    """The name of a column: the one given, or the first of a type, or the first with a usual name."""
    typed = [name for name, feature in part.features.items() if isinstance(feature, type_)]
    names: Columns = {name: [name] for name in part.features}
    return pick_column(names, given or (typed[0] if typed else ""), usual, what, path)[0]


def _bytes(raw: Any, name: str, index: int, path: Path) -> bytes:
    """The encoded image: kept in the data set, or in a file beside it."""
    image = raw[index][name]
    return image["bytes"] or read_bytes(safe_join(path.parent, image["path"], path))
