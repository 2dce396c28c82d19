"""The corpus of bad inputs: what a case is, how it is judged, and all of them."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hostile import forks
from hostile.good import Good

Make = Callable[[Path], list[str]]
LONGEST = 1000


@dataclass(frozen=True)
class Case:
    """A bad input.

    Args:
        name: What is wrong with it.
        make: Writes it into a folder, and gives the command line that is to refuse it.
        may_do: Whether it may also be fine: where a byte has changed that perhaps nobody reads.
    """

    name: str
    make: Make
    may_do: bool = False


def everything(good: Good) -> Iterator[tuple[str, Case]]:
    """All cases, by part."""
    from hostile import archives, arrays, classifiers, pickles, pictures, runs, stores, studies, tables, verbs

    for module in (pictures, archives, arrays, pickles, classifiers, stores, tables, runs, studies, verbs):
        for case in module.cases(good):
            yield module.__name__.rpartition(".")[2], case


def try_case(case: Case, folder: Path) -> tuple[str, str]:
    """Run a case in a folder of its own; what was wrong with how it ended (nothing, where all is well), and what it
    said."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    words = case.make(folder)
    before = forks.contents(folder)
    ended = forks.forked(forks.command(words, folder))
    said = ended.err.strip().rpartition("\n")[2]
    wrong = _wrong(case, ended, said)
    if not wrong and ended.code == 2 and (after := forks.contents(folder)) != before:
        names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        wrong = f"it left or changed {names[:3]}"
    return wrong, said


def _wrong(case: Case, ended: forks.Ended, said: str) -> str:
    if ended.code < 0:
        return f"killed by signal {-ended.code} (27: it took over {forks.SECONDS} s): {ended.err[-300:]}"
    if "Traceback (most recent call last)" in ended.out + ended.err:
        return f"a traceback: {ended.err[-1500:]}"
    if ended.memory > forks.MEMORY:
        return f"it took {ended.memory >> 20} MB"
    if ended.code == 0:
        return "" if case.may_do else f"it was taken as good: {ended.out[-300:]}"
    if ended.code != 2:
        return f"exit code {ended.code}: {ended.err[-1000:]}"
    if not said.startswith("anyshot: ") or said[-1] not in ".)?" or not said.isprintable() or len(said) > LONGEST:
        return f"no sentence: {ended.err[-1000:]!r}"
    return ""
