"""Step: which labels may be wrong, and which two classes may be one.

There are two rankings for two kinds of mistakes. The examples that are least likely under their own label find labels
that were mixed up at random. The examples that are surely of another class find labels confused with a class that looks
alike, where the own label is never out of the question. (docs/log/advice.md compares both with other rules.)
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import log_softmax

from anyshot.classify.calibration import fit_scale
from anyshot.classify.leave_one_out import LeaveOneOutScores
from anyshot.inspect.case import AdviceCase
from anyshot.inspect.holdout import compute_share
from anyshot.inspect.sections import Section, Table, example_cell
from anyshot.measure.groups import Labels
from anyshot.text import count_noun

# The three thresholds only decide where the lists end, and were not tuned; the rankings were compared with others.
UNLIKELY = 0.02  # probability of its own label below which an example is listed
SURE = 0.75  # probability of another class from which an example is listed
ONE_CLASS = 0.65  # share of examples told from the other class below which two classes may be one; chance is 0.5
TWO_CLASSES = 0.75  # the 95 % interval of that share must end below this, or the examples are too few; not tuned
MOST_LISTED = 40  # examples in a table; all are in the JSON


class Suspect(NamedTuple):
    """An example whose label may be wrong, with its probabilities when it is left out.

    Attributes:
        image: The number of the example.
        looks_like: Its likeliest class.
        log_own: The logarithm of the probability of its own label.
        other: The probability of the class that it looks like.
    """

    image: int
    looks_like: int
    log_own: float
    other: float


def find_label_errors(case: AdviceCase, left_out: LeaveOneOutScores) -> Section:
    """Rank examples whose labels may be wrong, and pairs of classes that may be one.

    Its values are the examples by how unlikely their own label is (`unlikely`) and by how likely another one is
    (`mislabelled`), the numbers of all these (`suspects`), and pairs of classes with the share of their examples that
    is told from the other (`same_class`). Labels that a person has confirmed are not listed.
    """
    images = np.flatnonzero(left_out.is_scored)
    scores, labels = left_out.scores[images], case.labels[images]
    rows = [
        {
            **case.describe(suspect.image),
            "looks_like": case.class_names[suspect.looks_like],
            "own_probability": float(np.exp(suspect.log_own)),
            "probability": suspect.other,
        }
        for suspect in sorted(rank_suspects(scores, labels, images), key=lambda suspect: suspect.log_own)
        if not case.is_confirmed[suspect.image]
    ]
    unlikely = [row for row in rows if row["own_probability"] <= UNLIKELY]
    sure = sorted((row for row in rows if row["probability"] >= SURE), key=lambda row: -row["probability"])
    suspects = {row["image"]: row for row in (*unlikely, *sure)}
    values = {
        "unlikely": unlikely,
        "mislabelled": sure,
        "suspects": sorted(suspects),
        "same_class": [
            {"classes": [case.class_names[one], case.class_names[other]], "told_apart": share}
            for one, other, share in find_same_classes(scores, labels, case.groups.group[images])
        ],
    }
    sentences, tables = _describe_suspects(list(suspects.values())) if suspects else (["None."], [])
    return Section("Labels that may be wrong", sentences, tables, values=values)


def _describe_suspects(suspects: list[dict[str, Any]]) -> tuple[list[str], list[Table]]:
    """List every suspect once, with its reasons; those with two reasons come first."""
    reasons = {
        row["image"]: ["unlikely label"] * (row["own_probability"] <= UNLIKELY)
        + ["sure of another"] * (row["probability"] >= SURE)
        for row in suspects
    }
    cells = [
        [
            example_cell(row, row["looks_like"]),
            row["label"],
            f"{row['own_probability']:.1g}",
            row["looks_like"],
            f"{row['probability']:.0%}",
            ", ".join(reasons[row["image"]]),
        ]
        for row in sorted(suspects, key=lambda row: -len(reasons[row["image"]]))[:MOST_LISTED]
    ]
    sentences = [
        f"{count_noun(len(suspects), 'label')} may be wrong: the label is unlikely, as when labels are mixed up at "
        "random, or another class is surely right, as when classes that look alike are confused. Those with both "
        "reasons come first: look at them from the top, until the labels are right."
    ]
    columns = ["example", "label", "probability of it", "looks like", "probability", "why"]
    return sentences, [Table("", columns, cells)]


def rank_suspects(
    scores: Float[np.ndarray, "image way"], labels: Labels, images: Int[np.ndarray, " image"]
) -> list[Suspect]:
    """Return the images that are not recognised when left out, with the probability of their own label.

    Args:
        scores: Scores of the images that were left out.
        labels: Their labels.
        images: Their numbers.
    """
    if not len(labels) or scores.shape[1] < 2:
        return []
    log_probability = log_softmax(fit_scale(scores, labels) * scores, axis=1)
    best = log_probability.argmax(1)
    rows = np.arange(len(labels))
    own, other = log_probability[rows, labels], np.exp(log_probability[rows, best])
    suspects = map(Suspect, images.tolist(), best.tolist(), own.tolist(), other.tolist())
    return [suspect for suspect, is_wrong in zip(suspects, best != labels, strict=True) if is_wrong]


def find_same_classes(
    scores: Float[np.ndarray, "image way"], labels: Labels, groups: Int[np.ndarray, " image"]
) -> list[tuple[int, int, float]]:
    """Return pairs of classes whose images are hardly told apart when only these two are compared.

    Images of one group are recognised, or not, together: for the interval of the share a group counts as one image.

    Args:
        scores: Scores of the images that were left out with their groups.
        labels: Their labels.
        groups: Their groups.
    """
    way = scores.shape[1]
    wins, draws = np.zeros((way, way)), np.zeros((way, way))
    for label in np.unique(labels):
        members = scores[labels == label]
        wins[label] = (members[:, [label]] > members).sum(0)
        draws[label] = (members[:, [label]] == members).sum(0)
    counts = np.bincount(labels, minlength=way)
    n_groups = np.bincount(labels[np.unique(groups, return_index=True)[1]], minlength=way)
    # Of equal scores the second class is right, as `argmax` of a pair has it for one of the two orders.
    share = (wins + wins.T + draws.T) / np.maximum(counts + counts[:, None], 1)
    pairs: list[tuple[int, int, float]] = []
    for one, other in np.argwhere(np.triu(share < ONE_CLASS, 1)).tolist():
        told_apart, independent = float(share[one, other]), int(n_groups[one] + n_groups[other])
        if independent and compute_share(round(told_apart * independent), independent)[2] < TWO_CLASSES:
            pairs.append((one, other, told_apart))
    return sorted(pairs, key=lambda pair: pair[2])
