"""Sections of advice: sentences and tables, printed in a terminal, as Markdown or on a page."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MOST_PRINTED = 20  # rows of a table in a terminal; the page and the JSON have more


class ExampleCell(NamedTuple):
    """An example in a table: shown where there is a picture of it, named elsewhere.

    Attributes:
        image: Its number.
        name: What a person finds it by.
        label: The label that it has; this and the rest are for a review (`anyshot.inspect.corrections`).
        suggestion: The label that it may rather have.
        key: Its key.
        is_known: Whether it looks like one of the classes, rather than none of these.
    """

    image: int
    name: str
    label: str = ""
    suggestion: str = ""
    key: str = ""
    is_known: bool = True


Cell = str | ExampleCell


class Table(NamedTuple):
    """A title, the names of the columns, and rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Section:
    """What one step of advice says.

    Attributes:
        title: The heading.
        sentences: What the step has found, in words.
        tables: What it has found, in tables.
        doubts: What the data are too few to say, in sentences.
        values: What it has found, by name: attributes of the advice, and entries of its JSON.
    """

    title: str
    sentences: Sequence[str]
    tables: Sequence[Table] = ()
    doubts: Sequence[str] = ()
    values: dict[str, Any] = field(default_factory=dict)


def example_cell(row: dict[str, Any], suggestion: str = "") -> ExampleCell:
    """Return the cell of an example that `AdviceCase.describe` describes."""
    return ExampleCell(row["image"], row["name"], row["label"], suggestion, row["key"])


def as_text(headline: str, sections: Sequence[Section]) -> str:
    """Return sections for a terminal."""
    lines = [headline, ""]
    for section in sections:
        lines += [section.title, *(f"  {sentence}" for sentence in section.sentences)]
        for table in section.tables:
            rows = [table.columns, *(_to_strings(row) for row in table.rows[:MOST_PRINTED])]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            lines += [f"  {table.title}"] if table.title else []
            lines += ["    " + "  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
            if len(table.rows) > MOST_PRINTED:
                lines.append(f"    ... and {len(table.rows) - MOST_PRINTED} more, on the page that --out makes")
        lines.append("")
    return "\n".join(lines).rstrip()


def as_markdown(title: str, headline: str, sections: Sequence[Section]) -> str:
    """Return sections as a Markdown page."""
    lines = [f"# {title}", "", _escape(headline), ""]
    for section in sections:
        lines += [f"## {section.title}", "", *(line for text in section.sentences for line in (_escape(text), ""))]
        for table in section.tables:
            rule = "|".join("---" for _ in table.columns)
            lines += [f"{_escape(table.title)}:", ""] if table.title else []
            lines += [_to_row(table.columns), f"|{rule}|", *(_to_row(_to_strings(row)) for row in table.rows), ""]
    return "\n".join(lines)


def _to_strings(row: Sequence[Cell]) -> list[str]:
    """Return the cells of a row as text, examples by their names."""
    return [cell if isinstance(cell, str) else cell.name for cell in row]


def _escape(sentence: str) -> str:
    """Return a sentence that Markdown shows as it is."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|" else c for c in sentence)


def _to_row(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(_escape(cell).replace("\n", " ") for cell in cells) + " |"
