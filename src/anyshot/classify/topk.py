"""Find the best of many classes: exactly, block by block, or by an approximate index; its candidates are scored again.

Prototypes of very many classes are float32. The few best classes are then scored again in float64 from their sums.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyshot.arrays import split_rows
from anyshot.classify.support import Support
from anyshot.errors import as_bad_input
from anyshot.models.law import BoundHead, Head, InnerProductScore, QuadraticScore, normalize

QUERIES = 512  # queries that are compared with a block of classes at once
RESCORED = 32  # queries whose candidates are scored again at once
BLOCK_FLOATS = 1 << 20  # scores, or numbers of prototypes, in memory at once: 4 MB, which fit the processor's cache
EXTRA = 4  # candidates beyond k that are scored again: float32 may have swapped neighbours
PIECE = 256  # classes whose prototypes are computed at once in float64
INDEX_FROM = 4096  # classes from which on an index is faster than all scores (results/growth)
SUBVECTOR, CODE_BITS = 2, 4  # numbers of a point that share a code, and bits of a code: product quantisation
INDEX_TRAINING = 4096  # points that the codes are fitted on
CANDIDATES = 64  # classes that the index returns for a query, at least: recall 0.99 and more (results/growth)

Prototypes = Float[Tensor, "class refined"]
Query = Float[Tensor, "query d"]


class TopK(NamedTuple):
    """The best classes of each query, the best first.

    Attributes:
        rows: Their rows in the support.
        scores: Their scores, without the temperature.
        log_sums: The logarithm of the sum over all classes of exp(scale * score), where a scale was given.
    """

    rows: Int[np.ndarray, "query k"]
    scores: Float[np.ndarray, "query k"]
    log_sums: Float[np.ndarray, " query"] | None = None


def compute_prototypes(head: BoundHead, support: Support, rows: Int[np.ndarray, " class"]) -> Prototypes:
    """Return what queries are scored against: the refined means of the classes in some rows of a support."""
    counts = support.counts[rows]
    means = torch.from_numpy(support.sums[rows] / counts[:, None])
    return head.head.refined(means, torch.from_numpy(counts), head.parameters)


def has_points(head: Head) -> bool:
    """Return whether classes can be written as points of which the nearest to a query has (nearly) the best score."""
    is_inner = isinstance(head.score, InnerProductScore) and head.score_name in ("Euclidean", "cosine", "dot")
    return (is_inner or isinstance(head.score, QuadraticScore)) and not head.couples


def class_points(head: Head, prototypes: Prototypes) -> Float[Tensor, "class place"]:
    """Return the points of classes, for a head that `has_points`.

    For a quadratic score this is approximate: the point is the query for which the class scores highest. For inner
    products one more number makes all points as long as the longest (Bachrach et al. 2014).
    """
    if isinstance(head.score, QuadraticScore):
        linear, square, _ = prototypes.tensor_split([len(prototypes[0]) // 2, len(prototypes[0]) - 1], 1)
        return linear / (-2 * square)
    if head.score_name == "dot":
        square = prototypes.square().sum(1, keepdim=True)
        return torch.cat([prototypes, (square.max() - square).sqrt()], 1)
    return normalize(prototypes) if head.score_name == "cosine" else prototypes


def query_points(head: Head, query: Query) -> Float[Tensor, "query place"]:
    """Return the points of queries, to which the points of classes are compared."""
    if head.score_name == "dot":
        return torch.nn.functional.pad(query, (0, 1))
    return normalize(query) if head.score_name == "cosine" else query


class ClassIndex:
    """A faiss index of all classes by product quantisation; a query is compared with all codes (Jégou et al. 2011)."""

    def __init__(self, head: Head, prototypes: Prototypes) -> None:
        with as_bad_input(ImportError, "index=True needs the packages of an extra: pip install 'anyshot[index]'."):
            import faiss
        points = class_points(head, prototypes)
        self._head, self._centre = head, points[:INDEX_TRAINING].mean(0)  # distances from here keep their digits
        d = points.shape[1] + points.shape[1] % SUBVECTOR
        self._index: Any = faiss.IndexPQFastScan(d, d // SUBVECTOR, CODE_BITS, faiss.METRIC_L2)
        self._index.train(self._to_array(points[:: max(1, len(points) // INDEX_TRAINING)]))
        self._index.add(self._to_array(points))

    def search(self, query: Query, n_candidates: int) -> Int[np.ndarray, "query candidate"]:
        """Return the rows of candidates for each query; -1 where there are fewer."""
        points = self._to_array(query_points(self._head, query))
        return self._index.search(points, max(n_candidates, CANDIDATES))[1]

    def _to_array(self, points: Float[Tensor, "point place"]) -> Float[np.ndarray, "point padded"]:
        """Return points about the centre, with zeros added so that SUBVECTOR divides their length."""
        padding = 0, points.shape[1] % SUBVECTOR
        return torch.nn.functional.pad(points - self._centre, padding).float().contiguous().numpy()


class ClassSearch:
    """Finds the classes of a support that score highest, for a head that refines each class on its own.

    Args:
        support: The classes; they must not change.
        head: The head and its parameters.
        has_index: Whether to search by an approximate index.
    """

    def __init__(self, support: Support, head: BoundHead, has_index: bool) -> None:
        self._support, self._head = support, head
        rows = np.arange(len(support))
        first = compute_prototypes(head, support, rows[:PIECE])
        is_centred = isinstance(head.head.score, InnerProductScore) and head.head.score.centred
        self._centre = first.mean(0) if is_centred else torch.zeros(())
        self._prototypes, self._squared_lengths = torch.empty(len(rows), first.shape[1]), torch.empty(len(rows))
        for block in split_rows(len(rows), PIECE):
            prototypes = (compute_prototypes(head, support, rows[block]) - self._centre).float()
            self._prototypes[block], self._squared_lengths[block] = prototypes, prototypes.square().sum(1)
        is_indexed = has_index and len(support) >= INDEX_FROM and has_points(head.head)
        self._index = ClassIndex(head.head, self._prototypes) if is_indexed else None

    def top(self, vectors: Float[np.ndarray, "query d"], k: int, scale: float | None = None) -> TopK:
        """Return the k best classes of each query, of equal ones the first label; with a scale also `log_sums`."""
        parts = []
        for block in split_rows(len(vectors), QUERIES):
            query = self._head.transform(torch.from_numpy(vectors[block]))
            centred = (query - self._centre).float()
            if self._index is not None and scale is None:
                rows, logs = self._index.search(centred, k + EXTRA), torch.zeros(0)
            else:
                rows, logs = self._compare(centred, k + EXTRA, scale)
            pieces = split_rows(len(rows), RESCORED)
            scores = np.concatenate([self._score_exactly(query[piece], rows[piece]) for piece in pieces])
            best = np.lexsort((rows, -scores))[:, :k]
            parts.append([*(np.take_along_axis(values, best, 1) for values in (rows, scores)), logs.double().numpy()])
        rows, scores, log_sums = (np.concatenate(column) for column in zip(*parts, strict=True))
        return TopK(rows, scores, None if scale is None else log_sums)

    def _compare(
        self, query: Query, k: int, scale: float | None
    ) -> tuple[Int[np.ndarray, "query candidate"], Float[Tensor, " sums"]]:
        """Return the rows of the k best classes of each query, and (with a scale) the log-sum-exp of all logits."""
        size = max(1, BLOCK_FLOATS // max(query.shape))
        values, rows, logs = [], [], []
        for block in split_rows(len(self._prototypes), size):
            scores = self._score_block(query, block)
            best = scores.topk(min(k, scores.shape[1]), 1)
            values.append(best.values)
            rows.append(best.indices + block.start)
            logs.append(torch.logsumexp(scale * scores, 1) if scale is not None else torch.zeros(0))
        joined = torch.cat(values, 1)
        chosen = joined.topk(min(k, joined.shape[1]), 1).indices
        return torch.cat(rows, 1).gather(1, chosen).numpy(), torch.logsumexp(torch.stack(logs), 0)

    def _score_block(self, query: Query, block: slice) -> Float[Tensor, "query class"]:
        """Return the scores of a block of classes in float32, in one pass over its prototypes where that is possible.

        For one query among very many classes, reading the prototypes takes most of the time.
        """
        prototypes, score = self._prototypes[block], self._head.head.score
        if isinstance(score, InnerProductScore):
            lengths = query.square().sum(1, keepdim=True), self._squared_lengths[block]
            return score.from_products(query @ prototypes.mT, *lengths, query.shape[1])
        if isinstance(score, QuadraticScore):
            return torch.cat([query, query.square(), torch.ones(len(query), 1)], 1) @ prototypes.mT
        return self._head.score(query, prototypes)

    def _score_exactly(
        self, query: Query, rows: Int[np.ndarray, "query candidate"]
    ) -> Float[np.ndarray, "query candidate"]:
        """Return the head's own scores of the candidates of each query, in float64; -inf where there is none."""
        prototypes = compute_prototypes(self._head, self._support, rows.ravel()).unflatten(0, rows.shape)
        return np.where(rows < 0, -np.inf, self._head.score(query[:, None], prototypes)[:, 0].numpy())
