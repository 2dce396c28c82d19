"""The classifier behind the HTTP API.

A change builds the next classifier beside the current one and then replaces it, so readers never wait.
"""

import copy
import itertools
import threading
from collections.abc import Callable, Set
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from fastapi import HTTPException
from scipy.special import softmax

from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.files import read_save_stamp
from anyshot.classify.images import ImageClassifier
from anyshot.classify.leave_one_out import leave_out
from anyshot.files import lock_existing
from anyshot.inspect.copies import find_copies
from anyshot.inspect.corrections import COLUMNS, Correction, move_example
from anyshot.inspect.labels import SURE, UNLIKELY, rank_suspects
from anyshot.measure.groups import Groups
from anyshot.tables import to_csv

Result = TypeVar("Result")
MAX_CLASSES = 1000  # classes that the page shows
MAX_REMOVALS = 100  # removals and corrections that can be undone
MAX_DOUBTFUL = 100  # examples that are listed for review
NEAREST_EXAMPLES = 4  # examples of a class that are shown beside an answer
LIKELIEST_CLASSES = 3  # classes of which such examples are shown


class ServedClassifier:
    """A classifier that many clients read and change at once.

    Readers use `current`. Writers work one at a time and replace it by a changed copy; only they touch what can be
    undone.

    Args:
        classifier: The classifier at the start.
        folder: Where `save` writes to; without it nothing is ever written.
    """

    def __init__(self, classifier: ImageClassifier, folder: Path | None = None) -> None:
        self.current, self.folder = classifier, folder
        self._save_stamp = None if folder is None else read_save_stamp(folder)
        self._change_lock, self._save_lock = threading.Lock(), threading.Lock()
        self._undos: dict[int, Callable[[ImageClassifier], object]] = {}
        self._corrections: dict[int, Correction] = {}
        self._numbers = itertools.count(1)

    @property
    def class_names(self) -> list[str]:
        """The names of the classes, as a page shows them."""
        return list(self.current.classifier.labels_by_name)

    def add(self, name: str, image: bytes) -> None:
        """Learn one more example of a class, which may be new."""

        def learn(classifier: ImageClassifier) -> None:
            names = classifier.classifier.labels_by_name
            if name not in names and len(names) >= MAX_CLASSES:
                raise HTTPException(409, f"There are {MAX_CLASSES} classes: remove one first.")
            classifier.partial_fit([image], [_find_label(classifier, name, may_be_new=True)])

        self._change(learn)

    def remove(self, name: str) -> int:
        """Remove a class, and return the number by which that can be undone."""

        def forget(classifier: ImageClassifier) -> int:
            removed = classifier.take_out(_find_label(classifier, name))
            return self._remember(lambda later: later.put_back(removed))

        return self._change(forget)

    def correct(self, name: str, key: int, decision: str, new_name: str = "") -> int:
        """Keep, relabel or drop an example of a class, and return the number by which that can be undone.

        Args:
            name: The class that has it.
            key: The key of the example.
            decision: keep, which ends the doubt for good, relabel or drop.
            new_name: The class that it is moved to, known or new.
        """

        def apply(classifier: ImageClassifier) -> int:
            label, support = _find_label(classifier, name), classifier.classifier.support_
            if key not in support.classes[label].exemplars:
                raise HTTPException(404, "There is no such example.")
            correction = Correction("", f"{key:016x}", name, decision, new_name)
            if decision == "keep":
                return self._remember(_confirm(classifier, key, label), correction)
            new = _find_label(classifier, new_name, may_be_new=True) if decision == "relabel" else None
            if new is None or new in support.labels_with(key):  # there already: it only leaves the wrong class
                removed = classifier.take_out(label, key)
                return self._remember(lambda later: later.put_back(removed), correction)
            move_example(classifier, label, key, new)
            return self._remember(lambda later: move_example(later, new, key, label), correction)

        return self._change(apply)

    def undo(self, removal: int) -> None:
        """Undo a removal or a correction."""

        def restore(classifier: ImageClassifier) -> None:
            if removal not in self._undos:
                raise HTTPException(404, "There is no such removal: it was undone before, is too old, or never was.")
            self._undos[removal](classifier)
            del self._undos[removal]  # Only now: a failed attempt can be repeated.
            self._corrections.pop(removal, None)

        self._change(restore)

    def corrections(self) -> str:
        """Return all corrections as a table (CSV) that `anyshot fit`, `add` and `remove` take."""
        return to_csv([COLUMNS, *self._corrections.values()])

    def list_doubtful(self) -> list[dict[str, Any]]:
        """Return examples whose labels may be wrong, and copies of others, without those that a person kept."""
        current = self.current
        if not current.classifier.is_fitted or current.classifier.state_.is_large or len(current.classes_) < 2:
            return []
        inner = current.classifier
        support, names = inner.support_, list(inner.labels_by_name)
        vectors, class_index = support.exemplars.vectors, support.exemplars.class_index
        keys = [f"{key:016x}" for key in support.exemplars.keys.tolist()]
        examples = [(key, names[index]) for key, index in zip(keys, class_index, strict=True)]
        confirmed = {(f"{key:016x}", str(label)) for key, label in current.confirmed}
        groups = Groups(inner.state_.groups)
        result = leave_out(inner.learned_head_, vectors, class_index, groups)
        scored = np.flatnonzero(result.is_scored)
        suspects = rank_suspects(result.scores[scored], class_index[scored], scored)
        rows = [
            (*examples[suspect.image], f"looks like {names[suspect.looks_like]}", names[suspect.looks_like], "")
            for suspect in sorted(suspects, key=lambda suspect: suspect.log_own)
            if suspect.log_own <= np.log(UNLIKELY) or suspect.other >= SURE
        ]
        for one, other, _ in find_copies(vectors, class_index):
            rows += _describe_copies(examples[one], examples[other], confirmed)
        columns = "key", "name", "why", "suggestion", "other"
        doubtful = [row for row in rows if row[:2] not in confirmed]
        return [dict(zip(columns, row, strict=True)) for row in doubtful[:MAX_DOUBTFUL]]

    def _remember(self, undo: Callable[[ImageClassifier], object], correction: Correction | None = None) -> int:
        """Keep what undoes a change, and the correction that it was, under a new number; forget the oldest."""
        number = next(self._numbers)
        self._undos[number] = undo
        if correction is not None:
            self._corrections[number] = correction
        if len(self._undos) > MAX_REMOVALS:
            self._undos.pop(next(iter(self._undos)))
        return number

    def save(self, merge: bool = False) -> None:
        """Write the current classifier to its folder; concurrent calls wait for each other.

        Args:
            merge: Whether to add the examples of the folder first, if another program changed it since it was opened;
                without it such a folder is left alone.
        """
        folder = self.folder
        if folder is None or not self.current.classifier.is_fitted:
            raise HTTPException(409, "Nothing to save, or the server was started without --save.")
        with self._save_lock, lock_existing(folder):
            if read_save_stamp(folder) != self._save_stamp:
                if not merge:
                    raise HTTPException(
                        409, f"Another program changed {folder} since it was opened. Save with merge=true to keep both."
                    )
                other = ImageClassifier.load(folder, self.current.backbone)
                self._change(lambda classifier: classifier.merge(other))
            self.current.save(folder)
            self._save_stamp = read_save_stamp(folder)

    def describe(self) -> dict[str, Any]:
        """Return the classes with counts, recalls and examples, and whether probabilities are calibrated."""
        current = self.current  # one state throughout: another request may replace it meanwhile
        if not current.classifier.is_fitted:
            return {"classes": [], "can_save": self.folder is not None}
        inner = current.classifier
        support, coverage = inner.support_, inner.coverage_
        return {
            "classes": [
                {
                    "name": name,
                    "count": int(support.counts[index]),
                    "recall": None if np.isnan(inner.recalls_[index]) else float(inner.recalls_[index]),
                    "examples": _list_shown_keys(
                        current, support.exemplars.keys[support.exemplars.class_index == index]
                    ),
                }
                for index, name in enumerate(inner.labels_by_name)
            ],
            "calibrated": inner.calibrated_,
            "accuracy": None if coverage is None else coverage.accuracy_of_all,
            "until_rejection": _count_until_rejection(inner),
            "most_shots": int(support.exemplar_counts.max()),
            "can_save": self.folder is not None,
        }

    def classify(self, image: bytes, by_shot: bool = False) -> dict[str, Any]:
        """Return the class of an image, probabilities of all classes and the nearest examples.

        Args:
            image: The bytes of an image file.
            by_shot: Whether to also answer with fewer examples per class, which takes several times as long.
        """
        current = self.current
        if not current.classifier.is_fitted:
            raise HTTPException(409, "There are no classes yet: add one first.")
        inner = current.classifier
        vectors = inner.vectors(current.features(current.read(image)[None]))
        probabilities = softmax(inner.logits_of(vectors)[0])
        fewer = {
            shot: softmax(other.logits_of(vectors)[0])
            for shot, other in (_at_fewer_shots(current) if by_shot else {}).items()
        }
        shown = [*probabilities.argsort()[::-1][:LIKELIEST_CLASSES], *(each.argmax() for each in fewer.values())]
        names = list(inner.labels_by_name)
        is_known = bool(inner.evidence_of(vectors)[0] >= inner.threshold_)
        return {
            "class": names[int(probabilities.argmax())] if is_known else None,
            "classes": names,
            "probabilities": probabilities.round(6).tolist(),
            "is_known": is_known,
            "can_reject": bool(np.isfinite(inner.threshold_)),
            "nearest": {
                str(label): _list_shown_keys(current, inner.nearest(vectors[0], label, NEAREST_EXAMPLES))
                for label in inner.classes_[list(dict.fromkeys(shown))]
            },
            "by_shot": [{"shot": shot, "probabilities": each.round(6).tolist()} for shot, each in fewer.items()],
        }

    def _change(self, change: Callable[[ImageClassifier], Result]) -> Result:
        """Apply a change to a copy of the current classifier, which then takes its place, and return its result."""
        with self._change_lock:
            changed = copy.copy(self.current)
            result = change(changed)
            self.current = changed
            return result


@lru_cache(maxsize=1)
def _at_fewer_shots(current: ImageClassifier) -> dict[int, FewShotClassifier]:
    """Return a classifier with fewer examples per class, by shot; computed once per change."""
    inner = current.classifier
    most = min(int(inner.support_.exemplar_counts.max()), inner.keep)
    return {shot: inner.at_shot(shot) for shot in range(1, most + 1) if shot < 8 or shot % 4 == 0 or shot == most}


def _confirm(classifier: ImageClassifier, key: int, label: Any) -> Callable[[ImageClassifier], None]:
    """Note that a person has confirmed the label of an example, and return a function that takes that back."""
    new = {(key, label)} - classifier.confirmed
    classifier.confirmed |= new

    def withdraw(later: ImageClassifier) -> None:
        later.confirmed -= new

    return withdraw


def _describe_copies(
    one: tuple[str, str], other: tuple[str, str], confirmed: Set[tuple[str, str]]
) -> list[tuple[str, str, str, str, str]]:
    """Return rows of a review about a pair of copies, each given by its key and its class.

    Of two labels either may be wrong. Of two copies in one class the second is listed, unless one of them was kept.
    """
    (key, name), (other_key, other_name) = one, other
    if name != other_name:
        return [(*other, f"is also in {name}", name, key), (*one, f"is also in {other_name}", other_name, other_key)]
    return [] if confirmed & {one, other} else [(*other, "is like another picture of its class", "", key)]


def _find_label(classifier: ImageClassifier, name: str, *, may_be_new: bool = False) -> Any:
    """Return the label of a class by its name; that of a new class has the type of the others."""
    if not may_be_new and name not in classifier.classifier.labels_by_name:
        raise HTTPException(404, "There is no such class.")
    return classifier.classifier.parse_labels([name])[0]


def _list_shown_keys(classifier: ImageClassifier, keys: np.ndarray) -> list[str]:
    """Return the keys of those examples that have a picture to show, each once."""
    return [f"{key:016x}" for key in dict.fromkeys(keys.tolist()) if key in classifier.thumbnails]


def _count_until_rejection(classifier: FewShotClassifier) -> int | None:
    """Return how many more examples, in classes of two or more, rejection needs; None if it is switched off."""
    if np.isfinite(classifier.threshold_):
        return 0
    support = classifier.support_
    n_available = int(support.exemplar_counts[support.counts > 1].sum())
    return None if not classifier.reject else max(1, int(np.ceil(1 / classifier.reject - 1e-9)) - 1 - n_available)
