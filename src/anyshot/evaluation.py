"""The evaluation engine: features and a plan in, per-episode recalls out.

Each image is embedded once. For a chunk of episodes the support is summed in nested bags, so that all test shots cost
little more than the largest; one product with the queries answers every score that needs only inner products; heads
that refine start from the same sums. Chunks are small enough for the cache and run on all cores.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from anyshot.episodes import Draw, Plan
from anyshot.heads import Head, Inner, Parameters

Shots = Sequence[int] | Int[np.ndarray, "pattern way"] | Int[np.ndarray, "pattern episode way"]
Recall = Float[np.ndarray, "head pattern episode way"]
CHUNK_FLOATS = 2_500_000  # queries and prototypes of a chunk: about what a last-level cache holds


@dataclass(frozen=True)
class Reading:
    """A head with its parameters: one way to read a bank of vectors."""

    head: Head
    parameters: Parameters

    @property
    def plain(self) -> bool:
        """Whether the shared product of queries and prototypes is all it needs."""
        return self.head.refine is None and isinstance(self.head.score, Inner)


def recalls(
    bank: Float[Tensor, "image d"],
    readings: Sequence[Reading],
    plan: Plan,
    shots: Shots,
    progress: Callable[[int], None] = lambda episodes: None,
) -> Recall:
    """The share of each class's queries that each reading gets right, for every pattern of shots and every episode.

    `shots` is a list of shots, or an array of patterns of one shot a class (for all episodes, or for each). A query
    whose best logit is shared by n classes counts 1/n if its own is among them, as if ties were broken at random."""
    patterns = _patterns(shots, plan)
    out = np.empty((len(readings), len(patterns), plan.episodes, plan.way), np.float32)
    centre = _mean(bank) if any(_is_centred(reading) for reading in readings) else None
    d = bank.shape[1]
    size = max(1, CHUNK_FLOATS // (d * plan.way * (plan.queries + len(patterns))))

    def run(start: int) -> None:
        stop = min(start + size, plan.episodes)
        chunk = _Chunk(bank, centre, plan.draw(start, stop), patterns[:, start:stop])
        for index, reading in enumerate(readings):
            out[index, :, start:stop] = _recall(chunk.logits(reading), plan).numpy()
        progress(stop - start)

    threads = torch.get_num_threads()
    # One thread a chunk: coarse pieces keep all cores busy where threads inside small operations would only wait.
    with torch.inference_mode(), ThreadPoolExecutor(threads, initializer=_one_thread) as pool:
        try:
            list(pool.map(run, range(0, plan.episodes, size)))
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)
    return out


def _one_thread() -> None:
    torch.set_num_threads(1)


def _patterns(shots: Shots, plan: Plan) -> Int[np.ndarray, "pattern episode way"]:
    patterns = np.asarray(shots, np.int64)
    while patterns.ndim < 3:
        patterns = patterns[..., None] if patterns.ndim == 1 else patterns[:, None]
    return np.broadcast_to(patterns, (len(patterns), plan.episodes, plan.way))


def _is_centred(reading: Reading) -> bool:
    return reading.plain and isinstance(reading.head.score, Inner) and reading.head.score.centred


def _mean(bank: Tensor) -> Tensor:
    """The mean vector, read in pieces: the bank may be a memory map larger than memory."""
    return (
        sum((piece.sum(0, dtype=torch.float64) for piece in bank.split(4096)), torch.zeros(())).div(len(bank)).to(bank)
    )


class _Chunk:
    """A few episodes: support sums and queries (about the centre), and the product they share."""

    def __init__(self, bank: Tensor, centre: Tensor | None, draw: Draw, patterns: np.ndarray) -> None:
        self.centre = centre
        self.shots = torch.from_numpy(np.ascontiguousarray(patterns.swapaxes(0, 1))).to(bank.device)  # episode first
        self.query = bank[torch.from_numpy(draw.query).flatten(1).to(bank.device)]
        self.sums = _nested_sums(bank, torch.from_numpy(draw.support).to(bank.device), self.shots)
        if centre is not None:
            self.query = self.query - centre
            self.sums = self.sums - self.shots[..., None] * centre
        self._products: tuple[Tensor, Tensor, Tensor] | None = None

    def logits(self, reading: Reading) -> Float[Tensor, "episode pattern way query"]:
        """Logits without the temperature, which changes no prediction."""
        score = reading.head.score
        if reading.plain and isinstance(score, Inner):
            qp, qq, pp = self._inner(score.centred)
            return score.of(qp, qq, pp, self.query.shape[-1])
        means = self.sums / self.shots[..., None]
        query = self.query
        if self.centre is not None:
            means, query = means + self.centre, query + self.centre
        if reading.head.refine is not None:
            means = reading.head.refine(means, reading.parameters, False)
        return score(query[:, None], means).mT

    def _inner(self, centred: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Inner products of prototypes with queries and of each with itself, about the centre or about zero."""
        if self._products is None:
            qp = torch.bmm(self.sums.flatten(1, 2), self.query.mT).unflatten(1, self.shots.shape[1:])
            pp = torch.linalg.vecdot(self.sums, self.sums)[..., None]
            qq = torch.linalg.vecdot(self.query, self.query)[:, None, None]
            k = self.shots[..., None]
            self._products = (qp / k, qq, pp / (k * k))
        qp, qq, pp = self._products
        if centred or self.centre is None:
            return qp, qq, pp
        # (q + m)(p + m) = qp + qm + pm + mm: the uncentred products without a second pass over the vectors
        mm = self.centre @ self.centre
        qm = (self.query @ self.centre)[:, None, None]
        pm = ((self.sums @ self.centre) / self.shots)[..., None]
        return qp + qm + pm + mm, qq + 2 * qm + mm, pp + 2 * pm + mm


def _nested_sums(
    bank: Tensor, support: Int[Tensor, "episode way shot"], shots: Int[Tensor, "episode pattern way"]
) -> Float[Tensor, "episode pattern way d"]:
    """The sum of each class's first `shots` support vectors, gathered and added without a tensor of the support."""
    steps = shots.unique().tolist()
    episodes, way, _ = support.shape
    sums = bank.new_empty(episodes, len(steps), way, bank.shape[1])
    before, running = 0, bank.new_zeros(episodes * way, bank.shape[1])
    for number, step in enumerate(steps):
        bag = F.embedding_bag(support[..., before:step].reshape(episodes * way, -1), bank, mode="sum")
        running = running + bag
        sums[:, number] = running.unflatten(0, (episodes, way))
        before = step
    if shots.shape[1] == len(steps) and (shots == shots.new_tensor(steps)[:, None]).all():
        return sums
    place = torch.searchsorted(shots.new_tensor(steps), shots)
    return sums.gather(1, place[..., None].expand(*place.shape, bank.shape[1]))


def _recall(logits: Float[Tensor, "episode pattern way query"], plan: Plan) -> Float[Tensor, "pattern episode way"]:
    best = logits.amax(2)
    tied = (logits == best[:, :, None]).sum(2)
    by_class = (plan.way, plan.queries)
    true = logits.unflatten(3, by_class).diagonal(dim1=2, dim2=3).mT  # the logit of each query's own class
    right = (true == best.unflatten(2, by_class)) / tied.unflatten(2, by_class)
    return right.mean(-1).transpose(0, 1)
