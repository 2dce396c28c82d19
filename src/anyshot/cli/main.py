"""The command line: which verbs there are, how errors are shown, and the exit codes.

Each verb is a function whose signature and docstring make its command line (`parser`). It imports what it needs when it
runs, so that `--help` answers at once.
"""

import contextlib
import io
import os
import sys
import warnings
from typing import NoReturn

from anyshot.cli import classifiers, data, measure, paper, studies
from anyshot.cli.parser import Group, find_verb, parse_words
from anyshot.errors import BadInput
from anyshot.text import to_one_line

ABOUT = """Few-shot image classification that holds at any shot: from a few labelled pictures of each class (the shots)
to a classifier. Begin with `anyshot fit PHOTOS --out CLASSIFIER`. --version prints the version; --debug, anywhere,
shows where an error arose."""
APP = Group(
    ABOUT,
    {
        "paper": Group(
            "The paper's printed numbers: audit them, draw them, set them in tables.",
            {"audit": paper.audit, "tables": paper.tables, "figures": paper.figures},
        ),
        "study": studies.study,
        "publish": studies.publish,
        "report": studies.report,
        "convert": studies.convert,
        "pack": data.pack,
        "embed": data.embed,
        "doctor": data.doctor,
        "evaluate": measure.evaluate,
        "experiment": Group(
            "The paper's side experiments, on trained models.",
            {"consistency": studies.consistency, "terms": studies.terms, "compare": studies.compare},
        ),
        "fit": classifiers.fit,
        "predict": classifiers.predict,
        "test": classifiers.run_test,
        "add": classifiers.add,
        "remove": classifiers.remove,
        "merge": classifiers.merge,
        "advise": classifiers.advise,
        "export": classifiers.export,
        "serve": classifiers.serve,
    },
)


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
            if words == ["--version"]:
                from anyshot import __version__

                print(f"anyshot {__version__}")
            else:
                verb, prog, rest = find_verb(APP, words, "anyshot")
                parse_words(verb, rest, prog)()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe has seen enough, as in `anyshot ... | head`
        _discard_output()
    except KeyboardInterrupt:
        _end("interrupted; the same command goes on where it stopped.", 130)
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
        case OSError() | MemoryError():  # a file that may not be read, a full disk: no fault of the program
            where = getattr(error, "filename", None)
            words = getattr(error, "strerror", None) or str(error) or "it needs more memory than there is"
            return to_one_line(f"could not use {where}: {words}." if where else f"could not go on: {words}."), 2
    what = to_one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)[:500]
    ask = "please report it to anyshot's issues, with what the same command shows with --debug."
    return f"internal error ({what}): {ask}", 1


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
