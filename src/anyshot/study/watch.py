"""The progress of a study, read from the histories that its models write, wherever they run.

With TensorBoard the histories are mirrored into event files.
"""

import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from anyshot.errors import as_bad_input
from anyshot.progress import progress
from anyshot.recipe import Recipe
from anyshot.tables import Row, read_table

EVERY = 1.0  # seconds between looks at the histories
MAX_NAMED = 4  # models in training whose progress is told


@dataclass
class WatchedModel:
    """A model of a study: the folder with its history, and the file whose presence says that it is done."""

    recipe: Recipe
    folder: Path
    result: Path
    rows: list[Row] = field(default_factory=list)
    done: bool = False

    def look(self) -> list[Row]:
        """Read the history, once more after the model is done, and return its new rows."""
        before = len(self.rows)
        if not self.done:
            self.done = self.result.exists()
            self.rows = read_table(self.folder / "history.csv", optional=True)
        return self.rows[before:]

    @property
    def epochs(self) -> int:
        """Epochs trained so far."""
        return self.recipe.epochs if self.done else len(self.rows)

    def __str__(self) -> str:
        """Return its name, its epochs and its last validation accuracy."""
        accuracies = [f" {row['val_accuracy']:.1f} %" for row in self.rows if row["val_accuracy"] != ""]
        return f"{'/'.join(self.recipe.path)} {self.epochs}/{self.recipe.epochs}{''.join(accuracies[-1:])}"


class Watch:
    """The state of all models of a study."""

    def __init__(self, models: Sequence[WatchedModel], tensorboard: Path | None = None) -> None:
        self.models, self.epochs = models, 0
        self.boards: dict[str, Any] = {}  # writers of event files, by the id of the recipe
        if tensorboard:
            with as_bad_input(ImportError, "`--tensorboard` needs the extra: pip install 'anyshot[tensorboard]'."):
                from torch.utils.tensorboard import SummaryWriter
            shutil.rmtree(tensorboard, ignore_errors=True)
            self.boards = {model.recipe.id: SummaryWriter(str(tensorboard / model.recipe.name)) for model in models}
        self.look()

    def look(self) -> int:
        """Read the histories that may have changed, and return how many epochs were trained since the last look."""
        for model in self.models:
            rows, board = model.look(), self.boards.get(model.recipe.id)
            for row, name in product(rows, ("loss", "train_accuracy", "val_accuracy")):
                if board is not None and row[name] != "":
                    board.add_scalar(name, row[name], int(row["epoch"]))
        before, self.epochs = self.epochs, sum(model.epochs for model in self.models)
        return self.epochs - before

    @property
    def note(self) -> str:
        """How many models are done, and how far those in training are."""
        running = [str(model) for model in self.models if not model.done and (model.folder / "recipe.json").exists()]
        done = f"{sum(model.done for model in self.models)} of {len(self.models)} models done"
        return "; ".join([done, *running[:MAX_NAMED]])


@contextmanager
def watch_study(models: Sequence[WatchedModel], tensorboard: Path | None = None) -> Iterator[None]:
    """Show the progress of a study inside this context; of the processes of torchrun only the first does."""
    if int(os.environ.get("RANK", "0")) > 0:
        yield
        return
    watch = Watch(models, tensorboard)
    missing = sum(model.recipe.epochs for model in models) - watch.epochs
    stop = threading.Event()
    with progress("training", float(missing)) as advance:

        def follow() -> None:
            while not stop.wait(EVERY):
                advance(float(watch.look()), watch.note)
            watch.look()

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            for board in watch.boards.values():
                board.close()
