"""What is computed from a support, on first use: prototypes, the scale of the logits, the rejection threshold, recalls.

Up to 1,024 classes all of them are calibrated together. Of more classes, a sample of 1,024 sets the scale; for the
threshold and the accuracy, some exemplars of the sample are compared with all classes. An exemplar is always scored as
a new image would be: it is left out of its class, together with its group. Near-copies that are no exemplars cannot be
left out. So where examples have near-copies, and where a head is fitted to all of them, classes that have more examples
than exemplars are calibrated as classes of their exemplars alone.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.special import logsumexp

from anyshot.arrays import split_rows
from anyshot.classify import calibration
from anyshot.classify.support import Support, Vectors
from anyshot.classify.topk import ClassSearch, TopK, compute_prototypes, has_points
from anyshot.measure.groups import find_groups
from anyshot.models.law import BoundHead, Examples, LeaveOneOut, Parameters

PART = 256  # exemplars that are compared with all classes at once


@dataclass(eq=False)
class FittedState:
    """Scale, threshold, recalls and prototypes of a fitted classifier. A change of the support makes a new one.

    Args:
        support: The classes.
        learned_head: The head with its learned parameters, before it is fitted on the support.
        given_scale: Factor of the logits; None to fit it.
        reject: Share of the known classes' images that may be rejected.
        base: What a head that is fitted on the support knows of other classes.
        has_index: Whether to search by an approximate index.
        was_calibrated: Whether a scale that is given was fitted before.
    """

    support: Support
    learned_head: BoundHead
    given_scale: float | None
    reject: float
    base: Parameters | None = None
    has_index: bool = False
    was_calibrated: bool = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments without what was computed from them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def has_estimator(self) -> bool:
        """Whether the head is fitted on the support."""
        return self.learned_head.head.estimator is not None

    @property
    def is_large(self) -> bool:
        """Whether only a sample of the classes is calibrated."""
        return len(self.support) > calibration.MOST_CALIBRATED and not self.learned_head.head.couples

    @property
    def is_searched(self) -> bool:
        """Whether the best classes are found by `search`, which never has the logits of all classes in memory."""
        return self.is_large or (self.has_index and has_points(self.learned_head.head))

    @cached_property
    def sample(self) -> tuple[Support, Int[np.ndarray, " class"]]:
        """The classes that are calibrated, and their rows in the support."""
        if self.is_large:
            return self.support.sample(calibration.MOST_CALIBRATED)
        support, n_exemplars, rows = self.support, self.support.exemplar_counts, np.arange(len(self.support))
        if n_exemplars.all() and (n_exemplars < support.counts).any():
            exemplars = support.exemplars
            if self.has_estimator or find_groups(exemplars.vectors, exemplars.class_index).count:
                support = support.limit_shots(int(n_exemplars.max()))
        return support, rows

    @property
    def examples_measured(self) -> str:
        """Which examples scale, threshold and accuracy are measured on, in words; empty where that is all of them."""
        n_exemplars = int(self.support.exemplar_counts.sum())
        if n_exemplars == self.support.counts.sum():
            return ""
        is_limited = not self.is_large and self.sample[0] is not self.support
        return f"that are kept ({n_exemplars}){', in classes of these alone' if is_limited else ''}"

    @cached_property
    def groups(self) -> Int[np.ndarray, " exemplar"]:
        """The group of each exemplar of the sample, counted from 0: given by the user, or near-copies by features."""
        exemplars = self.sample[0].exemplars
        return find_groups(exemplars.vectors, exemplars.class_index, group_names=exemplars.groups.tolist()).group

    @cached_property
    def remaining_counts(self) -> Int[np.ndarray, " exemplar"]:
        """How many examples the class of each exemplar of the sample has without the exemplar's group."""
        return calibration.count_remaining(self.sample[0], self.groups)

    @cached_property
    def is_single_group(self) -> Bool[np.ndarray, " class"]:
        """For each class in order of the labels, whether its exemplars are all one group, of two or more."""
        support, rows = self.sample
        most_remaining, is_single = np.full(len(support), -1), np.zeros(len(self.support), bool)
        np.maximum.at(most_remaining, support.exemplars.class_index, self.remaining_counts)
        is_single[rows] = (most_remaining == 0) & (support.counts > 1)
        return is_single

    @cached_property
    def estimate(self) -> tuple[Parameters, LeaveOneOut]:
        """The parameters of a head that is fitted on the support, and the scores of exemplars that are left out."""
        support, _ = self.sample
        assert self.learned_head.head.estimator is not None
        chosen = calibration.choose_queries(support, calibration.MOST_ESTIMATED)
        is_incomplete = np.isin(self.groups, self.groups[support.has_incomplete_group])
        chosen = chosen[~is_incomplete[chosen]]
        groups = np.unique(self.groups[chosen], return_inverse=True)[1].reshape(-1)
        exemplars = support.exemplars.take(chosen)
        examples = Examples(*map(calibration.to_tensor, (exemplars.vectors, exemplars.class_index, groups)))
        # The means of all examples are scored later, and may lie outside of the span of the exemplars.
        means = None if support is self.support or self.is_large else self.support.means
        return calibration.estimate(self.learned_head.head.estimator, support, examples, self.base, means)

    @cached_property
    def head(self) -> BoundHead:
        """The head with all parameters, also those that are fitted on the support."""
        if not self.has_estimator:
            return self.learned_head
        return BoundHead(self.learned_head.head, {**self.learned_head.parameters, **self.estimate[0]})

    @cached_property
    def prototypes(self) -> Float[torch.Tensor, "class refined"]:
        """What queries are scored against, in order of the labels."""
        return compute_prototypes(self.head, self.support, np.arange(len(self.support)))

    @cached_property
    def search(self) -> ClassSearch:
        """What finds the best of many classes."""
        # It must not refer to this object: the rows would stay in memory until Python looks for reference cycles.
        return ClassSearch(self.support, self.head, self.has_index)

    @cached_property
    def leave_one_out(self) -> tuple[calibration.Scores, Int[np.ndarray, " image"], calibration.Scores]:
        """Scores of exemplars of the sample that are left out with their groups, their class indices, their evidence.

        The evidence for each class, rather than none of them, is the score where the head has nothing better.
        """
        if self.has_estimator:
            parameters, result = self.estimate
            scores, evidence = ((values / parameters["scale"]).numpy() for values in result[:2])
            return scores, result.owner.numpy(), evidence
        scores, class_index = calibration.leave_one_out(self.learned_head, self.sample[0], self.groups)
        return scores, class_index, scores

    @property
    def is_calibrated(self) -> bool:
        """Whether the scale is fitted."""
        class_index = self.sample[0].exemplars.class_index
        if self.given_scale is not None or not len(class_index):
            return self.was_calibrated
        queried_classes = np.unique(class_index[self.remaining_counts > 0])
        return len(queried_classes) > 1 if self.has_estimator else len(self.support) > 1 and len(queried_classes) > 0

    @cached_property
    def scale(self) -> float:
        """The factor of the logits: given, fitted, learned, or a rule of thumb."""
        if self.given_scale is not None:
            return float(self.given_scale)
        if self.has_estimator:
            return float(self.estimate[0]["scale"])
        support = self.sample[0]
        if self.is_calibrated:
            scores, class_index, _ = self.leave_one_out
            first_of_group = np.unique(self.groups, return_index=True)[1]
            n_groups = np.bincount(support.exemplars.class_index[first_of_group], minlength=len(support))
            shots = np.maximum(support.counts * n_groups / np.maximum(support.exemplar_counts, 1), 1)
            return calibration.fit_scale(scores, class_index) * float(calibration.next_shot(shots[class_index]).mean())
        learned = self.learned_head.parameters.get("scale")
        if learned is None:
            return calibration.guess_scale(self.learned_head, support)
        return float(learned) / float((1 + 1 / self.support.counts).mean())  # learned with many shots (`next_shot`)

    @cached_property
    def coverage(self) -> calibration.Coverage | None:
        """What the rejection threshold does; None where nothing can be left out."""
        if self.is_large:
            logits = evidence = self._compare_with_all()
            class_index = np.zeros(len(evidence), int)
        else:
            scores, class_index, evidence = self.leave_one_out
            logits, evidence = self.scale * scores, self.scale * evidence
        return calibration.fit_threshold(logits, class_index, self.reject, evidence) if len(class_index) else None

    @cached_property
    def recalls(self) -> Float[np.ndarray, " class"]:
        """The share of each class's left-out exemplars that is classified right; NaN for classes without any."""
        shares, (support, rows) = np.full(len(self.support), np.nan), self.sample
        if len(self.groups):
            shares[rows] = calibration.compute_recalls(*self.leave_one_out[:2], len(support))
        shares.flags.writeable = False
        return shares

    def logits(self, vectors: Vectors) -> calibration.Scores:
        """Return the logit of each class."""
        return self.scale * self._score(vectors)

    def top(self, vectors: Vectors, k: int, with_sums: bool = False) -> TopK:
        """Return the best classes of each image; with sums also the log-sum-exp of its logits, for probabilities."""
        scale = self.scale if with_sums else None
        if self.is_searched:
            return self.search.top(vectors, k, scale)
        scores = self._score(vectors)
        best = np.argsort(-scores, 1, kind="stable")[:, :k] if k > 1 else scores.argmax(1)[:, None]
        log_sums = None if scale is None else logsumexp(scale * scores, axis=1)
        return TopK(best, np.take_along_axis(scores, best, 1), log_sums)

    def evidence(self, vectors: Vectors) -> Float[np.ndarray, " image"]:
        """Return the evidence for the best class of each image; infinite where that is a single group."""
        best = self.top(vectors, 1).rows[:, 0]
        return np.where(self.is_single_group[best], np.inf, self._evidence_of_rows(vectors, best))

    def _score(self, vectors: Vectors) -> calibration.Scores:
        """Return the score of each class, without the temperature."""
        return self.head.score(self.head.transform(calibration.to_tensor(vectors)), self.prototypes).numpy()

    def _evidence_of_rows(self, vectors: Vectors, rows: Int[np.ndarray, " image"]) -> Float[np.ndarray, " image"]:
        """Return the evidence that each image is of one class, which is given by its row in the support."""
        counts = self.support.counts[rows]
        return self._evidence(vectors, self.support.sums[rows] / counts[:, None], counts)

    def _evidence(self, vectors: Vectors, means: np.ndarray, counts: np.ndarray) -> Float[np.ndarray, " image"]:
        """Return the evidence that each image is of the class with this mean and count."""
        rows = [calibration.to_tensor(values)[:, None] for values in (vectors, means, counts)]
        return self.scale * self.head.evidence(*rows)[:, 0, 0].numpy()

    def _compare_with_all(self) -> Float[np.ndarray, "image 2"]:
        """Return the evidence that left-out exemplars are of their own class, and of the best of all other classes."""
        support, rows = self.sample
        n_affordable = max(calibration.LEAST_QUERIES, calibration.MOST_COMPARISONS // len(self.support))
        chosen = calibration.choose_queries(support, 0)
        chosen = chosen[self.remaining_counts[chosen] > 0]
        order = np.argsort(support.exemplars.keys[chosen], kind="stable")
        chosen = chosen[order[: min(n_affordable, calibration.MOST_QUERIES)]]
        group_sums, evidence = calibration.sum_groups(support, self.groups), np.zeros((len(chosen), 2))
        for block in split_rows(len(chosen), PART):
            part = chosen[block]
            exemplars, counts = support.exemplars.take(part), self.remaining_counts[part]
            vectors, class_index = exemplars.vectors, exemplars.class_index
            best = self.search.top(vectors, 2).rows
            other_rows = np.where(best[:, 0] == rows[class_index], best[:, 1], best[:, 0])
            sums = support.sums[class_index] - group_sums[self.groups[part]]
            own_evidence = self._evidence(vectors, sums / counts[:, None], counts)
            evidence[block] = np.stack([own_evidence, self._evidence_of_rows(vectors, other_rows)], 1)
        return evidence
