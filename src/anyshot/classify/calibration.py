"""Calibrated probabilities and "none of these", from the support alone.

Leaving a group of examples out of their class is a subtraction from the class's sum, so the scores that each exemplar
would have got as a new image are known in closed form. On them we fit one factor for the logits (temperature scaling,
Guo et al. 2017) and the threshold of the best logit below which only a chosen share of known images falls (the quantile
of split conformal prediction, Papadopoulos et al. 2002).
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from scipy.optimize import brentq

from anyshot.classify.support import Support
from anyshot.models.law import BoundHead, Estimator, Examples, LeaveOneOut, Moments, Parameters

CHUNK_FLOATS = 20_000_000  # numbers that are worked on at once: 160 MB
LEFT_OUT_GROUPS = (
    8  # groups of a class that are left out in turn when it is not the query's: more would hardly change a mean
)
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
    bound: BoundHead, support: Support, groups: Groups | None = None, most: int = QUERIES
) -> tuple[Scores, Int[np.ndarray, " image"]]:
    """Return scores (without the temperature) of exemplars as new images, and the rows of their classes.

    Each exemplar is left out of its class with its group, and every other class leaves out one of its groups too (the
    first few in turn), so that no class is ahead. An exemplar whose class is one group is no query, but stands as a
    class for the others.

    Args:
        bound: The head and its parameters.
        support: The classes.
        groups: The group of each exemplar, counted from 0; each is its own where None.
        most: Queries in all; of each class as many as that allows, two at least.
    """
    chosen, head = choose_queries(support, most), bound.head
    vectors, owner = torch.from_numpy(support.examples[chosen]), support.owner[chosen]
    group_sizes = measure_groups(support, np.arange(len(support.owner)) if groups is None else groups)
    is_query = group_sizes.left[chosen] > 0
    left = np.where(is_query, group_sizes.left[chosen], support.counts[owner])
    sums = support.sums[owner] - np.where(is_query[:, None], group_sizes.sums[chosen], 0.0)
    sizes = np.bincount(owner, minlength=len(support))
    first = np.cumsum(sizes) - sizes
    bare = np.flatnonzero(sizes == 0)  # classes without exemplars stand as they are, in rows after the others
    first[bare] = len(owner) + np.arange(len(bare))
    means = torch.from_numpy(np.concatenate([sums / left[:, None], support.sums[bare] / support.counts[bare, None]]))
    counts = torch.from_numpy(np.concatenate([left, support.counts[bare]]))
    if head.refine is not None and not head.couples:
        parts = zip(*(values.split(_rows(means.shape[1])) for values in (means, counts)), strict=True)
        means = torch.cat([head.refine(part, part_counts, bound.parameters) for part, part_counts in parts])
    queries = np.flatnonzero(is_query)
    rank = (np.arange(len(owner)) - first[owner])[queries]
    scores = torch.empty(len(queries), len(support), dtype=torch.float64)
    for turn in np.unique(rank).tolist():  # queries of one rank in their classes meet the same others
        others = torch.from_numpy(first + turn % np.clip(sizes, 1, LEFT_OUT_GROUPS))
        for here in torch.from_numpy(np.flatnonzero(rank == turn)).split(_rows(means.shape[1] * len(support))):
            rows = torch.from_numpy(queries)[here]
            query, own = vectors[rows], (torch.arange(len(rows)), torch.from_numpy(owner)[rows])
            if head.couples:  # each query has its own set of classes, and they refine each other
                sets, set_counts = means[others].repeat(len(rows), 1, 1), counts[others].repeat(len(rows), 1)
                sets[own], set_counts[own] = means[rows], counts[rows]
                refined = head.refined(sets, set_counts, bound.parameters)
                scores[here] = bound.score(query[:, None], refined)[:, 0]
            else:
                scores[here] = bound.score(query, means[others])
                scores[here[own[0]], own[1]] = bound.score(query[:, None], means[rows, None])[:, 0, 0]
    return scores.numpy(), owner[queries]


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
    z, doubt = scores - scores.max(1, keepdims=True), 1 / (len(scores) + 1)
    wanted = (1 - doubt) * z[np.arange(len(z)), owner] + doubt * z.mean(1)
    middle = 1 / max(float(z.std()), np.finfo(float).tiny)

    def slope(scale: float) -> float:
        """Return the slope of the loss, minus the log-likelihood of an image, which is convex in the factor."""
        weights = np.exp(scale * z)
        return float(((weights * z).sum(1) / weights.sum(1) - wanted).mean())

    low, high = 1e-3 * middle, 1e3 * middle
    if slope(low) >= 0:  # the scores tell nothing
        return low
    return high if slope(high) <= 0 else float(brentq(slope, low, high, xtol=1e-12 * middle, rtol=1e-10))


def next_shot(counts: Shaped[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
    """Return what the factor gains when a class of so many examples takes back the one it had left out.

    A query lies about a mean of n examples with a variance of 1 + 1/n times the class's own, and logits are divided
    by that variance: the step from n - 1 to n examples is known in advance: 4/3 for two, next to nothing for many.
    """
    return (1 + 1 / np.maximum(counts - 1, 1)) / (1 + 1 / counts)


def guess_scale(bound: BoundHead, support: Support) -> float:
    """Return a factor where no class has two examples: a class's own prototype gets a logit 4 above the others' mean.

    A rule of thumb, not a calibration: one example of a class says nothing about how images of a class differ.
    """
    means = torch.from_numpy(support.means)
    prototypes = bound.head.refined(means, _tensor(support.counts), bound.parameters)
    scores = bound.score(means, prototypes).numpy()
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
