"""Find the best of many classes: exactly, in blocks, or by an approximate index whose candidates are scored exactly.

An inner product, a cosine, a Euclidean distance and the posterior's score can all be written as one inner product of a
row per class with a vector per query, plus a constant that depends on the query alone. Rows are float32; the few best
classes are then scored again in float64 from the sums, by the head's own score.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyshot.classify.support import Support
from anyshot.errors import as_bad_input
from anyshot.models.law import BoundHead, Head, InnerProductScore, QuadraticScore

QUERIES = 512  # queries that are compared with a block of rows at once
RESCORED = 32  # queries whose candidates are scored again at once
BLOCK_FLOATS = 1 << 20  # products of queries and rows in memory at once: 4 MB, which fit the processor's cache
EXTRA = 4  # candidates beyond k that are scored again: float32 may have swapped neighbours
PIECE = 256  # classes whose rows are computed at once, and points that are indexed at once
INDEX_FROM = 4096  # classes from which on an index is faster than all products (results/growth)
SUBVECTOR, CODE_BITS = 2, 4  # numbers of a point that share a code, and bits of a code: product quantisation
INDEX_TRAINING = 4096  # points that the codes are fitted on
CANDIDATES = 64  # classes that the index returns for a query, at least: recall 0.99 and more (results/growth)

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
    """Return whether a head's score can be written as one inner product for each class."""
    score = head.score
    is_inner = isinstance(score, InnerProductScore) and score.name in ("Euclidean", "cosine", "dot")
    return (is_inner or isinstance(score, QuadraticScore)) and not head.couples


def compute_prototypes(
    head: BoundHead, support: Support, rows: Int[np.ndarray, " class"]
) -> Float[Tensor, "class refined"]:
    """Return what queries are scored against: the refined means of the classes in some rows of a support."""
    counts = support.counts[rows]
    means = torch.from_numpy(support.sums[rows] / counts[:, None])
    return head.head.refined(means, torch.from_numpy(counts), head.parameters)


@dataclass(frozen=True)
class ProductForm:
    """A score as an inner product of a row per class with a vector per query, plus a constant of the query.

    Attributes:
        name: Euclidean, cosine, dot, squares (of a QuadraticScore), or isotropic: squares whose weights are the same in
            all dimensions, so that one number of a row holds them.
        centre: The point about which Euclidean distances are computed, so that they keep their digits.
    """

    name: str
    centre: Float[Tensor, " d"]

    @staticmethod
    def from_head(head: Head, prototypes: Float[Tensor, "class refined"]) -> "ProductForm":
        """Return the form of the score of a head that `is_product`; the centre is the mean of the prototypes."""
        if isinstance(head.score, QuadraticScore):
            d = prototypes.shape[1] // 2
            square = prototypes[:, d : 2 * d]
            is_isotropic = bool((square == square[:, :1]).all())
            return ProductForm("isotropic" if is_isotropic else "squares", prototypes.new_zeros(d))
        return ProductForm(head.score_name, prototypes.mean(0))

    def rows(self, prototypes: Float[Tensor, "class refined"]) -> Rows:
        """Return a row for each class."""
        d = len(self.centre)
        if self.name == "cosine":
            rows = _unit(prototypes)
        elif self.name == "Euclidean":
            centred = prototypes - self.centre
            rows = torch.cat([centred, -centred.square().sum(1, keepdim=True)], 1)
        elif self.name == "isotropic":
            rows = torch.cat([prototypes[:, : d + 1], prototypes[:, -1:]], 1)
        else:
            rows = prototypes
        return rows.float()

    def queries(self, vectors: Float[Tensor, "query d"]) -> Queries:
        """Return the vectors that the rows are multiplied by."""
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
        """Return the factor and the constants by which logits = factor * products + constant of the query."""
        if self.name != "Euclidean":
            return scale, torch.zeros(len(query), 1)
        length = (query - self.centre).square().sum(1, keepdim=True)
        return scale / len(self.centre), (-scale / len(self.centre) * length).float()

    def points(self, rows: Rows, longest: float) -> Float[Tensor, "class place"]:
        """Return a point for each class, so that the class with the nearest point has the highest score.

        For squares this is approximate: the point is the query for which the class scores highest. For inner products
        one more number makes all points as long as the longest row (Bachrach et al. 2014).
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
        """Return the points of queries, to which the points of classes are compared."""
        d = len(self.centre)
        if self.name == "Euclidean":
            return queries[:, :d] / 2
        if self.name == "dot":
            return torch.nn.functional.pad(queries, (0, 1))
        return queries[:, :d].contiguous()


def _unit(vectors: Float[Tensor, "row d"]) -> Float[Tensor, "row d"]:
    return vectors / vectors.square().sum(1, keepdim=True).clamp_min(1e-24).sqrt()


class ClassIndex:
    """A faiss index of all classes by product quantisation; a query is compared with all codes (Jégou et al. 2011)."""

    def __init__(self, form: ProductForm, rows: Rows) -> None:
        with as_bad_input(ImportError, "index=True needs the packages of an extra: pip install 'anyshot[index]'."):
            import faiss
        self._form, longest = form, form.longest(rows)
        training = form.points(rows[:: max(1, len(rows) // INDEX_TRAINING)], longest)
        d = training.shape[1] + training.shape[1] % SUBVECTOR
        self._index: Any = faiss.IndexPQFastScan(d, d // SUBVECTOR, CODE_BITS, faiss.METRIC_L2)
        self._index.train(_pad(training))
        for part in rows.split(PIECE):
            self._index.add(_pad(form.points(part, longest)))

    def search(self, queries: Queries, n_candidates: int) -> Int[np.ndarray, "query candidate"]:
        """Return candidates for each query; -1 where there are fewer."""
        parts = (_pad(self._form.query_points(part)) for part in queries.split(PIECE))
        return np.concatenate([self._index.search(part, max(n_candidates, CANDIDATES))[1] for part in parts])


def _pad(points: Float[Tensor, "point numbers"]) -> Float[np.ndarray, "point padded"]:
    """Return points with zeros added, so that SUBVECTOR divides their length."""
    return torch.nn.functional.pad(points, (0, points.shape[1] % SUBVECTOR)).contiguous().numpy()


def top_products(
    rows: Rows, queries: Queries, k: int, to_logits: tuple[float, Float[Tensor, "query 1"]] | None = None
) -> tuple[Int[Tensor, "query k"], Float[Tensor, " query"] | None]:
    """Return the k rows with the largest products for each query, computing products block by block.

    Given a factor and constants (`ProductForm.to_logits`), also return the log-sum-exp of the logits of all rows.
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
    values_of_blocks = torch.cat(values, 1)
    chosen = values_of_blocks.topk(min(k, values_of_blocks.shape[1]), 1)[1]
    return torch.cat(places, 1).gather(1, chosen), torch.logsumexp(torch.stack(logs), 0) if logs else None


class ClassSearch:
    """Finds the classes of a support that score highest.

    Args:
        support: The classes; they must not change.
        head: The head and its parameters.
        has_index: Whether to search by an approximate index.
    """

    def __init__(self, support: Support, head: BoundHead, has_index: bool) -> None:
        self._support, self._head = support, head
        first = compute_prototypes(head, support, np.arange(min(len(support), 4 * PIECE)))
        self._form = ProductForm.from_head(head.head, first)
        self._rows = torch.empty(len(support), self._form.rows(first[:1]).shape[1])
        for rows in np.split(np.arange(len(support)), range(PIECE, len(support), PIECE)):
            self._rows[rows] = self._form.rows(compute_prototypes(head, support, rows))
        is_indexed = has_index and len(support) >= INDEX_FROM
        self._index = ClassIndex(self._form, self._rows) if is_indexed else None

    def top(self, vectors: Float[np.ndarray, "query d"], k: int, scale: float | None = None) -> TopK:
        """Return the k best classes of each query, of equal ones the first label; with a scale also `log_sums`."""
        k = min(k, len(self._support))
        starts = range(0, len(vectors), QUERIES)
        parts = [self._top(torch.from_numpy(vectors[start : start + QUERIES]), k, scale) for start in starts]
        logs = [part.log_sums for part in parts if part.log_sums is not None]
        rows, scores = (np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "scores"))
        return TopK(rows, scores, np.concatenate(logs) if logs else None)

    def _top(self, vectors: Float[Tensor, "query d"], k: int, scale: float | None) -> TopK:
        query, n_candidates = self._head.transform(vectors), min(k + EXTRA, len(self._support))
        queries = self._form.queries(query)
        logs = None
        if self._index is not None and scale is None:
            rows = self._index.search(queries, n_candidates)
        else:
            to_logits = None if scale is None else self._form.to_logits(query, scale)
            places, logs = top_products(self._rows, queries, n_candidates, to_logits)
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
        """Return the head's own scores of the candidates of each query."""
        prototypes = compute_prototypes(self._head, self._support, rows.ravel()).unflatten(0, rows.shape)
        return self._head.score(query[:, None], prototypes)[:, 0]

    def _order(self, rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Return the order of candidates: the best first, of equal scores the first label."""
        order = np.argsort(-scores, 1, kind="stable")
        sorted_scores = np.take_along_axis(scores, order, 1)
        for query in np.flatnonzero((sorted_scores[:, 1:] == sorted_scores[:, :-1]).any(1)).tolist():
            labels = self._support.labels_of(rows[query])
            order[query] = np.lexsort((np.argsort(np.argsort(labels, kind="stable")), -scores[query]))
        return order
