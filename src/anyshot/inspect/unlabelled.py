"""What to label next: unlabelled examples, ranked by how much their labels are expected to help.

An unlabelled example u is covered by the nearest labelled one s as far as k(u, s) = exp(-|u - s|^2 / d), where d is the
typical squared distance within a class. It counts the more, the less its two likeliest classes differ in probability.
The next example of the ranking is the one whose label would raise the sum of coverages most (uncertainty herding, Bae
et al. 2024). benchmarks/labelling.py compares this with other rules and with random choice (docs/log/labelling.md).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from anyshot.classify.classifier import FewShotClassifier
from anyshot.errors import BadInput
from anyshot.inspect.sections import Cell, ExampleCell, Section, Table
from anyshot.measure.groups import WithinClassDistance, unit_vectors
from anyshot.measure.inputs import check_features, check_labels, describe_size

MOST_RANKED = 100  # examples of a ranking: after so many labels, rank the others anew
LEAST_WEIGHT = 0.01  # of an example that the classifier is sure of: without, such ones would not be ranked; not tuned
TIE = 1e-4  # gains that differ by less than this share are equal: they are sums in float32
MOST_COMPARED = 5_000  # unlabelled examples that are compared, a random sample of more: their kernel takes 100 MB


class RankedExample(NamedTuple):
    """An unlabelled example of a ranking.

    Attributes:
        example: Its number.
        likeliest: Its likeliest class.
        probability: The probability of that, compared with the other classes.
        is_known: Whether it looks like one of the classes at all, rather than none of these.
    """

    example: int
    likeliest: str
    probability: float
    is_known: bool = True


def rank_unlabelled(
    features: ArrayLike,
    labels: ArrayLike,
    unlabelled: ArrayLike,
    most: int = MOST_RANKED,
    classifier: FewShotClassifier | None = None,
) -> list[RankedExample]:
    """Rank unlabelled examples; those come first whose labels are expected to help most.

    Args:
        features: Features of the labelled examples.
        labels: Their labels.
        unlabelled: Features of the unlabelled examples.
        most: How many to return at most.
        classifier: A classifier that was fitted to the labelled examples; one with the default head where None.

    Raises:
        BadInput: The features of labelled and unlabelled examples have different shapes, or there are not two classes.
    """
    x, pool = check_features(features), check_features(unlabelled)
    names, codes = check_labels(labels, len(x))
    check_same_shape(x.shape, pool.shape)
    if len(names) < 2:
        raise BadInput("a ranking needs labelled examples of at least 2 classes.")
    if classifier is None:
        classifier = FewShotClassifier().fit(x.numpy(), np.array(names)[codes])
    sample = np.sort(np.random.default_rng(0).permutation(len(pool))[:MOST_COMPARED])
    probabilities = classifier.predict_proba(pool.numpy()[sample])
    second, first = np.partition(probabilities, -2, axis=1)[:, -2:].T
    labelled = unit_vectors(x.numpy())
    scale = WithinClassDistance.estimate(labelled, codes).distance or 1.0
    units = unit_vectors(pool.numpy()[sample]).astype(np.float32)
    ranking = _herd(
        _compute_similarities(units, units, scale),
        _compute_similarities(units, labelled.astype(np.float32), scale).max(1),
        np.maximum(1 - first + second, LEAST_WEIGHT).astype(np.float32),
        most,
    )
    likeliest, is_known = classifier.classes_[probabilities.argmax(1)], classifier.is_known(pool.numpy()[sample])
    return [
        RankedExample(int(sample[row]), str(likeliest[row]), float(first[row]), bool(is_known[row])) for row in ranking
    ]


def check_same_shape(labelled: Sequence[int], unlabelled: Sequence[int]) -> None:
    """Raise BadInput where features of labelled and unlabelled examples, of these shapes, are of different sizes."""
    if tuple(labelled[1:]) != tuple(unlabelled[1:]):
        ours, theirs = describe_size(labelled), describe_size(unlabelled)
        raise BadInput(
            f"labelled and unlabelled examples must have features of the same shape: the labelled have {ours} numbers "
            f"each, the unlabelled {theirs}."
        )


def _compute_similarities(
    one: Float[np.ndarray, "one d"], other: Float[np.ndarray, "other d"], scale: float
) -> Float[np.ndarray, "one other"]:
    """Return the Gaussian kernel of vectors of length one; the scale is a squared distance."""
    return np.exp((2 * one @ other.T - 2) / np.float32(scale))


def _herd(
    similarities: Float[np.ndarray, "example example"],
    coverage: Float[np.ndarray, " example"],
    weights: Float[np.ndarray, " example"],
    most: int,
) -> list[int]:
    """Choose greedily the examples that raise the weighted sum of coverages most, and return them in that order.

    Of examples that raise it equally, such as copies, the first is chosen: rounding, which differs between processors,
    must not decide.

    Args:
        similarities: Those of all unlabelled examples to each other.
        coverage: How far each is covered by the labelled examples.
        weights: How much the coverage of each counts.
        most: How many to return at most.
    """
    ranking: list[int] = []
    for _ in range(min(most, len(coverage))):
        gains = weights @ np.maximum(similarities - coverage[:, None], 0)
        gains[ranking] = -1
        ranking.append(int((gains >= (1 - TIE) * gains.max()).argmax()))
        coverage = np.maximum(coverage, similarities[:, ranking[-1]])
    return ranking


def describe_ranking(ranking: Sequence[RankedExample], names: Sequence[str]) -> Section:
    """Return a ranking as a section of advice, with the examples by their numbers."""
    rows: list[list[Cell]] = []
    for one in ranking:
        answer = [one.likeliest, f"{one.probability:.0%}"]
        if not one.is_known:
            answer = [f"none of these (nearest: {one.likeliest})", "-"]
        cell = ExampleCell(one.example, names[one.example], suggestion=one.likeliest, is_known=one.is_known)
        rows.append([cell, *answer])
    part = f" ({len(ranking)} of {len(names)}; when these are labelled, rank anew)" if len(ranking) < len(names) else ""
    sentences = [
        f"Examples whose labels are expected to help most come first{part}: unsure ones that are like many others, and "
        "unlike what is labelled or comes before them."
    ]
    if strangers := sum(not one.is_known for one in ranking):
        look = "looks" if strangers == 1 else "look"
        sentences.append(f"{strangers} of these {look} like none of the classes: leave out those that are of none.")
    return Section("What to label next", sentences, [Table("", ["example", "likeliest", "probability"], rows)])
