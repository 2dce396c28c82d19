"""Own images: a Hugging Face data set that was saved to disk (`save_to_disk`)."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from anyshot.data.archives import inside
from anyshot.data.packing import Item, Source
from anyshot.data.store import SPLIT_NAMES
from anyshot.data.tables import LABELS, PATHS, Columns, column, label_text
from anyshot.errors import BadInput, explaining
from anyshot.files import read_bytes


def read_huggingface(path: Path, image_column: str = "", label_column: str = "") -> Source:
    """Each named split of the data set; one that is not train, validation or test has its classes divided."""
    with explaining(ImportError, "a Hugging Face data set needs datasets: pip install 'anyshot[huggingface]'."):
        import datasets
    if not path.is_dir():
        raise BadInput(f"there is no folder {path}.")
    with explaining(Exception, f"{path} is not a data set saved by save_to_disk", "."):  # the library raises many kinds
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
        for index, label in enumerate(label_text(text, path))
    ]


def _column(part: Any, given: str, type_: type, usual: Sequence[str], what: str, path: Path) -> str:
    """The name of a column: the one given, or the first of a type, or the first with a usual name."""
    typed = [name for name, feature in part.features.items() if isinstance(feature, type_)]
    names: Columns = {name: [name] for name in part.features}
    return column(names, given or (typed[0] if typed else ""), usual, what, path)[0]


def _bytes(raw: Any, name: str, index: int, path: Path) -> bytes:
    """The encoded image: kept in the data set, or in a file beside it."""
    image = raw[index][name]
    return image["bytes"] or read_bytes(inside(path.parent, image["path"], path))
