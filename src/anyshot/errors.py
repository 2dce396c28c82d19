"""Bad input gets one clear sentence: what was wrong, where, what would be right."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


class BadInput(ValueError):
    """Something the user gave is wrong; the message is the one sentence they see (exit code 2, no traceback)."""


def sentence(error: BaseException | str) -> str:
    """What an error says, on one line: names come from anyone's files, with line breaks and a terminal's codes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(error))


def shown(text: str) -> str:
    """The same of a text of several lines."""
    return "\n".join(map(sentence, text.split("\n")))


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Around imports of packages that come with an extra: `extra` is the sentence where they are not installed."""
    try:
        yield
    except ImportError:
        raise BadInput(extra) from None


def choose(kind: str, name: str, table: Mapping[str, T]) -> T:
    """`table[name]`, or a BadInput that offers the nearest name there is."""
    if name in table:
        return table[name]
    raise BadInput(unknown(kind, name, table))


SHOWN = 40  # names, in a sentence


def unknown(kind: str, name: str, names: Iterable[str]) -> str:
    """The sentence for a name that is not in the list of names."""
    choices = list(names)
    near = get_close_matches(name, choices, n=1, cutoff=0.5)
    hint = (
        f"did you mean {near[0]!r}?"
        if near
        else f"choose one of {', '.join(choices[:SHOWN])}{' and others' * (len(choices) > SHOWN)}."
    )
    return f"there is no {kind} named {name!r}: {hint}"
