"""Progress with time left: a bar in a terminal, plain lines elsewhere; and what a verb says before it works."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from anyshot.text import to_printable

Advance = Callable[..., None]
OnProgress = Callable[[float], None]
"""Called with how much has been done since the last call."""
OnMessage = Callable[[str], None]


def print_message(words: str) -> None:
    """Tell a person something that is no result: beside those, which may go to a file or another program."""
    if words:
        print(to_printable(words), file=sys.stderr, flush=True)


def no_message(words: str) -> None:
    """For those who call functions rather than verbs."""


def no_progress(amount: int | float) -> None:
    """For those who do not watch what gets done."""


def progress(title: str, total: float, every: float = 10.0) -> AbstractContextManager[Advance]:
    """Yields `advance(amount, note="")`, to be called as work gets done; a plain line at most every `every` seconds."""
    return _bar(title, total) if sys.stderr.isatty() else _lines(title, total, every)


@contextmanager
def _bar(title: str, total: float) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    plain = partial(TextColumn, markup=False)  # names come from anyone's files
    bars = BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    columns = (plain("{task.description}"), *bars, plain("{task.fields[note]}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, note="")
        yield lambda amount, note="": bar.update(task, advance=amount, **({"note": note} if note else {}))
        bar.update(task, completed=total)  # shares are guesses; what ends without an error is done


@contextmanager
def _lines(title: str, total: float, every: float) -> Iterator[Advance]:
    start = last = time.monotonic()
    done = 0.0

    def advance(amount: float, note: str = "") -> None:
        nonlocal done, last
        done += amount
        now = time.monotonic()
        if now - last >= every and done > 0:
            last = now
            left = (now - start) * (total - done) / done
            print(f"{title}: {done / total:4.0%}, {left:.0f} s left  {note}".rstrip(), file=sys.stderr, flush=True)

    yield advance
    if last > start:  # who saw it begin sees it end
        print(f"{title}: 100%, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
