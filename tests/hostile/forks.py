"""One command in a forked process, with limits of time and memory, and what it left on the disk.

The parent has imported what commands need, so that a case takes milliseconds.
"""

import contextlib
import hashlib
import io
import os
import resource
import signal
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

SECONDS = 10  # of the processor's time: a busy machine is no fault
WALL = 120  # of the clock: for what waits for ever
MEMORY = 1_500_000_000  # bytes above what the process had when it was forked
MOST = 4_000_000_000  # a stop for what would take down the machine


class Ended(NamedTuple):
    """How a process ended: its exit code (negative: the signal that killed it), what it said, what it took."""

    code: int
    out: str
    err: str
    memory: int


def forked(work: Callable[[], None], seconds: int = SECONDS) -> Ended:
    """Run a function in a forked process."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        before = _resident()
        if not (child := os.fork()):
            _run(work, out.fileno(), err.fileno(), seconds)
        _, status, used = os.wait4(child, 0)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read(1 << 20).decode("utf-8", "replace"))
    return Ended(os.waitstatus_to_exitcode(status), *texts, used.ru_maxrss * 1024 - before)


def _run(work: Callable[[], None], out: int, err: int, seconds: int) -> None:
    code = 99
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, WALL)
        data = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (data + MOST,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)


def command(words: list[str], folder: Path) -> Callable[[], None]:
    """A command line of anyshot in a folder, as a function."""

    def work() -> None:
        from anyshot.cli import main as cli

        os.chdir(folder)
        sys.argv = ["anyshot", *words]
        cli.main()

    return work


def warm() -> None:
    """Ask for help once: what the command line reads of itself is at hand then."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        command(["predict", "--help"], Path.cwd())()


def contents(folder: Path) -> dict[str, tuple]:
    """All that lies below a folder: kinds, sizes and hashes, by path."""
    files: dict[str, tuple] = {}
    for root, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = Path(root, name)
            about = path.lstat()
            words: tuple = (stat.S_IFMT(about.st_mode),)
            if stat.S_ISREG(about.st_mode):
                words += (about.st_size,)
                small = about.st_size < 1 << 26
                words += (hashlib.sha256(path.read_bytes()).hexdigest() if small else about.st_mtime_ns,)
            elif stat.S_ISLNK(about.st_mode):
                words += (os.readlink(path),)
            files[os.fsencode(path.relative_to(folder)).decode("latin1")] = words
    return files


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
