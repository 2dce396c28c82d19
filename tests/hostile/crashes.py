"""Ends at every moment: a command is killed, and the same command then gives the same result.

Crash points: an audit hook ends the process before each change of a file that Python makes, one after the other. Kills:
SIGKILL at any time, so also in the middle of a write.
"""

import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyshot.classify import files
from anyshot.errors import BadInput
from hostile import forks
from hostile.good import Good

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
SECONDS = 100
QUICK = ("pack zip", "fit", "save")
Attempt = Callable[[], tuple[str, str]]


@dataclass(frozen=True)
class Job:
    """Something that writes.

    Args:
        prepare: Puts what it reads, and what it replaces, into a folder.
        work: Does it there.
        out: What it writes: the old or the new is there at every moment.
        times: How often it is killed at random.
        has_versions: Whether it is a classifier, of which a reader sees the version that config.json names.
    """

    prepare: Callable[[Path], Any]
    work: Callable[[], None]
    out: str
    times: int
    has_versions: bool = False


def jobs(good: Good, folder: Path) -> dict[str, Job]:
    """`pack`, `embed`, `fit`, `add`, `publish`, `report`, and a classifier's `save`; those that replace something over
    what is there already."""
    here = folder / "case"

    def command(*words: str) -> Callable[[], None]:
        return forks.command(list(words), here)

    def copies(*names: str) -> Callable[[Path], None]:
        return lambda case: [good.copy(name, case) for name in names] and None

    def over(old: str, *names: str) -> Callable[[Path], None]:
        def prepare(case: Path) -> None:
            copies(*names)(case)
            shutil.copytree(good / old, case / "made")

        return prepare

    def save() -> None:
        from anyshot import ImageClassifier

        os.chdir(here)
        ImageClassifier.load("of-pictures").save("made")

    def publish(case: Path) -> None:
        copies("publish.py", "study-run", "data")(case)
        (case / "made").mkdir()
        (case / "made" / "gains.csv").write_text("published before\n")

    def report(case: Path) -> None:
        copies("run")(case)
        (case / "made").write_text("a page\n")

    model = ("--model", "model", "--no-cache")
    return {
        "pack folder": Job(
            copies("photos"), command("pack", "folder", "photos", "-o", "made", "--no-doctor"), "made", 20
        ),
        "pack and doctor": Job(copies("photos"), command("pack", "folder", "photos", "-o", "made"), "made", 20),
        "pack zip": Job(
            copies("photos.zip"), command("pack", "folder", "photos.zip", "-o", "made", "--no-doctor"), "made", 20
        ),
        "pack features": Job(
            copies("features.npz"), command("pack", "features", "features.npz", "-o", "made", "--no-doctor"), "made", 10
        ),
        "fit": Job(
            over("of-onnx", "photos", "model"),
            command("fit", "photos", *model, "--out", "made"),
            "made",
            25,
            has_versions=True,
        ),
        "save": Job(over("of-onnx", "of-pictures"), save, "made", 25, has_versions=True),
        "add": Job(
            over("of-onnx", "of-pictures", "photos"),
            command("add", "of-pictures", "photos", "--to", "new", "-o", "made", "--no-cache"),
            "made",
            10,
            has_versions=True,
        ),
        "embed": Job(
            copies("photos", "backbone.onnx"),
            command("embed", "photos", "--model", "backbone.onnx", "-o", "made"),
            "made",
            10,
        ),
        "report": Job(report, command("report", "run", "-o", "made"), "made", 5),
        "publish": Job(publish, command("publish", "publish.py", "--run", "study-run", "--out", "made"), "made", 10),
    }


def study_run(good: Good) -> None:
    """A small study, run: what `publish` reads."""
    from anyshot.study.runner import run_model, write_tables
    from anyshot.study.study import StudySource

    words = "def study(heads=None):\n    return small(('proto', 'cosine-proto'))\n"
    (good / "publish.py").write_text(f"from helpers.own_study import study as small\n\n\n{words}")
    study = StudySource(good / "publish.py").load()
    for recipe in study.recipes:
        run_model(study, recipe, study.store(recipe.data, good / "data"), good / "study-run" / recipe.name)
    write_tables(study, study.recipes, good / "study-run")


class Killer:
    """Ends the process before the n-th change of a file below a folder; counts all of them where n is 0."""

    def __init__(self, folder: Path, at: int = 0) -> None:
        self.folder, self.at, self.seen = str(folder), at, 0

    def __call__(self, event: str, arguments: tuple) -> None:
        if event in CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES):
            paths = [
                os.path.abspath(os.fsdecode(path)) for path in arguments[:2] if isinstance(path, str | bytes | Path)
            ]
            if any(path.startswith(self.folder) for path in paths):
                self.seen += 1
                if self.seen == self.at:
                    os._exit(137)


def points(good: Good, folder: Path, quick: bool = False, only: str = "") -> Iterator[tuple[str, Attempt]]:
    """A crash before each change of a file, of each job, or of that which words name."""
    for name, job in _ready(good, folder, quick, only):
        many = _count(job, folder)
        before, after = _both(job, folder)
        for number in range(1, many + 1):
            yield (
                f"{name}: killed before change {number} of {many}",
                lambda job=job, number=number, before=before, after=after: _again(
                    job, folder, lambda: _crash(job, folder, number), before, after
                ),
            )


def kills(good: Good, folder: Path, seed: int, quick: bool = False, only: str = "") -> Iterator[tuple[str, Attempt]]:
    """SIGKILL at random times, of each job, or of that which words name."""
    rng = random.Random(seed)
    for name, job in _ready(good, folder, quick, only):
        before, after = _both(job, folder)
        start = time.monotonic()
        _fresh(job, folder)
        _finish(job)
        most = time.monotonic() - start
        for number in range(job.times):
            wait = rng.uniform(0, most)
            yield (
                f"{name}: kill {number + 1}, after {wait:.2f} s",
                lambda job=job, wait=wait, before=before, after=after: _again(
                    job, folder, lambda: _kill(job, wait), before, after
                ),
            )


def _ready(good: Good, folder: Path, quick: bool, only: str) -> Iterator[tuple[str, Job]]:
    """The jobs; quickly, those of them that take no study. Of words that begin with a job's name that job alone."""
    every = jobs(good, folder)
    named = [name for name in every if only.startswith(f"{name}:")]
    for name in named or (QUICK if quick else every):
        if name == "publish" and not (good / "study-run").exists():
            study_run(good)
        yield name, every[name]


def _fresh(job: Job, folder: Path) -> None:
    case = folder / "case"
    shutil.rmtree(case, ignore_errors=True)
    case.mkdir()
    job.prepare(case)


def _finish(job: Job) -> forks.Ended:
    return forks.forked(job.work, SECONDS)


def _count(job: Job, folder: Path) -> int:
    _fresh(job, folder)
    killer = Killer(folder / "case")

    def work() -> None:
        sys.addaudithook(killer)
        try:
            job.work()
        finally:
            (folder / "count").write_text(str(killer.seen))

    ended = forks.forked(work, SECONDS)
    assert ended.code == 0, ended.err
    return int((folder / "count").read_text())


def _both(job: Job, folder: Path) -> tuple[dict[str, tuple], dict[str, tuple]]:
    """What lies there before a job, and after it."""
    _fresh(job, folder)
    before = forks.contents(folder / "case")
    ended = _finish(job)
    assert ended.code == 0, ended.err
    return before, forks.contents(folder / "case")


def _crash(job: Job, folder: Path, at: int) -> None:
    def work() -> None:
        sys.addaudithook(Killer(folder / "case", at))
        job.work()

    forks.forked(work, SECONDS)


def _kill(job: Job, wait: float) -> None:
    """Run it in a process of its own, and kill that."""
    if not (child := os.fork()):
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        try:
            job.work()
        finally:
            os._exit(0)
    timer = threading.Timer(wait, os.kill, (child, signal.SIGKILL))
    timer.start()
    os.waitpid(child, 0)
    timer.cancel()


def _again(job: Job, folder: Path, end: Callable[[], None], before: dict, after: dict) -> tuple[str, str]:
    """Kill a job, look, and run it again."""
    _fresh(job, folder)
    end()
    now = _seen(job, forks.contents(folder / "case"))
    if job.has_versions:
        try:
            files.read_folder(folder / "case" / job.out, lambda version, config: None)
        except BadInput as error:
            return f"{job.out} cannot be loaded after it was killed: {error}", ""
    is_new = now == _seen(job, after)
    if not is_new and now != _seen(job, before):
        return f"{job.out} was neither the old nor the new when it was killed: {sorted(now)[:5]}", ""
    ended = _finish(job)
    if ended.code and not (is_new and "exists already" in ended.err):  # of a store that was whole before the end
        return f"the same command ended with {ended.code}: {ended.err[-500:]}", ""
    now = forks.contents(folder / "case")
    if now != after:
        names = sorted(name for name in now.keys() | after.keys() if now.get(name) != after.get(name))
        return f"the same command gave something else: {names[:5]}", ""
    return "", ended.out[-200:]


def _seen(job: Job, contents: dict[str, tuple]) -> dict[str, tuple]:
    """What a reader sees of it: the staging folder of a killed writer is none of it, and goes with the next write.

    Of a classifier it is config.json and the version that this names (see `_again`); the card follows a moment later.
    """
    below = {name: what for name, what in contents.items() if name == job.out or name.startswith(f"{job.out}/")}
    below = {name: what for name, what in below.items() if not name.startswith(f"{job.out}/.anyshot-")}
    if not job.has_versions:
        return below
    return {name: what for name, what in below.items() if name == f"{job.out}/config.json"}
