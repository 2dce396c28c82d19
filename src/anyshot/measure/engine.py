"""The evaluation engine: a bank of vectors and a plan in, the recall of every class in every episode out.

Each image is embedded once. Chunks of episodes, about as large as the cache, are gathered from the bank. The support is
summed in nested bags, so that all test shots cost little more than the largest, and one product with the queries serves
every score that needs only inner products. Heads that refine their prototypes start from the same sums.

Vectors too many to keep (Grams of a wide network) are made from the features of each chunk when they are needed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from anyshot.measure.plan import EpisodeBatch, Plan, Shots, expand_patterns
from anyshot.models.devices import map_in_threads
from anyshot.models.gaussian import moments_of
from anyshot.models.law import (
    BoundHead,
    Embed,
    Examples,
    Head,
    InnerProductScore,
    Parameters,
    QuadraticScore,
    flatten,
    keep_vectors,
    max_pool,
    mean_pool,
    move_parameters,
)
from anyshot.models.registry import BUILTIN, Registry
from anyshot.progress import OnProgress, no_progress, scale_progress
from anyshot.text import group_by

Base = Callable[[], tuple[Float[Tensor, "image d"], Int[Tensor, " image"]]]
FitReadout = Callable[[str], Parameters]
"""What a readout has learned from base classes, by the readout's name."""
Recall = Float[np.ndarray, "head pattern episode way"]
Logits = Float[Tensor, "episode pattern way query"]
Keep = Callable[[int, int, Logits], None]

CHUNK_FLOATS = 12_000_000  # queries and prototypes of a chunk: few and large operations, still near the cache
BANK_BYTES = 1 << 30  # a bank up to this size is kept and centred as a whole; a larger one chunk by chunk
PIECE = 128  # images whose vectors are made at a time
MADE_FLOATS = 1 << 22  # of vectors that are made at a time: 20 Gram matrices of ResNet-12, in four times 17 MB


@dataclass(frozen=True)
class LazyVectors:
    """Vectors that are made when they are needed, because all of them would not fit: a stand-in for a tensor of them.

    Args:
        maps: What they are made from, features or vectors.
        embed: Makes them.
        parameters: The parameters of `embed`.
        centre: What is subtracted from each, if anything.
    """

    maps: Float[Tensor, "image ..."]
    embed: Embed
    parameters: Parameters
    centre: Float[Tensor, " d"] | None = None

    @cached_property
    def shape(self) -> tuple[int, int]:
        """The number of vectors, and their length."""
        return len(self.maps), self._make(self.maps[:1]).shape[1]

    @property
    def device(self) -> torch.device:
        """Where the vectors are made."""
        return self.maps.device

    def split(self, size: int) -> Iterator[Tensor]:
        """Return all vectors in pieces."""
        return (self._make(piece) for piece in self.maps.split(min(size, PIECE)))

    def __getitem__(self, images: Int[Tensor, " image"]) -> Tensor:
        """Return the vectors of some images; a list of parts would take their memory twice."""
        vectors = torch.empty(len(images), self.shape[1], dtype=self.maps.dtype, device=self.device)
        step = max(1, min(PIECE, MADE_FLOATS // self.shape[1]))
        for start in range(0, len(images), step):
            vectors[start : start + step] = self._make(self.maps[images[start : start + step]])
        return vectors

    def _make(self, maps: Tensor) -> Tensor:
        vectors = self.embed(maps, self.parameters)
        return vectors if self.centre is None else vectors - self.centre


Vectors = Float[Tensor, "image d"] | LazyVectors


def compute_vectors(
    maps: Float[Tensor, "image position channel"], embed: Embed, parameters: Parameters
) -> Tensor | LazyVectors:
    """Return the vector of every image: a view of the features where possible, else computed now or when needed."""
    if embed is flatten or (maps.shape[1] == 1 and embed in (mean_pool, max_pool)):
        return maps.flatten(1)
    lazy = LazyVectors(maps, embed, move_parameters(parameters, maps.device))
    if lazy.shape[0] * lazy.shape[1] * 4 > BANK_BYTES:
        return lazy
    with torch.inference_mode():
        return lazy[torch.arange(len(maps), device=maps.device)]


def compute_readout_recalls(
    pairs: Sequence[tuple[BoundHead, str]],
    vectors: Vectors,
    fit_readout: FitReadout,
    plan: Plan,
    shots: Shots,
    registry: Registry = BUILTIN,
    progress: OnProgress = no_progress,
) -> list[Float[np.ndarray, "pattern episode way"]]:
    """Return the recalls of each head and readout; those that read the same vectors share their inner products.

    Args:
        pairs: Heads, each with the name of a readout.
        vectors: The vector of every image.
        fit_readout: Returns what a readout has learned; called only for readouts that have something to fit.
        plan: The episodes.
        shots: As in `compute_recalls`.
        registry: What readouts are looked up in.
        progress: Called with shares of the whole that add up to 1.
    """
    names = [name if registry.readout(name).apply else "" for _, name in pairs]
    groups = group_by(range(len(pairs)), lambda index: names[index])
    out: dict[int, np.ndarray] = {}
    for name, members in groups.items():
        readout = registry.readout(name or "own")
        learned = move_parameters(fit_readout(name), vectors.device) if readout.fit else {}
        bank = torch.cat([readout.applied(piece, learned) for piece in vectors.split(4096)]) if name else vectors
        bound_heads = [registry.readout(pairs[index][1]).bind(pairs[index][0], learned) for index in members]
        share = scale_progress(progress, 1 / (plan.episodes * len(groups)))
        out |= dict(zip(members, compute_recalls(bank, bound_heads, plan, shots, share), strict=True))
    return [out[index] for index in range(len(pairs))]


def lazy_readout_fits(base: Base, registry: Registry = BUILTIN) -> FitReadout:
    """Return a function that fits a readout on first use, on the vectors and labels that `base` returns."""
    base = cache(base)

    def fit_readout(name: str) -> Parameters:
        fit = registry.readout(name).fit
        return {} if fit is None else fit(*base())

    return fit_readout


def compute_recalls(
    vectors: Vectors, bound_heads: Sequence[BoundHead], plan: Plan, shots: Shots, progress: OnProgress = no_progress
) -> Recall:
    """Return the share of each class's queries that each head gets right, for every pattern of shots and episode.

    A query whose best logit is shared by n classes counts 1/n if its own is among them, as if ties were broken at
    random.

    Args:
        vectors: The vector of every image.
        bound_heads: Heads with their parameters; one that has an estimator and no parameters is fitted to each support.
        plan: The episodes.
        shots: A list of shots, or an array of patterns of one shot a class (for all episodes, or for each).
        progress: Called with the number of episodes that are done.
    """
    out = np.empty((len(bound_heads), len(shots), plan.episodes, plan.way), np.float32)

    def keep(index: int, start: int, logits: Logits) -> None:
        out[index, :, start : start + len(logits)] = recall_of_logits(logits, plan).cpu().numpy()

    visit_logits(vectors, bound_heads, plan, shots, keep, progress)
    return out


def visit_logits(
    vectors: Vectors,
    bound_heads: Sequence[BoundHead],
    plan: Plan,
    shots: Shots,
    keep: Keep,
    progress: OnProgress = no_progress,
) -> None:
    """Call `keep(number of the head, first episode, logits)` for every chunk of episodes.

    Logits lack the temperature, which changes no prediction.
    """
    patterns = expand_patterns(shots, plan)
    bound_heads = [bound_head.to(vectors.device) for bound_head in bound_heads]
    bank = _Bank(vectors, bound_heads)
    size = CHUNK_FLOATS // (vectors.shape[1] * plan.way * (plan.queries + len(patterns)))
    is_inner = all(bound_head.inner for bound_head in bound_heads)
    size = max(1, min(size, 64 if is_inner else 16))

    def run(start: int) -> int:
        stop = min(start + size, plan.episodes)
        with torch.inference_mode():
            chunk = _Chunk(bank, plan.draw(start, stop), patterns[:, start:stop])
            for index, bound_head in enumerate(bound_heads):
                keep(index, start, chunk.logits(bound_head))
        return stop - start

    # Of a few large operations threads inside them keep all cores busy; of many small factorisations a thread a chunk.
    # Vectors that are made when needed are large, and a chunk of them in every thread would fill the memory.
    is_serial = is_inner or isinstance(vectors, LazyVectors) or vectors.device.type != "cpu"
    starts = range(0, plan.episodes, size)
    for episodes in map(run, starts) if is_serial else map_in_threads(run, starts, ahead=4):
        progress(episodes)


def recall_of_logits(logits: Logits, plan: Plan) -> Float[Tensor, "pattern episode way"]:
    """Return the share of each class's queries whose own class has the largest logit; ties as if broken at random."""
    best = logits.amax(2)
    tied = (logits == best[:, :, None]).sum(2, dtype=torch.uint8 if plan.way < 256 else None)
    by_class = (plan.way, plan.queries)
    true = logits.unflatten(3, by_class).diagonal(dim1=2, dim2=3).mT  # the logit of each query's own class
    right = (true == best.unflatten(2, by_class)) / tied.unflatten(2, by_class)
    return right.mean(-1).transpose(0, 1)


def score_support(
    head: Head, support: Float[Tensor, "image d"], owner: Int[Tensor, " image"], query: Float[Tensor, "query d"]
) -> Float[Tensor, "query way"]:
    """Return the scores of queries after a head has estimated its parameters from a support."""
    assert head.estimator is not None
    moments = moments_of(support, owner)
    bound = BoundHead(head, head.estimator.fit(moments, Examples(support, owner), None))
    return bound.score(bound.transform(query), head.refined(moments.prototypes, moments.counts, bound.parameters))


class _Bank:
    """The vectors, about their mean where a score is the same wherever the origin lies, and what is known of each."""

    def __init__(self, vectors: Vectors, bound_heads: Sequence[BoundHead]) -> None:
        self.original = self.vectors = vectors
        self.d = vectors.shape[1]
        self.centre: Tensor | None = None
        if any(bound_head.inner is not None and bound_head.inner.centred for bound_head in bound_heads):
            total = sum(piece.sum(0, dtype=torch.float64) for piece in vectors.split(4096))
            assert isinstance(total, Tensor)
            self.centre = (total / vectors.shape[0]).to(next(iter(vectors.split(1))).dtype)
            if isinstance(vectors, LazyVectors):
                self.vectors = replace(vectors, centre=self.centre)
            elif vectors.nbytes <= BANK_BYTES:
                self.vectors = vectors - self.centre
            else:
                self.vectors = LazyVectors(vectors, keep_vectors, {}, self.centre)

    @cached_property
    def square(self) -> Float[Tensor, " image"]:
        """|v|^2 of each vector."""
        return torch.cat([piece.square().sum(1) for piece in self.vectors.split(4096)])

    @cached_property
    def along(self) -> Float[Tensor, " image"]:
        """The inner product of each vector with the centre."""
        assert self.centre is not None
        return torch.cat([piece @ self.centre for piece in self.vectors.split(4096)])


class _Chunk:
    """A few episodes, and the products that all heads share."""

    def __init__(self, bank: _Bank, draw: EpisodeBatch, patterns: np.ndarray) -> None:
        self.bank = bank
        device = bank.vectors.device
        self.shots = torch.from_numpy(np.array(patterns.swapaxes(0, 1), order="C")).to(device)  # episode pattern way
        self.steps: list[int] = self.shots.unique().tolist()
        self.support_images = torch.from_numpy(draw.support).to(device)
        self.query_images = torch.from_numpy(draw.query).flatten(1).to(device)

    @cached_property
    def _rows(self) -> tuple[Tensor, Int[Tensor, "episode way shot"], Int[Tensor, "episode query"]]:
        """Vectors, and where those of the support and the queries lie among them."""
        if isinstance(self.bank.vectors, Tensor):
            return self.bank.vectors, self.support_images, self.query_images
        all_images = torch.cat([self.support_images.flatten(), self.query_images.flatten()])
        images, place = all_images.unique(return_inverse=True)
        support, query = place.split([self.support_images.numel(), self.query_images.numel()])
        return self.bank.vectors[images], support.view_as(self.support_images), query.view_as(self.query_images)

    def logits(self, bound_head: BoundHead) -> Logits:
        if bound_head.head.estimator is not None and not bound_head.parameters:
            return self._fit_and_score(bound_head.head)
        if inner := bound_head.inner:
            return inner.from_products(*self._about_zero() if not inner.centred else self._products, self.bank.d)
        means, query = self._sums / self.shots[..., None], self._query
        if self.bank.centre is not None:
            means, query = means + self.bank.centre, query + self.bank.centre
        means = self._refined(bound_head, means)
        score = bound_head.head.score
        if not isinstance(score, InnerProductScore | QuadraticScore):
            return bound_head.score(query[:, None], means).mT
        # All patterns as rows of one product: one product per pattern would read the queries as many times.
        logits = score.by_prototype(query, means.flatten(1, 2), alike=self._one_shot_a_pattern)
        return logits.unflatten(1, means.shape[1:3])

    def _fit_and_score(self, head: Head) -> Logits:
        """Return the logits of a head that is fitted to each support: one fit per episode and pattern."""
        logits = []
        for support, images, patterns in zip(self.support_images, self.query_images, self.shots, strict=True):
            query = self.bank.original[images].cpu().double()
            for counts in patterns:
                owner = torch.arange(len(counts)).repeat_interleave(counts.cpu())
                chosen = torch.cat([some[:count] for some, count in zip(support, counts, strict=True)])
                logits.append(score_support(head, self.bank.original[chosen].cpu().double(), owner, query).mT)
        return torch.stack(logits).unflatten(0, self.shots.shape[:2])

    def _refined(self, bound_head: BoundHead, means: Tensor) -> Float[Tensor, "episode pattern way refined"]:
        head, vectors = bound_head.head, self.bank.original
        if head.refine is None:
            return means
        if head.refine_rows is None or not isinstance(vectors, LazyVectors) or not self._one_shot_a_pattern:
            shots = self.shots[:1] if self._one_shot_a_pattern else self.shots
            return head.refine(means, shots, bound_head.parameters)
        _, positions, channel = vectors.maps.shape
        refined = []
        for number, shot in enumerate(self.steps):
            n = positions * shot
            # Cholesky, triangular solve and product with n features, or Cholesky and inverse with all channels
            if n**3 / 3 + n**2 * channel + n * channel**2 < channel**3:
                rows = vectors.maps[self.support_images[..., :shot]].flatten(2, 3)
                refined.append(head.refine_rows(rows, bound_head.parameters))
            else:
                refined.append(head.refine(means[:, number], self.shots[:, number], bound_head.parameters))
        return torch.stack(refined, 1)

    @cached_property
    def _products(self) -> tuple[Tensor, Tensor, Tensor]:
        """Inner products of prototypes with queries and of each with itself, about the centre if there is one."""
        k, sums = self.shots[..., None], self._sums
        qp = torch.bmm(sums.flatten(1, 2), self._query.mT).unflatten(1, self.shots.shape[1:])
        pp = torch.linalg.vector_norm(sums, dim=-1).square()
        return qp.div_(k), self.bank.square[self.query_images][:, None, None], pp[..., None] / (k * k)

    def _about_zero(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the products about zero without a second pass over the vectors: (q + m)(p + m) = qp + qm + pm + mm."""
        qp, qq, pp = self._products
        if self.bank.centre is None:
            return qp, qq, pp
        mm = self.bank.centre @ self.bank.centre
        qm = self.bank.along[self.query_images][:, None, None]
        along = self.bank.along[self.support_images].cumsum(2)
        pm = (self._at_shots(along.transpose(1, 2)[:, [step - 1 for step in self.steps]]) / self.shots)[..., None]
        return qp + (qm + (pm + mm)), qq + (2 * qm + mm), pp + (2 * pm + mm)

    @cached_property
    def _query(self) -> Float[Tensor, "episode query d"]:
        vectors, _, places = self._rows
        return F.embedding(places, vectors)

    @cached_property
    def _sums(self) -> Float[Tensor, "episode pattern way d"]:
        """The sum of each class's first vectors, gathered and added without a tensor of the support."""
        vectors, places, _ = self._rows
        sums, before = list[Tensor](), 0
        for step in self.steps:
            bag = places[..., before:step].flatten(0, 1)
            added = F.embedding_bag(bag, vectors, mode="sum").unflatten(0, places.shape[:2])
            sums.append(sums[-1] + added if sums else added)
            before = step
        return self._at_shots(torch.stack(sums, 1))

    @cached_property
    def _one_shot_a_pattern(self) -> bool:
        distinct = self.shots.new_tensor(self.steps)
        return self.shots.shape[1] == len(distinct) and bool((self.shots == distinct[:, None]).all())

    def _at_shots(self, steps: Float[Tensor, "episode step way *more"]) -> Float[Tensor, "episode pattern way *more"]:
        """Return values of the distinct shots by pattern; where each pattern is one shot for all, they are the same."""
        if self._one_shot_a_pattern:
            return steps
        place = torch.searchsorted(self.shots.new_tensor(self.steps), self.shots)
        for _ in steps.shape[3:]:
            place = place[..., None]
        return steps.gather(1, place.expand(*place.shape[:3], *steps.shape[3:]))
