"""What a classifier has learned, as it grows: one row per class in order of arrival, and an example costs one addition.

Rows are found by label and added to in place, so learning touches the classes that it is about, however many others
there are. Kept examples are bounded in all: of more classes fewer each, and beyond 16,384 classes only those of 8,192,
chosen by a hash of their labels. So what is kept depends on the set of examples alone, not on their order. Hashing an
example takes longer than learning it, and so does how it varies: some thousands wait until someone asks.
"""

import heapq
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped, UInt64

from anyshot.deploy.pool import Pool, make_room
from anyshot.deploy.support import Kept, Support, kept_of, keys_of, scatter_of, support_of
from anyshot.errors import BadInput

MOST_KEPT = 32_768  # examples in all: what calibration, fewer shots and a person's eye want of any number of classes
LEAST = 2  # examples of a class that are of use: one to leave out, one that stays
OF_SOME = 2  # where so many of each class are too many, this part of them is kept: of some classes, for measuring alone
SLACK, MOST_SLACK = 1 / 16, 2048  # of the rows, for which there is room in advance, and rows at most
VAST_BYTES = 1 << 26  # of sums
PIECE = 4096  # classes that are handed on at once
A_FEW = 64  # examples at once, which leave no memory behind that is worth looking for
WAITING_BYTES = 1 << 26  # of features
FEW_WAITING_BYTES = 1 << 20  # where most would not be kept
MOST_APART = 1024  # rows: as fast to add at once as a few
READING = threading.Lock()  # of two who ask one makes ready what waits

Examples = tuple[UInt64[np.ndarray, " kept"], Int[np.ndarray, " kept"]]


@dataclass(frozen=True)
class Batch:
    """Examples as they come. Their keys are those of their features."""

    features: Float[np.ndarray, "image feature"]
    labels: Shaped[np.ndarray, " image"]
    embed: Callable[[Float[np.ndarray, "image feature"]], Float[np.ndarray, "image d"]]
    """What features become."""
    embedded: Float[np.ndarray, "image d"] | None = None
    varies: bool = False
    """Whether how they vary is still to be learned."""

    @property
    def is_few(self) -> bool:
        """Whether such batches are read together."""
        return len(self.labels) <= A_FEW

    @property
    def vectors(self) -> Float[np.ndarray, "image d"]:
        """What a class is a mean of."""
        return self.embed(self.features) if self.embedded is None else self.embedded


class Ledger:
    """Sums and counts of classes, the kept examples of some, and how images vary about their means.

    Args:
        first: What is learned first.
        keep: Examples of a class that are kept, at most; 0 for none.
    """

    def __init__(self, first: Support, keep: int) -> None:
        self.keep = keep
        self.places: dict[Any, int] = {label: row for row, label in enumerate(first.labels.tolist())}
        self.kind = first.labels.dtype
        self._sums, self._counts = first.sums, first.counts
        self._scatter = None if first.scatter is None else np.require(first.scatter, requirements="W")
        self._apart: list[Float[np.ndarray, "some d"]] = []
        """Rows whose outer products are still to be added to the scatter."""
        self.freedom = first.freedom
        self._examples: dict[int, Examples] = {}
        self._waiting, self._waiting_bytes = list[Batch](), 0
        self._decided = 0
        """Rows of the classes that were there first: those that have no example now lost theirs, and get no other."""
        self._pool = Pool(first.sums.shape[1])
        self._touched = np.zeros(len(first.counts), bool)
        self._names: list[Any] | None = None
        self._each, self._ranked = keep, list[tuple[int, int]]()
        self._take(first.labels, np.arange(len(self)), first.kept)
        self._decided = len(self)

    @staticmethod
    def empty(labels: Shaped[np.ndarray, " any"], d: int, keep: int, *, has_scatter: bool) -> "Ledger":
        """Of no classes yet; they will have labels like these."""
        counts, sums, keys = np.zeros(0, np.int64), np.zeros((0, d)), np.zeros(0, np.uint64)
        return Ledger(
            Support(labels[:0], sums, counts, sums, counts, keys, np.zeros((d, d)) if has_scatter else None), keep
        )

    def __getstate__(self) -> dict[str, Any]:
        self._scatter = self.scatter  # nothing waits then
        return self.__dict__

    def __len__(self) -> int:
        return len(self.places)

    @property
    def is_vast(self) -> bool:
        """Whether what the allocator holds back is to be looked after."""
        return self._sums.nbytes > VAST_BYTES

    @property
    def sums(self) -> Float[np.ndarray, "way d"]:
        """The sum of each class's vectors; a view."""
        return self._sums[: len(self)]

    @property
    def counts(self) -> Int[np.ndarray, " way"]:
        """The number of each class's examples; a view."""
        return self._counts[: len(self)]

    def copy(self) -> "Ledger":
        """Another that learns on its own."""
        other = object.__new__(Ledger)
        other.__dict__ = dict(self.__getstate__())
        other.places, other._examples, other._pool = dict(self.places), dict(self._examples), self._pool.copy()
        other._waiting, other._apart = [], []
        other._sums, other._counts = self.sums.copy(), self.counts.copy()
        other._scatter = None if self._scatter is None else self._scatter.copy()
        other._touched, other._ranked = self._touched[: len(self)].copy(), list(self._ranked)
        return other

    # ------------------------------------------------------------------------------------------------------- learning

    def add(self, more: Support) -> None:
        """Learn what another support knows: the sum of both is exactly what all examples together would have given."""
        self.check(more)
        self._read_waiting()
        self._take(more.labels, self._add(more), more.kept)

    def learn(self, batch: Batch) -> None:
        """Learn from examples."""
        vectors, has_scatter = batch.vectors, self._scatter is not None
        is_later = self.keep > 0 and not batch.is_few and not self._is_of_some
        more = support_of(vectors, batch.labels, has_scatter=has_scatter and not is_later and not batch.is_few)
        self.check(more)
        self._add(more)
        if has_scatter and batch.is_few and more.freedom:
            self._differ(vectors - more.means[np.searchsorted(more.labels, batch.labels)])
        if self.keep:
            self._wait(replace(batch, varies=has_scatter and is_later), vectors)

    def _add(self, more: Support) -> Int[np.ndarray, " way"]:
        """Sums, counts, and how images vary; the rows of the classes."""
        if not self._counts.flags.writeable:  # they are in a file that is only read
            self.__dict__ = self.copy().__dict__
        before = len(self)
        rows = np.fromiter((self.places.setdefault(label, len(self.places)) for label in more.labels.tolist()), int)
        self.kind = np.result_type(self.kind, more.labels.dtype)
        self._grow()
        is_old = rows < before
        if self._scatter is not None:
            if more.scatter is not None and more.freedom:  # else it is zero
                self._scatter += more.scatter
            one, two = self._counts[rows[is_old]], more.counts[is_old]
            apart = self._sums[rows[is_old]] / one[:, None] - more.sums[is_old] / two[:, None]
            self._differ(apart * np.sqrt(one * two / (one + two))[:, None])
        self.freedom += more.freedom + int(is_old.sum())
        self._sums[rows] += more.sums
        self._counts[rows] += more.counts
        self._touched[rows] = True
        return rows

    def _differ(self, apart: Float[np.ndarray, "some d"]) -> None:
        """Let these rows' outer products be added to the scatter."""
        if len(apart):
            self._apart.append(apart)
        if sum(map(len, self._apart)) > MOST_APART:
            self._add_apart()

    def _add_apart(self) -> None:
        with READING:
            if self._apart:
                rows = torch.from_numpy(np.concatenate(self._apart))
                torch.from_numpy(self._scatter).addmm_(rows.T, rows)  # in place
                self._apart = []

    def check(self, more: Support) -> None:
        """Say why another support cannot be added, where it cannot."""
        if self._sums.shape[1] != more.sums.shape[1]:
            raise BadInput(
                f"classes of {self._sums.shape[1]} and of {more.sums.shape[1]} numbers cannot join: their examples "
                "must come from the same model and head."
            )
        if (self.kind.kind in "USO") != (more.labels.dtype.kind in "USO"):
            mine, theirs = next(iter(self.places)), more.labels[0].item()
            raise BadInput(f"labels like {mine!r} and like {theirs!r} cannot be in one classifier.")

    def _grow(self) -> None:
        if len(self) <= len(self._counts):
            return
        for name in ("_sums", "_counts", "_touched"):
            make_room(self, name, with_slack(len(self)))

    def _wait(self, batch: Batch, vectors: Float[np.ndarray, "image d"]) -> None:
        """Let examples wait until someone asks for them, or for how they vary."""
        self._waiting_bytes += batch.features.nbytes
        if self._waiting_bytes > (FEW_WAITING_BYTES if self._is_of_some else WAITING_BYTES):
            self._waiting.append(replace(batch, embedded=vectors))
            self._read_waiting()
        else:  # arrays may be changed by those whose they are
            self._waiting.append(replace(batch, features=batch.features.copy(), labels=batch.labels.copy()))

    def _read_waiting(self) -> None:
        """Keep examples of those that wait, and learn how they vary."""
        with READING:
            few = [batch for batch in self._waiting if batch.is_few]
            self._waiting = [batch for batch in self._waiting if not batch.is_few]
            if few:  # of one each there may be thousands
                self._read(_joined(few))
            while self._waiting:
                self._read(self._waiting.pop(0))
            self._waiting_bytes = 0

    def _read(self, batch: Batch) -> None:
        features, vectors, (names, owner) = batch.features, batch.vectors, np.unique(batch.labels, return_inverse=True)
        rows = np.array([self.places[name] for name in names.tolist()], int)
        if batch.varies:
            self._scatter += scatter_of(vectors, owner, len(names))
        if self._is_full:  # most need no key
            taken = [self._takes(*both) for both in zip(rows.tolist(), names.tolist(), strict=True)]
            here = np.array(taken, bool)[owner]
            features, vectors, owner = features[here], vectors[here], owner[here]
        self._take(names, rows, kept_of(vectors, owner, keys_of(features), self.keep))

    def _take(self, labels: Shaped[np.ndarray, " way"], rows: Int[np.ndarray, " way"], offered: Kept) -> None:
        """Keep examples with the smallest keys: of all classes, or of those whose labels have the smallest hashes."""
        if not self.keep:
            return
        each = min(self.keep, max(LEAST, MOST_KEPT // max(1, len(self))))
        if each < self._each:
            for row, (keys, slots) in self._examples.items():
                self._pool.drop(slots[each:])
                self._examples[row] = keys[:each], slots[:each]
        self._each = each
        if self._is_of_some:  # single precision will do
            self._pool.narrow()
        vectors, owner, keys = offered
        names = labels.tolist()
        starts = np.flatnonzero(np.diff(owner, prepend=-1)).tolist()
        taken, here = list[tuple[int, int]](), np.zeros(len(owner), bool)
        for start, stop in pairwise([*starts, len(owner)]):
            row, label = int(rows[owner[start]]), names[owner[start]]
            if not self._takes(row, label):
                continue
            if self._ranked and row not in self._examples:
                heapq.heappush(self._ranked, (-label_hash(label), row))
            taken.append((row, min(each, stop - start)))
            here[start : min(start + each, stop)] = True
        ahead = min(sum(len(batch.labels) for batch in self._waiting), each * len(self))
        keys, slots, at = keys[here], self._pool.put(vectors if here.all() else vectors[here], ahead), 0
        for row, many in taken:
            self._add_examples(row, keys[at : at + many].copy(), slots[at : at + many].copy())
            at += many
        self._bound()

    def _add_examples(self, row: int, keys: UInt64[np.ndarray, " new"], slots: Int[np.ndarray, " new"]) -> None:
        if row in self._examples:
            mine, places = self._examples[row]
            keys, slots = np.concatenate([mine, keys]), np.concatenate([places, slots])
            order = np.argsort(keys, kind="stable")
            self._pool.drop(slots[order[self._each :]])
            keys, slots = keys[order[: self._each]], slots[order[: self._each]]
        self._examples[row] = keys, slots

    def _takes(self, row: int, label: Any) -> bool:
        """Whether a class's examples are kept. One that is left out has 8,192 others before it, and more can only come:
        it is never missed later."""
        return row in self._examples or (row >= self._decided and not self._is_last(label))

    @property
    def _is_of_some(self) -> bool:
        """Whether examples are kept of some classes alone."""
        return len(self) > MOST_KEPT // LEAST

    @property
    def _is_full(self) -> bool:
        return len(self._ranked) >= _most_classes()

    def _is_last(self, label: Any) -> bool:
        return self._is_full and label_hash(label) > -self._ranked[0][0]

    def _bound(self) -> None:
        """Forget the examples of the classes with the largest hashes."""
        if not self._is_of_some or len(self._examples) <= _most_classes():
            return
        if len(self._ranked) != len(self._examples):
            names = list(self.places)
            self._ranked = [(-label_hash(names[row]), row) for row in self._examples]
            heapq.heapify(self._ranked)
        while len(self._examples) > _most_classes():
            self._pool.drop(self._examples.pop(heapq.heappop(self._ranked)[1])[1])
        if self._pool.is_half_empty:
            self._pack()

    def _pack(self) -> None:
        """Keep no room for the examples that are gone."""
        ends = np.cumsum([len(keys) for keys, _ in self._examples.values()]).tolist()
        self._pool.pack(np.concatenate([slots for _, slots in self._examples.values()]))
        for (row, (keys, _)), end in zip(list(self._examples.items()), ends, strict=True):
            self._examples[row] = keys, np.arange(end - len(keys), end)

    def without(self, labels: Shaped[np.ndarray, " removed"]) -> "Ledger":
        """The other classes."""
        return Ledger(self.snapshot().without(labels), self.keep)

    # -------------------------------------------------------------------------------------------------------- reading

    @property
    def examples(self) -> dict[int, Examples]:
        """Of some classes, by row: keys in order, and where the vectors are."""
        if self._waiting_bytes:
            self._read_waiting()
        return self._examples

    @property
    def scatter(self) -> Float[np.ndarray, "d d"] | None:
        """How images vary about the means of their classes, summed over images, for heads that adapt."""
        if self._waiting_bytes:
            self._read_waiting()
        if self._apart:
            self._add_apart()
        return self._scatter

    def changed(self) -> Int[np.ndarray, " row"]:
        """Rows that were added to since someone who follows last asked."""
        rows = np.flatnonzero(self._touched)
        self._touched[rows] = False
        return rows

    def labels(self) -> Shaped[np.ndarray, " way"]:
        """In order of arrival."""
        return np.array(list(self.places), self.kind)

    def labels_of(self, rows: Int[np.ndarray, "*any"]) -> Shaped[np.ndarray, "*any"]:
        """The labels of some rows."""
        if self._names is None or len(self._names) < len(self):
            self._names = list(self.places)
        names = [self._names[row] for row in rows.ravel().tolist()]
        return np.array(names, self.kind).reshape(rows.shape)

    def kept_keys(self) -> set[int]:
        """The keys of all examples that are kept."""
        return {key for keys, _ in self.examples.values() for key in keys.tolist()}

    def snapshot(self) -> Support:
        """All of it in order of the labels. (Where they arrived in order, sums and counts are views.)"""
        labels = self.labels()
        order = np.argsort(labels, kind="stable")
        if (np.diff(order) == 1).all():
            sums, counts = self.sums, self.counts
        else:
            labels, sums, counts = labels[order], self.sums[order], self.counts[order]
        return Support(labels, sums, counts, *self._kept(order), self.scatter, self.freedom)

    def as_arrived(self) -> Support:
        """All of it in order of arrival, without a copy of the sums, and examples as they are kept."""
        examples = self._kept(np.arange(len(self)), wide=False)
        return Support(self.labels(), self.sums, self.counts, *examples, self.scatter, self.freedom)

    def parts(self) -> Iterator[Support]:
        """All of it, some classes at a time, for another that adds them."""
        whole = self.as_arrived()
        ends = np.searchsorted(whole.owner, np.arange(0, len(self) + PIECE, PIECE))
        scatter, freedom = self.scatter, self.freedom
        for place, start in enumerate(range(0, len(self), PIECE)):
            here, inside = slice(start, start + PIECE), slice(ends[place], ends[place + 1])
            classes = whole.labels[here], whole.sums[here], whole.counts[here]
            examples = whole.examples[inside], whole.owner[inside] - start, whole.keys[inside]
            yield Support(*classes, *examples, scatter, freedom)
            scatter, freedom = None if scatter is None else np.zeros_like(scatter), 0

    def sample(self, classes: int) -> tuple[Support, Int[np.ndarray, " way"]]:
        """Some classes, of two examples or more where there are so many, and their rows. Which ones depends on their
        labels alone; what varies within classes is that of all."""
        names = list(self.places)
        among = self.examples or range(len(self))
        rows = heapq.nsmallest(classes, among, key=lambda row: (self._counts[row] < 2, label_hash(names[row])))
        labels = np.array([names[row] for row in rows], self.kind)
        order = np.argsort(labels, kind="stable")
        chosen = np.array(rows, int)[order]
        sums, counts, examples = self._sums[chosen], self._counts[chosen], self._kept(chosen)
        return Support(labels[order], sums, counts, *examples, self.scatter, self.freedom), chosen

    def _kept(self, rows: Int[np.ndarray, " way"], *, wide: bool = True) -> Kept:
        """The kept examples of some rows, in their order, and which of them each is of; in float64 where wide."""
        examples = self.examples
        places = [place for place, row in enumerate(rows.tolist()) if row in examples]
        mine = [examples[int(rows[place])] for place in places]
        if not mine:
            return np.zeros((0, self._sums.shape[1])), np.zeros(0, np.int64), np.zeros(0, np.uint64)
        owner = np.repeat(np.array(places, np.int64), [len(keys) for keys, _ in mine])
        vectors = self._pool.at(np.concatenate([slots for _, slots in mine]))
        vectors = vectors.astype(np.float64) if wide else vectors
        return vectors, owner, np.concatenate([keys for keys, _ in mine])


def _joined(batches: list[Batch]) -> Batch:
    features, labels = (np.concatenate([getattr(batch, name) for batch in batches]) for name in ("features", "labels"))
    return Batch(features, labels, batches[0].embed)


def with_slack(rows: int) -> int:
    """How many rows there is room for where so many are needed: they come one at a time too."""
    return rows + min(int(SLACK * rows), MOST_SLACK)


def _most_classes() -> int:
    """Whose examples are kept where not all classes can keep any."""
    return max(1, MOST_KEPT // LEAST // OF_SOME)


def label_hash(label: Any) -> int:
    """The same for a number of any type, and in any process."""
    text = label if isinstance(label, str) else repr(float(label)) if isinstance(label, int | float) else repr(label)
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())
