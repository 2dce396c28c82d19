"""The support set of a classifier: of each class the sum of its vectors, their number, their keys, and a few exemplars.

Sums and counts only add, so examples may come in any order and in parts, and two supports merge exactly. Calibration
needs single vectors too: of each class at most `keep` are exemplars, those with the smallest keys (whole groups first).
A key is a hash of an example, so exemplars are a fair draw that depends on nothing but the set of examples.
"""

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
NO_LIMIT = 1 << 64  # above every hash of a label

Vectors = Float[np.ndarray, "example d"]
Labels = Shaped[np.ndarray, " example"]


class ClassExemplars(NamedTuple):
    """The exemplars of one class, in order of their keys."""

    vectors: Float[np.ndarray, "exemplar d"]
    keys: UInt64[np.ndarray, " exemplar"]
    groups: UInt64[np.ndarray, " exemplar"]

    def at(self, places: Any) -> "ClassExemplars":
        """Return a copy of some of them."""
        return ClassExemplars(*(values[places].copy() for values in self))


@dataclass(frozen=True)
class Exemplars:
    """Exemplars of several classes, in order of class, then key.

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

    @staticmethod
    def empty(d: int) -> "Exemplars":
        """Return no exemplars."""
        return Exemplars(np.zeros((0, d)), np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.uint64))


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
        moment: Sum of the outer products of all vectors that are not exemplars, for the scatter.
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
        moment: Float[np.ndarray, "d d"] | None = None,
        degrees_of_freedom: int = 0,
    ) -> None:
        self.keep, self.has_scatter, self.degrees_of_freedom = keep, has_scatter, degrees_of_freedom
        self._rows: dict[Any, int] = {label: row for row, label in enumerate(labels.tolist())}
        self._label_type = labels.dtype
        self._sums, self._counts, self._moment = sums, counts, moment
        self._known = known or KeySet()
        self._version, self._versions = 0, np.zeros(len(counts), np.int64)
        self._exemplars: dict[int, ClassExemplars] = {}
        self._hash_limit = NO_LIMIT
        self._cache: dict[str, Any] = {}
        if exemplars is not None and len(exemplars.owner):
            bounds = np.flatnonzero(np.diff(exemplars.owner, prepend=-1, append=-1)).tolist()
            stacked = exemplars.vectors, exemplars.keys, exemplars.groups
            for start, stop in pairwise(bounds):
                values = ClassExemplars(*(array[start:stop] for array in stacked))
                self._exemplars[int(exemplars.owner[start])] = values
            if len(self) > _most_classes_with_all():
                names = list(self._rows)
                self._hash_limit = max(hash_label(names[row]) for row in self._exemplars)
        self._each = _exemplars_per_class(len(self), keep)

    def __len__(self) -> int:
        return len(self._rows)

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_cache": {}}
        return state | {name: state[name][: len(self)] for name in ("_sums", "_counts", "_versions")}

    def copy(self) -> "Support":
        """Return another support that changes on its own."""
        other = object.__new__(Support)
        other.__dict__ = self.__getstate__()
        for name in ("_sums", "_counts", "_versions", "_rows", "_exemplars", "_known"):
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
    def kept_counts(self) -> Int[np.ndarray, " way"]:
        """The number of each class's exemplars."""
        counts = np.zeros(len(self), np.int64)
        for row, mine in self._exemplars.items():
            counts[row] = len(mine.keys)
        return counts

    @property
    def all_keys(self) -> tuple[Keys, Int[np.ndarray, " example"]]:
        """The keys of all examples that are known by one, and the rows of their classes."""
        return self._known.arrays()

    @property
    def moment(self) -> Float[np.ndarray, "d d"] | None:
        """The sum of outer products of all vectors that are not exemplars; None where there are none."""
        return self._moment

    @property
    def scatter(self) -> Float[np.ndarray, "d d"] | None:
        """The sum over examples of the outer product of (vector - mean of its class) with itself."""
        if not self.has_scatter:
            return None
        if "scatter" not in self._cache:
            d = self._sums.shape[1]
            scatter = np.zeros((d, d)) if self._moment is None else self._moment.copy()
            for start in range(0, len(self.exemplars.vectors), PART):
                vectors = self.exemplars.vectors[start : start + PART]
                scatter += vectors.T @ vectors
            for start in range(0, len(self), PART):
                sums, counts = self.sums[start : start + PART], self.counts[start : start + PART]
                roots = sums / np.sqrt(counts)[:, None]
                scatter -= roots.T @ roots
            self._cache["scatter"] = scatter
        result: Float[np.ndarray, "d d"] = self._cache["scatter"]
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
        rows = np.fromiter((self._rows.get(label, -1) for label in labels.tolist()), np.int64, len(labels))
        return self._known.contains(keys, rows[owner])

    def labels_with(self, key: int) -> list[Any]:
        """Return the labels of the classes that have an example of this key."""
        return self.labels_of(np.array(self._known.rows_of(key), np.int64)).tolist()

    def exemplar_keys_of(self, label: Any) -> list[int]:
        """Return the keys of the exemplars of a class."""
        mine = self._exemplars.get(self._rows[label])
        return [] if mine is None else mine.keys.tolist()

    def exemplar_keys(self) -> set[int]:
        """Return the keys of all exemplars."""
        return {key for mine in self._exemplars.values() for key in mine.keys.tolist()}

    def changed_since(self, version: int) -> Int[np.ndarray, " row"]:
        """Return the rows that were added or changed after a version."""
        return np.flatnonzero(self._versions[: len(self)] > version)

    @property
    def version(self) -> int:
        """A number that grows with each change."""
        return self._version

    # ------------------------------------------------------------------------------------------------------- changing

    def merge(self, other: "Support", *, is_disjoint: bool = False) -> tuple[int, int]:
        """Add the examples of another support, all or (if it is interrupted) none.

        Examples that both have, by key and class, count once. Their vectors are subtracted exactly where they are
        exemplars of one of the two, or all that a class of one of them has; else the mean of their class stands for
        them.

        Args:
            other: The other support; it stays as it is.
            is_disjoint: Whether no example of it is known to be here.

        Returns:
            How many examples were here already, and for how many of them a mean had to stand.
        """
        self.check_compatible(other)
        other, shared, estimated = (other, 0, 0) if is_disjoint else self._without_shared(other)
        rows = np.fromiter((self._rows.get(label, -1) for label in other._rows), np.int64, len(other))
        is_new = rows < 0
        rows[is_new] = len(self) + np.arange(int(is_new.sum()))
        names = [label for label, new in zip(other._rows, is_new.tolist(), strict=True) if new]
        keys, key_rows = other._known.arrays()
        with uninterrupted():
            self._reserve(len(self) + len(names))
            self._rows.update(zip(names, range(len(self), len(self) + len(names)), strict=True))
            self._label_type = np.result_type(self._label_type, other._label_type)
            self._sums[rows] += other.sums
            self._counts[rows] += other.counts
            self._known.add(keys, rows[key_rows])
            self.degrees_of_freedom += other.degrees_of_freedom + int((~is_new).sum())
            self._add_to_moment(other._moment)
            self._merge_exemplars(other, rows)
            self._touch(rows)
        return shared, estimated

    def remove(self, labels: Iterable[Any]) -> None:
        """Remove classes."""
        gone = {self._rows[label] for label in labels}
        stays = np.array([row not in gone for row in range(len(self))])
        moment, freedom = self._moment, self.degrees_of_freedom
        for row in gone if self.has_scatter else ():
            part, part_freedom = self._own_moment(row)
            moment = moment if part is None else part * -1 if moment is None else moment - part
            freedom -= part_freedom
        new_rows = np.where(stays, np.cumsum(stays) - 1, -1)
        names = [label for label, row in self._rows.items() if stays[row]]
        exemplars = {int(new_rows[row]): mine for row, mine in self._exemplars.items() if stays[row]}
        sums, counts = self.sums[stays], self.counts[stays]
        with uninterrupted():
            self._rows = {label: row for row, label in enumerate(names)}
            self._sums, self._counts, self._exemplars = sums, counts, exemplars
            self._moment, self.degrees_of_freedom = moment, freedom
            self._known.renumber(new_rows)
            self._version += 1
            self._versions = np.full(len(names), self._version)
            self._cache.clear()

    def split_off(self, label: Any, key: int | None = None, vector: Float[np.ndarray, " d"] | None = None) -> "Support":
        """Remove a class of several, or one of its examples, and return it: merging it again undoes the removal.

        Args:
            label: The class.
            key: The key of the example; without one the whole class goes.
            vector: The example's vector, which is needed if it is no exemplar.
        """
        row = self._rows[label]
        if key is None:
            moment, freedom = self._own_moment(row)
            part = self.select([row], with_keys=True)
            part._moment, part.degrees_of_freedom = moment, freedom
            self.remove([label])
            return part
        mine = self._exemplars.get(row)
        place = np.flatnonzero(mine.keys == np.uint64(key)) if mine is not None else np.zeros(0, int)
        pair = np.array([key], np.uint64), np.array([row])
        is_known = bool(self._known.contains(*pair)[0])
        left = mine
        if mine is not None and len(place):
            one = mine.at(place[:1])
            left = mine.at(np.arange(len(mine.keys)) != place[0])
        else:
            assert vector is not None
            one = ClassExemplars(vector.reshape(1, -1), pair[0], pair[0])
        with uninterrupted():
            self._reserve(len(self))
            self._sums[row] -= one.vectors[0]
            self._counts[row] -= 1
            self.degrees_of_freedom -= 1
            self._known.remove(*pair)
            if left is not None:
                self._exemplars[row] = left
            if left is mine and self.has_scatter:
                self._add_to_moment(-np.outer(one.vectors[0], one.vectors[0]))
            if left is not None and not len(left.keys):
                del self._exemplars[row]
            self._touch(np.array([row]))
        known = KeySet(pair[0], np.zeros(1, np.int64)) if is_known else None
        exemplars = Exemplars(one.vectors, np.zeros(1, np.int64), one.keys, one.groups)
        return Support(
            np.array([label], self._label_type),
            one.vectors.copy(),
            np.ones(1, np.int64),
            exemplars,
            known,
            keep=self.keep,
            has_scatter=self.has_scatter,
        )

    def set_groups(self, keys: Keys, groups: Keys) -> None:
        """Set the groups of the exemplars with these keys."""
        group_of = dict(zip(keys.tolist(), groups.tolist(), strict=True))
        changed = {
            row: mine._replace(
                groups=np.array([group_of.get(key, old) for key, old in zip(*pair, strict=True)], np.uint64)
            )
            for row, mine in self._exemplars.items()
            if not group_of.keys().isdisjoint((pair := (mine.keys.tolist(), mine.groups.tolist()))[0])
        }
        self._exemplars = self._exemplars | changed
        self._touch(np.zeros(0, np.int64))

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

    def _touch(self, rows: Int[np.ndarray, " row"]) -> None:
        self._version += 1
        self._versions[rows] = self._version
        self._cache.clear()

    def _reserve(self, rows: int) -> None:
        """Make room for so many rows, for twice as many as there are at least where there is none."""
        if rows <= len(self._counts) and self._counts.flags.writeable and self._sums.flags.writeable:
            return
        room = max(rows, 2 * len(self._counts)) if rows > len(self._counts) else rows
        for name in ("_sums", "_counts", "_versions"):
            old = getattr(self, name)
            new = np.zeros((room, *old.shape[1:]), old.dtype)  # memory that is not written to is not taken
            new[: len(old)] = old
            setattr(self, name, new)

    def _own_moment(self, row: int) -> tuple[Float[np.ndarray, "d d"] | None, int]:
        """Return the part of the moment and of the degrees of freedom that goes with a class.

        Where all vectors of the class are at hand this is exact. Else its scatter stays where it is, since it is not
        known apart from that of other classes, and only its mean goes.
        """
        mine, count = self._exemplars.get(row), int(self._counts[row])
        if not self.has_scatter or (mine is not None and len(mine.keys) == count):
            return None, count - 1
        mean = self._sums[row] / np.sqrt(count)
        moment = np.outer(mean, mean)
        return moment if mine is None else moment - mine.vectors.T @ mine.vectors, 0

    def _add_to_moment(self, moment: Float[np.ndarray, "d d"] | None) -> None:
        if moment is not None and self.has_scatter:
            self._moment = moment if self._moment is None else self._moment + moment

    def _merge_exemplars(self, other: "Support", rows: Int[np.ndarray, " way"]) -> None:
        """Keep the exemplars with the smallest keys; the others go into the moment."""
        evicted: list[np.ndarray] = []
        each = _exemplars_per_class(len(self), self.keep)
        if each < self._each:
            for row in self._exemplars:
                self._exemplars[row] = _trim(self._exemplars[row], each, evicted)
        self._each = each
        names = list(other._rows) if self._hash_limit < NO_LIMIT else []
        for place, theirs in other._exemplars.items():
            row, mine = int(rows[place]), self._exemplars.get(int(rows[place]))
            if not self.keep or (mine is None and names and hash_label(names[place]) > self._hash_limit):
                evicted.append(theirs.vectors)
                continue
            joined = theirs
            if mine is not None:
                joined = ClassExemplars(*(np.concatenate(pair) for pair in zip(mine, theirs, strict=True)))
                joined = joined.at(np.argsort(joined.keys, kind="stable"))
            trimmed = _trim(joined, each, evicted)
            self._exemplars[row] = theirs.at(slice(None)) if trimmed is theirs else trimmed
        self._limit_classes(evicted)
        if self.has_scatter and evicted:
            gone = np.concatenate(evicted)
            self._add_to_moment(gone.T @ gone)

    def _limit_classes(self, evicted: list[np.ndarray]) -> None:
        """Of very many classes keep exemplars of those whose labels have the smallest hashes."""
        most = _most_classes_with_all() // 2
        if len(self) <= _most_classes_with_all() or len(self._exemplars) <= most:
            return
        names = list(self._rows)
        hashes = {row: hash_label(names[row]) for row in self._exemplars}
        self._hash_limit = sorted(hashes.values())[most - 1]
        for row, value in hashes.items():
            if value > self._hash_limit:
                evicted.append(self._exemplars.pop(row).vectors)

    def _without_shared(self, other: "Support") -> tuple["Support", int, int]:
        """Return the other support without the examples that are here too.

        Returns:
            The support, how many examples were left out, and how many of them had no vector.
        """
        keys, places = other._known.arrays()
        rows = np.fromiter((self._rows.get(label, -1) for label in other._rows), np.int64, len(other))
        is_shared = self._known.contains(keys, rows[places])
        if not is_shared.any():
            return other, 0, 0
        rest, estimated = other.copy(), 0
        here, starts = np.unique(places[is_shared], return_index=True)  # in order of the rows
        for place, mine in zip(here.tolist(), np.split(keys[is_shared], starts[1:]), strict=True):
            estimated += rest._subtract(place, mine, self, int(rows[place]))
        rest._known.remove(keys[is_shared], places[is_shared])
        stays = np.flatnonzero(rest.counts > 0)
        freedom = rest.degrees_of_freedom + len(rest) - len(stays)
        moment = rest._moment
        rest = rest.select(stays.tolist(), with_keys=True)
        rest._moment, rest.degrees_of_freedom = moment, freedom
        return rest, int(is_shared.sum()), estimated

    def _subtract(self, row: int, keys: Keys, other: "Support", other_row: int) -> int:
        """Subtract examples of a class, which another support has too; return how many had no vector."""
        mine = self._exemplars.get(row)
        theirs = other._exemplars.get(other_row)
        places = _places(mine, keys)
        in_other = _places(theirs, keys)
        elsewhere = (places < 0) & (in_other >= 0)
        vectors = [mine.vectors[places[places >= 0]]] if mine is not None else []
        outside = theirs.vectors[in_other[elsewhere]] if theirs is not None else np.zeros((0, self._sums.shape[1]))
        missing = len(keys) - int((places >= 0).sum()) - len(outside)
        if len(keys) == self._counts[row]:
            total, missing = self._sums[row].copy(), 0
        elif len(keys) == other._counts[other_row]:
            total, missing = other._sums[other_row].copy(), 0
        else:
            total = np.concatenate([*vectors, outside]).sum(0) + missing * self._sums[row] / self._counts[row]
        if self.has_scatter:
            unknown = len(keys) - int((places >= 0).sum()) - len(outside)
            mean = self._sums[row] / self._counts[row]
            self._add_to_moment(-(outside.T @ outside) - unknown * np.outer(mean, mean))
        self._sums[row] -= total
        self._counts[row] -= len(keys)
        self.degrees_of_freedom -= len(keys)
        if mine is not None:
            self._exemplars[row] = mine.at(np.setdiff1d(np.arange(len(mine.keys)), places))
            if not len(self._exemplars[row].keys):
                del self._exemplars[row]
        return missing

    # ------------------------------------------------------------------------------------------------------- deriving

    def select(self, rows: Iterable[int], *, with_keys: bool = False) -> "Support":
        """Return a copy of some classes, with the moment and degrees of freedom of all."""
        chosen = np.array(list(rows), np.int64)
        known = self._known.copy() if with_keys else KeySet()
        new_rows = np.full(len(self), -1)
        new_rows[chosen] = np.arange(len(chosen))
        known.renumber(new_rows)
        return Support(
            self.labels_of(chosen),
            self._sums[chosen],
            self._counts[chosen],
            self._stack(chosen.tolist()),
            known,
            keep=self.keep,
            has_scatter=self.has_scatter,
            moment=self._moment,
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
        if self.has_scatter:
            part._cache["scatter"] = self.scatter
        return part, rows

    def in_order(self) -> "Support":
        """Return a copy in order of the labels, whose arrays cannot be written to."""
        ordered = self.select(np.argsort(self.labels, kind="stable").tolist(), with_keys=True)
        exemplars = ordered.exemplars
        arrays = (ordered._sums, ordered._counts, exemplars.vectors, exemplars.owner, exemplars.keys, exemplars.groups)
        scatter = ordered.scatter
        for array in (*arrays, *([] if scatter is None else [scatter])):
            array.flags.writeable = False
        return ordered

    def first(self, shot: int) -> "Support":
        """Return the classes as they would be with at most `shot` examples: their first exemplars."""
        few = {row: mine.at(slice(shot)) for row, mine in self._exemplars.items()}
        exemplars = self._stack(range(len(self)), few)
        counts = np.bincount(exemplars.owner, minlength=len(self))
        sums = _sum_by_class([exemplars.vectors], exemplars.owner, len(self), self._sums.shape[1])
        freedom = len(exemplars.owner) - len(self)
        return Support(
            self.labels,
            sums,
            counts,
            exemplars,
            keep=self.keep,
            has_scatter=self.has_scatter,
            degrees_of_freedom=freedom,
        )

    def _stack(self, rows: Iterable[int], exemplars: dict[int, ClassExemplars] | None = None) -> Exemplars:
        """Return the exemplars of some rows, numbered as they come."""
        source = self._exemplars if exemplars is None else exemplars
        mine = [(place, source[row]) for place, row in enumerate(rows) if row in source]
        if not mine:
            return Exemplars.empty(self._sums.shape[1])
        vectors, keys, groups = (np.concatenate(values) for values in zip(*(one for _, one in mine), strict=True))
        owner = np.repeat([place for place, _ in mine], [len(one.keys) for _, one in mine])
        return Exemplars(vectors, owner.astype(np.int64), keys, groups)


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
    way, groups = len(names), keys if groups is None else groups
    chosen = np.zeros(0, np.int64)
    if keys is not None and groups is not None and keep != 0:
        chosen = _choose_exemplars(names, owner, keys, groups, keep)
    place = np.full(len(labels), -1)
    place[chosen] = np.arange(len(chosen))
    exemplars: Float[np.ndarray, "exemplar d"] | None = None
    moment: Float[np.ndarray, "d d"] | None = None

    def seen() -> Iterator[Vectors]:
        """Pick exemplars and sum the moment while the vectors come by."""
        nonlocal exemplars, moment
        start = 0
        for vectors in parts:
            here = place[start : start + len(vectors)]
            start += len(vectors)
            if exemplars is None:
                exemplars = np.empty((len(chosen), vectors.shape[1]))
            is_chosen = here >= 0
            exemplars[here[is_chosen]] = vectors[is_chosen]
            if has_scatter and not is_chosen.all():
                rest = np.asarray(vectors[~is_chosen], np.float64)
                moment = rest.T @ rest if moment is None else moment + rest.T @ rest
            yield vectors

    sums, counts = _sum_by_class(seen(), owner, way), np.bincount(owner, minlength=way)
    known = None if keys is None else KeySet(keys, owner.astype(np.int64))
    stacked = None
    if keys is not None and groups is not None and exemplars is not None:
        stacked = Exemplars(exemplars, owner[chosen], keys[chosen], groups[chosen])
    freedom = len(labels) - way
    return Support(
        names,
        sums,
        counts,
        stacked,
        known,
        keep=len(labels) if keep is None else keep,
        has_scatter=has_scatter,
        moment=moment,
        degrees_of_freedom=freedom,
    )


def split_rows(rows: Vectors) -> Iterator[Vectors]:
    """Yield rows some at a time, so that what is made of them never takes much memory."""
    return (rows[start : start + PART // 8] for start in range(0, len(rows), PART // 8))


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


def _sum_by_class(
    parts: Iterable[Vectors], owner: Int[np.ndarray, " example"], way: int, d: int = 0
) -> Float[np.ndarray, "way d"]:
    sums, start = torch.zeros(way, d, dtype=torch.float64), 0
    for vectors in parts:
        if not sums.shape[1]:
            sums = torch.zeros(way, vectors.shape[1], dtype=torch.float64)
        here = owner[start : start + len(vectors)]
        start += len(vectors)
        if len(here) == 1:  # torch would wake its threads
            sums.numpy()[here] += vectors
        else:
            sums.index_add_(0, torch.from_numpy(here), torch.from_numpy(np.require(vectors, np.float64, "W")))
    return sums.numpy()


def _choose_exemplars(
    names: Shaped[np.ndarray, " way"], owner: Int[np.ndarray, " example"], keys: Keys, groups: Keys, keep: int | None
) -> Int[np.ndarray, " chosen"]:
    """Return which examples become exemplars, in order of class, then key."""
    places = np.arange(len(owner))
    if keep is None:
        return places[np.lexsort((keys, owner))]
    if len(names) > _most_classes_with_all():
        hashes = np.array([hash_label(name) for name in names.tolist()], np.uint64)
        limit = np.sort(hashes)[_most_classes_with_all() // 2 - 1]
        places = np.flatnonzero(hashes[owner] <= limit)
    order = places[np.lexsort((keys[places], groups[places], owner[places]))]
    sorted_owner = owner[order]
    rank = np.arange(len(order)) - np.searchsorted(sorted_owner, sorted_owner)
    chosen = order[rank < _exemplars_per_class(len(names), keep)]
    return chosen[np.lexsort((keys[chosen], owner[chosen]))]


def _trim(mine: ClassExemplars, most: int, evicted: list[np.ndarray]) -> ClassExemplars:
    """Return the exemplars of a class with the smallest groups and keys; the vectors of others are `evicted`."""
    if len(mine.keys) <= most:
        return mine
    order = np.lexsort((mine.keys, mine.groups))
    evicted.append(mine.vectors[order[most:]])
    return mine.at(np.sort(order[:most]))


def _places(mine: ClassExemplars | None, keys: Keys) -> Int[np.ndarray, " key"]:
    """Return the place of each key among the exemplars of a class, or -1."""
    if mine is None:
        return np.full(len(keys), -1)
    places = np.searchsorted(mine.keys, keys).clip(0, len(mine.keys) - 1)
    return np.where(mine.keys[places] == keys, places, -1)


def _exemplars_per_class(way: int, keep: int) -> int:
    return min(keep, max(LEAST_EXEMPLARS, MOST_EXEMPLARS // max(1, way)))


def _most_classes_with_all() -> int:
    """Return how many classes there may be before only half as many of them have exemplars."""
    return MOST_EXEMPLARS // LEAST_EXEMPLARS
