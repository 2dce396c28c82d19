"""The best of many classes: exact in blocks on all cores, or by an approximate index whose finds are scored exactly.

Every score that is an inner product, a cosine, a Euclidean distance or the posterior's is one inner product of a row
per class and a query of as many numbers, up to a constant of the query. Rows are float32 and follow the ledger row by
row; the few best are scored again in float64 from the sums themselves, by the head's own score.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyshot.deploy.ledger import Ledger, with_slack
from anyshot.deploy.pool import make_room
from anyshot.errors import BadInput
from anyshot.machine import give_back_memory
from anyshot.models.law import Head, Inner, Quadratic, Reading

QUERIES = 512  # that are asked at once
ASKED = 32  # of these, whose candidates are looked at at once: each of them has its own
TABLED = 256  # of these, for which an index makes its tables at once
BLOCK_FLOATS = 1 << 20  # products of queries and rows that are in memory at once
MORE = 4  # candidates beyond those wanted that are scored again: float32 may have swapped neighbours
WORTH = 4096  # classes from which on an index is faster than looking at all of them
CODED, CODES = 2, 16  # numbers of a point that are coded together in an index, and codes for them
LEARNED_FROM = 4096  # points that the codes are learned from
PIECE = 256  # classes whose rows are made at once, or points that are coded at once
CANDIDATES = 64  # classes that an index names for a query, at least
UNINDEXED = 0.1  # share of the classes that may have changed since an index was built; these are looked at one by one

Rows = Float[Tensor, "way numbers"]
Queries = Float[Tensor, "query numbers"]


@dataclass(frozen=True)
class Best:
    """The best classes of each query, the best first."""

    rows: Int[np.ndarray, "query k"]
    """In order of arrival (`Ledger`)."""
    scores: Float[np.ndarray, "query k"]
    log_sums: Float[np.ndarray, " query"] | None = None
    """Of all classes, the logarithm of the sum of exp(scale * score), where a scale was given."""


@dataclass(frozen=True)
class Linear:
    """A score as one inner product, up to what depends on the query alone; `centre` keeps the digits of distances."""

    name: str
    centre: Float[Tensor, " d"]

    @staticmethod
    def of(head: Head, prototypes: Float[Tensor, "way refined"]) -> "Linear | None":
        """For a head whose score is one; some prototypes say about which centre it is best computed."""
        score = head.score
        if isinstance(score, Quadratic):
            d = prototypes.shape[1] // 2
            square = prototypes[:, d : 2 * d]
            alike = bool((square == square[:, :1]).all())
            return Linear("one square" if alike else "squares", prototypes.new_zeros(d))
        if isinstance(score, Inner) and score.name in ("Euclidean", "cosine", "dot"):
            return Linear(score.name, prototypes.mean(0))
        return None

    def rows(self, prototypes: Float[Tensor, "way refined"]) -> Rows:
        """One per class."""
        d = len(self.centre)
        if self.name == "cosine":
            rows = prototypes / prototypes.square().sum(1, keepdim=True).clamp_min(1e-24).sqrt()
        elif self.name == "Euclidean":
            inside = prototypes - self.centre
            rows = torch.cat([inside, -inside.square().sum(1, keepdim=True)], 1)
        elif self.name == "one square":
            rows = torch.cat([prototypes[:, : d + 1], prototypes[:, -1:]], 1)
        else:
            rows = prototypes
        return rows.float()

    def queries(self, vectors: Float[Tensor, "query d"]) -> Queries:
        """What the rows are multiplied by."""
        one = torch.ones(len(vectors), 1).to(vectors)
        if self.name == "cosine":
            queries = vectors / vectors.square().sum(1, keepdim=True).clamp_min(1e-24).sqrt()
        elif self.name == "Euclidean":
            queries = torch.cat([2 * (vectors - self.centre), one], 1)
        elif self.name == "one square":
            queries = torch.cat([vectors, vectors.square().sum(1, keepdim=True), one], 1)
        elif self.name == "squares":
            queries = torch.cat([vectors, vectors.square(), one], 1)
        else:
            queries = vectors
        return queries.float()

    def points(self, rows: Rows, longest: float) -> Float[Tensor, "way place"]:
        """Where classes lie for an index that looks for the nearest points. Of squares it is the query that a class
        scores highest; of inner products one more number makes all points as long as the longest row."""
        d = len(self.centre)
        if self.name == "Euclidean":
            return rows[:, :d]
        if self.name in ("one square", "squares"):
            return rows[:, :d] / (-2 * rows[:, d : 2 * d] if self.name == "squares" else -2 * rows[:, d : d + 1])
        if self.name == "dot":
            square = rows.square().sum(1, keepdim=True)
            return torch.cat([rows, (longest**2 - square).clamp_min(0).sqrt()], 1)
        return rows

    def longest(self, rows: Rows) -> float:
        """The length of the longest row, where points depend on it."""
        return max(float(part.norm(dim=1).max()) for part in rows.split(PIECE)) if self.name == "dot" else 0.0

    def asked(self, queries: Queries) -> Float[Tensor, "query place"]:
        """Where queries lie among these points."""
        d = len(self.centre)
        if self.name == "Euclidean":
            return queries[:, :d] / 2
        if self.name == "dot":
            return torch.nn.functional.pad(queries, (0, 1))
        return queries[:, :d].contiguous()


def build_index(linear: Linear, rows: Rows) -> Any:
    """Points in half a byte for two numbers each, all gone through for a query: what it names is scored exactly."""
    try:
        import faiss
    except ImportError:
        raise BadInput("index=True needs the packages of an extra: pip install 'anyshot[index]'.") from None
    way, longest = len(rows), linear.longest(rows)
    learned_from = linear.points(rows[:: max(1, way // LEARNED_FROM)], longest)
    d = learned_from.shape[1]
    make: Any = faiss.IndexPQFastScan
    index = make(d + d % CODED, (d + d % CODED) // CODED, CODES.bit_length() - 1, faiss.METRIC_L2)
    index.train(_padded(learned_from))
    for part in rows.split(PIECE):
        index.add(_padded(linear.points(part, longest)))
    return index


def _padded(points: Float[Tensor, "point numbers"]) -> Float[np.ndarray, "point padded"]:
    """With as many numbers as can be coded together."""
    return torch.nn.functional.pad(points, (0, points.shape[1] % CODED)).contiguous().numpy()


def best_in_blocks(
    rows: Rows, queries: Queries, k: int, sums: Callable[[Tensor], Tensor] | None = None
) -> tuple[Float[Tensor, "query k"], Int[Tensor, "query k"], Float[Tensor, " query"] | None]:
    """The largest products of each query and their rows, without the matrix of all; with `sums` (what is summed over
    the exponents of a block's products, which it may change) also the logarithm of that sum."""
    size = min(len(rows), max(1, BLOCK_FLOATS // len(queries)))
    blocks = -(-len(rows) // size)
    # Room for all that stays is made first: what stays would else split what each block leaves free.
    values, places = (
        queries.new_empty(len(queries), k * blocks),
        torch.empty(len(queries), k * blocks, dtype=torch.long),
    )
    logs, room, filled = queries.new_empty(blocks, len(queries)), queries.new_empty(len(queries) * size), 0
    for block, start in enumerate(range(0, len(rows), size)):
        part = rows[start : start + size]
        products = room[: len(queries) * len(part)].view(len(queries), len(part))
        if len(queries) == 1:
            torch.mv(part, queries[0], out=products[0])
        else:
            torch.mm(queries, part.mT, out=products)
        best = products.max(1, keepdim=True) if k == 1 else products.topk(min(k, len(part)), 1)
        here = slice(filled, filled := filled + best[0].shape[1])
        values[:, here] = best[0]
        torch.add(best[1], start, out=places[:, here])
        if sums is not None:
            torch.logsumexp(sums(products), 1, out=logs[block])
    values, places = values[:, :filled], places[:, :filled]
    chosen = values.topk(min(k, filled), 1)[1]
    total = torch.logsumexp(logs, 0) if sums is not None else None
    return values.gather(1, chosen), places.gather(1, chosen), total


@dataclass
class Search:
    """Answers among the classes of a ledger, for one head; what was learned since the last answer is followed.

    Args:
        ledger: The classes.
        reading: The head whose score it is, with its parameters.
        indexed: Whether to answer by an approximate index.
    """

    ledger: Ledger
    reading: Reading
    indexed: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._memory, self._filled = np.zeros((0, 0), np.float32), 0  # rows are made room for in advance
        self._linear: Linear | None = None
        self._index: Any = None
        self._recent: set[int] = set()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a search is made anew where it is needed")

    @property
    def _rows(self) -> Rows:
        return torch.from_numpy(self._memory[: self._filled])

    def prototypes(self, rows: np.ndarray | slice) -> Float[Tensor, "way refined"]:
        """What queries are scored against, of some classes."""
        counts = self.ledger.counts[rows]
        means = torch.from_numpy(self.ledger.sums[rows] / counts[..., None])
        return self.reading.head.refined(means, torch.from_numpy(counts), self.reading.parameters)

    def best(
        self, vectors: Float[np.ndarray, "query d"], k: int, scale: float | None = None, has_length: bool = False
    ) -> Best:
        """The k best classes of each query; equal ones in order of their labels. `has_length` as in an `Estimator`."""
        k = min(k, len(self.ledger))
        with self._lock:
            self._follow()
        parts = list[Best]()
        for start in range(0, len(vectors), QUERIES):
            query = self.reading.transform(torch.from_numpy(vectors[start : start + QUERIES]), has_length)
            parts.append(self._best(query, k, scale))
            if len(vectors) > ASKED:  # fewer leave nothing behind that is worth looking for
                self._give_back()
        logs = [part.log_sums for part in parts if part.log_sums is not None]
        return Best(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.scores for part in parts]),
            np.concatenate(logs) if logs else None,
        )

    def _best(self, query: Float[Tensor, "query d"], k: int, scale: float | None) -> Best:
        assert self._linear is not None
        queries, many = self._linear.queries(query), min(k + MORE, len(self.ledger))
        logs: Tensor | None = None
        if self._index is not None and scale is None:
            rows = self._candidates(queries, many)
        else:
            factor, constant = self._to_logits(query, scale) if scale is not None else (1.0, torch.zeros(1))
            sums = (lambda products: products.mul_(factor).add_(constant)) if scale is not None else None
            _, places, logs = best_in_blocks(self._rows, queries, many, sums)
            rows = places.numpy()
        pieces = zip(query.split(ASKED), np.split(rows, range(ASKED, len(rows), ASKED)), strict=True)
        again = torch.cat([self._scores(*piece) for piece in pieces]).numpy()
        again[rows < 0] = -np.inf  # an index named fewer
        order = self._order(rows, again)[:, :k]
        return Best(
            np.take_along_axis(rows, order, 1),
            np.take_along_axis(again, order, 1),
            logs.double().numpy() if logs is not None else None,
        )

    def _candidates(self, queries: Queries, many: int) -> Int[np.ndarray, "query candidate"]:
        """The best of what the index names and of what it does not know yet; -1 where there are fewer."""
        assert self._linear is not None
        asked = (_padded(self._linear.asked(part)) for part in queries.split(TABLED))
        named = np.concatenate([self._index.search(part, max(many, CANDIDATES))[1] for part in asked])
        if self._recent:
            recent = np.array(sorted(self._recent))
            places = best_in_blocks(self._rows[torch.from_numpy(recent)], queries, min(many, len(recent)))[1].numpy()
            named = np.concatenate([named, recent[places]], 1)
        named.sort(1)
        named[:, 1:][named[:, 1:] == named[:, :-1]] = -1  # named twice
        best = []
        for start in range(0, len(queries), ASKED):
            rows = named[start : start + ASKED]
            theirs = self._memory[rows.clip(0)]  # not by torch, which would wake its threads for one query
            products = np.einsum("qcd,qd->qc", theirs, queries[start : start + ASKED].numpy())
            products[rows < 0] = -np.inf
            best.append(np.take_along_axis(rows, np.argsort(-products, 1, kind="stable")[:, :many], 1))
        return np.concatenate(best)

    def _scores(
        self, query: Float[Tensor, "query d"], rows: Int[np.ndarray, "query candidate"]
    ) -> Float[Tensor, "query candidate"]:
        """The head's own, of classes that each query has for itself."""
        refined = self.prototypes(rows.ravel()).unflatten(0, rows.shape)
        return self.reading.head.score(query[:, None], refined)[:, 0]

    def _to_logits(self, query: Float[Tensor, "query d"], scale: float) -> tuple[float, Float[Tensor, "query 1"]]:
        """What makes logits of products."""
        assert self._linear is not None
        if self._linear.name != "Euclidean":
            return scale, torch.zeros(len(query), 1)
        d = len(self._linear.centre)
        own = (query - self._linear.centre).square().sum(1, keepdim=True)
        return scale / d, (-scale / d * own).float()

    def _order(self, rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """The best first; of equal scores the first label."""
        order = np.argsort(-scores, 1, kind="stable")
        sorted_scores = np.take_along_axis(scores, order, 1)
        for one in np.flatnonzero((sorted_scores[:, 1:] == sorted_scores[:, :-1]).any(1)).tolist():
            labels = self.ledger.labels_of(rows[one])
            order[one] = np.lexsort((np.argsort(np.argsort(labels, kind="stable")), -scores[one]))
        return order

    # ------------------------------------------------------------------------------------------------------ following

    def _follow(self) -> None:
        """Bring the rows up to what was learned: those that were touched, or all where there are none yet."""
        way, changed = len(self.ledger), self.ledger.changed()
        if self._linear is None:
            self._linear = Linear.of(self.reading.head, self.prototypes(slice(0, min(way, 4 * PIECE))))
            if self._linear is None:
                raise BadInput("this head's score is no inner product, cosine, distance or posterior.")
            rows = np.arange(way)
            self._give_back()  # before there are rows
        else:
            rows = np.union1d(changed, np.arange(self._filled, way))
        for start in range(0, len(rows), PIECE):
            self._put(rows[start : start + PIECE])
        self._filled = way
        if self.indexed and way >= WORTH:
            self._recent.update(rows.tolist())
            if self._index is None or len(self._recent) > max(QUERIES, UNINDEXED * way):
                self._give_back()
                self._index, self._recent = build_index(self._linear, self._rows), set()
        else:
            self._index, self._recent = None, set()
        if len(rows) > WORTH:
            self._give_back()

    def _give_back(self) -> None:
        if self.ledger.is_vast:
            give_back_memory()

    def _put(self, rows: Int[np.ndarray, " row"]) -> None:
        assert self._linear is not None
        new = self._linear.rows(self.prototypes(rows)).numpy()
        if not self._filled and not len(self._memory):
            self._memory = np.empty((len(self.ledger), new.shape[1]), np.float32)
        elif len(self._memory) < len(self.ledger):
            make_room(self, "_memory", with_slack(len(self.ledger)))
        self._memory[rows] = new


def can_search(head: Head) -> bool:
    """Whether the classes of a head can be searched row by row."""
    is_searched = isinstance(head.score, Quadratic) or (
        isinstance(head.score, Inner) and head.score.name in ("Euclidean", "cosine", "dot")
    )
    return is_searched and not head.couples
