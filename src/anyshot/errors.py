"""Errors a user can understand: one sentence that says what was wrong, where, and what would be right."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")
MAX_MESSAGE_LENGTH = 400  # characters of another library's message that are quoted in ours
MAX_LISTED_NAMES = 40  # names that a sentence offers


class BadInput(ValueError):
    """The user's input is wrong; the message is the one sentence they see (exit code 2, no traceback)."""


class MissingFile(BadInput, FileNotFoundError):
    """A file or folder that the user named does not exist."""

    def __str__(self) -> str:
        """Return the sentence alone: FileNotFoundError would add an error number."""
        return str(self.args[0])


@contextmanager
def as_bad_input(
    kinds: type[Exception] | tuple[type[Exception], ...], message: str, after: str | None = None
) -> Iterator[None]:
    """Re-raise exceptions of these kinds as BadInput with this message.

    A BadInput passes unchanged unless it is among the kinds.

    Args:
        kinds: Exceptions to catch.
        message: The sentence, or its beginning where `after` is given.
        after: The end of the sentence; the original message is put before it in brackets.

    Raises:
        BadInput: In place of an exception of these kinds.
    """
    try:
        yield
    except kinds as error:
        if isinstance(error, BadInput) and BadInput not in (kinds if isinstance(kinds, tuple) else (kinds,)):
            raise
        raise BadInput(message if after is None else f"{message} ({first_line(error).rstrip('.')}){after}") from None


@contextmanager
def os_error_as_bad_input(message: str, after: str = ".") -> Iterator[None]:
    """Re-raise an OSError (a full disk, a file without permission) as BadInput: the message and the system's reason."""
    try:
        yield
    except OSError as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{message}: {error.strerror or error}{after}") from error


def first_line(error: object) -> str:
    """Return the first line of an error's message, cut to a bearable length, or the error's type if it has none."""
    return next(iter(str(error).splitlines()), "")[:MAX_MESSAGE_LENGTH] or type(error).__name__


def look_up(kind: str, name: str, table: Mapping[str, T]) -> T:
    """Return `table[name]`, or raise a BadInput that offers the nearest name in the table."""
    check_names(kind, [name], table)
    return table[name]


def check_names(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise a BadInput for the first name that is not among the known ones."""
    for name in names:
        if name not in known:
            raise BadInput(describe_unknown_name(kind, name, known))


def describe_unknown_name(kind: str, name: str, names: Iterable[str]) -> str:
    """Return the sentence for an unknown name: the nearest one, or the list of names."""
    choices = list(names)
    near = get_close_matches(name, choices, n=1, cutoff=0.7)  # a slip of the keyboard or two, not another word
    listed = ", ".join(choices[:MAX_LISTED_NAMES]) + " and others" * (len(choices) > MAX_LISTED_NAMES)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {listed}."
    return f"there is no {kind} named {name!r}: {hint}"
