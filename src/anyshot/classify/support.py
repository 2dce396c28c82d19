"""The support set of a classifier: of each class the sum of its vectors, their number, their keys, and a few exemplars.

Sums and counts only add, so examples may come in any order and in parts, and two supports merge exactly. Calibration
needs single vectors too: of each class at most `keep` are exemplars, those with the smallest keys (whole groups first).
A key is a hash of an example, so exemplars are a fair draw that depends on nothing but the set of examples.
"""

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped, UInt64

from anyshot.classify.keys import Keys, KeySet, hash_label
from anyshot.errors import BadInput

MOST_EXEMPLARS = 32_768  # in all classes: more would hardly change a scale, a threshold or an accuracy
LEAST_EXEMPLARS = 2  # of a class: one to leave out, and one that stays
PART = 4096  # rows that are worked on at once, so that temporary copies stay small

Vectors = Float[np.ndarray, "example d"]
Labels = Shaped[np.ndarray, " example"]
Matrix = Float[np.ndarray, "d d"]


class Exemplars(NamedTuple):
    """Examples whose vectors are stored, in order of class, then key.

    Attributes:
        vectors: The vector of each.
        owner: The row of its class.
        keys: Its key.
        groups: A hash of its group; its own key where no group was given.
    """

    vectors: Float[np.ndarray, "exemplar d"]
    owner: Int[np.ndarray, " exemplar"]
    keys: UInt64[np.ndarray, " exemplar"]
    groups: UInt64[np.ndarray, " exemplar"]

    def at(self, places: Any) -> "Exemplars":
        """Return a copy of some of them."""
        return Exemplars(*(values[places].copy() for values in self))

    @staticmethod
    def join(d: int, parts: Iterable["Exemplars"]) -> "Exemplars":
        """Return the exemplars of several parts, of vectors of d numbers, one part after the other."""
        empty = Exemplars(np.zeros((0, d)), np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.uint64))
        return Exemplars(*(np.concatenate(values) for values in zip(empty, *parts, strict=True)))


class Support:
    """Classes as rows in order of arrival.

    Args:
        labels: The label of each class.
        sums: The sum of its vectors.
        counts: The number of its examples.
        exemplars: Some of them, in order of class.
        known: Keys of the examples. (Examples of files without keys are known by their number only.)
        keep: Exemplars of a class, at most; of many classes fewer.
        has_scatter: Whether the head needs the scatter within classes.
        second_moment: Sum of the outer products of all vectors, for the scatter; None where all are exemplars.
        degrees_of_freedom: Examples less classes, for the scatter. (A class whose vectors are not all exemplars leaves
            its part of the scatter behind when it is removed, and so its degrees of freedom.)
    """

    def __init__(  # noqa: PLR0913 (the parts of a support; nobody else passes so many)
        self,
        labels: Shaped[np.ndarray, " way"],
        sums: Float[np.ndarray, "way d"],
        counts: Int[np.ndarray, " way"],
        exemplars: Exemplars | None = None,
        known: KeySet | None = None,
        *,
        keep: int = 0,
        has_scatter: bool = False,
        second_moment: Matrix | None = None,
        degrees_of_freedom: int = 0,
    ) -> None:
        self.keep, self.has_scatter, self.degrees_of_freedom = keep, has_scatter, degrees_of_freedom
        self._rows: dict[Any, int] = {label: row for row, label in enumerate(labels.tolist())}
        self._label_type = labels.dtype
        self._sums, self._counts, self._second_moment = sums, counts, second_moment
        self._known = known or KeySet()
        self._exemplars: dict[int, Exemplars] = {}  # of each class that has any
        self._cache: dict[str, Any] = {}
        self._most_exemplars = _exemplars_per_class(len(self), keep)
        self._set_exemplars(exemplars or Exemplars.join(sums.shape[1], ()))
        # Of very many classes only those with the smallest hashes of their labels have exemplars.
        is_limited = len(self) > _most_classes_with_exemplars() and self._exemplars
        names = list(self._rows) if is_limited else []
        self._largest_hash = max(hash_label(names[row]) for row in self._exemplars) if is_limited else None

    def __len__(self) -> int:
        return len(self._rows)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": {}, "_sums": self.sums, "_counts": self.counts}

    def copy(self) -> "Support":
        """Return another support that changes on its own."""
        other = object.__new__(Support)
        other.__dict__ = self.__getstate__()
        for name in ("_sums", "_counts", "_rows", "_exemplars"):
            setattr(other, name, getattr(other, name).copy())
        return other

    # -------------------------------------------------------------------------------------------------------- reading

    @property
    def labels(self) -> Shaped[np.ndarray, " way"]:
        """The label of each class."""
        return np.array(list(self._rows), self._label_type)

    @property
    def sums(self) -> Float[np.ndarray, "way d"]:
        """The sum of each class's vectors."""
        return self._sums[: len(self)]

    @property
    def counts(self) -> Int[np.ndarray, " way"]:
        """The number of each class's examples."""
        return self._counts[: len(self)]

    @property
    def means(self) -> Float[np.ndarray, "way d"]:
        """The mean of each class."""
        return self.sums / self.counts[:, None]

    @property
    def exemplars(self) -> Exemplars:
        """All exemplars."""
        if "exemplars" not in self._cache:
            self._cache["exemplars"] = self._stack(range(len(self)))
        exemplars: Exemplars = self._cache["exemplars"]
        return exemplars

    @property
    def examples(self) -> Float[np.ndarray, "exemplar d"]:
        """The vectors of the exemplars."""
        return self.exemplars.vectors

    @property
    def owner(self) -> Int[np.ndarray, " exemplar"]:
        """The row of each exemplar's class."""
        return self.exemplars.owner

    @property
    def keys(self) -> UInt64[np.ndarray, " exemplar"]:
        """The keys of the exemplars."""
        return self.exemplars.keys

    @property
    def exemplar_counts(self) -> Int[np.ndarray, " way"]:
        """The number of each class's exemplars."""
        counts = np.zeros(len(self), np.int64)
        for row, exemplars in self._exemplars.items():
            counts[row] = len(exemplars.keys)
        return counts

    @property
    def is_cut(self) -> Bool[np.ndarray, " exemplar"]:
        """Whether an exemplar's group may have members that are no exemplars.

        Exemplars are those with the smallest groups, so it is the last group of a class that has more examples.
        """
        _, owner, keys, groups = self.exemplars
        last = np.zeros(len(self), np.uint64)
        np.maximum.at(last, owner, groups)
        has_more = self.counts > np.bincount(owner, minlength=len(self))
        return has_more[owner] & (groups == last[owner]) & (groups != keys)

    @property
    def all_keys(self) -> tuple[Keys, Int[np.ndarray, " example"]]:
        """The keys of all examples that are known by one, and the rows of their classes, in order of the rows."""
        order = np.lexsort((self._known.keys, self._known.rows))
        return self._known.keys[order], self._known.rows[order]

    @property
    def second_moment(self) -> Matrix | None:
        """The sum of the outer products of all vectors; None where all of them are exemplars."""
        return self._second_moment

    @property
    def scatter(self) -> Matrix | None:
        """The sum over examples of the outer product of (vector - mean of its class) with itself."""
        if not self.has_scatter:
            return None
        if "scatter" not in self._cache:
            scatter = self._outer_products() if self._second_moment is None else self._second_moment.copy()
            for start in range(0, len(self), PART):
                sums, counts = self.sums[start : start + PART], self.counts[start : start + PART]
                roots = sums / np.sqrt(counts)[:, None]
                scatter -= roots.T @ roots
            scatter.flags.writeable = False
            self._cache["scatter"] = scatter
        result: Matrix = self._cache["scatter"]
        return result

    def row_of(self, label: Any) -> int | None:
        """Return the row of a class, or None."""
        return self._rows.get(label)

    def labels_of(self, rows: Int[np.ndarray, "*any"]) -> Shaped[np.ndarray, "*any"]:
        """Return the labels of some rows."""
        if "names" not in self._cache:
            self._cache["names"] = list(self._rows)
        names = self._cache["names"]
        return np.array([names[row] for row in rows.ravel().tolist()], self._label_type).reshape(rows.shape)

    def contains(self, labels: Shaped[np.ndarray, " way"], owner: Any, keys: Keys) -> Bool[np.ndarray, " example"]:
        """Return which examples are there already: those whose class (labels[owner]) has their key."""
        return self._known.find(keys, self._find_rows(labels.tolist())[owner]) >= 0

    def labels_with(self, key: int) -> list[Any]:
        """Return the labels of the classes that have an example of this key."""
        return self.labels_of(self._known.rows_of(key)).tolist()

    def exemplar_keys_of(self, label: Any) -> list[int]:
        """Return the keys of the exemplars of a class."""
        exemplars = self._exemplars.get(self._rows[label])
        return [] if exemplars is None else exemplars.keys.tolist()

    def exemplar_keys(self) -> set[int]:
        """Return the keys of all exemplars."""
        return {key for exemplars in self._exemplars.values() for key in exemplars.keys.tolist()}

    def _find_rows(self, labels: Iterable[Any]) -> Int[np.ndarray, " label"]:
        """Return the row of each label; -1 where there is none."""
        return np.array([self._rows.get(label, -1) for label in labels], np.int64)

    def _outer_products(self) -> Matrix:
        """Return the sum of the outer products of the exemplars."""
        total = np.zeros((self._sums.shape[1], self._sums.shape[1]))
        for start in range(0, len(self.examples), PART):
            total += self.examples[start : start + PART].T @ self.examples[start : start + PART]
        return total

    def _stack(self, rows: Iterable[int]) -> Exemplars:
        """Return the exemplars of some rows, which are numbered as they come."""
        exemplars = [(place, self._exemplars[row]) for place, row in enumerate(rows) if row in self._exemplars]
        parts = (part._replace(owner=np.full(len(part.keys), place)) for place, part in exemplars)
        return Exemplars.join(self._sums.shape[1], parts)

    # ------------------------------------------------------------------------------------------------------- changing

    def merge(self, other: "Support", *, is_disjoint: bool = False) -> int:
        """Add the examples of another support, all or (if it is interrupted) none; return how many were here already.

        Examples that both have, by key and class, count once.

        Args:
            other: The other support; it stays as it is.
            is_disjoint: Whether no example of it is known to be here.

        Raises:
            BadInput: If some, not all, examples of a class are in both, and neither has their vectors.
        """
        self.check_compatible(other)
        keys, places = other.all_keys
        rows = self._find_rows(other._rows)
        is_shared = np.zeros(len(keys), bool) if is_disjoint else self._known.find(keys, rows[places]) >= 0
        if not is_shared.any():
            self._add(other)
            return 0
        merged, rest, shared = self.copy(), other.copy(), np.bincount(places[is_shared], minlength=len(other))
        is_contained = shared == other.counts
        contains_ours = ~is_contained & (shared > 0) & (shared == self.counts[rows])
        names = list(other._rows)
        here, starts = np.unique(places[is_shared], return_index=True)
        for place, shared_keys in zip(here.tolist(), np.split(keys[is_shared], starts[1:]), strict=True):
            if not (is_contained[place] or contains_ours[place]):
                label = names[place]
                rest._subtract(label, shared_keys, self._find_vectors(label, shared_keys, rest))
        merged.remove([names[place] for place in np.flatnonzero(contains_ours)])
        rest.remove([names[place] for place in np.flatnonzero(is_contained)])
        merged._add(rest)
        with uninterrupted():
            self.__dict__.update(merged.__dict__)
        return int(is_shared.sum())

    def remove(self, labels: Iterable[Any]) -> None:
        """Remove classes."""
        stays = np.ones(len(self), bool)
        stays[[self._rows[label] for label in labels]] = False
        moment, freedom = self._second_moment, self.degrees_of_freedom
        for row in np.flatnonzero(~stays).tolist() if self.has_scatter else ():
            part, part_freedom = self._moment_of(row)
            moment = None if moment is None else moment - part
            freedom -= part_freedom
        rest = self.select(np.flatnonzero(stays).tolist(), with_keys=True)
        with uninterrupted():
            self._rows, self._sums, self._counts, self._known = rest._rows, rest._sums, rest._counts, rest._known
            self._exemplars, self._second_moment, self.degrees_of_freedom = rest._exemplars, moment, freedom
            self._cache.clear()

    def split_off(self, label: Any, key: int | None = None, vector: Float[np.ndarray, " d"] | None = None) -> "Support":
        """Remove a class of several, or one of its examples, and return it: merging it again undoes the removal.

        Args:
            label: The class.
            key: The key of the example; without one the whole class goes.
            vector: The example's vector, which is needed if it is no exemplar.
        """
        row, first = self._rows[label], np.zeros(1, np.int64)
        if key is None:
            part = self.select([row], with_keys=True)
            moment, part.degrees_of_freedom = self._moment_of(row)
            part._second_moment = None if self._second_moment is None else moment
            self.remove([label])
            return part
        keys, exemplars = np.array([key], np.uint64), self._exemplars.get(row)
        if exemplars is not None and keys[0] in exemplars.keys:
            exemplar = exemplars.at(exemplars.keys == keys[0])._replace(owner=first)
        else:
            assert vector is not None
            exemplar = Exemplars(vector[None], first, keys, keys)
        is_known = self._known.find(keys, np.array([row]))[0] >= 0
        part = Support(
            self.labels_of(np.array([row])),
            exemplar.vectors.copy(),
            np.ones(1, np.int64),
            exemplar,
            KeySet(keys, first) if is_known else None,
            keep=self.keep,
            has_scatter=self.has_scatter,
        )
        with uninterrupted():
            self._subtract(label, keys, exemplar.vectors)
        return part

    def check_compatible(self, other: "Support") -> None:
        """Raise BadInput where the vectors or labels of another support are of another kind."""
        if self._sums.shape[1] != other._sums.shape[1]:
            raise BadInput(
                f"classes of {self._sums.shape[1]} and of {other._sums.shape[1]} numbers cannot join: their examples "
                "must come from the same model and head."
            )
        if (self._label_type.kind in "USO") != (other._label_type.kind in "USO"):
            mine, theirs = next(iter(self._rows)), next(iter(other._rows))
            raise BadInput(f"labels like {mine!r} and like {theirs!r} cannot be in one classifier.")

    def _add(self, other: "Support") -> None:
        """Add the examples of another support, none of which is here."""
        rows = self._find_rows(other._rows)
        is_new = rows < 0
        rows[is_new] = len(self) + np.arange(int(is_new.sum()))
        names = [label for label, new in zip(other._rows, is_new.tolist(), strict=True) if new]
        with uninterrupted():
            self._reserve(len(self) + len(names))
            moment = self._add_moments(other, rows, len(self) + len(names))
            self._rows.update(zip(names, range(len(self), len(self) + len(names)), strict=True))
            self._label_type = np.result_type(self._label_type, other._label_type)
            self._sums[rows] += other.sums
            self._counts[rows] += other.counts
            self._second_moment = moment
            self._known = self._known.add(other._known.keys, rows[other._known.rows])
            self.degrees_of_freedom += other.degrees_of_freedom + int((~is_new).sum())
            self._add_exemplars(other, rows)
            self._cache.clear()

    def _add_moments(self, other: "Support", rows: Int[np.ndarray, " way"], way: int) -> Matrix | None:
        """Return the second moment of both supports; None where all vectors of both will be exemplars."""
        most = _exemplars_per_class(way, self.keep)
        largest = int((self._counts[rows] + other.counts).max(initial=0))
        if most < self._most_exemplars:
            largest = max(largest, int(self.counts.max(initial=0)))
        have_all = self._second_moment is None and other._second_moment is None
        if not self.has_scatter or (have_all and largest <= most and way <= _most_classes_with_exemplars()):
            return None
        moments = (s._outer_products() if s._second_moment is None else s._second_moment for s in (self, other))
        return next(moments) + next(moments)

    def _add_exemplars(self, other: "Support", rows: Int[np.ndarray, " way"]) -> None:
        """Pick exemplars among those of both supports."""
        most, new = _exemplars_per_class(len(self), self.keep), other.exemplars._replace(owner=rows[other.owner])
        if self._largest_hash is not None:
            is_allowed = [
                row in self._exemplars or hash_label(name) <= self._largest_hash
                for row, name in zip(rows.tolist(), other._rows, strict=True)
            ]
            new = new.at(np.array(is_allowed)[other.owner])
        changed = self._exemplars.keys() if most < self._most_exemplars else set(new.owner.tolist())
        before = [self._exemplars[row] for row in changed if row in self._exemplars]
        joined = Exemplars.join(self._sums.shape[1], [*before, new])
        self._set_exemplars(joined.at(_pick_exemplars(joined.owner, joined.keys, joined.groups, most)))
        self._most_exemplars = most
        if len(self) > _most_classes_with_exemplars() < 2 * len(self._exemplars):
            names = list(self._rows)
            hashes = {row: hash_label(names[row]) for row in self._exemplars}
            self._largest_hash = sorted(hashes.values())[_most_classes_with_exemplars() // 2 - 1]
            self._exemplars = {
                row: exemplars for row, exemplars in self._exemplars.items() if hashes[row] <= self._largest_hash
            }

    def _set_exemplars(self, exemplars: Exemplars) -> None:
        """Set the exemplars of the classes that these are of, as copies: views would hold the memory of all."""
        bounds = np.flatnonzero(np.diff(exemplars.owner, prepend=-1, append=-1)).tolist()
        for start, stop in pairwise(bounds):
            self._exemplars[int(exemplars.owner[start])] = exemplars.at(slice(start, stop))

    def _subtract(self, label: Any, keys: Keys, vectors: Vectors) -> None:
        """Subtract examples of a class."""
        row = self._rows[label]
        self._reserve(len(self))
        self._sums[row] -= vectors.sum(0)
        self._counts[row] -= len(keys)
        self.degrees_of_freedom -= len(keys)
        if self._second_moment is not None:
            self._second_moment = self._second_moment - vectors.T @ vectors
        self._known = self._known.remove(keys, np.full(len(keys), row))
        exemplars = self._exemplars.pop(row, None)
        if exemplars is not None and not (is_gone := np.isin(exemplars.keys, keys)).all():
            self._exemplars[row] = exemplars.at(~is_gone)
        self._cache.clear()

    def _find_vectors(self, label: Any, keys: Keys, other: "Support") -> Vectors:
        """Return the vectors of examples that two supports share, from the exemplars of both."""
        parts = [s._exemplars[s._rows[label]] for s in (self, other) if s._rows[label] in s._exemplars]
        vectors = {key: row for part in parts for key, row in zip(part.keys.tolist(), part.vectors, strict=True)}
        missing = len(keys) - sum(key in vectors for key in keys.tolist())
        if missing:
            raise BadInput(
                f"{missing} examples of class {label!s} are in both classifiers, and neither has kept their vectors: "
                "fit one classifier on all examples, or let both keep more."
            )
        return np.stack([vectors[key] for key in keys.tolist()])

    def _reserve(self, rows: int) -> None:
        """Make room for so many rows, for twice as many as there are at least where there is none."""
        if rows <= len(self._counts) and self._counts.flags.writeable and self._sums.flags.writeable:
            return
        room = max(rows, 2 * len(self._counts)) if rows > len(self._counts) else rows
        for name in ("_sums", "_counts"):
            old = getattr(self, name)
            new = np.zeros((room, *old.shape[1:]), old.dtype)  # memory that is not written to is not taken
            new[: len(old)] = old
            setattr(self, name, new)

    def _moment_of(self, row: int) -> tuple[Matrix, int]:
        """Return the part of the second moment and of the degrees of freedom that goes with a class.

        Where all vectors of the class are exemplars this is exact. Else its scatter stays where it is, since it is not
        known apart from that of other classes, and only its mean goes.
        """
        exemplars, count = self._exemplars.get(row), int(self._counts[row])
        if exemplars is not None and len(exemplars.keys) == count:
            return exemplars.vectors.T @ exemplars.vectors, count - 1
        return np.outer(self._sums[row], self._sums[row]) / count, 0

    # ------------------------------------------------------------------------------------------------------- deriving

    def select(self, rows: Iterable[int], *, with_keys: bool = False) -> "Support":
        """Return a copy of some classes, with the second moment and degrees of freedom of all."""
        chosen = np.array(list(rows), np.int64)
        new_rows = np.full(len(self), -1)
        new_rows[chosen] = np.arange(len(chosen))
        return Support(
            self.labels_of(chosen),
            self._sums[chosen],
            self._counts[chosen],
            self._stack(chosen.tolist()),
            self._known.renumber(new_rows) if with_keys else None,
            keep=self.keep,
            has_scatter=self.has_scatter,
            second_moment=self._second_moment,
            degrees_of_freedom=self.degrees_of_freedom,
        )

    def sample(self, classes: int) -> tuple["Support", Int[np.ndarray, " way"]]:
        """Return some classes in order of their labels, and their rows.

        Classes of two examples or more are chosen first, then by a hash of the label. The scatter is that of all.
        """
        names, among = list(self._rows), list(self._exemplars) or range(len(self))
        ranked = sorted(among, key=lambda row: (self._counts[row] < 2, hash_label(names[row])))[:classes]
        rows = np.array(ranked, np.int64)
        rows = rows[np.argsort(self.labels_of(rows), kind="stable")]
        part = self.select(rows.tolist())
        part._cache["scatter"] = self.scatter
        return part, rows

    def in_order(self) -> "Support":
        """Return a copy in order of the labels, whose arrays cannot be written to."""
        ordered = self.select(np.argsort(self.labels, kind="stable").tolist(), with_keys=True)
        for array in (ordered._sums, ordered._counts, *ordered.exemplars):
            array.flags.writeable = False
        return ordered

    def first(self, shot: int) -> "Support":
        """Return the classes as they would be with at most `shot` examples: their first exemplars."""
        rank = np.arange(len(self.owner)) - np.searchsorted(self.owner, self.owner)
        exemplars, sums = self.exemplars.at(rank < shot), np.zeros_like(self.sums)
        np.add.at(sums, exemplars.owner, exemplars.vectors)
        return Support(
            self.labels,
            sums,
            np.bincount(exemplars.owner, minlength=len(self)),
            exemplars,
            keep=self.keep,
            has_scatter=self.has_scatter,
            degrees_of_freedom=len(exemplars.owner) - len(self),
        )


def build_support(
    parts: Iterable[Vectors],
    labels: Labels,
    keys: Keys | None = None,
    groups: Keys | None = None,
    *,
    keep: int | None = 0,
    has_scatter: bool = False,
) -> Support:
    """Return the support of examples that are all different.

    Args:
        parts: Their vectors, some at a time.
        labels: Their labels.
        keys: Their keys; without keys there are no exemplars.
        groups: Hashes of their groups; their keys where None.
        keep: Exemplars of a class, at most; None for all examples, however many they are.
        has_scatter: Whether the head needs the scatter within classes.
    """
    names, owner = np.unique(labels, return_inverse=True)
    groups, places = keys if groups is None else groups, np.zeros(0, np.int64)
    if keys is not None and groups is not None and keep != 0:
        candidates = np.arange(len(owner)) if keep is None else _find_candidates(names, owner)
        most = len(owner) if keep is None else _exemplars_per_class(len(names), keep)
        places = candidates[_pick_exemplars(owner[candidates], keys[candidates], groups[candidates], most)]
    place = np.full(len(labels), -1)
    place[places] = np.arange(len(places))
    sums, vectors, moment, start = torch.zeros(0), np.zeros((0, 0)), None, 0
    for part in parts:
        double = torch.from_numpy(np.require(part, np.float64, "W"))
        here, start = slice(start, start + len(part)), start + len(part)
        if not here.start:
            sums = torch.zeros(len(names), part.shape[1], dtype=torch.float64)
            vectors = np.empty((len(places), part.shape[1]))
        sums.index_add_(0, torch.from_numpy(owner[here]), double)
        vectors[place[here][place[here] >= 0]] = part[place[here] >= 0]
        if has_scatter and len(places) < len(labels):
            moment = (double.mT @ double).numpy() + (0.0 if moment is None else moment)
    exemplars = known = None
    if keys is not None and groups is not None:
        exemplars = Exemplars(vectors, owner[places], keys[places], groups[places])
        known = KeySet(keys, owner.astype(np.int64))
    return Support(
        names,
        sums.numpy(),
        np.bincount(owner, minlength=len(names)),
        exemplars,
        known,
        keep=len(labels) if keep is None else keep,
        has_scatter=has_scatter,
        second_moment=moment,
        degrees_of_freedom=len(labels) - len(names),
    )


def find_repeats(owner: Int[np.ndarray, " example"], keys: Keys) -> Bool[np.ndarray, " example"]:
    """Return which examples have the key and the class of an earlier one."""
    order = np.lexsort((keys, owner))
    is_repeat = np.zeros(len(keys), bool)
    is_repeat[order[1:]] = (np.diff(owner[order]) == 0) & (keys[order][1:] == keys[order][:-1])
    return is_repeat


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the block has ended, so that a change is made as a whole or not at all."""
    if threading.current_thread() is not threading.main_thread():  # others are not interrupted
        yield
        return
    signals: list[tuple[Any, ...]] = []
    before = signal.signal(signal.SIGINT, lambda *arguments: signals.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if signals and callable(before):
            before(*signals[0])


def _pick_exemplars(
    owner: Int[np.ndarray, " example"], keys: Keys, groups: Keys, most: int
) -> Int[np.ndarray, " exemplar"]:
    """Return which examples are exemplars: of each class those with the smallest groups and keys.

    They come in order of class, then key.
    """
    order = np.lexsort((keys, groups, owner))
    rank = np.arange(len(order)) - np.searchsorted(owner[order], owner[order])
    places = order[rank < most]
    return places[np.lexsort((keys[places], owner[places]))]


def _find_candidates(
    names: Shaped[np.ndarray, " way"], owner: Int[np.ndarray, " example"]
) -> Int[np.ndarray, " candidate"]:
    """Return the examples that may be exemplars: of very many classes, those whose labels have the smallest hashes."""
    if len(names) <= _most_classes_with_exemplars():
        return np.arange(len(owner))
    hashes = np.array([hash_label(name) for name in names.tolist()], np.uint64)
    return np.flatnonzero(hashes[owner] <= np.sort(hashes)[_most_classes_with_exemplars() // 2 - 1])


def _exemplars_per_class(way: int, keep: int) -> int:
    return min(keep, max(LEAST_EXEMPLARS, MOST_EXEMPLARS // max(1, way)))


def _most_classes_with_exemplars() -> int:
    """Return how many classes there may be before only half as many of them have exemplars."""
    return MOST_EXEMPLARS // LEAST_EXEMPLARS
