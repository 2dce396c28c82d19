"""The command line as tests use it, in this process. (Used by the tests of verbs and of the docs.)"""

import contextlib
import glob
import io
import shlex
import sys
from collections.abc import Callable
from functools import wraps
from typing import NamedTuple

import pytest
import tyro
from tyro.extras import SubcommandApp

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
    verb: Callable | SubcommandApp = cli.app
    while isinstance(verb, SubcommandApp):
        assert words, f"{command} names no verb"
        assert words[0] in verb._subcommands, f"{command}: there is no verb {words[0]}"
        verb = verb._subcommands[words.pop(0)].target
    if words:
        _understand(verb, command, words)


def _understand(verb: Callable, command: str, words: list[str]) -> None:
    @wraps(verb)
    def inert(*args: object, **more: object) -> None:
        return None

    err = io.StringIO()
    try:
        with contextlib.redirect_stderr(err), contextlib.redirect_stdout(err):
            tyro.cli(inert, args=words)
    except SystemExit:
        pytest.fail(f"{command} is not understood:\n{err.getvalue()}")
