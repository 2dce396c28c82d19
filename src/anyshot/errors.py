"""Bad input gets one clear sentence: what was wrong, where, what would be right."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")
MOST_SAID = 400  # letters of what an error says, in a sentence


class BadInput(ValueError):
    """Something the user gave is wrong; the message is the one sentence they see (exit code 2, no traceback)."""


@contextmanager
def as_bad_input(
    kinds: type[Exception] | tuple[type[Exception], ...], words: str, after: str | None = None
) -> Iterator[None]:
    """What of these kinds is raised inside is bad input, and its sentence `words`; with `after`, which ends it, what
    the error itself says stands between them in brackets. A BadInput stays as it is, unless it is among the kinds."""
    try:
        yield
    except kinds as error:
        if isinstance(error, BadInput) and BadInput not in (kinds if isinstance(kinds, tuple) else (kinds,)):
            raise
        raise BadInput(words if after is None else f"{words} ({first_line(error).rstrip('.')}){after}") from None


@contextmanager
def os_error_as_bad_input(words: str, after: str = ".") -> Iterator[None]:
    """What the system refuses inside (a full disk, a file that may not be read) is bad input: `words`, and why."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{words}: {error.strerror or error}{after}") from error


def first_line(error: object) -> str:
    """What an error says, as far as it fits into a sentence: its first line, or of what kind it is."""
    return next(iter(str(error).splitlines()), "")[:MOST_SAID] or type(error).__name__


def look_up(kind: str, name: str, table: Mapping[str, T]) -> T:
    """`table[name]`, or a BadInput that offers the nearest name there is."""
    check_names(kind, [name], table)
    return table[name]


def check_names(kind: str, given: Iterable[str], names: Collection[str]) -> None:
    """Refuse the first of those given that is not among the names."""
    for name in given:
        if name not in names:
            raise BadInput(describe_unknown_name(kind, name, names))


SHOWN = 40  # names, in a sentence


def describe_unknown_name(kind: str, name: str, names: Iterable[str]) -> str:
    """The sentence for a name that is not in the list of names."""
    choices = list(names)
    near = get_close_matches(name, choices, n=1, cutoff=0.5)
    listed = ", ".join(choices[:SHOWN]) + " and others" * (len(choices) > SHOWN)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {listed}."
    return f"there is no {kind} named {name!r}: {hint}"
