"""Words and numbers for people: plurals, ranges, numbers, and text that is safe to print."""

from collections.abc import Callable, Hashable, Iterable
from math import isnan
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def to_one_line(error: BaseException | str) -> str:
    """What an error says, on one line: names come from anyone's files, with line breaks and a terminal's codes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(error))


def to_printable(text: str) -> str:
    """The same of a text of several lines."""
    return "\n".join(map(to_one_line, text.split("\n")))


def count_noun(many: int, what: str) -> str:
    """So many of something, in words: 1 class, 2 classes, 1 example."""
    several = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{many} {what if many == 1 else several}"


def format_range(smallest: int, largest: int) -> str:
    """How many items a class has, for a sentence: one number where all classes are alike."""
    return f"{smallest} to {largest}" if smallest != largest else str(smallest)


def group_by(items: Iterable[T], by: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by what they share, in the order of first appearance."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(by(item), []).append(item)
    return groups


def format_number(value: float) -> str:
    """A number for a terminal: two decimals, or a dash where it is NaN."""
    return "-" if isnan(value) else f"{value:.2f}"
