"""Progress with the time left (a bar in a terminal, plain lines elsewhere), and messages beside the results."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from anyshot.text import to_printable

Advance = Callable[..., None]
OnProgress = Callable[[float], None]
"""Called with the amount of work done since the last call."""
OnMessage = Callable[[str], None]
"""Called with a message for a person."""


def print_message(message: str) -> None:
    """Print a message to standard error, since standard output is for results."""
    if message:
        print(to_printable(message), file=sys.stderr, flush=True)


def no_message(message: str) -> None:
    """Ignore a message: the default of library functions."""


def no_progress(amount: int | float) -> None:
    """Ignore progress: the default of library functions."""


def scale_progress(progress: OnProgress, by: float) -> OnProgress:
    """Return a callback for a part of the work, which reports its progress as a share of the whole."""
    return lambda amount: progress(amount * by)


def progress(title: str, total: float, every: float = 10.0) -> AbstractContextManager[Advance]:
    """Show progress while the context lasts.

    Args:
        title: What is being done.
        total: The amount of work in all.
        every: Outside a terminal a line is printed at most every so many seconds.

    Returns:
        A context manager that yields `advance(amount, note="")`, to be called as work gets done.
    """
    return _show_bar(title, total) if sys.stderr.isatty() else _print_lines(title, total, every)


@contextmanager
def _show_bar(title: str, total: float) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    plain = partial(TextColumn, markup=False)  # Titles may hold file names, which must not be read as markup.
    bars = BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    columns = (plain("{task.description}"), *bars, plain("{task.fields[note]}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, note="")
        yield lambda amount, note="": bar.update(task, advance=amount, **({"note": note} if note else {}))
        bar.update(task, completed=total)  # Amounts are estimates; work that ends without an error is complete.


@contextmanager
def _print_lines(title: str, total: float, every: float) -> Iterator[Advance]:
    start = last = time.monotonic()
    done = 0.0

    def advance(amount: float, note: str = "") -> None:
        nonlocal done, last
        done += amount
        now = time.monotonic()
        if now - last >= every and done > 0:
            last = now
            # Before the first percent what is done is mostly preparation, which says nothing of the rest.
            left = f", {_clock((now - start) * (total - done) / done)} left" if done >= 0.01 * total else ""
            print(f"{title}: {done / total:4.0%}{left}  {note}".rstrip(), file=sys.stderr, flush=True)

    yield advance
    if last > start:  # Whoever saw it begin also sees it end.
        print(f"{title}: 100%, {_clock(time.monotonic() - start)}", file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    """Return a duration in its two largest units: 48 s, 9 min 48 s, 2 h 05 min."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
