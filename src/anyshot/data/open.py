"""Pictures with labels, wherever they are: a folder of class folders, a zip or tar of one, a table of paths and labels;
and what was understood of them, in sentences."""

import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path

from anyshot.data.archives import is_archive, unpack
from anyshot.data.folders import find_similar_names, read_folder
from anyshot.data.layout import SourceOptions
from anyshot.data.packer import SkippedFile, Source
from anyshot.data.store import SPLITS
from anyshot.data.tables import read_image_table
from anyshot.errors import BadInput
from anyshot.text import count_noun, format_range, group_by

TABLES = (".csv", ".tsv", ".tab", ".parquet", ".pq")


@contextlib.contextmanager
def open_labelled_pictures(path: Path, layout: SourceOptions | None = None) -> Iterator[Source]:
    """The pictures of a folder, an archive or a table; what an archive holds lies in a folder that goes afterwards."""
    layout = layout or SourceOptions()
    if path.suffix.lower() in TABLES and path.is_file():
        yield read_image_table(path, layout.root, layout.path_column, layout.label_column, layout.split_column)
    elif is_archive(path):
        with tempfile.TemporaryDirectory(prefix="anyshot-") as folder:
            yield read_folder(unpack(path, Path(folder)), layout.depth)
    else:
        yield read_folder(path, layout.depth)


def describe_source(source: Source, path: Path, what: str = "picture") -> str:
    """What a reader made of a source, to be said before any work: classes, splits, what is left out and why. `what` is
    the word for one of its items."""
    splits = group_by(source.items, lambda item: item.split)
    parts = []
    for split in (None, *SPLITS):
        if counts := Counter(item.class_name for item in splits.get(split, ())):
            words = f"{count_noun(len(counts), 'class')}, {count_noun(sum(counts.values()), what)}"
            each = format_range(min(counts.values()), max(counts.values()))
            parts.append(f"{split + ': ' if split else ''}{words} ({each} each)")
    return "\n".join([f"{path}: {'; '.join(parts)}.", *(f"  {remark}." for remark in describe_notes(source))])


def describe_notes(source: Source) -> list[str]:
    """What is worth knowing of a source: notes of its reader, classes that may be one, files that are left out."""
    alike = [
        f"classes {' and '.join(map(_shown, names))} are called nearly the same: are they one?"
        for names in find_similar_names({item.class_name for item in source.items})
    ]
    return [*source.notes, *alike, *describe_skipped(source.left_out)]


def describe_skipped(left_out: Sequence[SkippedFile], most: int = 3) -> list[str]:
    """A line per reason, with the first names."""
    lines = []
    for why, some in group_by(left_out, itemgetter(1)).items():
        first = ", ".join(name for name, _ in some[:most]) + (", ..." if len(some) > most else "")
        lines.append(f"left out, {count_noun(len(some), 'file')}: {why} ({first})")
    return lines


def select_splits(splits: Sequence[str | None], wanted: Sequence[str], for_test: bool) -> tuple[list[int], str]:
    """Which examples to learn from or to test with, and what to say of it.

    Without a wish (`wanted`) everything is taken where nothing has a split. Else one learns from train, or from all
    but test where there is no train; and tests with test, or with val where there is no test."""
    here = [split for split in SPLITS if split in splits]
    for name in wanted:
        if name not in here:
            raise BadInput(f"there is no split {name} here: there are {', '.join(here) or 'none'}.")
    if not here:
        return list(range(len(splits))), ""
    if for_test:
        chosen = list(wanted) or [next((name for name in ("test", "val") if name in here), "train")]
    else:
        chosen = list(wanted) or (["train"] if "train" in here else [name for name in here if name != "test"])
        if not chosen:
            raise BadInput(
                "there are only test examples here, and a classifier does not learn from those: `--split test` if it "
                "should."
            )
    places = [place for place, split in enumerate(splits) if split is None or split in chosen]
    rest = [name for name in here if name not in chosen]
    word = "with" if for_test else "from"
    what = f"{'testing' if for_test else 'learning'} {word} {' and '.join(chosen)}"
    return places, f"{what}, not {word} {' or '.join(rest)} (--split names others)" if rest else what


def _shown(name: str) -> str:
    """A name so that twins can be told apart: what is not plain is shown by its code."""
    return repr(name) if name.isascii() else f"{name!r} ({name!a})"
