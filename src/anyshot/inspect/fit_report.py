"""What `anyshot fit`, `add` and `merge` say of the examples that were learned: which are there twice, the accuracy."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from shlex import quote

import numpy as np
from scipy.special import softmax

from anyshot.classify.calibration import calibration_error, calibration_error_by_chance
from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.keys import hash_rows
from anyshot.classify.leave_one_out import LeaveOneOutAccuracy, leave_out_examples
from anyshot.data.pictures import LEAST_SIDE, is_too_small
from anyshot.data.source import Item, Source
from anyshot.inspect.holdout import describe_calibration
from anyshot.measure.groups import MOST_EXAMPLES, compute_distance_ratio
from anyshot.text import count_noun, group_by, list_first

MOST_PAIRS = 10  # pairs of classes that are named
# Typical squared distance within classes over that between them: 0.36 to 0.85 on six sets of independent examples, 0.06
# to 0.22 where each class is one scene whose frames differ by up to 20 % (docs/log/calibration.md).
LEAST_VARIETY = 0.25
MOST_COMPARED = 1_000_000  # examples among which equal ones are looked for: their keys take some 200 MB

Batch = tuple[np.ndarray, Sequence[str], Sequence[Item], Sequence[float | None]]  # features, labels, items, times


class FitReport:
    """What `anyshot fit` and `add` say of the examples that they learn, which are collected meanwhile.

    Args:
        most: The most examples that will come. Their features are collected for the accuracy, unless they are too many.
        classifier: A classifier that learns more; examples that it has already are counted as repeated.
        noun: What to call an example.
    """

    def __init__(self, most: int = 0, classifier: FewShotClassifier | None = None, noun: str = "example") -> None:
        self._repeats: list[str] = []
        self._conflicts: dict[int, str] = {}  # by key, what has several labels
        self._small: list[str] = []  # pictures that are too small to show anything
        self._noun = noun
        self._batches: list[Batch] | None = [] if 0 < most <= MOST_EXAMPLES else None
        self._first: dict[int, tuple[str, str]] = {}
        self._relabelled: dict[tuple[int, str], str] = {}  # by key and label, the first example of each further label
        if classifier is not None:
            keys, rows = classifier.support_.all_keys
            labels = classifier.support_.labels[rows].tolist()
            for key, label in zip(keys.tolist(), map(str, labels), strict=True):
                if key in self._first:
                    self._relabelled[key, label] = ""
                else:
                    self._first[key] = "", label

    def add(
        self,
        features: np.ndarray,
        labels: Sequence[str],
        items: Sequence[Item],
        times: Sequence[float | None] = (),
    ) -> None:
        """Collect some more examples; of pictures also when they were taken."""
        if self._noun == "picture":
            self._small += [item.name for item in items if is_too_small(item.read)]
        for key, label, item in zip(hash_rows(features).tolist(), labels, items, strict=True):
            name = item.name
            if len(self._first) < MOST_COMPARED:
                self._first.setdefault(key, (name, label))
            first_name, first_label = self._first.get(key, (name, label))
            if first_label != label and (key, label) not in self._relabelled:
                self._relabelled[key, label] = name
                self._conflicts.setdefault(key, f"{name} is {first_name or f'one of {first_label} before'}")
                continue
            same_name = first_name if first_label == label else self._relabelled[key, label]
            if same_name != name:
                self._repeats.append(f"{name} is {same_name or f'one of {label} before'}")
        if self._batches is not None:
            self._batches.append((features, labels, items, times))

    def describe_doubts(self) -> str:
        """Return which pictures show nothing, and which examples are there twice, under one label or several."""
        sentences = []
        if self._small:
            small = f"{count_noun(len(self._small), 'picture', 'is')} less than {LEAST_SIDE} pixels wide or high"
            sentences.append(f"{small}, which shows nothing: {list_first(self._small)}.")
        labels_by_key = Counter(key for key, _ in self._relabelled if key in self._conflicts)
        several = "two labels, one of which is wrong"
        if any(further > 1 for further in labels_by_key.values()):
            several = "two labels or more, of which at most one is right"
        for repeats, verb, trouble in (
            (list(self._conflicts.values()), "has", several),
            (self._repeats, "is", "there already under the same label, and not counted again"),
        ):
            if repeats:
                sentences.append(f"{count_noun(len(repeats), self._noun, verb)} {trouble}: {list_first(repeats)}.")
        if self._repeats or self._conflicts:
            other = "edited" if self._noun == "picture" else "near"
            sentences.append(f"These are exact copies; `anyshot advise` also finds {other} ones.")
        return " ".join(sentences)

    def describe_accuracy(self, classifier: FewShotClassifier, out: Path) -> str:
        """Return lines on how accurate a classifier is, as far as its own examples tell, or why they do not."""
        coverage = classifier.coverage_
        if coverage is None or len(classifier.classes_) < 2:
            return _explain_unknown(classifier)
        accuracy = LeaveOneOutAccuracy(coverage.accuracy_of_all)
        if self._batches is not None:  # the number that `anyshot advise` gives for the same head and examples
            features, *columns = zip(*self._batches, strict=True)
            labels, items, times = (list(chain.from_iterable(column)) for column in columns)
            examples = Source(items)
            about = np.unique(labels, return_inverse=True)[1], examples.names, times, examples.groups or ()
            accuracy = leave_out_examples(classifier, np.concatenate(features), *about).accuracy
        source = "FOLDER" if self._noun == "picture" else "FILE"
        test = f"To know how much harder: anyshot test {quote(str(out))} {source}."
        logits, class_index = classifier.leave_one_out()
        probabilities = softmax(logits, axis=1)
        errors = calibration_error(probabilities, class_index), calibration_error_by_chance(probabilities)
        accepted = f"{coverage.accepted:.1%} are taken for one of the classes at all"  # as `anyshot test` says it
        if measured := classifier.state_.examples_measured:
            accepted += f" (both of the examples {measured})"
        unknown = _describe_single_groups(classifier) or self._doubt_variety(classifier)
        lines = [f"{accuracy.sentences} {test}", f"{describe_calibration(*errors)}; {accepted}.", unknown]
        return "\n".join(line for line in lines if line)

    def _doubt_variety(self, classifier: FewShotClassifier) -> str:
        """Warn that each class may be a single scene, where examples of one differ much less than classes do."""
        exemplars = classifier.support_.exemplars
        if compute_distance_ratio(exemplars.vectors, exemplars.class_index) >= LEAST_VARIETY:
            return ""
        source = "scene" if self._noun == "picture" else "source"
        return (
            f"The {self._noun}s of a class hardly differ. If they are all of one {source}, those of another may be "
            "called none of these: add some, or take --reject 0."
        )


def _explain_unknown(classifier: FewShotClassifier) -> str:
    """Say why nothing is known of a classifier's accuracy."""
    if len(classifier.classes_) < 2:
        return "It has one class, and nothing to tell it from: add others (anyshot add)."
    if not len(classifier.support_.exemplars.keys):
        return (
            "How accurate it is cannot be told: it keeps none of its examples (--keep). So its probabilities are a "
            "guess, and it never says none of these."
        )
    counts, exemplar_counts = classifier.support_.counts, classifier.support_.exemplar_counts
    if (exemplar_counts < counts).any():
        return (
            "How accurate it is cannot be told: the examples that it keeps of a class all belong together, and "
            "nothing is left to recognise them by. Keep more than "
            f"{int(exemplar_counts.max())} of a class (--keep). Until then its probabilities are a guess, and it "
            "never says none of these."
        )
    what = "example" if int(counts.max()) == 1 else "group of examples that belong together"
    return (
        f"How accurate it is cannot be told from these examples: every class has a single {what}, and nothing is "
        "left to recognise it by. Until there are two, its probabilities are a guess, and it never says none of "
        "these."
    )


def _describe_single_groups(classifier: FewShotClassifier) -> str:
    """Name the classes whose examples are all one group, of which nothing is known; empty where there are none."""
    names = [str(name) for name in classifier.single_group_classes_]
    if not names:
        return ""
    return (
        f"All examples of {list_first(names)} belong together: how well new ones are recognised cannot be known, and "
        "none is called none of these."
    )


def describe_conflicts(classifier: FewShotClassifier, folder: Path) -> str:
    """Say how many examples are in several classes, in which, and how to mend it; empty where there are none."""
    keys, rows = classifier.support_.all_keys
    _, example, counts = np.unique(keys, return_inverse=True, return_counts=True)
    shared = group_by(np.flatnonzero(counts[example] > 1).tolist(), lambda place: example[place]).values()
    if not shared:
        return ""
    pairs = Counter(" and ".join(map(str, classifier.classes_[rows[places]])) for places in shared)
    pair_names = list_first([f"{names} ({times})" for names, times in pairs.most_common()], MOST_PAIRS)
    remove = f"anyshot remove {quote(str(folder))}"
    return (
        f"{count_noun(len(shared), 'example', 'has')} two labels now, one of which is wrong: {pair_names}. To mend it: "
        f"{remove} --examples FILE --of CLASS, or {remove} --corrections TABLE."
    )


def describe_exemplar_accuracy(classifier: FewShotClassifier) -> str:
    """Return how accurate a changed classifier is on its exemplars; empty where that is not known, or takes long."""
    coverage = None if classifier.state_.is_large or len(classifier.classes_) < 2 else classifier.coverage_
    if coverage is None:
        return ""
    examples = classifier.state_.examples_measured or "that it keeps"
    return f"Left out with their groups, {coverage.accuracy_of_all:.1%} of the examples {examples} are recognised."
