"""The support set of a classifier: of each class the sum, the number and the keys of its examples, and some exemplars.

Sums and counts only add, so examples may come in any order and in parts, and two supports merge exactly. Calibration
leaves single examples out and needs their vectors: at most `keep` examples of a class are exemplars, whose vectors are
stored. They are those with the smallest hashes of their groups, then the smallest keys. Both are hashes, so exemplars
are a fair draw that depends on nothing but the set of examples.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped, UInt64

from anyshot.classify.keys import Keys, KeySet, hash_label
from anyshot.errors import BadInput

MOST_EXEMPLARS = 32_768  # of all classes together: more would hardly change a scale, a threshold or an accuracy
LEAST_EXEMPLARS = 2  # of a class: one to leave out, and one that stays
CACHED = ("exemplars", "scatter", "_names")  # attributes that are computed from the others, on first use
PART = 4096  # rows per matrix product, so that temporary copies stay small

Vectors = Float[np.ndarray, "example d"]
Labels = Shaped[np.ndarray, " example"]
Matrix = Float[np.ndarray, "d d"]


class Exemplars(NamedTuple):
    """Examples whose vectors are stored, in order of class, then key.

    Attributes:
        vectors: The vector of each.
        class_index: The row of its class in the support.
        keys: Its key.
        groups: A hash of its group; its own key where no group was given.
    """

    vectors: Float[np.ndarray, "exemplar d"]
    class_index: Int[np.ndarray, " exemplar"]
    keys: UInt64[np.ndarray, " exemplar"]
    groups: UInt64[np.ndarray, " exemplar"]

    def take(self, places: Any) -> "Exemplars":
        """Return a copy of the exemplars at some places."""
        return Exemplars(*(values[places].copy() for values in self))

    @staticmethod
    def join(d: int, parts: Iterable["Exemplars"]) -> "Exemplars":
        """Return the exemplars of several parts, of vectors of d numbers, one part after the other."""
        empty = Exemplars(np.zeros((0, d)), np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.uint64))
        return Exemplars(*(np.concatenate(values) for values in zip(empty, *parts, strict=True)))


class Support:
    """The classes of a classifier, one row each, in order of arrival.

    Args:
        labels: The label of each class.
        sums: The sum of its vectors.
        counts: The number of its examples.
        exemplars: Some of them, in order of class.
        example_keys: The keys of all examples, except for those from early files, which have none.
        keep: The most exemplars of a class. Where there are many classes it is fewer (`_exemplars_per_class`).
        has_scatter: Whether the head needs the scatter within classes.
        second_moment: The sum over all examples of the outer product of the vector with itself, from which the scatter
            is computed; None where all examples are exemplars.
        degrees_of_freedom: Those of the scatter: the number of examples minus that of classes. (The scatter of a class
            that is removed stays where its vectors are not all exemplars, and so do its degrees of freedom.)
    """

    def __init__(  # noqa: PLR0913 (the parts of a support; nobody else passes so many)
        self,
        labels: Shaped[np.ndarray, " class"],
        sums: Float[np.ndarray, "class d"],
        counts: Int[np.ndarray, " class"],
        exemplars: Exemplars | None = None,
        example_keys: KeySet | None = None,
        *,
        keep: int = 0,
        has_scatter: bool = False,
        second_moment: Matrix | None = None,
        degrees_of_freedom: int = 0,
    ) -> None:
        self.keep, self.has_scatter, self.degrees_of_freedom = keep, has_scatter, degrees_of_freedom
        self._rows: dict[Any, int] = {label: row for row, label in enumerate(labels.tolist())}
        self._label_type = labels.dtype
        self._sums, self._counts, self.second_moment = sums, counts, second_moment
        self._example_keys = example_keys or KeySet()
        self._exemplars: dict[int, Exemplars] = {}  # of each class that has any
        self._exemplar_limit = _exemplars_per_class(len(self), keep)
        self._set_exemplars(exemplars or Exemplars.join(sums.shape[1], ()))
        # Of very many classes only those with the smallest hashes of their labels have exemplars.
        is_limited = len(self) > _most_classes_with_exemplars() and self._exemplars
        self._largest_hash = max(hash_label(self._names[row]) for row in self._exemplars) if is_limited else None

    def __len__(self) -> int:
        return len(self._rows)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name not in CACHED}
        return state | {"_sums": self.sums, "_counts": self.counts}

    def copy(self) -> "Support":
        """Return another support that changes on its own."""
        other = object.__new__(Support)
        other.__dict__ = self.__getstate__()
        for name in ("_sums", "_counts", "_rows", "_exemplars"):
            setattr(other, name, getattr(other, name).copy())
        return other

    # -------------------------------------------------------------------------------------------------------- reading

    @property
    def labels(self) -> Shaped[np.ndarray, " class"]:
        """The label of each class."""
        return np.array(list(self._rows), self._label_type)

    @property
    def sums(self) -> Float[np.ndarray, "class d"]:
        """The sum of each class's vectors."""
        return self._sums[: len(self)]

    @property
    def counts(self) -> Int[np.ndarray, " class"]:
        """The number of each class's examples."""
        return self._counts[: len(self)]

    @property
    def means(self) -> Float[np.ndarray, "class d"]:
        """The mean of each class."""
        return self.sums / self.counts[:, None]

    @cached_property
    def exemplars(self) -> Exemplars:
        """All exemplars."""
        return self._stack(range(len(self)))

    @property
    def exemplar_counts(self) -> Int[np.ndarray, " class"]:
        """The number of each class's exemplars."""
        return np.bincount(self.exemplars.class_index, minlength=len(self))

    @property
    def has_incomplete_group(self) -> Bool[np.ndarray, " exemplar"]:
        """Whether the group of an exemplar may have members that are no exemplars.

        Exemplars are the examples with the smallest groups. So only the last group of a class can be incomplete, and
        only where the class has more examples than exemplars.
        """
        _, class_index, keys, groups = self.exemplars
        last = np.zeros(len(self), np.uint64)
        np.maximum.at(last, class_index, groups)
        has_more = self.counts > self.exemplar_counts
        return has_more[class_index] & (groups == last[class_index]) & (groups != keys)

    @property
    def all_keys(self) -> tuple[Keys, Int[np.ndarray, " example"]]:
        """The keys of all examples that have one, and the rows of their classes, in order of the rows."""
        order = np.lexsort((self._example_keys.keys, self._example_keys.rows))
        return self._example_keys.keys[order], self._example_keys.rows[order]

    @cached_property
    def scatter(self) -> Matrix | None:
        """The sum over examples of the outer product of (vector - mean of its class) with itself."""
        if not self.has_scatter:
            return None
        scatter = self._outer_products() if self.second_moment is None else self.second_moment.copy()
        for start in range(0, len(self), PART):
            sums, counts = self.sums[start : start + PART], self.counts[start : start + PART]
            roots = sums / np.sqrt(counts)[:, None]
            scatter -= roots.T @ roots
        scatter.flags.writeable = False
        return scatter

    @cached_property
    def _names(self) -> list[Any]:
        """The labels as a list, by which single ones are looked up."""
        return list(self._rows)

    def row_of(self, label: Any) -> int | None:
        """Return the row of a class, or None."""
        return self._rows.get(label)

    def labels_of(self, rows: Int[np.ndarray, "*any"]) -> Shaped[np.ndarray, "*any"]:
        """Return the labels of some rows."""
        return np.array([self._names[row] for row in rows.ravel().tolist()], self._label_type).reshape(rows.shape)

    def contains(
        self, labels: Shaped[np.ndarray, " class"], class_index: Any, keys: Keys
    ) -> Bool[np.ndarray, " example"]:
        """Return which examples are there already: those whose class (labels[class_index]) has their key."""
        return self._example_keys.find(keys, self._find_rows(labels.tolist())[class_index]) >= 0

    def labels_with(self, key: int) -> list[Any]:
        """Return the labels of the classes that have an example of this key."""
        return self.labels_of(self._example_keys.rows_of(key)).tolist()

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
        """Return the sum over the exemplars of the outer product of the vector with itself."""
        vectors = self.exemplars.vectors
        total = np.zeros((vectors.shape[1], vectors.shape[1]))
        for start in range(0, len(vectors), PART):
            total += vectors[start : start + PART].T @ vectors[start : start + PART]
        return total

    def _stack(self, rows: Iterable[int]) -> Exemplars:
        """Return the exemplars of the classes in some rows; their class_index counts these rows from 0."""
        exemplars = [(place, self._exemplars[row]) for place, row in enumerate(rows) if row in self._exemplars]
        parts = (part._replace(class_index=np.full(len(part.keys), place)) for place, part in exemplars)
        return Exemplars.join(self._sums.shape[1], parts)

    # ------------------------------------------------------------------------------------------------------- changing

    def merge(self, other: "Support", *, is_disjoint: bool = False) -> int:
        """Add the examples of another support and return how many were here already; these count once.

        Args:
            other: The other support; it stays as it is.
            is_disjoint: Whether the two are known to share no example.

        Raises:
            BadInput: If the two share some examples of a class, not all, whose vectors neither has; nothing is changed.
        """
        self.check_compatible(other)
        if is_disjoint:
            self._add(other)
            return 0
        keys, other_rows = other.all_keys
        rows, labels = self._find_rows(other._rows), list(other._rows)
        is_shared = self._example_keys.find(keys, rows[other_rows]) >= 0
        shared = np.bincount(other_rows[is_shared], minlength=len(other))
        has_nothing_new = shared == other.counts
        contains_ours = ~has_nothing_new & (shared > 0) & (shared == self.counts[rows])
        rest = other.copy() if is_shared.any() else other
        for row in np.flatnonzero((shared > 0) & ~has_nothing_new & ~contains_ours).tolist():
            here = slice(*np.searchsorted(other_rows, [row, row + 1]))
            shared_keys = keys[here][is_shared[here]]
            rest._subtract(labels[row], shared_keys, self._find_vectors(labels[row], shared_keys, other))
        self.remove([labels[row] for row in np.flatnonzero(contains_ours)])
        rest.remove([labels[row] for row in np.flatnonzero(has_nothing_new)])
        self._add(rest)
        return int(is_shared.sum())

    def remove(self, labels: Sequence[Any]) -> None:
        """Remove classes."""
        if not labels:
            return
        removed = [self._rows[label] for label in labels]
        rest = self.select(np.delete(np.arange(len(self)), removed), with_keys=True)
        for row in removed if self.has_scatter else ():
            moment, degrees_of_freedom = self._moment_of(row)
            rest.second_moment = None if rest.second_moment is None else rest.second_moment - moment
            rest.degrees_of_freedom -= degrees_of_freedom
        self.__dict__ = rest.__dict__

    def split_off(self, label: Any, key: int | None = None, vector: Float[np.ndarray, " d"] | None = None) -> "Support":
        """Remove a class of several, or one of its examples, and return it: merging it again undoes the removal.

        Args:
            label: The class.
            key: The key of the example; without one the whole class goes.
            vector: The example's vector, which is needed if it is no exemplar.
        """
        row, first = self._rows[label], np.zeros(1, np.int64)
        if key is None:
            part = self.select(np.array([row]), with_keys=True)
            moment, part.degrees_of_freedom = self._moment_of(row)
            part.second_moment = None if self.second_moment is None else moment
            self.remove([label])
            return part
        keys, exemplars = np.array([key], np.uint64), self._exemplars.get(row)
        if exemplars is not None and keys[0] in exemplars.keys:
            exemplar = exemplars.take(exemplars.keys == keys[0])._replace(class_index=first)
        else:
            assert vector is not None
            exemplar = Exemplars(vector[None], first, keys, keys)
        is_known = self._example_keys.find(keys, np.array([row]))[0] >= 0
        part = Support(
            self.labels_of(np.array([row])),
            exemplar.vectors.copy(),
            np.ones(1, np.int64),
            exemplar,
            KeySet(keys, first) if is_known else None,
            keep=self.keep,
            has_scatter=self.has_scatter,
        )
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
        self._reserve(len(self) + len(names))
        moment = self._add_moments(other, rows, len(self) + len(names))
        self._rows.update(zip(names, range(len(self), len(self) + len(names)), strict=True))
        self._label_type = np.result_type(self._label_type, other._label_type)
        self._sums[rows] += other.sums
        self._counts[rows] += other.counts
        self.second_moment = moment
        self._example_keys = self._example_keys.add(other._example_keys.keys, rows[other._example_keys.rows])
        self.degrees_of_freedom += other.degrees_of_freedom + int((~is_new).sum())
        self._clear_cache()
        self._add_exemplars(other, rows)

    def _add_moments(self, other: "Support", rows: Int[np.ndarray, " class"], n_classes: int) -> Matrix | None:
        """Return the sum of both second moments; None where all examples of both will be exemplars.

        Args:
            other: The support that is added.
            rows: The rows that its classes will have here.
            n_classes: The number of classes afterwards.
        """
        limit = _exemplars_per_class(n_classes, self.keep)
        largest = int((self._counts[rows] + other.counts).max(initial=0))
        if limit < self._exemplar_limit:  # classes that are not added to may lose exemplars too
            largest = max(largest, int(self.counts.max(initial=0)))
        have_all = self.second_moment is None and other.second_moment is None
        if not self.has_scatter or (have_all and largest <= limit and n_classes <= _most_classes_with_exemplars()):
            return None
        moments = (s._outer_products() if s.second_moment is None else s.second_moment for s in (self, other))
        return next(moments) + next(moments)

    def _add_exemplars(self, other: "Support", rows: Int[np.ndarray, " class"]) -> None:
        """Pick exemplars among those of both supports."""
        limit, new = _exemplars_per_class(len(self), self.keep), other.exemplars
        if self._largest_hash is not None:
            is_allowed = [
                row in self._exemplars or hash_label(name) <= self._largest_hash
                for row, name in zip(rows.tolist(), other._rows, strict=True)
            ]
            new = new.take(np.array(is_allowed)[new.class_index])
        new = new._replace(class_index=rows[new.class_index])
        changed = self._exemplars.keys() if limit < self._exemplar_limit else set(new.class_index.tolist())
        before = [self._exemplars[row] for row in changed if row in self._exemplars]
        joined = Exemplars.join(self._sums.shape[1], [*before, new])
        self._set_exemplars(joined.take(_pick_exemplars(joined.class_index, joined.keys, joined.groups, limit)))
        self._exemplar_limit = limit
        if len(self) > _most_classes_with_exemplars() < 2 * len(self._exemplars):
            hashes = {row: hash_label(self._names[row]) for row in self._exemplars}
            self._largest_hash = sorted(hashes.values())[_most_classes_with_exemplars() // 2 - 1]
            self._exemplars = {
                row: exemplars for row, exemplars in self._exemplars.items() if hashes[row] <= self._largest_hash
            }

    def _set_exemplars(self, exemplars: Exemplars) -> None:
        """Set the exemplars of the classes that these are of, as copies: views would hold the memory of all."""
        bounds = np.flatnonzero(np.diff(exemplars.class_index, prepend=-1, append=-1)).tolist()
        for start, stop in pairwise(bounds):
            self._exemplars[int(exemplars.class_index[start])] = exemplars.take(slice(start, stop))

    def _subtract(self, label: Any, keys: Keys, vectors: Vectors) -> None:
        """Subtract examples of a class."""
        row = self._rows[label]
        self._reserve(len(self))
        self._sums[row] -= vectors.sum(0)
        self._counts[row] -= len(keys)
        self.degrees_of_freedom -= len(keys)
        if self.second_moment is not None:
            self.second_moment = self.second_moment - vectors.T @ vectors
        self._example_keys = self._example_keys.remove(keys, np.full(len(keys), row))
        exemplars = self._exemplars.pop(row, None)
        if exemplars is not None and not (is_gone := np.isin(exemplars.keys, keys)).all():
            self._exemplars[row] = exemplars.take(~is_gone)
        self._clear_cache()

    def _clear_cache(self) -> None:
        for name in CACHED:
            self.__dict__.pop(name, None)

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
        """Make room for so many rows, at least doubling the arrays, so that adding classes one by one stays linear."""
        if rows <= len(self._counts) and self._counts.flags.writeable and self._sums.flags.writeable:
            return
        room = max(rows, 2 * len(self._counts)) if rows > len(self._counts) else rows
        for name in ("_sums", "_counts"):
            old = getattr(self, name)
            new = np.zeros((room, *old.shape[1:]), old.dtype)  # memory that is not written to is not taken
            new[: len(old)] = old
            setattr(self, name, new)

    def _moment_of(self, row: int) -> tuple[Matrix, int]:
        """Return what removing a class subtracts from the second moment and from the degrees of freedom.

        Where all examples of the class are exemplars this is exact. Otherwise its scatter is not known separately from
        that of other classes and stays; only what its mean contributes is subtracted.
        """
        exemplars, count = self._exemplars.get(row), int(self._counts[row])
        if exemplars is not None and len(exemplars.keys) == count:
            return exemplars.vectors.T @ exemplars.vectors, count - 1
        return np.outer(self._sums[row], self._sums[row]) / count, 0

    # ------------------------------------------------------------------------------------------------------- deriving

    def select(self, rows: Int[np.ndarray, " some"], *, with_keys: bool = False) -> "Support":
        """Return a copy of the classes in some rows, with the second moment and degrees of freedom of all classes."""
        new_rows = np.full(len(self), -1)
        new_rows[rows] = np.arange(len(rows))
        return Support(
            self.labels_of(rows),
            self._sums[rows],
            self._counts[rows],
            self._stack(rows.tolist()),
            self._example_keys.renumber(new_rows) if with_keys else None,
            keep=self.keep,
            has_scatter=self.has_scatter,
            second_moment=self.second_moment,
            degrees_of_freedom=self.degrees_of_freedom,
        )

    def sample(self, n_classes: int) -> tuple["Support", Int[np.ndarray, " class"]]:
        """Return some classes in order of their labels, and their rows here.

        Classes of two examples or more are chosen first, then by a hash of the label. The scatter is that of all.
        """
        candidates = list(self._exemplars) or range(len(self))
        ranked = sorted(candidates, key=lambda row: (self._counts[row] < 2, hash_label(self._names[row])))
        rows = np.array(ranked[:n_classes], np.int64)
        rows = rows[np.argsort(self.labels_of(rows), kind="stable")]
        part = self.select(rows)
        part.scatter = self.scatter
        return part, rows

    def sort_by_label(self) -> "Support":
        """Return a copy in order of the labels, whose arrays are read-only."""
        ordered = self.select(np.argsort(self.labels, kind="stable"), with_keys=True)
        for array in (ordered._sums, ordered._counts, *ordered.exemplars):
            array.flags.writeable = False
        return ordered

    def limit_shots(self, shot: int) -> "Support":
        """Return the classes with at most `shot` examples each, their first exemplars; every class must have one."""
        class_index = self.exemplars.class_index
        rank = np.arange(len(class_index)) - np.searchsorted(class_index, class_index)
        vectors, class_index, keys, groups = self.exemplars.take(rank < shot)
        options: Any = {"keep": self.keep, "has_scatter": self.has_scatter}
        return build_support([vectors], self.labels[class_index], keys, groups, **options)


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
        parts: Their vectors, as arrays of consecutive rows.
        labels: Their labels.
        keys: Their keys; without keys there are no exemplars.
        groups: Hashes of their groups; their keys where None.
        keep: Exemplars of a class, at most; None for all examples, however many they are.
        has_scatter: Whether the head needs the scatter within classes.
    """
    names, class_index = np.unique(labels, return_inverse=True)
    groups, chosen = keys if groups is None else groups, np.zeros(0, np.int64)
    if keys is not None and groups is not None and keep != 0:
        candidates = np.arange(len(labels)) if keep is None else _find_candidates(names, class_index)
        limit = len(labels) if keep is None else _exemplars_per_class(len(names), keep)
        chosen = candidates[_pick_exemplars(class_index[candidates], keys[candidates], groups[candidates], limit)]
    place = np.full(len(labels), -1)  # of an example among the exemplars
    place[chosen] = np.arange(len(chosen))
    sums, vectors, moment, start = torch.zeros(0), np.zeros((0, 0)), None, 0
    for part in parts:
        double = torch.from_numpy(np.require(part, np.float64, "W"))
        here, start = slice(start, start + len(part)), start + len(part)
        if not here.start:
            sums = torch.zeros(len(names), part.shape[1], dtype=torch.float64)
            vectors = np.empty((len(chosen), part.shape[1]))
        sums.index_add_(0, torch.from_numpy(class_index[here]), double)
        vectors[place[here][place[here] >= 0]] = part[place[here] >= 0]
        if has_scatter and len(chosen) < len(labels):
            moment = (double.mT @ double).numpy() + (0.0 if moment is None else moment)
    exemplars = example_keys = None
    if keys is not None and groups is not None:
        exemplars = Exemplars(vectors, class_index[chosen], keys[chosen], groups[chosen])
        example_keys = KeySet(keys, class_index)
    return Support(
        names,
        sums.numpy(),
        np.bincount(class_index, minlength=len(names)),
        exemplars,
        example_keys,
        keep=len(labels) if keep is None else keep,
        has_scatter=has_scatter,
        second_moment=moment,
        degrees_of_freedom=len(labels) - len(names),
    )


def find_repeats(class_index: Int[np.ndarray, " example"], keys: Keys) -> Bool[np.ndarray, " example"]:
    """Return which examples have the key and the class of an earlier one."""
    order = np.lexsort((keys, class_index))
    is_repeat = np.zeros(len(keys), bool)
    is_repeat[order[1:]] = (np.diff(class_index[order]) == 0) & (keys[order][1:] == keys[order][:-1])
    return is_repeat


def _pick_exemplars(
    class_index: Int[np.ndarray, " example"], keys: Keys, groups: Keys, limit: int
) -> Int[np.ndarray, " exemplar"]:
    """Return the places of the exemplars: in each class the `limit` examples with the smallest groups, then keys.

    They are in order of class, then key.
    """
    order = np.lexsort((keys, groups, class_index))
    rank = np.arange(len(order)) - np.searchsorted(class_index[order], class_index[order])
    places = order[rank < limit]
    return places[np.lexsort((keys[places], class_index[places]))]


def _find_candidates(
    names: Shaped[np.ndarray, " class"], class_index: Int[np.ndarray, " example"]
) -> Int[np.ndarray, " candidate"]:
    """Return the places of examples that may be exemplars.

    These are all, but of very many classes only those of the classes whose labels have the smallest hashes.
    """
    if len(names) <= _most_classes_with_exemplars():
        return np.arange(len(class_index))
    hashes = np.array([hash_label(name) for name in names.tolist()], np.uint64)
    return np.flatnonzero(hashes[class_index] <= np.sort(hashes)[_most_classes_with_exemplars() // 2 - 1])


def _exemplars_per_class(n_classes: int, keep: int) -> int:
    """Return the most exemplars of a class: `keep`, or fewer where there are many classes."""
    return min(keep, max(LEAST_EXEMPLARS, MOST_EXEMPLARS // max(1, n_classes)))


def _most_classes_with_exemplars() -> int:
    """Return the number of classes beyond which only some have exemplars; at least half this number do."""
    return MOST_EXEMPLARS // LEAST_EXEMPLARS
