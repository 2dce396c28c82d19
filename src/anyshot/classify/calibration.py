"""Calibrated probabilities and "none of these", from the support alone.

Leaving a group of examples out of their class is a subtraction from the class's sum, so the scores that each exemplar
would have got as a new image are known in closed form. On them we fit one factor for the logits (temperature scaling,
Guo et al. 2017) and the threshold of the best logit below which only a chosen share of known images falls (the quantile
of split conformal prediction, Papadopoulos et al. 2002).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from scipy.optimize import brentq

from anyshot.classify.support import Support
from anyshot.models.law import BoundHead, Estimator, Examples, LeaveOneOut, Moments, Parameters

CHUNK_FLOATS = 20_000_000  # numbers that are worked on at once: 160 MB
TURNS = 8  # groups of a class that are left out in turn when it is not the query's: more would hardly change a mean
IMAGES = 256  # images whose scores are copied at once
QUERIES = 2048  # exemplars that are queries: the standard error of a share is at most 1.1 %
CLASSES = 1024  # classes that take part in a calibration, where there are more
LEAST_QUERIES, PRODUCTS = 512, 1 << 26  # queries that are compared with all classes: fewer of very many classes
GUESSED_GAP = 4.0  # logit of a class over the mean of others where nothing can be left out: e^4 is 98 % of two classes

Scores = Float[np.ndarray, "image way"]
Groups = Int[np.ndarray, " exemplar"]


@dataclass(frozen=True)
class GroupSizes:
    """What leaving out the group of each exemplar takes from its class.

    Attributes:
        sums: The sum of the group's exemplars.
        left: The examples of the class that are left; 0 where the class is one group, or the group is not known whole.
    """

    sums: Float[np.ndarray, "exemplar d"]
    left: Int[np.ndarray, " exemplar"]


def measure_groups(support: Support, groups: Groups) -> GroupSizes:
    """Return what leaving out the group of each exemplar takes from its class."""
    sizes = np.bincount(groups)
    left = support.counts[support.owner] - sizes[groups]
    left[np.isin(groups, groups[support.is_cut])] = 0
    if sizes.max(initial=1) == 1:
        return GroupSizes(support.examples, left)
    sums = np.zeros((len(sizes), support.examples.shape[1]))
    np.add.at(sums, groups, support.examples)
    return GroupSizes(sums[groups], left)


def estimate(
    estimator: Estimator,
    support: Support,
    examples: Float[np.ndarray, "image d"],
    owner: Int[np.ndarray, " image"],
    groups: Groups,
    base: Parameters | None = None,
) -> tuple[Parameters, LeaveOneOut]:
    """Fit a head to a support, and return what it estimates and the logits of examples with their groups left out.

    Args:
        estimator: The head's.
        support: The classes, with their scatter.
        examples: The vectors of some of their examples.
        owner: The rows of their classes.
        groups: Their groups, counted from 0; no group has examples of two classes.
        base: What is known of other classes, if there are any.
    """
    known = Examples(_tensor(examples), _tensor(owner), _tensor(groups))
    if len(examples) == support.counts.sum() < examples.shape[1]:  # the scatter would be much larger than they are
        moments = estimator.moments_of(known.vectors.double(), known.owner)
    else:
        assert support.scatter is not None
        sums = _tensor(support.counts), torch.from_numpy(support.means), _tensor(support.scatter)
        moments = Moments(*sums, support.degrees_of_freedom)
    parameters = estimator.fit(moments, known, base)
    return parameters, estimator.leave_one_out(moments, known, parameters)


def leave_one_out(
    reading: BoundHead, support: Support, groups: Groups | None = None, most: int = QUERIES
) -> tuple[Scores, Int[np.ndarray, " image"]]:
    """Return scores (without the temperature) of exemplars as new images, and the rows of their classes.

    Each exemplar is left out of its class with its group, and every other class leaves out one of its groups too (the
    first few in turn), so that no class is ahead. An exemplar whose class is one group is no query, but stands as a
    class for the others.

    Args:
        reading: The head and its parameters.
        support: The classes.
        groups: The group of each exemplar, counted from 0; each is its own where None.
        most: Queries in all; of each class as many as that allows, two at least.
    """
    chosen = choose_queries(support, most)
    vectors, owners = support.exemplars.vectors[chosen], support.exemplars.owner[chosen]
    if groups is None:
        groups = np.arange(len(support.exemplars.owner))
    out_of = measure_groups(support, groups)
    left_counts = out_of.left[chosen]
    head, owner, every = reading.head, torch.from_numpy(owners), torch.from_numpy(vectors)
    is_alone = left_counts < 1
    left = torch.from_numpy(np.where(is_alone, support.counts[owners], left_counts))
    gone = np.where(is_alone[:, None], 0.0, out_of.sums[chosen])
    without = torch.from_numpy(support.sums[owners] - gone).div_(left[:, None])
    kept = np.bincount(owners, minlength=len(support))
    first = np.cumsum(kept) - kept
    bare = np.flatnonzero(kept == 0)  # classes without exemplars stand as they are
    first[bare] = len(owners) + np.arange(len(bare))
    without = torch.cat([without, torch.from_numpy(support.sums[bare] / support.counts[bare, None])])
    left = torch.cat([left, torch.from_numpy(support.counts[bare])])
    if head.refine is not None and not head.couples:
        pieces = zip(*(x.split(_rows(without.shape[1])) for x in (without, left)), strict=True)
        without = torch.cat([head.refine(means, many, reading.parameters) for means, many in pieces])
    queries = np.flatnonzero(~is_alone)
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
                out[here] = reading.score(query[:, None], head.refine(sets, counts, reading.parameters))[:, 0]
            else:
                scores = reading.score(query, means)
                scores[mine] = reading.score(query[:, None], without[own, None])[:, 0, 0]
                out[here] = scores
    return out.numpy(), owners[queries]


def choose_queries(support: Support, most: int) -> Int[np.ndarray, " image"]:
    """Return the first exemplars of each class, as many as `most` in all allow, two at least."""
    owner = support.exemplars.owner
    rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
    return np.flatnonzero(rank < max(2, most // max(1, len(support))))


def _tensor(array: np.ndarray) -> torch.Tensor:
    """Return an array as a tensor; a copy where it must not be written to."""
    return torch.from_numpy(np.require(array, requirements="W"))


def _rows(floats: int) -> int:
    """Return how many rows of so many floats are worked on at once."""
    return max(1, CHUNK_FLOATS // floats)


def fit_scale(scores: Scores, owner: Int[np.ndarray, " image"]) -> float:
    """Return the factor that makes softmax(factor * scores) likeliest, as if one more image had been of any class.

    Without that image a few examples, all of them right, would make the classifier certain for ever.
    """
    best, doubt = scores.max(1, keepdims=True), 1 / (len(scores) + 1)

    def below_best() -> Iterator[tuple[Scores, Int[np.ndarray, " part"]]]:
        """Yield scores less the best of each image, and their classes, some at a time: never all in memory again."""
        for start in range(0, len(scores), IMAGES):
            here = slice(start, start + IMAGES)
            yield scores[here] - best[here], owner[here]

    wanted = np.concatenate([(1 - doubt) * z[np.arange(len(z)), o] + doubt * z.mean(1) for z, o in below_best()])
    mean = sum(float(z.sum()) for z, _ in below_best()) / scores.size
    variance = sum(float(np.square(z - mean).sum()) for z, _ in below_best()) / scores.size
    middle = 1 / max(variance**0.5, np.finfo(float).tiny)

    def slope(scale: float) -> float:
        """Return the slope of the loss, minus the log-likelihood of an image, which is convex in the factor."""
        return float((np.concatenate([_expected(scale, z) for z, _ in below_best()]) - wanted).mean())

    low, high = 1e-3 * middle, 1e3 * middle
    if slope(low) >= 0:  # the scores tell nothing
        return low
    return high if slope(high) <= 0 else float(brentq(slope, low, high, xtol=1e-12 * middle, rtol=1e-10))


def _expected(scale: float, z: Scores) -> Float[np.ndarray, " image"]:
    """Return the mean score of each image, over classes as they are likely."""
    weight = scale * z
    total = np.exp(weight, out=weight).sum(1)
    weight *= z
    return weight.sum(1) / total


def next_shot(counts: Shaped[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
    """Return what the factor gains when a class of so many examples takes back the one it had left out.

    A query lies about a mean of n examples with a variance of 1 + 1/n times the class's own, and logits are divided
    by that variance: the step from n - 1 to n examples is known in advance: 4/3 for two, next to nothing for many.
    """
    return (1 + 1 / np.maximum(counts - 1, 1)) / (1 + 1 / counts)


def guess_scale(reading: BoundHead, support: Support) -> float:
    """Return a factor where no class has two examples: a class's own prototype gets a logit 4 above the others' mean.

    A rule of thumb, not a calibration: one example of a class says nothing about how images of a class differ.
    """
    means = torch.from_numpy(support.means)
    prototypes = reading.head.refined(means, _tensor(support.counts), reading.parameters)
    scores = reading.score(means, prototypes).numpy()
    gap = np.diag(scores).mean() - scores[~np.eye(len(scores), dtype=bool)].mean() if len(scores) > 1 else 0.0
    return float(GUESSED_GAP / gap) if gap > np.finfo(float).eps * np.abs(scores).max() else 1.0


def calibration_error(probabilities: Scores, labels: Int[np.ndarray, " image"], bins: int = 15) -> float:
    """Return the expected calibration error (Naeini et al. 2015).

    It is how far, on average, the winning class's probability is from how often it is right.
    Images are put in bins of equal width by that probability; the gaps of the bins are weighed by their images.
    """
    confidence, is_right = probabilities.max(1), probabilities.argmax(1) == labels
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(place, confidence - is_right, bins)
    return float(np.abs(gaps).sum() / len(labels))


def compute_recalls(logits: Scores, owner: Int[np.ndarray, " image"], way: int) -> Float[np.ndarray, " way"]:
    """Return the share of each class's images that are classified right; NaN for a class without any."""
    right = np.bincount(owner, logits.argmax(1) == owner if len(owner) else None, minlength=way)
    many = np.bincount(owner, minlength=way)
    return np.where(many > 0, right / np.maximum(many, 1), np.nan)


@dataclass(frozen=True)
class Coverage:
    """What a rejection threshold does, measured by leaving images (known) and whole classes (unknown) out.

    Attributes:
        threshold: Images with less evidence (the best logit) are of none of the classes.
        accepted: Share of the known classes' images that are accepted.
        accuracy: Accuracy on those that are accepted.
        accuracy_of_all: Accuracy on all.
        unknown_rejected: Share of images rejected when their own class is taken away.
    """

    threshold: float
    accepted: float
    accuracy: float
    accuracy_of_all: float
    unknown_rejected: float


def rejection(
    logits: Scores, owner: Int[np.ndarray, " image"], rate: float, evidence: Scores | None = None
) -> Coverage:
    """Return the threshold that rejects a share `rate` of known images, and what it does.

    Args:
        logits: Of images that were left out.
        owner: Their classes.
        rate: The share.
        evidence: What speaks for each class over none of these; the logits where None.
    """
    evidence = logits if evidence is None else evidence
    best = evidence[np.arange(len(logits)), logits.argmax(1)]
    # A new image of a known class falls below this quantile with at most the chance `rate`.
    rank = int(np.floor(rate * (len(best) + 1)))
    threshold = -np.inf if rank == 0 else float(np.sort(best)[rank - 1])
    is_accepted: Bool[np.ndarray, " image"] = best >= threshold
    is_right = logits.argmax(1) == owner
    is_own = np.arange(logits.shape[1]) == owner[:, None]
    others = np.where(is_own, -np.inf, evidence)[np.arange(len(logits)), np.where(is_own, -np.inf, logits).argmax(1)]
    return Coverage(
        threshold,
        float(is_accepted.mean()),
        float(is_right[is_accepted].mean()) if is_accepted.any() else float("nan"),
        float(is_right.mean()),
        float((others < threshold).mean()),
    )
