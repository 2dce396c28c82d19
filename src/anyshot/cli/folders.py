"""Folders of classifiers: replace one without losing what another process writes."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.images import ImageClassifier
from anyshot.files import locked
from anyshot.text import format_range

Classifier = ImageClassifier | FewShotClassifier


def get_estimator(classifier: Classifier) -> FewShotClassifier:
    """Return the classifier of features inside a classifier of pictures, or the classifier itself."""
    return classifier.classifier if isinstance(classifier, ImageClassifier) else classifier


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


def describe_counts(classifier: Classifier, noun: str) -> str:
    """Return how many examples each class has, in words: `8 to 9 examples each`."""
    counts = get_estimator(classifier).support_.counts
    smallest, largest = int(counts.min()), int(counts.max())
    return f"{format_range(smallest, largest)} {noun}{'' if largest == 1 else 's'} each"
