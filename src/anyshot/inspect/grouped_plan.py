"""Episodes for advice: the support and the queries of a class come from other moments."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int

from anyshot.measure.plan import EpisodeBatch, Plan


@dataclass(frozen=True, eq=False)
class GroupedPlan(Plan):
    """Episodes whose queries are of other moments than their support.

    Queries are images that were held out, or of other bursts than the support: a burst is never divided, unless it is
    all of its class.

    Args:
        held_out: Marks images that are queries only; the others are support only. None where none are.
        group: The burst of each image; an image alone has one of its own. Of no use where some are held out.
    """

    held_out: Bool[np.ndarray, " image"] | None = None
    group: Int[np.ndarray, " image"] | None = None

    @cached_property
    def most_queries(self) -> int:
        """How many images every class has beside its largest burst: as many can be queries."""
        return min(sum(map(len, bursts)) - max(map(len, bursts)) for bursts in self._bursts)

    @cached_property
    def feasible(self) -> Int[np.ndarray, " class_"]:
        """The largest shot that is sure to fit each class: queries may use up every burst but the largest."""
        if self.held_out is not None:
            queries = np.bincount(self.labels[self.held_out], minlength=len(self._counts))
            return np.where(queries >= self.queries, self._counts - queries, 0)
        feasible = self._counts.copy()
        for place, bursts in enumerate(self._bursts):
            sizes = sorted((len(burst) for burst in bursts), reverse=True)
            others = sum(sizes[1:])
            feasible[place] -= min(self.queries - 1 + max(sizes[1:], default=0), others)
            feasible[place] *= others >= self.queries
        return feasible

    @cached_property
    def _bursts(self) -> list[list[Int[np.ndarray, " image"]]]:
        """The images of each burst of each class; where a class is a single burst, each image is one."""
        group = np.arange(len(self.labels)) if self.group is None else self.group
        classes = [np.flatnonzero(self.labels == place) for place in range(len(self._counts))]
        divided = [[images[group[images] == burst] for burst in np.unique(group[images])] for images in classes]
        return [bursts if len(bursts) > 1 else list(bursts[0][:, None]) for bursts in divided]

    def draw(self, start: int, stop: int) -> EpisodeBatch:
        """Return episodes `start` to `stop`."""
        episodes = [self._episode(np.random.default_rng((self.seed, number))) for number in range(start, stop)]
        return EpisodeBatch(*(np.stack(arrays) for arrays in zip(*episodes, strict=True)))

    def _episode(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        classes = rng.permutation(len(self._counts))[: self.way]
        support, query = zip(*(self._sides(place, rng) for place in classes.tolist()), strict=True)
        return classes, np.stack(support), np.stack(query)

    def _sides(self, place: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the support and the queries of a class."""
        if self.held_out is not None:
            sides = (np.flatnonzero((self.labels == place) & (self.held_out == side)) for side in (False, True))
            at_hand, held_out = (rng.permutation(images) for images in sides)
            return at_hand[: self.shot], held_out[: self.queries]
        bursts = [rng.permutation(burst) for burst in self._bursts[place]]
        bursts = [bursts[one] for one in rng.permutation(len(bursts))]
        largest = max(range(len(bursts)), key=lambda one: len(bursts[one]))
        bursts.append(bursts.pop(largest))  # so that there is always a support
        ends = np.cumsum([len(burst) for burst in bursts])
        rest = int(np.searchsorted(ends, self.queries)) + 1  # the first burst without a query
        support = [bursts[one] for one in rest + rng.permutation(len(bursts) - rest)]
        return np.concatenate(support)[: self.shot], np.concatenate(bursts[:rest])[: self.queries]
