"""Probabilities one can believe, and "none of these": from the support itself, without further data.

Leaving an example out of its class is a subtraction from the class's sum, so the scores that each example would have
got as a new image are known in closed form. On them we fit one factor for the logits (temperature scaling) for the
shots at hand, and read off the best logit below which only a chosen share of the known classes' images falls.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.optimize import brentq

from anyshot.deploy.support import Support
from anyshot.models.law import Estimator, LabelledVectors, LeaveOneOut, Moments, Parameters, Reading

CHUNK_FLOATS = 20_000_000
TURNS = 8
IMAGES = 256  # whose scores are gone through at once
QUERIES = 2048  # examples that are left out and asked
CLASSES = 1024  # that they are of, where there are more
LEAST_QUERIES, PRODUCTS = 512, 1 << 26  # asked of all classes: fewer where these are many

Scores = Float[np.ndarray, "image way"]


def prototypes(reading: Reading, support: Support) -> Float[torch.Tensor, "way refined"]:
    """What queries are scored against: the mean of each class, refined."""
    means = torch.from_numpy(support.sums / support.counts[:, None])
    return reading.head.refined(means, torch.from_numpy(support.counts), reading.parameters)


def estimate(
    estimator: Estimator, support: Support, base: Parameters | None = None, most: int = 8 * QUERIES
) -> tuple[Parameters, LeaveOneOut]:
    """Return what a head estimates from its support, and its kept examples, each left out of all.

    Of each class as many examples are asked as `most` in all allow, two at least.
    """
    return estimate_from(estimator, support, *_some(support, most), base)


def estimate_from(
    estimator: Estimator,
    support: Support,
    vectors: Float[np.ndarray, "image d"],
    owner: Int[np.ndarray, " image"],
    base: Parameters | None = None,
) -> tuple[Parameters, LeaveOneOut]:
    """Do the same with examples that the support need not keep, and the places of their classes in it."""
    examples = LabelledVectors(torch.from_numpy(vectors), torch.from_numpy(owner))
    moments = _moments(estimator, support, examples)
    parameters = estimator.fit(moments, examples, base)
    return parameters, estimator.leave_one_out(moments, examples, parameters)


def can_calibrate(estimator: Estimator, support: Support) -> bool:
    """Return whether the factor of the logits comes from examples that were left out."""
    examples = LabelledVectors(torch.from_numpy(support.examples), torch.from_numpy(support.owner))
    return estimator.can_calibrate(torch.from_numpy(support.counts), examples)


def answers(
    reading: Reading, support: Support, base: Parameters | None = None
) -> tuple[Int[np.ndarray, " image"], Int[np.ndarray, " image"]]:
    """The classes that kept examples are taken for, each left out, and their own: 2,048 of them, or two of each class
    where that is more. Without the scale of the logits, on which this does not depend."""
    if reading.head.estimator is None:
        scores, owner = leave_one_out(reading, support)
        return scores.argmax(1), owner
    left_out = estimate(reading.head.estimator, support, base, QUERIES)[1]
    return left_out.logits.argmax(1).numpy(), left_out.owner.numpy()


def _moments(estimator: Estimator, support: Support, examples: LabelledVectors) -> Moments:
    """Return what an estimator needs of a support: where all of its few examples are there, in their span."""
    if support.counts.sum() == len(examples.owner) < support.sums.shape[1]:
        return estimator.moments(examples.vectors, examples.owner)
    assert support.scatter is not None
    counts, means = torch.from_numpy(support.counts), torch.from_numpy(support.means)
    return Moments(counts, means, torch.from_numpy(np.require(support.scatter, requirements="W")), support.freedom)


def leave_one_out(reading: Reading, support: Support, most: int = QUERIES) -> tuple[Scores, Int[np.ndarray, " image"]]:
    """Scores (without the temperature) of kept examples as new images against all classes, and their own classes.

    Each example is left out of its own class, and every other class leaves one of its own out too (its first few, in
    turn), so that no class is a shot ahead. A class of one example has nothing left without it: its example is no
    query, but stands as a class for the others. Of each class as many examples are queries as `most` in all allow, two
    at least."""
    vectors, owners = _some(support, most)
    head, owner, every = reading.head, torch.from_numpy(owners), torch.from_numpy(vectors)
    counts = torch.from_numpy(support.counts)[owner]
    single, left = counts == 1, (counts - 1).clamp_min(1)
    without = torch.from_numpy(support.sums)[owner].sub_(every).div_(left[:, None])
    without[single] = every[single]
    if head.refine is not None and not head.couples:
        pieces = zip(*(x.split(_rows(without.shape[1])) for x in (without, left)), strict=True)
        without = torch.cat([head.refine(means, many, reading.parameters) for means, many in pieces])
    kept = np.bincount(owners, minlength=len(support.labels))
    first = np.cumsum(kept) - kept
    queries = np.flatnonzero(support.counts[owners] > 1)
    rank = (np.arange(len(owners)) - first[owners])[queries]
    out = torch.empty(len(queries), len(kept), dtype=torch.float64)
    for turn in np.unique(rank).tolist():  # queries of one rank in their classes meet the same others
        others = torch.from_numpy(first + turn % np.clip(kept, 1, TURNS))
        means, many = without[others], left[others]
        for here in torch.from_numpy(np.flatnonzero(rank == turn)).split(_rows(without.shape[1] * len(kept))):
            own = torch.from_numpy(queries)[here]
            query, mine = every[own], (torch.arange(len(own)), owner[own])
            if head.couples:  # each query has its own set of classes, and they refine each other
                assert head.refine is not None
                sets, counts = means.repeat(len(own), 1, 1), many.repeat(len(own), 1)
                sets[mine], counts[mine] = without[own], left[own]
                out[here] = head.score(query[:, None], head.refine(sets, counts, reading.parameters))[:, 0]
            else:
                scores = head.score(query, means)
                scores[mine] = head.score(query[:, None], without[own, None])[:, 0, 0]
                out[here] = scores
    return out.numpy(), owners[queries]


def _some(support: Support, most: int) -> tuple[Float[np.ndarray, "image d"], Int[np.ndarray, " image"]]:
    """Kept examples, of each class as many as `most` in all allow, two at least, and their classes."""
    chosen = support.kept_of(max(2, most // len(support.labels)))
    if len(chosen) == len(support.examples):  # in the same order; then they are not copied
        return support.examples, support.owner
    return support.examples[chosen], support.owner[chosen]


def _rows(floats: int) -> int:
    """Rows of so many floats that are worked on at once."""
    return max(1, CHUNK_FLOATS // floats)


def fit_scale(scores: Scores, owner: Int[np.ndarray, " image"]) -> float:
    """The factor that makes softmax(factor * scores) likeliest, as if one more image had been of any class alike.

    Without that image a few examples, all of them right, would make the classifier certain for ever."""
    most, doubt = scores.max(1, keepdims=True), 1 / (len(scores) + 1)

    def below() -> Iterator[tuple[Scores, Int[np.ndarray, " part"]]]:
        """Scores below the best of each image, and their classes, some at a time: never all in memory once more."""
        for start in range(0, len(scores), IMAGES):
            here = slice(start, start + IMAGES)
            yield scores[here] - most[here], owner[here]

    wanted = np.concatenate([(1 - doubt) * z[np.arange(len(z)), o] + doubt * z.mean(1) for z, o in below()])
    mean = sum(float(z.sum()) for z, _ in below()) / scores.size
    variance = sum(float(np.square(z - mean).sum()) for z, _ in below()) / scores.size
    middle = 1 / max(variance**0.5, np.finfo(float).tiny)

    def slope(scale: float) -> float:
        """Of the loss, which is convex in the factor: minus the log-likelihood of an image."""
        return float((np.concatenate([_expected(scale, z) for z, _ in below()]) - wanted).mean())

    low, high = 1e-3 * middle, 1e3 * middle
    if slope(low) >= 0:  # the scores tell nothing
        return low
    return high if slope(high) <= 0 else float(brentq(slope, low, high, xtol=1e-12 * middle, rtol=1e-10))


def _expected(scale: float, z: Scores) -> Float[np.ndarray, " image"]:
    """The mean score of each image, over classes as they are likely."""
    weight = scale * z
    total = np.exp(weight, out=weight).sum(1)
    weight *= z
    return weight.sum(1) / total


def next_shot(counts: Int[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
    """What the factor gains when a class of so many examples takes back the one it had left out.

    A query lies about a mean of n examples with a variance of 1 + 1/n times the class's own, and logits are divided
    by that variance: the step from n - 1 to n examples is known in advance: 4/3 for two, next to nothing for many."""
    return (1 + 1 / np.maximum(counts - 1, 1)) / (1 + 1 / counts)


def gap_scale(reading: Reading, support: Support) -> float:
    """A factor where no class has two examples: a class's own prototype gets a logit 4 above the mean of the others.

    A rule of thumb, not a calibration: one example a class says nothing about how images of a class differ."""
    centres = prototypes(reading, support)
    query = torch.from_numpy(support.sums / support.counts[:, None])
    scores = reading.head.score(query, centres).numpy()
    gap = np.diag(scores).mean() - scores[~np.eye(len(scores), dtype=bool)].mean() if len(scores) > 1 else 0.0
    return float(4 / gap) if gap > np.finfo(float).eps * np.abs(scores).max() else 1.0


def calibration_error(probabilities: Scores, labels: Int[np.ndarray, " image"], bins: int = 15) -> float:
    """Expected calibration error: how far, on average, the winning class's probability is from how often it is right.

    Images are grouped by that probability in bins of equal width; the gaps of the bins are weighed by their images."""
    sure, right = probabilities.max(1), probabilities.argmax(1) == labels
    place = np.minimum((sure * bins).astype(int), bins - 1)
    gaps = np.bincount(place, sure - right, bins)
    return float(np.abs(gaps).sum() / len(labels))


def recalls(logits: Scores, owner: Int[np.ndarray, " image"], way: int) -> Float[np.ndarray, " way"]:
    """The share of each class's images that are told right; NaN for a class without any."""
    right = np.bincount(owner, logits.argmax(1) == owner if len(owner) else None, minlength=way)
    many = np.bincount(owner, minlength=way)
    return np.where(many > 0, right / np.maximum(many, 1), np.nan)


@dataclass(frozen=True)
class Coverage:
    """What a rejection threshold does, measured by leaving images (known) and whole classes (unknown) out."""

    threshold: float
    """Images whose best logit is lower are of none of the classes."""
    accepted: float
    """Share of the known classes' images that are accepted."""
    accuracy: float
    """Accuracy on those that are accepted."""
    accuracy_of_all: float
    unknown_rejected: float
    """Share of images rejected when their own class is taken away."""


def rejection(
    logits: Scores, owner: Int[np.ndarray, " image"], rate: float, evidence: Scores | None = None
) -> Coverage:
    """The threshold that rejects a share `rate` of known images, from leave-one-out logits, and its coverage. What
    speaks for each class rather than none of these is its `evidence`, or its logit where there is none."""
    evidence = logits if evidence is None else evidence
    best = evidence.max(1)
    # The quantile of split conformal prediction: a new image of a known class falls below it with at most this chance.
    rank = int(np.floor(rate * (len(best) + 1)))
    threshold = -np.inf if rank == 0 else float(np.sort(best)[rank - 1])
    accepted: Bool[np.ndarray, " image"] = best >= threshold
    right = logits.argmax(1) == owner
    strangers = np.where(np.arange(logits.shape[1]) == owner[:, None], -np.inf, evidence).max(1)
    return Coverage(
        threshold,
        float(accepted.mean()),
        float(right[accepted].mean()) if accepted.any() else float("nan"),
        float(right.mean()),
        float((strangers < threshold).mean()),
    )
