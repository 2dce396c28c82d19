"""The best of many classes: exactly, in blocks, or by an approximate index whose candidates are scored exactly.

Every score that is an inner product, a cosine, a Euclidean distance or the posterior's is one inner product of a row
per class and a query of as many numbers, up to a constant of the query. Rows are float32; the few best classes are
scored again in float64 from the sums, by the head's own score.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyshot.classify.support import Support
from anyshot.errors import BadInput
from anyshot.models.law import BoundHead, Head, InnerProductScore, QuadraticScore

QUERIES = 512  # queries that are compared with a block of rows at once
RESCORED = 32  # queries whose candidates are scored again at once: each has candidates of its own
BLOCK_FLOATS = 1 << 20  # products of queries and rows in memory at once: 4 MB, which stay in the cache
EXTRA = 4  # candidates beyond those wanted that are scored again: float32 may have swapped neighbours
PIECE = 256  # classes whose rows are computed at once, or points that are indexed at once
INDEX_FROM = 4096  # classes from which on an index is faster than all products (results/growth)
CODED, CODES = 2, 16  # numbers of a point that are quantised together, and codes for them: half a byte for two
INDEX_TRAINING = 4096  # points that the codes are fitted on
CANDIDATES = 64  # classes that an index names for a query, at least: recall 0.99 and more (results/growth)

Rows = Float[Tensor, "class numbers"]
Queries = Float[Tensor, "query numbers"]


@dataclass(frozen=True)
class TopK:
    """The best classes of each query, the best first.

    Attributes:
        rows: Their rows in the support.
        scores: Their scores, without the temperature.
        log_sums: The logarithm of the sum over all classes of exp(scale * score), where a scale was given.
    """

    rows: Int[np.ndarray, "query k"]
    scores: Float[np.ndarray, "query k"]
    log_sums: Float[np.ndarray, " query"] | None = None


def is_product(head: Head) -> bool:
    """Return whether a head's score is one inner product, class by class."""
    score = head.score
    is_inner = isinstance(score, InnerProductScore) and score.name in ("Euclidean", "cosine", "dot")
    return (is_inner or isinstance(score, QuadraticScore)) and not head.couples


@dataclass(frozen=True)
class ProductForm:
    """A score as one inner product, up to what depends on the query alone.

    Attributes:
        name: Euclidean, cosine, dot, squares, or "isotropic" where all directions have the same weight of squares.
        centre: The point about which Euclidean distances are computed, so that they keep their digits.
    """

    name: str
    centre: Float[Tensor, " d"]

    @staticmethod
    def from_head(head: Head, prototypes: Float[Tensor, "class refined"]) -> "ProductForm":
        """Return the form of a head's score; some prototypes tell the centre."""
        if isinstance(head.score, QuadraticScore):
            d = prototypes.shape[1] // 2
            square = prototypes[:, d : 2 * d]
            is_one = bool((square == square[:, :1]).all())
            return ProductForm("isotropic" if is_one else "squares", prototypes.new_zeros(d))
        if not is_product(head):
            raise BadInput("this head's score is no inner product, cosine, distance or posterior.")
        return ProductForm(head.score_name, prototypes.mean(0))

    def rows(self, prototypes: Float[Tensor, "class refined"]) -> Rows:
        """Return a row for each class."""
        d = len(self.centre)
        if self.name == "cosine":
            rows = _unit(prototypes)
        elif self.name == "Euclidean":
            inside = prototypes - self.centre
            rows = torch.cat([inside, -inside.square().sum(1, keepdim=True)], 1)
        elif self.name == "isotropic":
            rows = torch.cat([prototypes[:, : d + 1], prototypes[:, -1:]], 1)
        else:
            rows = prototypes
        return rows.float()

    def queries(self, vectors: Float[Tensor, "query d"]) -> Queries:
        """Return what the rows are multiplied by."""
        one = torch.ones(len(vectors), 1).to(vectors)
        if self.name == "cosine":
            queries = _unit(vectors)
        elif self.name == "Euclidean":
            queries = torch.cat([2 * (vectors - self.centre), one], 1)
        elif self.name == "isotropic":
            queries = torch.cat([vectors, vectors.square().sum(1, keepdim=True), one], 1)
        elif self.name == "squares":
            queries = torch.cat([vectors, vectors.square(), one], 1)
        else:
            queries = vectors
        return queries.float()

    def to_logits(self, query: Float[Tensor, "query d"], scale: float) -> tuple[float, Float[Tensor, "query 1"]]:
        """Return the factor and the constant of each query that make logits of products."""
        if self.name != "Euclidean":
            return scale, torch.zeros(len(query), 1)
        length = (query - self.centre).square().sum(1, keepdim=True)
        return scale / len(self.centre), (-scale / len(self.centre) * length).float()

    def points(self, rows: Rows, longest: float) -> Float[Tensor, "class place"]:
        """Return where classes lie for an index of nearest points.

        For a score with squares it is the query that a class scores highest. For inner products one more number makes
        all points as long as the longest row.
        """
        d = len(self.centre)
        if self.name == "Euclidean":
            return rows[:, :d]
        if self.name in ("isotropic", "squares"):
            return rows[:, :d] / (-2 * rows[:, d : 2 * d] if self.name == "squares" else -2 * rows[:, d : d + 1])
        if self.name == "dot":
            square = rows.square().sum(1, keepdim=True)
            return torch.cat([rows, (longest**2 - square).clamp_min(0).sqrt()], 1)
        return rows

    def longest(self, rows: Rows) -> float:
        """Return the length of the longest row, where points depend on it."""
        return max(float(part.norm(dim=1).max()) for part in rows.split(PIECE)) if self.name == "dot" else 0.0

    def query_points(self, queries: Queries) -> Float[Tensor, "query place"]:
        """Return where queries lie among these points."""
        d = len(self.centre)
        if self.name == "Euclidean":
            return queries[:, :d] / 2
        if self.name == "dot":
            return torch.nn.functional.pad(queries, (0, 1))
        return queries[:, :d].contiguous()


def _unit(vectors: Float[Tensor, "row d"]) -> Float[Tensor, "row d"]:
    return vectors / vectors.square().sum(1, keepdim=True).clamp_min(1e-24).sqrt()


class ClassIndex:
    """An index of faiss over all classes: product quantisation, all codes compared (Jégou et al. 2011)."""

    def __init__(self, form: ProductForm, rows: Rows) -> None:
        try:
            import faiss
        except ImportError:
            raise BadInput("index=True needs the packages of an extra: pip install 'anyshot[index]'.") from None
        self._form, longest = form, form.longest(rows)
        training = form.points(rows[:: max(1, len(rows) // INDEX_TRAINING)], longest)
        d = training.shape[1] + training.shape[1] % CODED
        make: Any = faiss.IndexPQFastScan
        self._index = make(d, d // CODED, CODES.bit_length() - 1, faiss.METRIC_L2)
        self._index.train(_pad(training))
        for part in rows.split(PIECE):
            self._index.add(_pad(form.points(part, longest)))

    def search(self, queries: Queries, many: int) -> Int[np.ndarray, "query candidate"]:
        """Return candidates for each query; -1 where there are fewer."""
        parts = (_pad(self._form.query_points(part)) for part in queries.split(PIECE))
        return np.concatenate([self._index.search(part, max(many, CANDIDATES))[1] for part in parts])


def _pad(points: Float[Tensor, "point numbers"]) -> Float[np.ndarray, "point padded"]:
    """Return points with as many numbers as can be coded together."""
    return torch.nn.functional.pad(points, (0, points.shape[1] % CODED)).contiguous().numpy()


def top_products(
    rows: Rows, queries: Queries, k: int, to_logits: tuple[float, Float[Tensor, "query 1"]] | None = None
) -> tuple[Int[Tensor, "query k"], Float[Tensor, " query"] | None]:
    """Return the rows with the largest products of each query, without the matrix of all products.

    With a factor and constants that make logits of products, also the log-sum-exp of the logits.
    """
    size = max(1, BLOCK_FLOATS // len(queries))
    values, places, logs = [], [], []
    for start in range(0, len(rows), size):
        products = queries @ rows[start : start + size].mT
        best = products.max(1, keepdim=True) if k == 1 else products.topk(min(k, products.shape[1]), 1)
        values.append(best[0])
        places.append(best[1] + start)
        if to_logits is not None:
            logs.append(torch.logsumexp(products.mul_(to_logits[0]).add_(to_logits[1]), 1))
    every = torch.cat(values, 1)
    chosen = every.topk(min(k, every.shape[1]), 1)[1]
    return torch.cat(places, 1).gather(1, chosen), torch.logsumexp(torch.stack(logs), 0) if logs else None


class ClassSearch:
    """The best classes of a support for one head.

    Args:
        support: The classes; they must not change.
        bound: The head and its parameters.
        has_index: Whether to search by an approximate index.
    """

    def __init__(self, support: Support, bound: BoundHead, has_index: bool) -> None:
        self._support, self._bound = support, bound
        first = self._prototypes(np.arange(min(len(support), 4 * PIECE)))
        self._form = ProductForm.from_head(bound.head, first)
        self._rows = torch.empty(len(support), self._form.rows(first[:1]).shape[1])
        for rows in np.split(np.arange(len(support)), range(PIECE, len(support), PIECE)):
            self._rows[rows] = self._form.rows(self._prototypes(rows))
        is_indexed = has_index and len(support) >= INDEX_FROM
        self._index = ClassIndex(self._form, self._rows) if is_indexed else None

    def top(self, vectors: Float[np.ndarray, "query d"], k: int, scale: float | None = None) -> TopK:
        """Return the k best classes of each query, of equal ones the first label; with a scale also the sums."""
        k = min(k, len(self._support))
        starts = range(0, len(vectors), QUERIES)
        parts = [self._top(torch.from_numpy(vectors[start : start + QUERIES]), k, scale) for start in starts]
        logs = [part.log_sums for part in parts if part.log_sums is not None]
        rows, scores = (np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "scores"))
        return TopK(rows, scores, np.concatenate(logs) if logs else None)

    def _top(self, vectors: Float[Tensor, "query d"], k: int, scale: float | None) -> TopK:
        query, many = self._bound.transform(vectors), min(k + EXTRA, len(self._support))
        queries = self._form.queries(query)
        logs = None
        if self._index is not None and scale is None:
            rows = self._index.search(queries, many)
        else:
            to_logits = None if scale is None else self._form.to_logits(query, scale)
            places, logs = top_products(self._rows, queries, many, to_logits)
            rows = places.numpy()
        pieces = zip(query.split(RESCORED), np.split(rows, range(RESCORED, len(rows), RESCORED)), strict=True)
        scores = torch.cat([self._score(*piece) for piece in pieces]).numpy()
        scores[rows < 0] = -np.inf
        order = self._order(rows, scores)[:, :k]
        best = np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)
        return TopK(*best, None if logs is None else logs.double().numpy())

    def _score(
        self, query: Float[Tensor, "query d"], rows: Int[np.ndarray, "query candidate"]
    ) -> Float[Tensor, "query candidate"]:
        """Return the head's own scores of candidates that each query has for itself."""
        return self._bound.score(query[:, None], self._prototypes(rows.ravel()).unflatten(0, rows.shape))[:, 0]

    def _prototypes(self, rows: Int[np.ndarray, " row"]) -> Float[Tensor, "row refined"]:
        counts = self._support.counts[rows]
        means = torch.from_numpy(self._support.sums[rows] / counts[:, None])
        return self._bound.head.refined(means, torch.from_numpy(counts), self._bound.parameters)

    def _order(self, rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Return the order of candidates: the best first, of equal scores the first label."""
        order = np.argsort(-scores, 1, kind="stable")
        sorted_scores = np.take_along_axis(scores, order, 1)
        for query in np.flatnonzero((sorted_scores[:, 1:] == sorted_scores[:, :-1]).any(1)).tolist():
            labels = self._support.labels_of(rows[query])
            order[query] = np.lexsort((np.argsort(np.argsort(labels, kind="stable")), -scores[query]))
        return order
