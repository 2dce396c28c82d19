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

from anyshot.classify import calibration
from anyshot.classify.ledger import GrowingSupport
from anyshot.classify.search import Search, can_search
from anyshot.classify.support import Support
from anyshot.machine import release_memory
from anyshot.models.empirical import Base, Fit, LeftOut
from anyshot.models.law import BoundHead

PART = 256  # examples that are asked of all classes at once


class FittedState:
    """Of the classes as they are now; whoever learns makes another.

    Args:
        ledger: The classes.
        learned: The head with what it has learned, before it adapts.
        scale: Factor of the logits, where it is given.
        reject: Share of the known classes' images that may be given up.
        base: Other classes, for a head that adapts.
        indexed: Whether to search by an approximate index.
        calibrated: Whether a scale that is given was fitted.
    """

    def __init__(
        self,
        ledger: GrowingSupport,
        learned: BoundHead,
        scale: float | None,
        reject: float,
        base: Base | None,
        indexed: bool = False,
        calibrated: bool = False,
    ) -> None:
        self.ledger, self.learned, self.given, self.reject, self.base = ledger, learned, scale, reject, base
        self.indexed, self._given_calibrated = indexed, calibrated

    def __getstate__(self) -> dict[str, Any]:
        """Without what was settled: it is settled again where it is asked for."""
        return {name: value for name, value in self.__dict__.items() if not hasattr(type(self), name)}

    def follow(self, before: "FittedState") -> None:
        """Go on with a search of the same classes, where its rows do not depend on all of them."""
        if "search" in before.__dict__ and before.ledger is self.ledger and not self.adapts:
            self.search = before.search
            self.search.indexed = self.indexed

    @property
    def adapts(self) -> bool:
        """Whether the head estimates from the support how images vary."""
        return self.learned.head.adapts

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
    def adaptation(self) -> tuple[Fit, LeftOut]:
        """What a head that adapts estimates, and its examples left out, which of many classes are not kept."""
        return calibration.adapted(self.sample[0], self.base) if self.is_large else self._adaptation

    @cached_property
    def _adaptation(self) -> tuple[Fit, LeftOut]:
        return calibration.adapted(self.sample[0], self.base)

    @cached_property
    def fit(self) -> Fit:
        """What a head that adapts estimates."""
        fit = self.adaptation[0]
        self._tidy()
        return fit

    @cached_property
    def reading(self) -> BoundHead:
        """The head with all that it needs."""
        if not self.adapts:
            return self.learned
        return BoundHead(self.learned.head, {**self.learned.parameters, "spread": self.fit.spread})

    def coordinates(self, vectors: Float[torch.Tensor, "*batch d"]) -> Float[torch.Tensor, "*batch d"]:
        """What the head sees of vectors."""
        return self.fit.coordinates(vectors) if self.adapts else vectors

    @cached_property
    def prototypes(self) -> Float[torch.Tensor, "way refined"]:
        """What queries are scored against, in order of the labels."""
        counts = self.ledger.counts[self.order]
        means = torch.from_numpy(self.ledger.sums[self.order] / counts[:, None])  # which needs no examples
        return self.reading.head.refined(self.coordinates(means), torch.from_numpy(counts), self.reading.parameters)

    @cached_property
    def search(self) -> Search:
        """What finds the best of many classes."""
        # It must not know this object, or both would stay until Python looks for circles, and so would its memory.
        reading, coordinates = self.reading, self.fit.coordinates if self.adapts else _as_they_are
        return Search(self.ledger, reading.head, reading.parameters, coordinates, self.indexed)

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
        """The same as logits, as the head that adapts has them."""
        if self.adapts:
            left = self.adaptation[1]
            return left.logits.numpy(), left.owner.numpy()
        scores, owner = self.left_out
        return self.scale * scores, owner

    @property
    def calibrated(self) -> bool:
        """Whether the scale is fitted."""
        if self.given is not None or not self.ledger.examples:
            return self._given_calibrated
        if self.adapts:
            return int((self.ledger.counts > 1).sum()) > 1
        support = self.sample[0]
        return len(self.ledger) > 1 and bool((support.counts[support.owner] > 1).any())

    @cached_property
    def scale(self) -> float:
        """The factor of the logits: given, fitted, learned, or a rule of thumb."""
        if self.given is not None:
            return float(self.given)
        if self.adapts:
            return self.fit.scale
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
            release_memory()

    @cached_property
    def coverage(self) -> calibration.Coverage | None:
        """What is rejected, and how well the rest is classified."""
        if not self.ledger.examples:
            return None
        if self.is_large:
            logits, evidence = self._among_all()
            return calibration.rejection(evidence, np.zeros(len(logits), int), self.reject) if len(logits) else None
        if self.adapts:
            fit, left = self.adaptation
            evidence = (left.logits - left.new_class[:, None]).numpy() * (self.scale / fit.scale)
            owner = left.owner.numpy()
        else:
            scores, owner = self.left_out
            evidence = self.scale * scores
        return calibration.rejection(evidence, owner, self.reject) if len(owner) else None

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
        mine, other, nothing = np.concatenate([np.zeros((3, 0)), *parts], 1)
        logits = scale * np.stack([mine, other], 1)
        return logits, logits - nothing[:, None]

    def _among_others(self, chosen: Int[np.ndarray, " image"]) -> Float[np.ndarray, "3 image"]:
        """Scores of examples of the sample for their own class without them, for the best of all others, and the logit
        of a class that is not there."""
        support, rows = self.sample
        assert rows is not None
        owner, vectors = support.owner[chosen], support.examples[chosen]
        left = support.counts[owner] - 1
        query = self.coordinates(torch.from_numpy(vectors))
        means = self.coordinates(torch.from_numpy((support.sums[owner] - vectors) / left[:, None]))
        own = self.reading.head.refined(means, torch.from_numpy(left), self.reading.parameters)
        mine = self.reading.score(query[:, None], own[:, None])[:, 0, 0].numpy()
        best = self.search.best(vectors, 2)
        other = np.where(best.rows[:, 0] == rows[owner], best.scores[:, 1], best.scores[:, 0])
        nothing = self.fit.new_class(query).numpy() * (self.scale / self.fit.scale) if self.adapts else 0 * mine
        return np.stack([mine, other, nothing])


def _as_they_are(vectors: Float[torch.Tensor, "*batch d"]) -> Float[torch.Tensor, "*batch d"]:
    return vectors
