"""The command line: which verbs there are, how errors are shown, and the exit codes.

Each verb is a function; cyclopts makes its command line of the signature and the docstring. It imports what it needs
when it runs, so that `--help` answers at once.
"""

import contextlib
import io
import os
import re
import sys
import warnings
from typing import Any, NoReturn

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter, UnusedCliTokensError

from anyshot import __version__
from anyshot.cli import classifiers, data, measure, paper, studies
from anyshot.errors import BadInput
from anyshot.text import to_one_line

ABOUT = """Few-shot image classification that holds at any shot: from a few labelled pictures of each class (the shots)
to a classifier. Begin with `anyshot fit PHOTOS --out CLASSIFIER`. --debug, anywhere, shows where an error arose."""


def _show_default(value: object) -> str | None:
    """Return a default as the help shows it; an empty one is explained by the option's own sentence."""
    return None if value in (None, "", ()) else str(value)


PAPER = App(name="paper", help="The paper's printed numbers: audit them, draw them, set them in tables.")
EXPERIMENT = App(name="experiment", help="The paper's side experiments, on trained models.")
APP = App(
    name="anyshot",
    help=ABOUT,
    version=f"anyshot {__version__}",
    version_flags=["--version"],
    help_format="markdown",
    suppress_keyboard_interrupt=False,  # `main` says a word
    default_parameter=Parameter(consume_multiple=True, negative_iterable=(), show_default=_show_default),
)
VERBS: list[tuple[App, list[Any]]] = [
    (PAPER, [paper.audit, paper.tables, paper.figures]),
    (EXPERIMENT, [studies.consistency, studies.terms, studies.compare]),
    (APP, [classifiers.fit, classifiers.predict, classifiers.add, classifiers.remove]),
    (APP, [classifiers.merge, classifiers.advise, classifiers.export, classifiers.serve]),
    (APP, [data.pack, data.embed, data.doctor, measure.evaluate]),
    (APP, [studies.study, studies.publish, studies.report, studies.convert, EXPERIMENT, PAPER]),
]
for group, verbs in VERBS:
    for verb in verbs:
        group.command(verb)
APP.command(classifiers.run_test, name="test")


def main() -> None:
    """Run the verb that the command line names.

    Bad input is one sentence and exit code 2, an internal error one sentence and exit code 1; with `--debug`, anywhere,
    both show the traceback instead.
    """
    debug = "--debug" in sys.argv
    words = [word for word in sys.argv[1:] if word != "--debug"]
    _repair_streams()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            # An option may be written as in Python: --label_column.
            words = [re.sub(r"^--[^=]+", lambda flag: flag[0].replace("_", "-"), word) for word in words]
            APP(words, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe has seen enough, as in `anyshot ... | head`
        _discard_output()
    except KeyboardInterrupt:
        _end("interrupted.", 130)
    except Exception as error:
        if debug:
            raise
        _end(*_error_message(error))


def _repair_streams() -> None:
    """Let printing never fail: not where a stream is closed (`>&-`), nor for a name that the terminal cannot show."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the process ends)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _error_message(error: Exception) -> tuple[str, int]:
    """Return the sentence for an error, and the exit code."""
    match error:
        case BadInput():
            return to_one_line(error), 2
        case CycloptsError():
            return _usage_message(error), 2
        case OSError() | MemoryError():  # a file that may not be read, a full disk: no fault of the program
            where = getattr(error, "filename", None)
            words = getattr(error, "strerror", None) or str(error) or "it needs more memory than there is"
            return to_one_line(f"could not use {where}: {words}." if where else f"could not go on: {words}."), 2
    what = to_one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)[:500]
    ask = "please report it to anyshot's issues, with what the same command shows with --debug."
    return f"internal error ({what}): {ask}", 1


def _usage_message(error: CycloptsError) -> str:
    """Return the sentence for words that fit no verb."""
    prog = " ".join(("anyshot", *(error.command_chain or ())))
    problem = re.sub(r"(?<!\.)\.$", "", str(error))  # but not of an ellipsis
    if isinstance(error, UnusedCliTokensError):
        problem = f"{prog} does not take {' '.join(error.unused_tokens or ())}"
    elif isinstance(error, MissingArgumentError) and error.keyword is None:  # it is not there, with or without a value
        problem = re.sub(r'^Command "[^"]*" parameter (\S+) requires an argument', rf"{prog} needs \1", problem)
    return to_one_line(f"{problem} (`{prog} --help` says more).")


def _end(message: str, code: int) -> NoReturn:
    try:
        sys.stdout.flush()
    except OSError:  # it is full or closed, and Python would try once more as it ends
        _discard_output()
    with contextlib.suppress(OSError):
        print(f"anyshot: {message}", file=sys.stderr, flush=True)
    sys.exit(code)


def _discard_output() -> None:
    """Send what is still to be printed nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"anyshot: {to_one_line(str(message))}", file=sys.stderr)


if __name__ == "__main__":
    main()
