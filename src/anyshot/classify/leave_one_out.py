"""The accuracy on the labelled examples themselves, by leaving out each one with its whole group.

This is the one definition of that number: `anyshot fit` and `anyshot advise` both print it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from anyshot.arrays import split_rows
from anyshot.classify.calibration import estimate, leave_one_out, to_tensor
from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.keys import hash_rows
from anyshot.classify.support import Exemplars, Support, build_support
from anyshot.measure.groups import NAMED, NEAR_VECTORS, Groups, Labels, Vectors, find_groups
from anyshot.models.law import BoundHead, Examples
from anyshot.text import count_noun

PART = 256  # examples whose vectors are float64 at once

Scores = Float[np.ndarray, "example class"]


@dataclass(frozen=True)
class LeaveOneOutAccuracy:
    """The share of labelled examples that are classified right when left out.

    Attributes:
        alone: The share when each example is left out by itself.
        in_groups: The share when it is left out with its whole group; None where there are no groups, or every class is
            a single one.
        groups: The number of groups of two examples or more.
        members: The number of examples in such groups.
        evidence: How the groups were found (`Groups.evidence`).
        examples: Examples that are left out alone, copies counted once; 0 where that is not known.
        classes: The number of their classes.
        singles: Classes of a single example, which cannot be left out.
    """

    alone: float
    in_groups: float | None = None
    groups: int = 0
    members: int = 0
    evidence: tuple[str, ...] = ()
    examples: int = 0
    classes: int = 0
    singles: int = 0

    @property
    def accuracy(self) -> float:
        """The accuracy to report: with whole groups left out, where there are groups."""
        return self.alone if self.in_groups is None else self.in_groups

    def _describe_groups(self) -> str:
        """Say of what kind the groups are, and how they were found."""
        kinds = ["that you named"] if NAMED in self.evidence else []
        if signs := [sign for sign in self.evidence if sign != NAMED]:
            # Vectors that are near each other may be of a text or a sound: only times tell of moments.
            examples = "that are much alike" if signs == [NEAR_VECTORS] else "of one moment or much alike"
            kinds.append(f"{examples} (found by {' and '.join(signs)})")
        return " or ".join(kinds)

    @property
    def sentences(self) -> str:
        """The accuracy in words, and why it is optimistic."""
        subject, singles = "these examples", ""
        if self.singles:
            subject = f"{count_noun(self.examples, 'example')} of {count_noun(self.classes, 'class')}"
            they_are = "it is" if self.singles == 1 else "these are"
            classes = count_noun(self.singles, "class", "has")
            singles = f" {classes} a single example: {they_are} not in this number, for want of another."
        text = f"Left out and asked as if they were new, {self.alone:.1%} of {subject} are recognised.{singles}"
        if self.in_groups is not None:
            text += (
                f" {self.members} of them are in {count_noun(self.groups, 'group')} {self._describe_groups()}, whose "
                f"members may be recognised by each other: with whole groups left out it is {self.in_groups:.1%}. "
                "Expect the first number for more of the same groups, and the second for new groups like these."
            )
        return (
            f"{text} This is of the examples at hand; those of other days, places and sources are mostly harder, and "
            "more of them are called none of these."
        )


@dataclass(frozen=True)
class LeaveOneOutScores:
    """What becomes of each example when it is left out of the support with its whole group.

    Attributes:
        scores: Scores, without the temperature; NaN where nothing of an example's class would be left.
        accuracy: The accuracy, also that with each example left out by itself.
    """

    scores: Scores
    accuracy: LeaveOneOutAccuracy

    @property
    def is_scored(self) -> np.ndarray:
        """Whether each example could be left out."""
        return ~np.isnan(self.scores[:, 0])


def leave_out(head: BoundHead, vectors: Vectors, labels: Labels, groups: Groups) -> LeaveOneOutScores:
    """Score vectors, each with its group left out of the support.

    Args:
        head: The head, with what it has learned before.
        vectors: What a class is the mean of, a row per example.
        labels: Classes, counted from 0.
        groups: Which examples belong together.
    """
    scores = _score_left_out(head, vectors, labels, np.arange(len(labels)))
    counts = np.bincount(labels)
    counts_above_one = counts[counts > 1]
    accuracy = LeaveOneOutAccuracy(
        _compute_accuracy(scores, labels),
        examples=int(counts_above_one.sum()),
        classes=len(counts_above_one),
        singles=int((counts == 1).sum()),
    )
    if groups.count:
        scores = _score_left_out(head, vectors, labels, groups.group)
        in_groups = None if np.isnan(scores).all() else _compute_accuracy(scores, labels)
        accuracy = replace(
            accuracy, in_groups=in_groups, groups=groups.count, members=groups.members, evidence=groups.evidence
        )
    return LeaveOneOutScores(scores, accuracy)


def leave_out_examples(
    classifier: FewShotClassifier,
    features: np.ndarray,
    labels: Labels,
    names: Sequence[str] = (),
    times: Sequence[float | None] = (),
    groups: Sequence[Any] = (),
) -> LeaveOneOutScores:
    """Score the examples of a classifier, each with its group left out of the support.

    Copies under the same label count once, as they do in the classifier.

    Args:
        classifier: The classifier that has learned these examples.
        features: Their features.
        labels: Classes, counted from 0.
        names: Their file names, where they have any.
        times: When they were taken, where that is known.
        groups: The name of the group of each, where the user has named groups; see `find_groups` for all three.
    """
    pairs = np.stack([labels.astype(np.uint64), hash_rows(features)])
    rows, copy_of = np.unique(pairs, axis=1, return_index=True, return_inverse=True)[1:]  # as exemplars are ordered
    names, times, groups = ([one[row] for row in rows if row < len(one)] for one in (names, times, groups))
    vectors, row_labels = classifier.vectors(features[rows]), labels[rows]
    row_groups = find_groups(vectors, row_labels, names, times, groups)
    result = leave_out(classifier.learned_head_, vectors, row_labels, row_groups)
    return LeaveOneOutScores(result.scores[copy_of.reshape(-1)], result.accuracy)


def _compute_accuracy(scores: Scores, labels: Labels) -> float:
    """Return the share of examples whose own class has the highest score; NaN where no example could be left out."""
    is_scored = ~np.isnan(scores[:, 0])
    return float((scores[is_scored].argmax(1) == labels[is_scored]).mean()) if is_scored.any() else float("nan")


def _score_left_out(head: BoundHead, vectors: Vectors, labels: Labels, group: Int[np.ndarray, " example"]) -> Scores:
    """Return the scores of every example with its group left out; NaN where nothing of its class would remain."""
    order = np.argsort(labels, kind="stable")  # a support has its exemplars class by class
    class_index = np.unique(labels[order], return_inverse=True)[1]
    # A group that the user names may have examples of two classes. It is then one group in each of them.
    groups = np.unique(np.stack([class_index, group[order]]), axis=1, return_inverse=True)[1].reshape(-1)
    ordered = vectors if np.array_equal(order, np.arange(len(order))) else vectors[order]
    estimator, parts = head.head.estimator, (ordered[part] for part in split_rows(len(ordered), PART))
    keys = order.astype(np.uint64)
    support = build_support(parts, labels[order], keys, keys, keep=0, has_scatter=estimator is not None)
    if estimator is not None:
        examples = Examples(*map(to_tensor, (ordered, class_index, groups)))
        left_out = estimate(estimator, support, examples)[1].logits.numpy()
    else:  # every example is an exemplar
        exemplars = Exemplars(ordered.astype(np.float64), class_index, keys, keys)
        support = Support.from_arrays(support.labels, support.sums, support.counts, exemplars)
        left_out = leave_one_out(head, support, groups, max_queries=len(labels) * len(support))[0]
    scores = np.full((len(labels), len(support)), np.nan)
    scores[order[support.counts[class_index] > np.bincount(groups)[groups]]] = left_out
    return scores
