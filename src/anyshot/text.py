"""Words and numbers for people: plurals, ranges, numbers, and text that is safe to print."""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from math import copysign, isnan
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def to_one_line(error: BaseException | str) -> str:
    """Return a text on one line, control characters escaped: file names may hold line breaks and terminal codes.

    Of a word of hundreds of characters, such as a number of 4,300 digits, the middle is left out.
    """
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(error))
    return re.sub(r"(\S{150})\S{150,}(\S{50})", r"\1...\2", text)


def to_printable(text: str) -> str:
    """Return a text with control characters escaped and its line breaks kept."""
    return "\n".join(map(to_one_line, text.split("\n")))


def count_noun(count: int, noun: str, verb: str = "") -> str:
    """Return a count with its noun, and a verb if one is given: 1 class, 2 classes, 1 class is, 2 classes are."""
    if count != 1:
        noun, verb = f"{noun}es" if noun.endswith("s") else f"{noun}s", {"is": "are", "has": "have"}.get(verb, verb)
    return f"{count} {noun} {verb}".rstrip()


def list_first(words: Sequence[str], limit: int = 3) -> str:
    """Return the first words, and how many more there are: a, b, c and 2 more."""
    return ", ".join(words[:limit]) + (f" and {len(words) - limit} more" if len(words) > limit else "")


def format_range(smallest: int, largest: int) -> str:
    """Return "5 to 20", or "5" where both are equal."""
    return f"{smallest} to {largest}" if smallest != largest else str(smallest)


def format_decimals(value: float, sign: str = "") -> str:
    """Return a number with two decimals; ties go away from zero, however the value is held in binary."""
    return f"{round(value + copysign(1e-9, value), 2) + 0.0:{sign}.2f}"  # + 0.0: no minus before a zero


def format_number(value: float) -> str:
    """Return a number with two decimals, or a dash for NaN."""
    return "-" if isnan(value) else format_decimals(value)


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Group items by a key, in the order of first appearance."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
