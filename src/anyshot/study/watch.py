"""The progress of a study, read from the histories that its models write, wherever they run.

It is a line that is written anew. With TensorBoard the histories are mirrored into event files.
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyshot.errors import as_bad_input
from anyshot.recipe import Recipe
from anyshot.tables import Row, read_table

EVERY = 10.0  # seconds between lines in a log
EVERY_IN_TERMINAL = 1.0  # seconds


@dataclass
class WatchedModel:
    """A model of a study: the folder with its history, and the file whose presence says that it is done."""

    recipe: Recipe
    folder: Path
    result: Path
    rows: list[Row] = field(default_factory=list)
    read: float = 0.0  # modification time of the history that `rows` holds
    done: bool = False

    def look(self) -> int:
        """Read new rows of the history, and return how many had been read before."""
        before = len(self.rows)
        self.done = self.result.exists()
        path = self.folder / "history.csv"
        if path.exists() and (written := path.stat().st_mtime) != self.read:
            self.read, self.rows = written, read_table(path)
        return min(before, len(self.rows))

    @property
    def is_running(self) -> bool:
        """Whether its training has begun and it is not done."""
        return not self.done and (self.folder / "recipe.json").exists()

    @property
    def line(self) -> tuple[str, str, str]:
        """Its name, its epochs and its last validation accuracy."""
        accuracies = [row["val_accuracy"] for row in self.rows if row["val_accuracy"] != ""]
        accuracy = f"{accuracies[-1]:.1f} %" if accuracies else ""
        return "/".join(self.recipe.path), f"{len(self.rows)}/{self.recipe.epochs}", accuracy


class Watch:
    """The state of all models of a study, and the pace since the watch began."""

    def __init__(self, models: Sequence[WatchedModel], tensorboard: Path | None = None) -> None:
        self.models = models
        self.boards = _boards(models, tensorboard) if tensorboard else {}
        self.began = time.monotonic()
        self.look()
        self.before = self.epochs

    def look(self) -> None:
        """Read the histories that have changed."""
        for model in self.models:
            if not model.done or model.recipe.id in self.boards:
                before = model.look()
                for row in model.rows[before:] if self.boards else ():
                    for name in ("loss", "train_accuracy", "val_accuracy"):
                        if row[name] != "":
                            self.boards[model.recipe.id].add_scalar(name, row[name], int(row["epoch"]))

    @property
    def epochs(self) -> int:
        """Epochs trained so far, of all models."""
        return sum(model.recipe.epochs if model.done else len(model.rows) for model in self.models)

    @property
    def sentence(self) -> str:
        """Models done, running, time left."""
        total = sum(model.recipe.epochs for model in self.models)
        done = sum(model.done for model in self.models)
        running = sum(model.is_running for model in self.models)
        text = f"{done} of {len(self.models)} models done, {running} begun, {self.epochs / total:.0%} of all epochs"
        pace = (self.epochs - self.before) / max(time.monotonic() - self.began, 1e-9)
        return text + (f", {_clock((total - self.epochs) / pace)} left" if pace > 0 else "")

    @property
    def running(self) -> list[tuple[str, str, str]]:
        """The lines of the models that are in training."""
        return [model.line for model in self.models if model.is_running]


@contextmanager
def watch_study(models: Sequence[WatchedModel], tensorboard: Path | None = None) -> Iterator[None]:
    """Show the progress of a study inside this context; of the processes of torchrun only the first does."""
    if int(os.environ.get("RANK", "0")) > 0:
        yield
        return
    watch = Watch(models, tensorboard)
    stop = threading.Event()
    thread = threading.Thread(target=_show, args=(watch, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        for board in watch.boards.values():
            board.close()


def _show(watch: Watch, stop: threading.Event) -> None:
    """Print a line now and then; in a terminal each replaces the one before."""
    is_terminal = sys.stderr.isatty()
    while not stop.wait(EVERY_IN_TERMINAL if is_terminal else EVERY):
        watch.look()
        latest = "; ".join(f"{name} {epochs} {accuracy}".rstrip() for name, epochs, accuracy in watch.running[:4])
        text = f"{watch.sentence}; {latest}" if latest else watch.sentence
        if is_terminal:
            text = f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}"
        print(text, end="" if is_terminal else "\n", file=sys.stderr, flush=True)
    watch.look()
    print("\r\x1b[2K" if is_terminal else "", end="", file=sys.stderr, flush=True)


def _boards(models: Sequence[WatchedModel], folder: Path) -> dict[str, Any]:
    """Return a writer of event files for each model; the folder is made anew."""
    with as_bad_input(ImportError, "`--tensorboard` needs the extra: pip install 'anyshot[tensorboard]'."):
        from torch.utils.tensorboard import SummaryWriter
    shutil.rmtree(folder, ignore_errors=True)
    return {model.recipe.id: SummaryWriter(str(folder / model.recipe.name)) for model in models}


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min {rest:02} s"
