"""What follows from a support: the scale of the logits, the rejection threshold, recalls; computed on first use.

Up to 1,024 classes all of them take part. Of more, a sample of as many sets the scale, and some of its exemplars, each
left out of its class with its group, are compared with all classes for the threshold and the accuracy.
"""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped

from anyshot.classify import calibration
from anyshot.classify.groups import find_near_copies, join_groups
from anyshot.classify.support import Support
from anyshot.classify.topk import ClassSearch, TopK, is_product
from anyshot.models.law import BoundHead, LeaveOneOut, Parameters

PART = 256  # exemplars that are compared with all classes at once


class FittedState:
    """Scale, threshold, recalls and prototypes of a fitted classifier. A change of the support makes a new one.

    Args:
        support: The classes.
        learned: The head with its learned parameters, before it is fitted on the support.
        scale: Factor of the logits, where it is given.
        reject: Share of the known classes' images that may be rejected.
        base: Other classes, for a head that is fitted on the support.
        has_index: Whether to search by an approximate index.
        is_calibrated: Whether a scale that is given was fitted.
    """

    def __init__(
        self,
        support: Support,
        learned: BoundHead,
        scale: float | None,
        reject: float,
        base: Parameters | None = None,
        has_index: bool = False,
        is_calibrated: bool = False,
    ) -> None:
        self.support, self.learned, self.given_scale, self.reject, self.base = support, learned, scale, reject, base
        self.has_index, self._was_calibrated = has_index, is_calibrated

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments without what was computed from them."""
        return {name: value for name, value in self.__dict__.items() if not hasattr(type(self), name)}

    @property
    def has_estimator(self) -> bool:
        """Whether the head estimates from the support how images vary."""
        return self.learned.head.estimator is not None

    @property
    def is_large(self) -> bool:
        """Whether there are more classes than take part in a calibration."""
        return len(self.support) > calibration.CLASSES and is_product(self.learned.head)

    @property
    def searches(self) -> bool:
        """Whether the best classes are searched for, rather than read off the logits of all."""
        return self.is_large or (self.has_index and is_product(self.learned.head))

    @cached_property
    def snapshot(self) -> Support:
        """A copy of the classes in order of their labels, which cannot be written to."""
        return self.support.in_order()

    @cached_property
    def order(self) -> Int[np.ndarray, " way"]:
        """The rows of the classes in order of their labels."""
        return np.argsort(self.support.labels, kind="stable")

    @cached_property
    def labels(self) -> Shaped[np.ndarray, " way"]:
        """The labels in order, read-only."""
        labels = np.sort(self.support.labels)
        labels.flags.writeable = False
        return labels

    @cached_property
    def sample(self) -> tuple[Support, Int[np.ndarray, " way"]]:
        """The classes that take part in a calibration, and their rows in the support."""
        if self.is_large:
            return self.support.sample(calibration.CLASSES)
        return self.snapshot, self.order

    @cached_property
    def groups(self) -> Int[np.ndarray, " exemplar"]:
        """The group of each exemplar of the sample, counted from 0: given by the user, or near-copies by features."""
        exemplars = self.sample[0].exemplars
        is_given = exemplars.groups != exemplars.keys
        if not is_given.any():
            return find_near_copies(exemplars.vectors, exemplars.owner)
        pairs = np.stack([exemplars.owner.astype(np.uint64), exemplars.groups])
        given = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)
        return given if is_given.all() else join_groups(given, find_near_copies(exemplars.vectors, exemplars.owner))

    @cached_property
    def remaining_counts(self) -> Int[np.ndarray, " exemplar"]:
        """Of each exemplar of the sample, the examples of its class that are left without its group."""
        return calibration.measure_groups(self.sample[0], self.groups).left

    @cached_property
    def is_single_group(self) -> Bool[np.ndarray, " way"]:
        """Of each class in order of the labels, whether its examples are all one group, of two or more."""
        support, _ = self.sample
        most_left, is_single = np.full(len(support), -1), np.zeros(len(self.support), bool)
        np.maximum.at(most_left, support.owner, self.remaining_counts)
        is_single[np.searchsorted(self.labels, support.labels)] = (most_left == 0) & (support.counts > 1)
        return is_single

    @cached_property
    def estimate(self) -> tuple[Parameters, LeaveOneOut]:
        """What a head that is fitted on the support estimates, and its exemplars with their groups left out."""
        support, _ = self.sample
        assert self.learned.head.estimator is not None
        chosen = calibration.choose_queries(support, 8 * calibration.QUERIES)
        chosen = chosen[~np.isin(self.groups, self.groups[support.is_cut])[chosen]]
        groups = np.unique(self.groups[chosen], return_inverse=True)[1].reshape(-1)
        vectors, owner = support.exemplars.vectors[chosen], support.exemplars.owner[chosen]
        return calibration.estimate(self.learned.head.estimator, support, vectors, owner, groups, self.base)

    @cached_property
    def bound(self) -> BoundHead:
        """The head with all that it needs."""
        if not self.has_estimator:
            return self.learned
        return BoundHead(self.learned.head, {**self.learned.parameters, **self.estimate[0]})

    @cached_property
    def prototypes(self) -> Float[torch.Tensor, "way refined"]:
        """What queries are scored against, in order of the labels."""
        counts = self.support.counts[self.order]
        means = torch.from_numpy(self.support.sums[self.order] / counts[:, None])
        return self.bound.head.refined(means, torch.from_numpy(counts), self.bound.parameters)

    @cached_property
    def search(self) -> ClassSearch:
        """What finds the best of many classes."""
        # It must not refer to this object: the rows would stay in memory until Python looks for reference cycles.
        return ClassSearch(self.support, self.bound, self.has_index)

    @cached_property
    def leave_one_out_scores(self) -> tuple[Float[np.ndarray, "image way"], Int[np.ndarray, " image"]]:
        """Scores of exemplars of the sample left out with their groups, and the rows of their classes in it."""
        if self.has_estimator:
            parameters, left = self.estimate
            return (left.logits / parameters["scale"]).numpy(), left.owner.numpy()
        return calibration.leave_one_out(self.learned, self.sample[0], self.groups)

    @property
    def leave_one_out_logits(self) -> tuple[Float[np.ndarray, "image way"], Int[np.ndarray, " image"]]:
        """The same as logits."""
        scores, owner = self.leave_one_out_scores
        return self.scale * scores, owner

    @property
    def is_calibrated(self) -> bool:
        """Whether the scale is fitted."""
        support, _ = self.sample
        if self.given_scale is not None or not len(support.owner):
            return self._was_calibrated
        judged = np.unique(support.owner[self.remaining_counts > 0])
        return len(judged) > 1 if self.has_estimator else len(self.support) > 1 and len(judged) > 0

    @cached_property
    def scale(self) -> float:
        """The factor of the logits: given, fitted, learned, or a rule of thumb."""
        if self.given_scale is not None:
            return float(self.given_scale)
        if self.has_estimator:
            return float(self.estimate[0]["scale"])
        support = self.sample[0]
        if self.is_calibrated:
            scores, owner = self.leave_one_out_scores
            several = np.bincount(support.owner, minlength=len(support))
            groups = np.bincount(support.owner[np.unique(self.groups, return_index=True)[1]], minlength=len(support))
            shots = np.maximum(support.counts * groups / np.maximum(several, 1), 1)  # twins count as one
            return calibration.fit_scale(scores, owner) * float(calibration.next_shot(shots[owner]).mean())
        learned = self.learned.parameters.get("scale")
        if learned is None:
            return calibration.guess_scale(self.learned, support)
        return float(learned) / float((1 + 1 / self.support.counts).mean())  # learned with many shots (`next_shot`)

    @cached_property
    def coverage(self) -> calibration.Coverage | None:
        """What the rejection threshold does; None where nothing can be left out."""
        if self.is_large:
            evidence = self._evidence_among_all()
            return calibration.rejection(evidence, np.zeros(len(evidence), int), self.reject) if len(evidence) else None
        logits, owner = self.leave_one_out_logits
        evidence = logits
        if self.has_estimator and len(owner):
            parameters, left = self.estimate
            evidence = self.scale * (left.evidence / parameters["scale"]).numpy()
        return calibration.rejection(logits, owner, self.reject, evidence) if len(owner) else None

    @cached_property
    def recalls(self) -> Float[np.ndarray, " way"]:
        """Of each class's exemplars in the sample, left out with their groups, the share that is classified right."""
        shares, labels = np.full(len(self.support), np.nan), self.sample[0].labels
        if len(self.groups):
            here = np.searchsorted(self.labels, labels)
            shares[here] = calibration.compute_recalls(*self.leave_one_out_scores, len(labels))
        shares.flags.writeable = False
        return shares

    def top(self, vectors: Float[np.ndarray, "image d"], k: int, with_sums: bool = False) -> TopK:
        """Return the best classes of each image among many, as rows of the support."""
        return self.search.top(vectors, k, self.scale if with_sums else None)

    def evidence_of(
        self, vectors: Float[np.ndarray, "image d"], rows: Int[np.ndarray, " image"]
    ) -> Float[np.ndarray, " image"]:
        """Return what speaks for a class, given by its row in the support, of each image."""
        counts = self.support.counts[rows]
        return self._evidence(vectors, self.support.sums[rows] / counts[:, None], counts)

    def _evidence(self, vectors: np.ndarray, means: np.ndarray, counts: np.ndarray) -> Float[np.ndarray, " image"]:
        rows = [torch.from_numpy(np.require(x, requirements="W"))[:, None] for x in (vectors, means, counts)]
        return self.scale * self.bound.evidence(*rows)[:, 0, 0].numpy()

    def _evidence_among_all(self) -> Float[np.ndarray, "image 2"]:
        """Return what speaks for the own class of left-out exemplars, and for the best of all other classes."""
        support, rows = self.sample
        many = min(calibration.QUERIES, max(calibration.LEAST_QUERIES, calibration.PRODUCTS // len(self.support)))
        chosen = calibration.choose_queries(support, 0)
        group_sizes = calibration.measure_groups(support, self.groups)
        chosen = chosen[group_sizes.left[chosen] > 0]
        chosen = chosen[np.argsort(support.keys[chosen], kind="stable")[:many]]
        out = np.zeros((len(chosen), 2))
        for start in range(0, len(chosen), PART):
            here = chosen[start : start + PART]
            owner, vectors, left = support.owner[here], support.examples[here], group_sizes.left[here]
            best = self.search.top(vectors, 2).rows
            other = np.where(best[:, 0] == rows[owner], best[:, 1], best[:, 0])
            own = self._evidence(vectors, (support.sums[owner] - group_sizes.sums[here]) / left[:, None], left)
            out[start : start + PART] = np.stack([own, self.evidence_of(vectors, other)], 1)
        return out
