"""The support set of a classifier: of each class the sum, the number and the keys of its examples, and some exemplars.

Sums and counts only add, so examples may come in any order and in parts, and two supports merge exactly. Calibration
leaves single examples out and needs their vectors: at most `keep` examples of a class are exemplars, whose vectors are
stored. They are those with the smallest hashes of their groups, then the smallest keys. Both are hashes, so exemplars
are a fair draw that depends on nothing but the set of examples.

A support never changes: learning, merging and removing return another one, which shares the classes that are the same.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from heapq import nlargest
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped, UInt64

from anyshot.arrays import rank_in_class, split_rows
from anyshot.classify.keys import Keys, hash_label
from anyshot.errors import BadInput

MOST_EXEMPLARS = 32_768  # of all classes together: more would hardly change a scale, a threshold or an accuracy
MOST_RECENT = 512  # classes that a support may have beside its older ones (`Support.recent`)
LEAST_EXEMPLARS = 2  # of a class: one to leave out, and one that stays
PART = 4096  # rows per matrix product, so that temporary copies stay small

Vector = Float[np.ndarray, " d"]
Vectors = Float[np.ndarray, "example d"]
Labels = Shaped[np.ndarray, " example"]
Matrix = Float[np.ndarray, "d d"]
Rows = Int[np.ndarray, " some"]


class Exemplar(NamedTuple):
    """An example whose vector is stored, and a hash of its group: its own key where no group was given."""

    group: int
    vector: Vector


@dataclass(eq=False, slots=True)
class ClassExamples:
    """What is known of the examples of one class; it is never changed.

    Attributes:
        sum: The sum of their vectors.
        count: Their number.
        keys: Their keys; examples from early files have none.
        exemplars: Some of them, by their keys.
    """

    sum: Vector
    count: int
    keys: frozenset[int]
    exemplars: Mapping[int, Exemplar]

    def add(self, other: "ClassExamples") -> "ClassExamples":
        """Return the examples of both, which share none."""
        exemplars = {**self.exemplars, **other.exemplars}
        return ClassExamples(self.sum + other.sum, self.count + other.count, self.keys | other.keys, exemplars)

    def subtract(self, vectors: Mapping[int, Vector]) -> "ClassExamples":
        """Return the examples without some, which are given by their keys and vectors."""
        exemplars = {key: exemplar for key, exemplar in self.exemplars.items() if key not in vectors}
        total = np.sum(list(vectors.values()), 0)
        return ClassExamples(self.sum - total, self.count - len(vectors), self.keys.difference(vectors), exemplars)

    def limit_exemplars(self, limit: int) -> tuple["ClassExamples", list[Vector]]:
        """Return the examples with at most so many exemplars, and the vectors of the exemplars that are dropped."""
        order = sorted(self.exemplars, key=lambda key: (self.exemplars[key].group, key))
        exemplars = {key: self.exemplars[key] for key in order[:limit]}
        return replace(self, exemplars=exemplars), [self.exemplars[key].vector for key in order[limit:]]


class Exemplars(NamedTuple):
    """Exemplars as arrays, in order of class, then key.

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


@dataclass(frozen=True, eq=False)
class Support:
    """The classes of a classifier; its arrays have one row each, in order of the labels, and are read-only.

    Args:
        older: What is known of each class, by its label; several supports may share it.
        label_type: The type of the labels.
        keep: The most exemplars of a class. Where there are many classes it is fewer (`_exemplars_per_class`).
        has_scatter: Whether the head needs the scatter within classes.
        rest_moment: The sum of the outer product of the vector with itself over the examples that are no exemplars.
        degrees_of_freedom: Those of the scatter: the number of examples minus that of classes. (More in files of
            classifiers whose classes were removed by an earlier version.)
        recent: Classes that are new, or take the place of those of `older`: to copy all of many classes for one more
            example would take too long.
    """

    older: Mapping[Any, ClassExamples]
    label_type: np.dtype[Any]
    keep: int = 0
    has_scatter: bool = False
    rest_moment: Matrix | float = 0.0
    degrees_of_freedom: int = 0
    recent: Mapping[Any, ClassExamples] = field(default_factory=dict)

    @staticmethod
    def from_arrays(
        labels: Shaped[np.ndarray, " class"],
        sums: Float[np.ndarray, "class d"],
        counts: Int[np.ndarray, " class"],
        exemplars: Exemplars | None = None,
        example_keys: tuple[Keys, Rows] | None = None,
        **options: Any,
    ) -> "Support":
        """Return a support from arrays: the keys of all examples come with the rows of their classes."""
        stored: list[dict[int, Exemplar]] = [{} for _ in labels]
        for vector, row, key, group in zip(*(exemplars or ()), strict=True):
            stored[row][int(key)] = Exemplar(int(group), vector.copy())
        keys: list[list[int]] = [[] for _ in labels]
        for key, row in zip(*(values.tolist() for values in example_keys or ()), strict=True):
            keys[row].append(key)
        classes = map(ClassExamples, sums, counts.tolist(), map(frozenset, keys), stored)
        return Support(dict(zip(labels.tolist(), classes, strict=True)), labels.dtype, **options)

    def __len__(self) -> int:
        return len(self.older) + sum(label not in self.older for label in self.recent)

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments without what was computed from them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    # -------------------------------------------------------------------------------------------------------- reading

    @cached_property
    def classes(self) -> Mapping[Any, ClassExamples]:
        """What is known of each class, by its label."""
        return {**self.older, **self.recent} if self.recent else self.older

    @cached_property
    def _with_exemplars(self) -> frozenset[Any]:
        """The labels of the classes that have exemplars."""
        return frozenset(label for label, examples in self.classes.items() if examples.exemplars)

    @cached_property
    def labels(self) -> Shaped[np.ndarray, " class"]:
        """The label of each class."""
        return _freeze(np.sort(np.array(list(self.classes), self.label_type)))

    @cached_property
    def _ordered(self) -> list[ClassExamples]:
        """The classes in order of their labels."""
        classes = list(self.classes.values())
        return [classes[row] for row in np.argsort(np.array(list(self.classes), self.label_type), kind="stable")]

    @cached_property
    def sums(self) -> Float[np.ndarray, "class d"]:
        """The sum of each class's vectors."""
        return _freeze(np.array([examples.sum for examples in self._ordered]))

    @cached_property
    def counts(self) -> Int[np.ndarray, " class"]:
        """The number of each class's examples."""
        return _freeze(np.array([examples.count for examples in self._ordered]))

    @property
    def means(self) -> Float[np.ndarray, "class d"]:
        """The mean of each class."""
        return self.sums / self.counts[:, None]

    @cached_property
    def exemplars(self) -> Exemplars:
        """All exemplars."""
        classes = enumerate(self._ordered)
        rows = [(row, key, *examples.exemplars[key]) for row, examples in classes for key in sorted(examples.exemplars)]
        class_index, keys, groups, vectors = zip(*rows, strict=True) if rows else ((), (), (), ())
        stack = np.array(vectors, np.float64).reshape(len(rows), len(self._ordered[0].sum))
        hashes = (np.array(values, np.uint64) for values in (keys, groups))
        return Exemplars(*map(_freeze, (stack, np.array(class_index, np.int64), *hashes)))

    @property
    def exemplar_counts(self) -> Int[np.ndarray, " class"]:
        """The number of each class's exemplars."""
        return np.array([len(examples.exemplars) for examples in self._ordered])

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
    def all_keys(self) -> tuple[Keys, Rows]:
        """The keys of all examples that have one, and the rows of their classes, in order of the rows."""
        keys = [sorted(examples.keys) for examples in self._ordered]
        return np.array(list(chain(*keys)), np.uint64), np.repeat(np.arange(len(keys)), list(map(len, keys)))

    @cached_property
    def scatter(self) -> Matrix | None:
        """The sum over examples of the outer product of (vector - mean of its class) with itself."""
        if not self.has_scatter:
            return None
        roots = (self.sums[part] / np.sqrt(self.counts[part])[:, None] for part in split_rows(len(self), PART))
        return _freeze(np.asarray(self.rest_moment + _moment(self.exemplars.vectors) - sum(map(_moment, roots))))

    def get(self, label: Any) -> ClassExamples | None:
        """Return what is known of a class; None where it is not known."""
        return self.recent.get(label) or self.older.get(label)

    def labels_with(self, key: int) -> list[Any]:
        """Return the labels of the classes that have an example of this key."""
        return [label for label, examples in self.classes.items() if key in examples.keys]

    def exemplar_keys(self) -> set[int]:
        """Return the keys of all exemplars."""
        return {key for examples in self.classes.values() for key in examples.exemplars}

    # ------------------------------------------------------------------------------------------------------- changing

    def merge(self, other: "Support") -> "Support":
        """Return the examples of both supports; those that are in both count once.

        Raises:
            BadInput: If the two share some examples of a class, not all, whose vectors neither has.
        """
        self.check_compatible(other)
        known = {label: (old, new) for label, new in other.classes.items() if (old := self.get(label))}
        shared = {label: keys for label, (old, new) in known.items() if (keys := old.keys & new.keys)}
        if not shared:
            return self._add(other)
        # Nothing may count twice. Where all examples that one side has of a class are shared, the class leaves that
        # side; otherwise the shared examples leave the other support.
        second, _ = other.remove([label for label, keys in shared.items() if len(keys) == known[label][1].count])
        rest = [label for label in shared if label in second.classes]
        first, _ = self.remove([label for label in rest if len(shared[label]) == known[label][0].count])
        for label in rest:
            if label in first.classes:
                second = second._subtract(label, self._find_vectors(label, shared[label], other))
        return first._add(second)

    def remove(self, labels: Collection[Any]) -> tuple["Support", "Support"]:
        """Return the support without some classes, and these classes: merging both again undoes the removal."""
        removed = {label: self.classes[label] for label in labels}
        rest = {label: examples for label, examples in self.classes.items() if label not in removed}
        degrees_of_freedom = _count_degrees_of_freedom(removed.values())
        moment = self._estimate_moment(removed.values()) if self.has_scatter else 0.0
        rest_moment = self.rest_moment - moment if rest else 0.0
        remaining = self._replace(rest, rest_moment, self.degrees_of_freedom - degrees_of_freedom)
        return remaining, self._replace(removed, moment, degrees_of_freedom)

    def _estimate_moment(self, classes: Collection[ClassExamples]) -> Matrix | float:
        """Return the part of `rest_moment` that comes from some classes.

        The scatter of a class is known where all its examples are exemplars. Of the other classes only the sum of the
        scatter is known: each is assumed to have a share in proportion to its degrees of freedom.
        """
        incomplete = [examples for examples in classes if len(examples.exemplars) < examples.count]
        if not incomplete:
            return 0.0
        assert self.scatter is not None
        complete = [examples for examples in self.classes.values() if len(examples.exemplars) == examples.count]
        of_all_incomplete = self.degrees_of_freedom - _count_degrees_of_freedom(complete)
        share = _count_degrees_of_freedom(incomplete) / max(of_all_incomplete, 1)
        return share * (self.scatter - _scatter_of_exemplars(complete)) - _scatter_of_exemplars(incomplete)

    def split_off(self, label: Any, key: int, vector: Vector | None = None) -> tuple["Support", "Support"]:
        """Return the support without one of several examples of a class, and this example.

        Args:
            label: The class.
            key: The key of the example.
            vector: The example's vector, which is needed if it is no exemplar.
        """
        examples = self.classes[label]
        exemplar = examples.exemplars.get(key)
        if exemplar is None:
            assert vector is not None
            exemplar = Exemplar(key, vector)
        part = ClassExamples(exemplar.vector, 1, examples.keys & {key}, {key: exemplar})
        return self._subtract(label, {key: exemplar.vector}), self._replace({label: part}, 0.0, 0)

    def rename(self, label: Any) -> "Support":
        """Return a support of one class under another label."""
        (examples,) = self.classes.values()
        keys = examples.keys or frozenset(examples.exemplars)  # the examples of early files have no keys yet
        return replace(self, older={label: replace(examples, keys=keys)}, recent={}, label_type=np.array([label]).dtype)

    def check_compatible(self, other: "Support") -> None:
        """Raise BadInput where the vectors or labels of another support are of another kind."""
        (label, ours), (other_label, theirs) = (next(iter(each.older.items())) for each in (self, other))
        if len(ours.sum) != len(theirs.sum):
            raise BadInput(
                f"classes of {len(ours.sum)} and of {len(theirs.sum)} numbers cannot join: their examples must come "
                "from the same model and head."
            )
        if (self.label_type.kind in "USO") != (other.label_type.kind in "USO"):
            raise BadInput(f"labels like {label!r} and like {other_label!r} cannot be in one classifier.")

    def _add(self, other: "Support") -> "Support":
        """Return the examples of both supports, which share none."""
        old = {label: self.get(label) for label in other.classes}
        changed = {label: known.add(new) if (known := old[label]) else new for label, new in other.classes.items()}
        n_new = list(old.values()).count(None)
        changed, dropped = self._limit_exemplars(changed, n_new)
        recent = {**self.recent, **changed}
        is_small = len(recent) <= min(MOST_RECENT, len(self.older))
        return Support(
            self.older if is_small else {**self.older, **recent},
            np.result_type(self.label_type, other.label_type),
            self.keep,
            self.has_scatter,
            _moment(dropped if self.has_scatter else (), self.rest_moment, other.rest_moment),
            self.degrees_of_freedom + other.degrees_of_freedom + len(other) - n_new,
            recent if is_small else {},
        )

    def _limit_exemplars(
        self, changed: dict[Any, ClassExamples], n_new: int
    ) -> tuple[dict[Any, ClassExamples], list[Vector]]:
        """Limit the exemplars of classes that change, and of all others where new classes leave less room for each.

        Args:
            changed: The classes that change, by label, with all their exemplars.
            n_new: How many of them are new.

        Returns:
            The classes that change, now also those that only lose exemplars, and the vectors of the lost exemplars.
        """
        n_classes, most = len(self) + n_new, _many_classes()
        limit, dropped = _exemplars_per_class(n_classes, self.keep), list[Vector]()
        if limit < _exemplars_per_class(len(self), self.keep):
            changed = {**self.classes, **changed}
        bare = set[Any]()  # classes that are to have no exemplars
        if len(self) > most:  # A class that has lost its exemplars among so many classes gets none later.
            bare = {label for label in changed if (examples := self.get(label)) and not examples.exemplars}
        if n_new and n_classes > most:
            candidates = self._with_exemplars | {label for label in changed if changed[label].exemplars} - bare
            bare.update(nlargest(len(candidates) - most // 2, candidates, key=hash_label))
            changed = {label: examples for label in bare if (examples := self.get(label))} | changed
        for label, examples in changed.items():
            n_exemplars = 0 if label in bare else limit
            if len(examples.exemplars) > n_exemplars:
                changed[label], vectors = examples.limit_exemplars(n_exemplars)
                dropped += vectors
        return changed, dropped

    def _subtract(self, label: Any, vectors: Mapping[int, Vector]) -> "Support":
        """Return the support without some examples of a class, which are given by their keys and vectors."""
        examples = self.classes[label]
        others = [vector for key, vector in vectors.items() if key not in examples.exemplars and self.has_scatter]
        classes = {**self.classes, label: examples.subtract(vectors)}
        return self._replace(classes, self.rest_moment - _moment(others), self.degrees_of_freedom - len(vectors))

    def _replace(
        self, classes: Mapping[Any, ClassExamples], moment: Matrix | float, degrees_of_freedom: int
    ) -> "Support":
        """Return a support with the same options, of other classes, rest moment and degrees of freedom."""
        return replace(self, older=classes, recent={}, rest_moment=moment, degrees_of_freedom=degrees_of_freedom)

    def _find_vectors(self, label: Any, keys: frozenset[int], other: "Support") -> dict[int, Vector]:
        """Return the vectors of examples that two supports share, from the exemplars of both."""
        exemplars = {**self.classes[label].exemplars, **other.classes[label].exemplars}
        if missing := len(keys - exemplars.keys()):
            raise BadInput(
                f"{missing} examples of class {label!s} are in both classifiers, and neither has kept their vectors: "
                "fit one classifier on all examples, or let both keep more."
            )
        return {key: exemplars[key].vector for key in keys}

    # ------------------------------------------------------------------------------------------------------- deriving

    def sample(self, n_classes: int) -> tuple["Support", Rows]:
        """Return some of the classes, and their rows in this support; the scatter stays that of all classes.

        Classes of two examples or more are chosen first, then by a hash of the label.
        """
        candidates = self._with_exemplars or self.classes.keys()
        ranked = sorted(candidates, key=lambda label: (self.classes[label].count < 2, hash_label(label)))
        part = replace(self, older={label: self.classes[label] for label in ranked[:n_classes]}, recent={})
        part.__dict__["scatter"] = self.scatter
        return part, np.searchsorted(self.labels, part.labels)

    def limit_shots(self, shot: int) -> "Support":
        """Return the classes with at most `shot` examples each, their first exemplars; every class must have one."""
        is_first = rank_in_class(self.exemplars.class_index) < shot
        vectors, class_index, keys, groups = self.exemplars.take(is_first)
        labels = self.labels[class_index]
        return build_support([vectors], labels, keys, groups, keep=self.keep, has_scatter=self.has_scatter)


def build_support(
    parts: Iterable[Vectors], labels: Labels, keys: Keys, groups: Keys, *, keep: int, has_scatter: bool
) -> Support:
    """Return the support of examples that are all different.

    Args:
        parts: Their vectors, as arrays of consecutive rows.
        labels: Their labels.
        keys: Their keys.
        groups: Hashes of their groups.
        keep: Exemplars of a class, at most.
        has_scatter: Whether the head needs the scatter within classes.
    """
    names, class_index = np.unique(labels, return_inverse=True)
    is_exemplar = np.zeros(len(labels), bool)
    if keep:
        is_exemplar[_pick_exemplars(names, class_index, keys, groups, keep)] = True
    sums, vectors, start = torch.zeros(0), list[Vectors](), 0
    rest_moment: Matrix | float = 0.0
    for part in parts:
        float64, rows = torch.from_numpy(np.require(part, np.float64, "W")), slice(start, start + len(part))
        if not start:
            sums = torch.zeros(len(names), part.shape[1], dtype=torch.float64)
        sums.index_add_(0, torch.from_numpy(class_index[rows]), float64)
        vectors.append(part[is_exemplar[rows]])
        if has_scatter and not is_exemplar[rows].all():
            rest_moment = _moment(float64.numpy()[~is_exemplar[rows]], rest_moment)
        start = rows.stop
    return Support.from_arrays(
        names,
        sums.numpy(),
        np.bincount(class_index, minlength=len(names)),
        Exemplars(np.concatenate(vectors), *(values[is_exemplar] for values in (class_index, keys, groups))),
        (keys, class_index),
        keep=keep,
        has_scatter=has_scatter,
        rest_moment=rest_moment,
        degrees_of_freedom=len(labels) - len(names),
    )


def find_new(labels: Labels, keys: Keys, support: Support | None) -> Bool[np.ndarray, " example"]:
    """Return which examples are not in a support and do not repeat an earlier one under the same label."""
    is_new, seen = list[bool](), set[tuple[Any, int]]()
    for label, key in zip(labels.tolist(), keys.tolist(), strict=True):
        examples = support.get(label) if support else None
        is_new.append((label, key) not in seen and not (examples and key in examples.keys))
        seen.add((label, key))
    return np.array(is_new, bool)


def _pick_exemplars(
    names: Shaped[np.ndarray, " class"], class_index: Rows, keys: Keys, groups: Keys, keep: int
) -> Int[np.ndarray, " exemplar"]:
    """Return the places of the exemplars: in each class the examples with the smallest groups, then keys."""
    candidates, most = np.arange(len(keys)), _many_classes()
    if len(names) > most:  # only the classes whose labels have the smallest hashes
        hashes = np.array([hash_label(name) for name in names.tolist()], np.uint64)
        candidates = np.flatnonzero((hashes < np.sort(hashes)[most // 2])[class_index])
    order = candidates[np.lexsort((keys[candidates], groups[candidates], class_index[candidates]))]
    return order[rank_in_class(class_index[order]) < _exemplars_per_class(len(names), keep)]


def _exemplars_per_class(n_classes: int, keep: int) -> int:
    """Return the most exemplars of a class: `keep`, or fewer where there are many classes."""
    return min(keep, max(LEAST_EXEMPLARS, MOST_EXEMPLARS // max(1, n_classes)))


def _many_classes() -> int:
    """Return the number of classes beyond which only half so many of them have exemplars."""
    return MOST_EXEMPLARS // LEAST_EXEMPLARS


def _moment(vectors: Vectors | Sequence[Vector], *moments: Matrix | float) -> Matrix | float:
    """Return the sum over vectors of the outer product of each with itself, and of other such sums; 0 for nothing."""
    rows = (np.asarray(vectors[part]) for part in split_rows(len(vectors), PART))
    # One more example is one vector: for it a matrix product takes twice as long, and copies of the sum cost time too.
    products = (part.T * part if len(part) == 1 else part.T @ part for part in rows)
    total: Matrix | float = next(products, 0.0)
    for addend in chain(products, moments):
        total += addend
    return total


def _count_degrees_of_freedom(classes: Iterable[ClassExamples]) -> int:
    """Return the degrees of freedom of the scatter of classes."""
    return sum(examples.count - 1 for examples in classes)


def _scatter_of_exemplars(classes: Sequence[ClassExamples]) -> Matrix | float:
    """Return the sum over exemplars of their outer products, less what the means of the classes contribute."""
    vectors = [exemplar.vector for examples in classes for exemplar in examples.exemplars.values()]
    return _moment(vectors) - _moment([examples.sum / examples.count**0.5 for examples in classes])


def _freeze(array: np.ndarray) -> np.ndarray:
    """Return an array that cannot be changed from now on."""
    array.flags.writeable = False
    return array
