"""Episodes are index arrays drawn from a seed, never images.

Plans are nested and paired: one draw of an episode serves every test shot (a smaller shot is a prefix of a larger one),
and the same plan serves every model, head and readout. Each episode is a pure function of the seed and its number,
however they are chunked.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from anyshot.errors import BadInput, look_up
from anyshot.files import read_json, write_json
from anyshot.text import count_noun

Shots = Sequence[int] | Int[np.ndarray, "pattern way"] | Int[np.ndarray, "pattern episode way"]
MOST_DRAWN = 1 << 28  # images that a plan from a file may draw: they are drawn to check its id
SHUFFLED = 2048  # rows that are shuffled at a time, so that their cards stay in the processor's cache


@dataclass(frozen=True)
class Protocol:
    """How a model is tested: at which shots, and on which episodes.

    Args:
        shots: Test shots.
        way: Classes per episode; 0 for every class at once.
        queries: Queries per class.
        episodes: Episodes, the same for all models, heads and shots.
        seed: Seed of the episodes.
    """

    shots: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    way: int = 5
    queries: int = 16
    episodes: int = 10_000
    seed: int = 0

    def shrink_to_fit(
        self, labels: Int[np.ndarray, " image"], groups: Int[np.ndarray, " image"] | None = None
    ) -> tuple["Protocol", str]:
        """Return the protocol at those of the usual shots that fit the smallest class, and a message that says so.

        Where even one shot would not fit beside the queries, there are fewer queries.
        """
        usual, smallest = Protocol().shots, int(np.bincount(labels).min())
        queries = self.queries if smallest > self.queries else max(1, smallest // 2)
        largest = smallest - queries
        if groups is not None and smallest > 1:
            queries = min(queries, Plan(labels, 2, 1, 1, group=groups).most_queries)
            largest = int(Plan(labels, 2, 1, queries, group=groups).feasible.min())
        shots = tuple(shot for shot in usual if shot <= largest) or (1,)
        fewer = f" and {queries} instead of {self.queries} queries" if queries != self.queries else ""
        noun = "shot" if shots == (1,) else "shots"
        words = f"The smallest class has {smallest} examples: measuring {', '.join(map(str, shots))} {noun}{fewer}."
        return replace(self, shots=shots, queries=queries), "" if shots == usual else words

    def plan(
        self,
        labels: Int[np.ndarray, " image"],
        class_names: Sequence[str],
        groups: Int[np.ndarray, " image"] | None = None,
    ) -> "Plan":
        """Return the episodes, for images with these labels; queries are of other groups than the support."""
        options = self.way, max(self.shots, default=1), self.queries, self.episodes, self.seed, tuple(class_names)
        return Plan(labels, *options, group=groups)


class EpisodeBatch(NamedTuple):
    """Some episodes of a plan: classes, and the images of each class in its support (in order of joining) and query."""

    classes: Int[np.ndarray, "episode way"]
    support: Int[np.ndarray, "episode way shot"]
    query: Int[np.ndarray, "episode way query"]


@dataclass(frozen=True, eq=False)
class Plan:
    """What decides the episodes of an evaluation.

    Args:
        labels: The class of each image, as a number from 0.
        way: Classes per episode.
        shot: The largest test shot; the supports of smaller ones are prefixes of its support.
        queries: Queries per class.
        episodes: The number of episodes.
        seed: Decides the episodes.
        class_names: The names of the classes, for messages.
        skip: Leaves out the first so many images of each support: the same queries, another support.
        group: The group of each image; an image alone has one of its own. Queries are then of other groups than the
            support: a group is never divided, unless it is all of its class.
        held_out: Marks images that are queries only; the others are support only, whatever their groups.
    """

    labels: Int[np.ndarray, " image"]
    way: int = 5
    shot: int = 32
    queries: int = 16
    episodes: int = 10_000
    seed: int = 0
    class_names: Sequence[str] | None = None
    skip: int = 0
    group: Int[np.ndarray, " image"] | None = None
    held_out: Bool[np.ndarray, " image"] | None = None

    def __post_init__(self) -> None:
        for name in ("shot", "queries", "episodes"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 1, not {getattr(self, name)}.")
        if not 0 <= self.seed < 1 << 64:
            raise BadInput(f"a seed is a number from 0 to 2^64 - 1, not {self.seed}.")
        classes = len(self._counts)
        if not 2 <= self.way <= classes:
            many, few = f"choose 2 to {classes} ways", "choose 2 ways, or pack with --split for more classes here"
            fit = many if classes > 2 else few
            raise BadInput(f"an episode of {self.way} ways does not fit {classes} classes: {fit}.")
        smallest = int(self.feasible.argmin())
        feasible = int(self.feasible[smallest])
        if feasible < self.shot:
            name = repr(self.class_names[smallest]) if self.class_names else str(smallest)
            queries = "1 query" if self.queries == 1 else f"{self.queries} queries"
            fits = [f"the largest feasible shot is {feasible} with {queries}"] if feasible > 0 else []
            if (fewer := self.queries - (self.shot - feasible)) > 0:
                fits.append(f"{fewer} would do (queries={fewer} in Python, --queries {fewer} of the command)")
            else:
                if fits == [] and int(self._counts[smallest]) > 1 and self.group is None and self.held_out is None:
                    fits.append(f"choose shots and queries that add up to {self._counts[smallest]}")
                fits.append(f"give it {self.shot + self.queries} examples at least, or leave the class out")
            examples = count_noun(int(self._counts[smallest]), "example")
            raise BadInput(
                f"class {name} has {examples}, too few for {count_noun(self.shot, 'shot')} and {queries}: "
                f"{'; '.join(fits)}."
            )

    @cached_property
    def most_queries(self) -> int:
        """How many images every class has beside its largest group: as many can be queries."""
        return min(sum(map(len, groups)) - max(map(len, groups)) for groups in self._groups)

    @cached_property
    def feasible(self) -> Int[np.ndarray, " class_"]:
        """The largest shot that surely fits each class: queries may use up every group but the largest."""
        if self.held_out is not None:
            queries = np.bincount(self.labels[self.held_out], minlength=len(self._counts))
            return np.where(queries >= self.queries, self._counts - queries, 0)
        if self.group is None:
            return self._counts - self.queries
        feasible = self._counts.copy()
        for place, groups in enumerate(self._groups):
            *others, _ = sorted(map(len, groups))
            feasible[place] -= min(self.queries - 1 + max(others, default=0), sum(others))
            feasible[place] *= sum(others) >= self.queries
        return feasible

    @cached_property
    def _groups(self) -> list[list[Int[np.ndarray, " image"]]]:
        """The images of each group of each class; where a class is a single group, each image is one."""
        assert self.group is not None
        classes = np.split(self._order, np.cumsum(self._counts)[:-1])
        by_class = [[images[self.group[images] == one] for one in np.unique(self.group[images])] for images in classes]
        return [groups if len(groups) > 1 else list(groups[0][:, None]) for groups in by_class]

    @cached_property
    def _order(self) -> Int[np.ndarray, " image"]:
        return np.argsort(self.labels, kind="stable")

    @cached_property
    def _counts(self) -> Int[np.ndarray, " class_"]:
        return np.bincount(self.labels)

    @cached_property
    def classes(self) -> Int[np.ndarray, "episode way"]:
        """The classes of every episode."""
        return self.draw(0, self.episodes).classes

    @cached_property
    def id(self) -> str:
        """A hash of the episodes themselves: equal ids, equal episodes."""
        digest = hashlib.sha256()
        for start in range(0, self.episodes, 1024):
            for array in self.draw(start, min(start + 1024, self.episodes)):
                digest.update(array.astype(np.int64).tobytes())
        return digest.hexdigest()[:16]

    def about(self) -> dict[str, Any]:
        """Return what identifies the episodes."""
        return {**{name: getattr(self, name) for name in ("way", "shot", "queries", "episodes", "seed")}, "id": self.id}

    def save(self, path: Path) -> None:
        """Write what decides the episodes, and their id, so that others can evaluate on the same ones."""
        write_json(path, {"plan": 1, **self.about()})

    @staticmethod
    def load(
        path: Path,
        labels: Int[np.ndarray, " image"],
        class_names: Sequence[str] = (),
        groups: Int[np.ndarray, " image"] | None = None,
    ) -> "Plan":
        """Return a saved plan for images with these labels and groups; its episodes are checked against its id."""
        saved = read_json(path)
        saved_id, names = saved.pop("id", None), {"way", "shot", "queries", "episodes", "seed"}
        if saved.pop("plan", None) != 1 or saved.keys() != names or any(type(saved[name]) is not int for name in names):
            raise BadInput(f"{path} is not a saved plan.")
        drawn = saved["episodes"] * saved["way"] * (saved["shot"] + saved["queries"])
        if drawn > MOST_DRAWN:
            raise BadInput(f"{path} plans {drawn} images: a plan that is loaded may draw {MOST_DRAWN}.")
        plan = Protocol((saved.pop("shot"),), **saved).plan(labels, class_names, groups)
        if plan.id != saved_id:
            why = "their labels or groups draw other episodes from its seed"
            raise BadInput(f"the plan {path} was made for other examples: {why}.")
        return plan

    def draw(self, start: int, stop: int) -> EpisodeBatch:
        """Return episodes `start` to `stop`."""
        if self.group is not None or self.held_out is not None:
            episodes = [self._draw_episode(np.random.default_rng((self.seed, number))) for number in range(start, stop)]
            return EpisodeBatch(*(np.stack(arrays) for arrays in zip(*episodes, strict=True)))
        per_class = self.queries + self.shot
        used = self.way * (1 + per_class)
        blocks = -(-used // 4)  # Philox makes four numbers a count, so an episode owns a whole number of counts
        bits = np.random.Philox(key=self.seed)
        bits.advance(start * blocks)
        raw = bits.random_raw((stop - start) * blocks * 4).reshape(stop - start, -1)[:, :used]
        uniform = (raw >> np.uint64(11)) * 2.0**-53
        everything = np.full(stop - start, len(self._counts))
        classes = _shuffle_start(uniform[:, : self.way], everything)
        counts = self._counts[classes].ravel()
        places = _shuffle_start(uniform[:, self.way :].reshape(-1, per_class), counts)
        first = np.cumsum(self._counts) - self._counts
        images = self._order[first[classes].reshape(-1, 1) + places].reshape(-1, self.way, per_class)
        return EpisodeBatch(classes, images[..., self.queries + self.skip :], images[..., : self.queries])

    def _draw_episode(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        classes = rng.permutation(len(self._counts))[: self.way]
        support, query = zip(*(self._draw_class(place, rng) for place in classes.tolist()), strict=True)
        return classes, np.stack(support), np.stack(query)

    def _draw_class(self, place: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the support and the queries of a class, in an episode that keeps groups or held-out images apart."""
        if self.held_out is not None:
            sides = (np.flatnonzero((self.labels == place) & (self.held_out == side)) for side in (False, True))
            at_hand, held_out = (rng.permutation(images) for images in sides)
            return at_hand[: self.shot], held_out[: self.queries]
        groups = [rng.permutation(group) for group in self._groups[place]]
        groups = [groups[one] for one in rng.permutation(len(groups))]
        largest = max(range(len(groups)), key=lambda one: len(groups[one]))
        groups.append(groups.pop(largest))  # so that there is always a support
        ends = np.cumsum([len(group) for group in groups])
        rest = int(np.searchsorted(ends, self.queries)) + 1  # the first group without a query
        support = [groups[one] for one in rest + rng.permutation(len(groups) - rest)]
        return np.concatenate(support)[: self.shot], np.concatenate(groups[:rest])[: self.queries]


def _shuffle_start(uniform: np.ndarray, counts: Int[np.ndarray, " row"]) -> Int[np.ndarray, "row drawn"]:
    """Return the start of a Fisher-Yates shuffle of range(count), a row each: draws without replacement."""
    drawn = np.empty(uniform.shape, np.int64)
    width = int(counts.max(initial=0))
    deck = np.arange(width, dtype=np.min_scalar_type(width))
    for rows in (slice(start, start + SHUFFLED) for start in range(0, len(counts), SHUFFLED)):
        cards, top = np.tile(deck, len(counts[rows])), np.arange(len(counts[rows])) * width
        for place, share in enumerate(uniform[rows].T):
            other = top + (share * (counts[rows] - place)).astype(np.int64)
            drawn[rows, place] = cards[other]
            cards[other] = cards[top]  # the drawn card itself is never looked at again
            top += 1
    return drawn


def expand_patterns(shots: Shots, plan: Plan) -> Int[np.ndarray, "pattern episode way"]:
    """Return the shot of every class of every episode, for each pattern."""
    patterns = np.asarray(shots, np.int64)
    while patterns.ndim < 3:
        patterns = patterns[..., None] if patterns.ndim == 1 else patterns[:, None]
    return np.broadcast_to(patterns, (len(patterns), plan.episodes, plan.way))


def shot_patterns(shots: Sequence[int] | str, plan: Plan) -> tuple[Shots, list[int | str]]:
    """Return patterns of shots and what rows call them, of a list of shots or of a kind of UNEQUAL ones."""
    if isinstance(shots, str):
        pattern = look_up("kind of unequal shots", shots, UNEQUAL)(plan)
        return np.broadcast_to(pattern, (1, plan.episodes, plan.way)), [shots]
    if not shots or min(shots) < 1 or max(shots) > plan.shot:
        raise BadInput(f"test shots must lie between 1 and {plan.shot}, not {list(shots)}.")
    distinct = sorted(set(shots))
    return distinct, list(distinct)


def _uniform(plan: Plan) -> np.ndarray:
    """Draw the shot of each class of each episode evenly from 1 to the largest."""
    return np.random.default_rng([plan.seed, 7]).integers(1, plan.shot + 1, size=(plan.episodes, plan.way))


def _step(plan: Plan) -> np.ndarray:
    """Give half of the classes (rounded down) 1 shot, the others the largest."""
    return np.where(np.arange(plan.way) < plan.way // 2, 1, plan.shot)


def _long_tailed(plan: Plan) -> np.ndarray:
    """Let shots fall by a constant factor from the largest to 1."""
    return np.geomspace(plan.shot, 1, plan.way).round().astype(np.int64)


UNEQUAL: dict[str, Callable[[Plan], np.ndarray]] = {"uniform": _uniform, "step": _step, "long-tailed": _long_tailed}
