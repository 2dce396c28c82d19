"""Groups of examples that belong together: photos of one moment, near-copies, or what the user names.

A member of such a group that is left out alone is recognised by its siblings, and the accuracy is optimistic. So
whatever is estimated by leaving examples out leaves out whole groups (`anyshot.classify.leave_one_out`).
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import squareform
from scipy.stats import chi2

from anyshot.arrays import split_rows
from anyshot.errors import BadInput
from anyshot.models.law import normalize

MOST_EXAMPLES = 20_000  # examples whose distances to each other take seconds to compute: of more, none are compared
LARGEST_CLASS = 5_000  # examples of one class, of which all distances are in memory at once
SAMPLE = 2_000  # examples from which the dimension of a class is estimated
PART = 256  # rows whose differences to their class means are in memory at once
MOST_SECONDS = 30.0  # seconds between two photos of one group; set once, not tuned
# Squared distances below which examples of a class may form a group, as shares of the typical one within a class.
# Near-copies are below NEAR; only where MANY of all examples fall into groups may these be wider, for then the photos
# are frames of scenes. What these and the next five were chosen on is in docs/log/calibration.md.
LIMITS = (0.1, 0.2, 0.3, 0.45, 0.6, 0.7)
NEAR = 0.3
MANY = 0.4
MOST = 0.7  # the same, of groups that are named or found by times; where so many fall into groups, the others join them
LEAST_SILHOUETTE = 0.35  # mean silhouette above which a grouping counts as one: of independent photos it is 0.1 to 0.3
LEAST_GAIN = 0.02  # by which silhouettes, on average over all examples, must be larger at a limit wider than NEAR
CHANCE = 0.01  # probability that an example has an independent one below NEAR
PAIR_CHANCE = 0.05  # and that two independent examples are below a wider limit
LEAST_SHARE = 0.05  # share of the examples that a kind of evidence must group, or it is ignored

Pairs = Int[np.ndarray, "pair 2"]
NAMED, TIMES, NEAR_VECTORS = "the names you gave", "times", "similar features"  # kinds of evidence
MISSING = ("None", "nan", "<NA>", "NaT")  # what values that stand for a missing one are printed as
TIME = re.compile(r"((?:19|20)\d{6})[-_ T]?(\d{6})")  # date and time of day, as cameras write them into names

Vectors = Float[np.ndarray, "example d"]
Labels = Int[np.ndarray, " example"]


def unit_vectors(features: Float[np.ndarray, "example ..."]) -> Vectors:
    """Return features as vectors of length one, in the precision they have."""
    return normalize(torch.from_numpy(features).flatten(1)).numpy()


@dataclass(frozen=True)
class WithinClassDistance:
    """How far two examples of one class typically are from each other, and in how many dimensions they differ.

    Attributes:
        distance: The median squared distance, estimated from the distances to the class means.
        dimensions: The effective number of dimensions, trace(C)^2 / trace(C^2) of the covariance C within classes.
    """

    distance: float
    dimensions: float

    @staticmethod
    def estimate(vectors: Vectors, labels: Labels) -> "WithinClassDistance":
        """Estimate both from the differences of examples to the means of their classes."""
        counts = np.bincount(labels)
        sums = np.zeros((len(counts), vectors.shape[1]))
        for part in split_rows(len(labels), PART):
            np.add.at(sums, labels[part], vectors[part])
        members = np.flatnonzero(counts[labels] > 1)  # of classes of two examples or more
        if not len(members):
            return WithinClassDistance(0.0, 1.0)

        def residuals(examples: Labels) -> Float[np.ndarray, "some d"]:
            """Return differences from class means, scaled up because an example is part of its mean."""
            n = counts[labels[examples], None]
            return (vectors[examples] - sums[labels[examples]] / n) * np.sqrt(n / (n - 1))

        squares = [(residuals(members[part]) ** 2).sum(1) for part in split_rows(len(members), PART)]
        sample = residuals(members[np.random.default_rng(0).permutation(len(members))[:SAMPLE]])
        products = sample @ sample.T
        diagonal, size = np.diagonal(products), len(products)
        # The mean square of products of different examples is an unbiased estimate of trace(C^2).
        off_diagonal = float(np.vdot(products, products) - np.vdot(diagonal, diagonal))
        square = off_diagonal / (size * (size - 1)) if size > 1 else 0.0
        most = float(min(vectors.shape[1], len(labels)))
        dimensions = min(max(float(diagonal.mean()) ** 2 / square, 1.0), most) if square else most
        return WithinClassDistance(2 * float(np.median(np.concatenate(squares))), dimensions)

    def quantile(self, probability: float) -> float:
        """Return the squared distance that two independent examples of a class stay below with this probability."""
        return self.distance * float(chi2.ppf(probability, self.dimensions)) / self.dimensions


def compute_distance_ratio(vectors: Vectors, labels: Labels) -> float:
    """Return the typical squared distance within classes, divided by the mean one between classes."""
    counts, squares = np.bincount(labels), (vectors.astype(np.float64) ** 2).sum(1)
    sums = np.zeros((len(counts), vectors.shape[1]))
    np.add.at(sums, labels, vectors)
    # Sums of squared distances over all pairs of examples, and over pairs of one class.
    total = 2 * len(labels) * squares.sum() - 2 * (sums.sum(0) ** 2).sum()
    within = 2 * (counts * np.bincount(labels, squares)).sum() - 2 * (sums**2).sum()
    between = (total - within) / (len(labels) ** 2 - (counts**2).sum())
    return WithinClassDistance.estimate(vectors, labels).distance / between if between > 0 else 1.0


@dataclass(frozen=True)
class Groups:
    """Which examples belong together.

    Attributes:
        group: The group of each example, counted from 0; an example that belongs to no other is a group of one.
        evidence: How the groups were found: some of NAMED, TIMES and NEAR_VECTORS; empty if there are none, or where
            that does not matter.
    """

    group: Int[np.ndarray, " example"]
    evidence: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """The number of groups of two examples or more."""
        return int((np.bincount(self.group) > 1).sum())

    @property
    def members(self) -> int:
        """The number of examples in such groups."""
        sizes = np.bincount(self.group)
        return int(sizes[sizes > 1].sum())

    def join(self, pairs: Pairs, kind: str, candidates: int) -> "Groups":
        """Return the groups, joined where a pair has examples of two; unchanged where the pairs may be chance.

        Pairs of less than LEAST_SHARE of the candidates may be chance.

        Args:
            pairs: Examples that belong together.
            kind: The kind of evidence that the pairs are.
            candidates: The number of examples that were compared with each other.
        """
        if len(np.unique(pairs)) < max(LEAST_SHARE * candidates, 1):
            return self
        first, place = np.unique(self.group, return_index=True, return_inverse=True)[1:]
        pairs = np.concatenate([pairs, np.stack([np.arange(len(self.group)), first[place]], 1)])
        return Groups(_join_pairs(pairs, len(self.group)), (*self.evidence, kind))


def find_groups(
    vectors: Vectors | None,
    labels: Labels,
    names: Sequence[str] = (),
    times: Sequence[float | None] = (),
    group_names: Sequence[Any] = (),
) -> Groups:
    """Find groups within classes, by times, and by similar vectors.

    Where the user has named groups, times do not count. A group that is named or found by times takes part in the
    comparison of vectors as one example, its mean: different scenes stay apart, and a scene whose photos were
    learned in two calls is still found. Classes of more than LARGEST_CLASS examples are left out of that comparison.

    Args:
        vectors: A vector per example; None for times alone.
        labels: Their classes, counted from 0.
        names: Their file names, where they have any.
        times: When they were taken, in seconds, where that is known; times in the names are used otherwise.
        group_names: The name of the group of each, None for an example in none; a name in two classes is a group in
            each.
    """
    count, named_group = len(labels), number_groups(group_names, labels)
    if named_group is None:
        groups = Groups(np.arange(count)).join(_pair_by_time(labels, names, times), TIMES, count)
    else:
        groups = Groups(named_group, (NAMED,))
    if vectors is None or count < 3 or (np.bincount(labels) ** 2).sum() > MOST_EXAMPLES**2:
        return groups
    firsts, means = np.unique(groups.group, return_index=True)[1], vectors
    if len(firsts) < count:
        means = np.zeros((len(firsts), vectors.shape[1]))
        np.add.at(means, groups.group, vectors)
        means /= np.bincount(groups.group)[:, None]
    typical = WithinClassDistance.estimate(means, labels[firsts])
    many = MANY if len(firsts) == count else MOST
    pairs = firsts[_pair_by_distance(means, labels[firsts], typical, many)]
    return groups.join(pairs, NEAR_VECTORS, len(firsts))


def clean_group_names(names: Iterable[Any]) -> list[Any]:
    """Return the names of groups, with None for every missing one: pandas has NaN and the like there."""
    values = np.asarray(list(names), object).tolist()
    return [None if not isinstance(name, str) and str(name) in MISSING else name for name in values]


def number_groups(names: Any, labels: Labels) -> Int[np.ndarray, " example"] | None:
    """Return the groups that the user has named, counted from 0; None where none are named.

    Args:
        names: The name of the group of each example, or None; an example without one is a group of one.
        labels: Their classes. A name in two classes is a group in each.
    """
    group_names = clean_group_names(() if names is None else names)
    if all(name is None for name in group_names):
        return None
    if len(group_names) != len(labels):
        raise BadInput(f"there are {len(labels)} examples and {len(group_names)} groups: give one for each.")
    number: dict[Any, int] = {}
    keys = [
        row if name is None else (label, str(name))
        for row, (label, name) in enumerate(zip(labels.tolist(), group_names, strict=True))
    ]
    return np.array([number.setdefault(key, len(number)) for key in keys], np.int64)


def name_bursts(labels: Sequence[Any] | np.ndarray, times: Sequence[float | None]) -> list[str | None]:
    """Return a name for the burst of each photo, None for one that is in none."""
    bursts = find_groups(None, np.unique(np.array(labels), return_inverse=True)[1], times=times).group
    sizes, firsts = np.bincount(bursts), np.unique(bursts, return_index=True)[1]
    names = [f"{labels[place]} at {times[place]}" for place in firsts.tolist()]
    return [names[burst] if sizes[burst] > 1 else None for burst in bursts.tolist()]


def _join_pairs(pairs: Pairs, count: int) -> Int[np.ndarray, " example"]:
    """Return the connected component of each example."""
    first, second = pairs.T.astype(np.int32)  # SciPy 1.11 takes no other indices here
    graph = coo_array((np.ones(len(first)), (first, second)), shape=(count, count))
    return connected_components(graph, directed=False)[1].astype(np.int64)


def parse_time(name: str) -> float | None:
    """Return the time that a camera wrote into a file's name, as in IMG_20240131_120501.jpg, in seconds."""
    if match := TIME.search(name):
        try:
            return datetime.strptime(match[1] + match[2], "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp()
        except ValueError:
            return None
    return None


def _pair_by_time(labels: Labels, names: Sequence[str], times: Sequence[float | None]) -> Pairs:
    """Return pairs of examples of a class that were taken one after the other, within MOST_SECONDS."""
    dated: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for example, label in enumerate(labels.tolist()):
        time = times[example] if example < len(times) else None
        if time is None and example < len(names):
            time = parse_time(names[example])
        if time is not None:
            dated[label].append((time, example))
    neighbours = (pair for series in dated.values() for pair in pairwise(sorted(series)))
    pairs = [(a, b) for (earlier, a), (later, b) in neighbours if later - earlier <= MOST_SECONDS]
    return np.array(pairs, np.int64).reshape(-1, 2)


def _pair_by_distance(vectors: Vectors, labels: Labels, typical: WithinClassDistance, many: float) -> Pairs:
    """Return each example of a group with another one of it; groups are far nearer than other examples of the class.

    Clusters by average linkage are cut at the limit at which they stand out most, by their silhouettes (Rousseeuw 1987)
    less that of independent examples; a limit wider than NEAR must be clearly better. Where most examples are frames of
    scenes, one that is alone joins the scene nearest to it, unless that is farther than two examples of a class
    typically are: it is more often a frame unlike its siblings than another scene, and the threshold depends on such
    frames.
    """
    limits = [share for share in LIMITS if share <= NEAR or share * typical.distance <= typical.quantile(PAIR_CHANCE)]
    first = np.tile(np.arange(len(labels)), (len(limits), 1))  # of the cluster of each example, at each limit
    nearest, silhouette = first.copy(), np.zeros(first.shape)
    for label in np.flatnonzero(np.bincount(labels) > 1):
        members = np.flatnonzero(labels == label)
        if len(members) > LARGEST_CLASS:
            continue
        distances = _compute_distances(vectors[members])
        tree = linkage(squareform(distances, checks=False), "average")
        by_chance = typical.quantile(CHANCE / (len(members) - 1))
        for row, share in enumerate(limits):
            limit = share * typical.distance if share > NEAR else min(share * typical.distance, by_chance)
            if tree[0, 2] <= limit:  # or no two are so near
                cluster = fcluster(tree, limit, "distance") - 1
                firsts = members[np.unique(cluster, return_index=True)[1]]
                silhouette[row, members], other, outside = _compute_silhouettes(distances, cluster, typical.distance)
                first[row, members] = firsts[cluster]
                nearest[row, members] = np.where(outside <= typical.distance, firsts[other], members)
    is_grouped = np.stack([np.bincount(one, minlength=len(labels))[one] > 1 for one in first])
    gain = ((silhouette - LEAST_SILHOUETTE) * is_grouped).mean(1)
    is_wide, rows = np.array(limits) > NEAR, np.arange(len(labels))
    gain[is_wide & ((is_grouped.mean(1) < many) | (gain < gain[~is_wide].max() + LEAST_GAIN))] = 0
    best = gain.argmax()
    if limits[best] > NEAR and is_grouped[best].mean() >= MOST:
        first[best] = np.where(is_grouped[best], first[best], nearest[best])
    is_paired = (first[best] != rows) & (gain[best] > 0)
    return np.stack([first[best], rows], 1)[is_paired]


def _compute_distances(vectors: Vectors) -> Float[np.ndarray, "example example"]:
    """Return the squared distances between all vectors."""
    rows = vectors.astype(np.float64)
    squares = (rows**2).sum(1)
    distances = np.maximum(squares[:, None] + squares - 2 * rows @ rows.T, 0)
    np.fill_diagonal(distances, 0)
    return (distances + distances.T) / 2


def _compute_silhouettes(
    distances: Float[np.ndarray, "example example"], cluster: Int[np.ndarray, " example"], typical: float
) -> tuple[Float[np.ndarray, " example"], Int[np.ndarray, " example"], Float[np.ndarray, " example"]]:
    """Return how much nearer each example is to its own cluster than to the nearest other one, that one, and how far.

    The first is 1 where the example is a copy, and 0 for a cluster of one. Where there is no other cluster, the typical
    distance takes the place of that to it.
    """
    order, sizes = cluster.argsort(kind="stable"), np.bincount(cluster)
    sums = np.add.reduceat(distances[:, order], np.cumsum(sizes) - sizes, axis=1)
    own = np.arange(len(cluster)), cluster
    inside = sums[own] / np.maximum(sizes[cluster] - 1, 1)
    means = sums / sizes
    means[own] = np.inf
    outside = means.min(1) if len(sizes) > 1 else np.full(len(cluster), typical)
    larger = np.maximum(inside, outside)
    silhouette = np.where(larger > 0, (outside - inside) / np.where(larger > 0, larger, 1), 1.0)
    return np.where(sizes[cluster] > 1, silhouette, 0), means.argmin(1), outside
