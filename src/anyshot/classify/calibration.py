"""Calibrated probabilities and "none of these", from the support alone.

Leaving a group of examples out of their class is a subtraction from the class's sum, so we can compute the scores that
each exemplar would have got as a new image. On these scores we fit one factor for the logits (temperature scaling, Guo
et al. 2017) and a threshold for the best logit, below which only a chosen share of known images falls (the quantile of
split conformal prediction, Papadopoulos et al. 2002).
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from scipy.optimize import brentq

from anyshot.arrays import rank_in_class
from anyshot.classify.support import Support
from anyshot.models.gaussian import moments_of
from anyshot.models.law import BoundHead, Estimator, Examples, LeaveOneOut, Moments, Parameters

CHUNK_FLOATS = 20_000_000  # floats of a temporary tensor, at most: 160 MB
LEFT_OUT_GROUPS = 8  # groups of every other class that are left out in turn: more would hardly change a mean
MOST_QUERIES = 2048  # exemplars that are left out: the standard error of a share is then at most 1.1 %
MOST_CALIBRATED = 1024  # classes that are calibrated; of more classes a sample is
MOST_ESTIMATED = 16_384  # exemplars that a head with an estimator is fitted on
LEAST_QUERIES = 512  # exemplars that are compared with all of very many classes, at least
MOST_COMPARISONS = 1 << 26  # of exemplars with very many classes, unless LEAST_QUERIES takes more
BINS = 15  # of the expected calibration error, as in Guo et al. 2017
GUESSED_GAP = 4.0  # logit of a class over the mean of the others where nothing can be left out: e^4 to 1 is 98 %

Scores = Float[np.ndarray, "image class"]
GroupIndex = Int[np.ndarray, " exemplar"]


def count_remaining(support: Support, groups: GroupIndex) -> Int[np.ndarray, " exemplar"]:
    """Return how many examples the class of each exemplar has without the exemplar's group.

    It is 0 where the class is one group, and where some of the group are no exemplars, so that its sum is not known.
    """
    remaining = support.counts[support.exemplars.class_index] - np.bincount(groups)[groups]
    remaining[np.isin(groups, groups[support.has_incomplete_group])] = 0
    return remaining


def sum_groups(support: Support, groups: GroupIndex) -> Float[np.ndarray, "group d"]:
    """Return the sum of the exemplars of each group."""
    vectors = to_tensor(support.exemplars.vectors)
    sums = torch.zeros(int(groups.max(initial=-1)) + 1, vectors.shape[1], dtype=torch.float64)
    return sums.index_add_(0, torch.from_numpy(groups), vectors).numpy()


def estimate(
    estimator: Estimator,
    support: Support,
    examples: Examples,
    base: Parameters | None = None,
    other_means: Float[np.ndarray, "class d"] | None = None,
) -> tuple[Parameters, LeaveOneOut]:
    """Fit a head on a support; return its parameters, and the logits of examples with their groups left out.

    Args:
        estimator: The head's.
        support: The classes, with their scatter.
        examples: Some of their examples. No group has examples of two classes.
        base: What is known of other classes, if there are any.
        other_means: Class means beside those of the support that will be scored.
    """
    # The scatter has d x d numbers. Where all examples are given and are fewer than d, moments from them are smaller.
    vectors = examples.vectors.double()
    n_spanning = len(vectors) + (0 if other_means is None else len(other_means))
    if len(vectors) == support.counts.sum() and n_spanning < vectors.shape[1]:
        moments = moments_of(vectors, examples.owner, None if other_means is None else to_tensor(other_means))
    else:
        assert support.scatter is not None
        sums = to_tensor(support.counts), torch.from_numpy(support.means), to_tensor(support.scatter)
        moments = Moments(*sums, support.degrees_of_freedom)
    parameters = estimator.fit(moments, examples, base)
    return parameters, estimator.leave_one_out(moments, examples, parameters)


def leave_one_out(
    bound_head: BoundHead, support: Support, groups: GroupIndex, max_queries: int = MOST_QUERIES
) -> tuple[Scores, Int[np.ndarray, " image"]]:
    """Return scores (without the temperature) of exemplars as new images, and the rows of their classes.

    Each exemplar is left out of its class with its group. Every other class leaves out one of its groups too (the first
    few in turn), so that no class has an advantage by its count. An exemplar whose class is one group is no query, but
    its class stands among the others.

    Args:
        bound_head: The head and its parameters.
        support: The classes.
        groups: The group of each exemplar, counted from 0.
        max_queries: Queries in all; of each class as many as that allows, two at least.
    """
    head, chosen = bound_head.head, choose_queries(support, max_queries)
    means, counts, is_query = _means_without_groups(support, groups, chosen)
    vectors, class_index = (torch.from_numpy(values) for values in support.exemplars.take(chosen)[:2])
    n_chosen = np.bincount(class_index, minlength=len(support))
    first_row = np.cumsum(n_chosen) - n_chosen
    first_row[n_chosen == 0] = len(chosen) + np.arange((n_chosen == 0).sum())
    if head.refine is not None and not head.couples:
        parts = zip(*(values.split(_chunk_rows(means.shape[1])) for values in (means, counts)), strict=True)
        means = torch.cat([head.refine(part, part_counts, bound_head.parameters) for part, part_counts in parts])
    queries = np.flatnonzero(is_query)
    rank = (np.arange(len(chosen)) - first_row[class_index])[queries]
    scores = torch.empty(len(queries), len(support), dtype=torch.float64)
    for turn in np.unique(rank).tolist():  # Queries of one rank in their classes meet the same rows of other classes.
        other_rows = torch.from_numpy(first_row + turn % np.clip(n_chosen, 1, LEFT_OUT_GROUPS))
        for part in torch.from_numpy(np.flatnonzero(rank == turn)).split(_chunk_rows(means.shape[1] * len(support))):
            rows = torch.from_numpy(queries)[part]
            query, own_class = vectors[rows], class_index[rows]
            if head.couples:  # Classes refine each other, so each query needs a set of classes of its own.
                own_place = torch.arange(len(rows)), own_class
                sets, set_counts = means[other_rows].repeat(len(rows), 1, 1), counts[other_rows].repeat(len(rows), 1)
                sets[own_place], set_counts[own_place] = means[rows], counts[rows]
                refined = head.refined(sets, set_counts, bound_head.parameters)
                scores[part] = bound_head.score(query[:, None], refined)[:, 0]
            else:
                scores[part] = bound_head.score(query, means[other_rows])
                scores[part, own_class] = bound_head.score(query[:, None], means[rows, None])[:, 0, 0]
    return scores.numpy(), class_index.numpy()[queries]


def _means_without_groups(
    support: Support, groups: GroupIndex, chosen: Int[np.ndarray, " image"]
) -> tuple[torch.Tensor, torch.Tensor, Bool[np.ndarray, " image"]]:
    """Return for each chosen exemplar the mean and the count of its class without its group, and whether it is a query.

    Where nothing would be left of the class, they are those of the whole class, and the exemplar is no query. Rows of
    classes without exemplars, which are never left out of, follow.
    """
    class_index, remaining = support.exemplars.class_index[chosen], count_remaining(support, groups)[chosen]
    is_query, is_bare = remaining > 0, support.exemplar_counts == 0
    left_out = np.where(is_query[:, None], sum_groups(support, groups)[groups[chosen]], 0.0)
    sums = np.concatenate([support.sums[class_index] - left_out, support.sums[is_bare]])
    counts = np.concatenate([np.where(is_query, remaining, support.counts[class_index]), support.counts[is_bare]])
    return torch.from_numpy(sums / counts[:, None]), torch.from_numpy(counts), is_query


def choose_queries(support: Support, max_queries: int) -> Int[np.ndarray, " image"]:
    """Return the places of the first exemplars of each class: as many as `max_queries` in all allow, two at least."""
    rank = rank_in_class(support.exemplars.class_index)
    return np.flatnonzero(rank < max(2, max_queries // max(1, len(support))))


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """Return an array as a tensor; a copy where the array is read-only."""
    return torch.from_numpy(np.require(array, requirements="W"))


def _chunk_rows(floats: int) -> int:
    """Return how many rows of so many floats a temporary tensor may have."""
    return max(1, CHUNK_FLOATS // floats)


def fit_scale(scores: Scores, class_index: Int[np.ndarray, " image"]) -> float:
    """Return the factor by which softmax(factor * scores) makes the classes of these images likeliest.

    One more image is added whose class is uniform over all classes. Without it a few examples, all of them classified
    right, would give an infinite factor.
    """
    z, uniform = scores - scores.max(1, keepdims=True), 1 / (len(scores) + 1)
    expected = (1 - uniform) * z[np.arange(len(z)), class_index] + uniform * z.mean(1)
    middle = 1 / max(float(z.std()), np.finfo(float).tiny)

    def slope(scale: float) -> float:
        """Return the derivative of the cross-entropy, which is convex in the factor."""
        weights = np.exp(scale * z)
        return float(((weights * z).sum(1) / weights.sum(1) - expected).mean())

    low, high = 1e-3 * middle, 1e3 * middle
    if slope(low) >= 0:  # The scores do not tell the classes apart.
        return low
    return high if slope(high) <= 0 else float(brentq(slope, low, high, xtol=1e-12 * middle, rtol=1e-10))


def next_shot(counts: Shaped[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
    """Return by how much the factor of the logits grows when a class of n - 1 examples gets its n-th.

    Leaving one out fits the factor to classes of n - 1 examples. A query varies about a mean of n examples with 1 + 1/n
    times the variance of the class, and logits are divided by that variance. So the growth is known: 4/3 for n = 2, and
    next to nothing for many.
    """
    return (1 + 1 / np.maximum(counts - 1, 1)) / (1 + 1 / counts)


def guess_scale(bound_head: BoundHead, support: Support) -> float:
    """Return a factor for classes of one example: the mean of a class gets a logit 4 above the mean of the others.

    This is a rule of thumb and no calibration: one example does not tell how the images of a class vary.
    """
    means = torch.from_numpy(support.means)
    prototypes = bound_head.head.refined(means, to_tensor(support.counts), bound_head.parameters)
    scores = bound_head.score(means, prototypes).numpy()
    gap = np.diag(scores).mean() - scores[~np.eye(len(scores), dtype=bool)].mean() if len(scores) > 1 else 0.0
    return float(GUESSED_GAP / gap) if gap > np.finfo(float).eps * np.abs(scores).max() else 1.0


def calibration_error(probabilities: Scores, labels: Int[np.ndarray, " image"], bins: int = BINS) -> float:
    """Return the expected calibration error (Naeini et al. 2015).

    Images are put in bins of equal width by the probability of their best class. The error is the mean over images of
    the gap in their bin between that probability and the accuracy.
    """
    confidence, is_right = probabilities.max(1), probabilities.argmax(1) == labels
    gaps = np.bincount(_find_bins(confidence, bins), confidence - is_right, bins)
    return float(np.abs(gaps).sum() / len(labels))


def calibration_error_by_chance(probabilities: Scores) -> float:
    """Return the calibration error that a perfectly calibrated classifier shows on average, on as many images.

    It is not 0, because the answers in a bin are right by chance more or less often than their probabilities say: the
    gap is about normal, with the variance of independent draws.
    """
    confidence = probabilities.max(1)
    variances = np.bincount(_find_bins(confidence, BINS), confidence * (1 - confidence), BINS)
    return float(np.sqrt(2 / np.pi * variances.clip(0)).sum() / len(confidence))


def _find_bins(confidence: Float[np.ndarray, " image"], bins: int) -> Int[np.ndarray, " image"]:
    """Return the bin of each image, of bins of equal width from 0 to 1."""
    return np.minimum((confidence * bins).astype(int), bins - 1)


def compute_recalls(
    logits: Scores, class_index: Int[np.ndarray, " image"], n_classes: int
) -> Float[np.ndarray, " class"]:
    """Return the share of each class's images that are classified right; NaN for a class without any."""
    is_right = logits.argmax(1) == class_index if len(class_index) else None
    counts = np.bincount(class_index, minlength=n_classes)
    return np.where(counts > 0, np.bincount(class_index, is_right, n_classes) / np.maximum(counts, 1), np.nan)


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


def fit_threshold(
    logits: Scores, class_index: Int[np.ndarray, " image"], rate: float, evidence: Scores | None = None
) -> Coverage:
    """Return the threshold that rejects a share `rate` of known images, and what it does.

    Args:
        logits: Logits of images that were left out.
        class_index: Their classes.
        rate: The share.
        evidence: The evidence for each class over none of them; the logits where None.
    """
    evidence = logits if evidence is None else evidence
    best = evidence[np.arange(len(logits)), logits.argmax(1)]
    # A new image of a known class falls below this quantile with a probability of at most `rate`.
    rank = int(np.floor(rate * (len(best) + 1)))
    threshold = -np.inf if rank == 0 else float(np.sort(best)[rank - 1])
    is_accepted: Bool[np.ndarray, " image"] = best >= threshold
    is_right = logits.argmax(1) == class_index
    is_own = np.arange(logits.shape[1]) == class_index[:, None]
    others = np.where(is_own, -np.inf, evidence)[np.arange(len(logits)), np.where(is_own, -np.inf, logits).argmax(1)]
    return Coverage(
        threshold,
        float(is_accepted.mean()),
        float(is_right[is_accepted].mean()) if is_accepted.any() else float("nan"),
        float(is_right.mean()),
        float((others < threshold).mean()),
    )
