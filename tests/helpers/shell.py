"""The command line as tests use it, in this process. (Used by the tests of verbs and of the docs.)"""

import contextlib
import glob
import io
import shlex
import sys
from typing import NamedTuple

import pytest
from cyclopts import App, CycloptsError

from anyshot.cli import main as cli


class Done(NamedTuple):
    """What a command printed, and its exit code."""

    out: str
    err: str
    code: int


def words_of(command: str) -> list[str]:
    """The words of a command line as a shell makes them: quotes go, patterns become what they match."""
    return [
        match for word in shlex.split(command) for match in (sorted(glob.glob(word)) if "*" in word else []) or [word]
    ]


def exit_code(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Run a verb with these words; what it prints is for pytest to catch."""
    monkeypatch.setattr(sys, "argv", ["anyshot", *map(str, words)])
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def run(command: str, monkeypatch: pytest.MonkeyPatch) -> Done:
    """Run a command line as a shell would."""
    monkeypatch.setattr(sys, "argv", words_of(command))
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Done(out.getvalue(), err.getvalue(), code)


def check_words(command: str) -> None:
    """Fail where the command line would not understand a command; nothing is run. A verb alone is only looked up."""
    _, *words = shlex.split(command)
    if words == ["--help"]:
        return
    try:
        assert cli.APP.parse_commands(words)[0], f"{command} names no verb"
        if len(words) > 1:
            cli.APP.parse_args(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        pytest.fail(f"{command} is not understood: {error}")


def list_verbs(group: App = cli.APP, before: tuple[str, ...] = ()) -> dict[tuple[str, ...], App]:
    """Every verb by its words."""
    verbs = {}
    for name in group:
        if not name.startswith("-"):
            verb = group[name]
            inner = list_verbs(verb, (*before, name))
            verbs |= inner or {(*before, name): verb}
    return verbs
