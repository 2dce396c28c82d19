"""Folders of classifiers: change or replace one without losing what another process writes."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.files import describe_existing
from anyshot.classify.images import ImageClassifier, load_classifier
from anyshot.files import locked
from anyshot.models.embedders import Embedder
from anyshot.models.registry import Registry
from anyshot.text import count_noun, format_range

Classifier = ImageClassifier | FewShotClassifier


@dataclass
class Edit:
    """A change of a saved classifier.

    Attributes:
        classifier: The classifier.
        change: What was changed, in words.
        summary: What to tell the user; set when the classifier is saved.
    """

    classifier: Classifier
    change: str = ""
    summary: str = ""


def get_estimator(classifier: Classifier) -> FewShotClassifier:
    """Return the classifier of features inside a classifier of pictures, or the classifier itself."""
    return classifier.classifier if isinstance(classifier, ImageClassifier) else classifier


def get_backbone(classifier: Classifier) -> Embedder | None:
    """Return what embeds pictures, for a classifier of such."""
    return classifier.backbone if isinstance(classifier, ImageClassifier) else None


@contextlib.contextmanager
def open_destination(folder: Path) -> Iterator[Callable[[Classifier], None]]:
    """Lock the folder that a classifier will be written to, and yield the function that writes it.

    The lock is taken before anything is read: a verb that reads a classifier and writes it back would otherwise
    overwrite what another process wrote in between.

    Raises:
        BadInput: Where another process is writing the folder.
    """
    with contextlib.ExitStack() as stack:
        if is_locked := folder.is_dir():
            stack.enter_context(locked(folder))

        def save(classifier: Classifier) -> None:
            if not is_locked and folder.is_dir():  # another process made the folder meanwhile
                stack.enter_context(locked(folder))
            classifier.save(folder)

        yield save


@contextlib.contextmanager
def edit_classifier(model: Path, out: Path | None, registry: Registry) -> Iterator[Edit]:
    """Load a classifier, let the block change it, and save it to another folder, or to its own where that is None."""
    with open_destination(out or model) as save:
        replaced = describe_existing(out) if out is not None else ""
        edit = Edit(load_classifier(model, registry))
        yield edit
        save(edit.classifier)
    classes = count_noun(len(get_estimator(edit.classifier).classes_), "class")
    counts = describe_counts(edit.classifier, "example")
    edit.summary = f"{out or model}: {edit.change}; {classes} now, {counts}.{replaced}"


def describe_counts(classifier: Classifier, noun: str) -> str:
    """Return how many examples each class has, in words: `8 to 9 examples each`."""
    counts = get_estimator(classifier).support_.counts
    smallest, largest = int(counts.min()), int(counts.max())
    return f"{format_range(smallest, largest)} {noun}{'' if largest == 1 else 's'} each"
