"""What follows from a classifier's classes, settled when it is asked for: the scale of the logits, what is rejected.

Up to 1,024 classes all of them take part. Of more, a sample of as many sets the scale, and some of its examples, each
left out of its class, are asked of all classes for the threshold and the accuracy: what is left out and learned from
does not grow with the number of classes.
"""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped

from anyshot.deploy import calibration
from anyshot.deploy.ledger import Ledger
from anyshot.deploy.search import Search, can_search
from anyshot.deploy.support import Support
from anyshot.machine import give_back_memory
from anyshot.models.law import Estimator, LeaveOneOut, Parameters, Reading

PART = 256  # examples that are asked of all classes at once


class Settled:
    """Of the classes as they are now; whoever learns makes another.

    Args:
        ledger: The classes.
        learned: The head with what it has learned, before it estimates from the support.
        scale: Factor of the logits, where it is given.
        reject: Share of the known classes' images that may be given up.
        base: What is known of other classes, for a head that estimates from the support.
        indexed: Whether to search by an approximate index.
        calibrated: Whether a scale that is given was fitted.
    """

    def __init__(
        self,
        ledger: Ledger,
        learned: Reading,
        scale: float | None,
        reject: float,
        base: Parameters | None,
        indexed: bool = False,
        calibrated: bool = False,
    ) -> None:
        self.ledger, self.learned, self.given, self.reject, self.base = ledger, learned, scale, reject, base
        self.indexed, self._given_calibrated = indexed, calibrated

    def __getstate__(self) -> dict[str, Any]:
        """Without what was settled: it is settled again where it is asked for."""
        return {name: value for name, value in self.__dict__.items() if not hasattr(type(self), name)}

    def follow(self, before: "Settled") -> None:
        """Go on with a search of the same classes, where its rows do not depend on all of them."""
        if "search" in before.__dict__ and before.ledger is self.ledger and self.estimator is None:
            self.search = before.search
            self.search.indexed = self.indexed

    @property
    def estimator(self) -> Estimator | None:
        """How the head estimates parameters from the support, where it does."""
        return self.learned.head.estimator

    @property
    def is_large(self) -> bool:
        """Whether there are more classes than take part in all that is settled."""
        return len(self.ledger) > calibration.CLASSES and can_search(self.learned.head)

    @property
    def searches(self) -> bool:
        """Whether the best classes are searched for, rather than read off the logits of all."""
        return self.is_large or (self.indexed and can_search(self.learned.head))

    @cached_property
    def support(self) -> Support:
        """All classes in order of their labels."""
        return self.ledger.snapshot()

    @cached_property
    def order(self) -> Int[np.ndarray, " way"]:
        """The rows of the classes in order of their labels."""
        return np.argsort(self.ledger.labels(), kind="stable")

    @cached_property
    def labels(self) -> Shaped[np.ndarray, " way"]:
        """The labels, in order."""
        return np.sort(self.ledger.labels())

    @cached_property
    def sample(self) -> tuple[Support, Int[np.ndarray, " way"] | None]:
        """The classes that take part, and their rows where these are not all."""
        return self.ledger.sample(calibration.CLASSES) if self.is_large else (self.support, None)

    @property
    def estimate(self) -> tuple[Parameters, LeaveOneOut]:
        """What the estimator of the head returns, and its examples left out, which of many classes are not kept."""
        if not self.is_large:
            return self._estimate
        assert self.estimator is not None
        return calibration.estimate(self.estimator, self.sample[0], self.base)

    @cached_property
    def _estimate(self) -> tuple[Parameters, LeaveOneOut]:
        assert self.estimator is not None
        return calibration.estimate(self.estimator, self.sample[0], self.base)

    @cached_property
    def reading(self) -> Reading:
        """The head with all that it needs."""
        if self.estimator is None:
            return self.learned
        parameters = {**self.learned.parameters, **self.estimate[0]}
        self._tidy()
        return Reading(self.learned.head, parameters)

    def transform(
        self, vectors: Float[torch.Tensor, "*batch d"], has_length: bool = False
    ) -> Float[torch.Tensor, "*batch z"]:
        """What the score sees of vectors; with `has_length`, as compared with a class of which nothing was seen."""
        return self.reading.transform(vectors, has_length)

    @cached_property
    def prototypes(self) -> Float[torch.Tensor, "way refined"]:
        """What queries are scored against, in order of the labels."""
        counts = self.ledger.counts[self.order]
        means = torch.from_numpy(self.ledger.sums[self.order] / counts[:, None])  # which needs no examples
        return self.reading.head.refined(means, torch.from_numpy(counts), self.reading.parameters)

    @cached_property
    def search(self) -> Search:
        """What finds the best of many classes."""
        # It must not know this object, or both would stay until Python looks for circles, and so would its memory.
        return Search(self.ledger, self.reading, self.indexed)

    @property
    def left_out(self) -> tuple[Float[np.ndarray, "image way"], Int[np.ndarray, " image"]]:
        """Scores of examples left out of their classes, among those that take part, and their classes; of many classes
        they are not kept."""
        return calibration.leave_one_out(self.learned, self.sample[0]) if self.is_large else self._left_out

    @cached_property
    def _left_out(self) -> tuple[Float[np.ndarray, "image way"], Int[np.ndarray, " image"]]:
        return calibration.leave_one_out(self.learned, self.sample[0])

    @property
    def left_out_logits(self) -> tuple[Float[np.ndarray, "image way"], Int[np.ndarray, " image"]]:
        """The same as logits; those of an estimator are of examples left out of all that it has estimated."""
        if self.estimator is not None:
            left_out = self.estimate[1]
            return left_out.logits.numpy(), left_out.owner.numpy()
        scores, owner = self.left_out
        return self.scale * scores, owner

    @property
    def calibrated(self) -> bool:
        """Whether the scale is fitted."""
        if self.given is not None or not self.ledger.examples:
            return self._given_calibrated
        support = self.sample[0]
        if self.estimator is not None:
            return calibration.can_calibrate(self.estimator, support)
        return len(self.ledger) > 1 and bool((support.counts[support.owner] > 1).any())

    @cached_property
    def scale(self) -> float:
        """The factor of the logits: given, fitted, learned, or a rule of thumb."""
        if self.given is not None:
            return float(self.given)
        if self.estimator is not None:
            return float(self.reading.parameters["scale"])
        support = self.sample[0]
        if self.calibrated:
            return self._fitted_scale(support)
        learned = self.learned.parameters.get("scale")
        if learned is None:
            return calibration.gap_scale(self.learned, support)
        return float(learned) / float((1 + 1 / self.ledger.counts).mean())  # learned with many shots (see `next_shot`)

    def _fitted_scale(self, support: Support) -> float:
        scores, owner = self.left_out
        self._tidy()
        factor = calibration.fit_scale(scores, owner)
        del scores
        self._tidy()
        return factor * float(calibration.next_shot(support.counts[owner]).mean())

    def _tidy(self) -> None:
        """After large work: of many classes the sample is drawn again for who asks for more."""
        if self.ledger.is_vast:
            self.__dict__.pop("sample", None)
            give_back_memory()

    @cached_property
    def coverage(self) -> calibration.Coverage | None:
        """What is rejected, and how well the rest is classified."""
        if not self.ledger.examples:
            return None
        if self.is_large:
            logits, evidence = self._among_all()
            owner = np.zeros(len(logits), int)
            return calibration.rejection(logits, owner, self.reject, evidence) if len(logits) else None
        evidence = None
        if self.estimator is not None:
            parameters, left_out = self.estimate
            evidence = left_out.evidence.numpy() * (self.scale / float(parameters["scale"]))
        logits, owner = self.left_out_logits
        return calibration.rejection(logits, owner, self.reject, evidence) if len(owner) else None

    @cached_property
    def recalls(self) -> Float[np.ndarray, " way"]:
        """Of each class's examples that took part, each left out, the share that is told right among those classes."""
        shares = np.full(len(self.ledger), np.nan)
        if self.ledger.examples:
            labels = self.sample[0].labels
            shares[np.searchsorted(self.labels, labels)] = calibration.recalls(*self.left_out_logits, len(labels))
        return shares

    def _among_all(self) -> tuple[Float[np.ndarray, "image 2"], Float[np.ndarray, "image 2"]]:
        """Logits of left-out examples for their own class and for the best of all others; and what speaks for these."""
        scale, support = self.scale, self.sample[0]
        many = min(calibration.QUERIES, max(calibration.LEAST_QUERIES, calibration.PRODUCTS // len(self.ledger)))
        chosen = support.kept_of(2)
        chosen = chosen[support.counts[support.owner[chosen]] > 1]
        chosen = chosen[np.argsort(support.keys[chosen], kind="stable")[:many]]
        parts = [self._among_others(chosen[start : start + PART]) for start in range(0, len(chosen), PART)]
        del support
        self._tidy()
        scores = scale * np.concatenate([np.zeros((2, 2, 0)), *parts], 2)
        return scores[0].T, scores[1].T

    def _among_others(self, chosen: Int[np.ndarray, " image"]) -> Float[np.ndarray, "2 2 image"]:
        """Scores, and evidence, of examples of the sample for their own class without them and for the best other."""
        support, rows = self.sample
        assert rows is not None
        owner, vectors = support.owner[chosen], support.examples[chosen]
        left = support.counts[owner] - 1
        means = torch.from_numpy((support.sums[owner] - vectors) / left[:, None])
        own = self.reading.head.refined(means, torch.from_numpy(left), self.reading.parameters)
        out = []
        for has_length in (False, True) if self.estimator is not None else (False,):
            query = self.transform(torch.from_numpy(vectors), has_length)
            mine = self.reading.head.score(query[:, None], own[:, None])[:, 0, 0].numpy()
            best = self.search.best(vectors, 2, has_length=has_length)
            other = np.where(best.rows[:, 0] == rows[owner], best.scores[:, 1], best.scores[:, 0])
            new = self.new_class_score(torch.from_numpy(vectors)).numpy() if has_length else 0.0
            out.append([mine - new, other - new])
        return np.array([out[0], out[-1]])

    def new_class_score(self, vectors: Float[torch.Tensor, "image d"]) -> Float[torch.Tensor, " image"]:
        """The score of a class of which nothing has been seen."""
        return self.reading.new_class_score(vectors)
