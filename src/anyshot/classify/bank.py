"""A database of classes that many writers learn at once (LanceDB), on a disk or on object storage.

Sums and counts only add, so a writer appends what it learned and never waits for another: a class is the sum of its
rows. Compaction adds up the rows of each class and lets the database index the prototypes; it may run at any time,
beside writers.

    log               (label, sum, count, part): one row per class and call of `add`; a part is one call, one commit
    folded-N-M-NAME   (label, sum, count, vector): one row per class, M in all, of all parts up to some moment
    state             one row: the head and its parameters; which folded table counts; which parts of the log are in it

A part counts once it is in the log and as long as `state` does not name it. Compaction writes a new folded table, then
changes `state` in one step unless another process has changed it, and only then removes parts from the log. A reader
looks at `state` before and after, so that the folded table and the log belong together. `state` counts its changes, and
the N of a folded table is the change that it was made for. A table whose N has passed without becoming the one that
counts is left from a compaction that was too slow or died, and is removed.
"""

import copy
import json
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Shaped
from safetensors.torch import load, save
from sklearn.base import clone

from anyshot.arrays import split_rows
from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.files import from_parameter_tensors, to_parameter_tensors
from anyshot.classify.support import Support
from anyshot.classify.topk import CANDIDATES, INDEX_FROM, class_points, compute_prototypes, has_points, query_points
from anyshot.errors import BadInput, as_bad_input
from anyshot.models.law import Head
from anyshot.models.registry import Registry

ARGUMENTS = ("head", "embed", "readout", "scale", "reject")
QUERIES = 256  # queries whose candidates are compared at once
PARTITION, PROBES = 1024, 32  # classes in a cell of the index, about, and cells that are searched for a query
DELETED_AT_ONCE = 1000  # parts that one command deletes from the log
ADDS_PER_OPTIMIZE = 256  # calls of `add` after which a writer lets the database optimize its tables
VERSION_AGE = timedelta(minutes=10)  # age of a version of a table that nobody reads any more
VERSION = "version "  # prefix of the version of the log at a compaction, which is stored among the parts of `state`
T = TypeVar("T")


class ClassBank:
    """Open a database of classes, or make one for the classes of a classifier.

    >>> bank = ClassBank("bank", FewShotClassifier("cosine-proto"))        # doctest: +SKIP
    >>> bank.add(features, labels)                                         # doctest: +SKIP
    >>> bank.predict(features)                                             # doctest: +SKIP

    Args:
        place: A folder, or an address that LanceDB knows (s3://...).
        classifier: The classifier whose head, readout and parameters a new bank gets, without its classes.
        registry: Needed for a head that is not ours.
    """

    def __init__(
        self, place: str | Path, classifier: FewShotClassifier | None = None, registry: Registry | None = None
    ) -> None:
        with as_bad_input(ImportError, "a class bank needs the packages of an extra: pip install 'anyshot[bank]'."):
            import lancedb
        self._database: Any = lancedb.connect(str(place))
        self._place, self._registry, self._template = str(place), registry, classifier
        self._log: Any = None
        self._n_added = 0
        if classifier is None and not self._has("state"):
            raise BadInput(f"there is no class bank in {place}: give the classifier that it is for.")

    # ------------------------------------------------------------------------------------------------------- learning

    def add(self, X: Any, y: Any) -> None:
        """Learn from examples. When this returns they are counted, whatever happens; before that, none of them is."""
        if "_bare_classifier" not in self.__dict__ and not self._has("state"):
            assert self._template is not None
            self._create(clone(self._template).set_params(keep=0).fit(X, y))
        support = copy.copy(self._bare_classifier).fit(X, y).support_
        with self._errors_as_bad_input():
            rows = _to_rows(support, part=[uuid.uuid4().hex] * len(support))
            self._log = self._log or self._database.create_table("log", schema=rows.schema, exist_ok=True)
            types, known = ([table.schema.field(name).type for name in ("label", "sum")] for table in (rows, self._log))
            if types[0] != known[0]:
                raise BadInput(f"labels like {support.labels[0]!r} are of another type than those of {self._place}.")
            if types[1] != known[1]:
                raise BadInput(f"examples of {support.sums.shape[1]} numbers do not fit the classes of {self._place}.")
            self._log.add(rows)
        self._n_added += 1
        if self._n_added % ADDS_PER_OPTIMIZE == 0:
            self._optimize_tables()

    # -------------------------------------------------------------------------------------------------------- reading

    def classifier(self) -> FewShotClassifier:
        """Return all classes as a classifier in memory."""
        with self._errors_as_bad_input():
            folded, recent, *_ = self._read_consistently(_read_all)
            return self._restore(self._merge(folded, recent))

    def predict(self, X: Any) -> Shaped[np.ndarray, " image"]:
        """Return the likeliest class of each image, with all examples that were added since the last compaction."""
        return self.top(X, 1)[0][:, 0]

    def top(self, X: Any, k: int = 5) -> tuple[Shaped[np.ndarray, "image k"], Float[np.ndarray, "image k"]]:
        """Return the `k` best classes of each image and their scores."""
        vectors, head = self._bare_classifier.vectors(X), self._bare_classifier.learned_head_
        labels, scores = list[np.ndarray](), list[np.ndarray]()
        for part in split_rows(len(vectors), QUERIES):
            query = torch.from_numpy(vectors[part])
            points = query_points(head.head, query).float().numpy()
            with self._errors_as_bad_input():
                read = partial(_find_candidates, points=points, metric=_metric(head.head), limit=max(k, CANDIDATES))
                folded, recent, *_ = self._read_consistently(read)
            support = self._merge(folded, recent)
            all_scores = head.score(query, compute_prototypes(head, support, np.arange(len(support)))).numpy()
            best = np.argsort(-all_scores, 1, kind="stable")[:, :k]
            labels.append(support.labels[best])
            scores.append(np.take_along_axis(all_scores, best, 1))
        return np.concatenate(labels), np.concatenate(scores)

    def _read_consistently(
        self, read: Callable[[Any, list[Any]], T]
    ) -> tuple[T, Support | None, dict[str, Any], list[str]]:
        """Read the folded table, the classes of parts that are not in it, the state and all parts, as of one moment.

        `read` is called with the table and the labels that were added to since.
        """
        while True:
            state = self._read_state()
            try:
                recent, parts = self._read_log(state)
                result = read(self._open_folded(state), [] if recent is None else recent.labels.tolist())
            except (FileNotFoundError, ValueError, RuntimeError, OSError):
                if self._read_state()["number"] == state["number"]:
                    raise
                continue  # A compaction removed what was being read.
            if self._read_state()["number"] == state["number"]:
                return result, recent, state, parts

    def _read_log(self, state: dict[str, Any]) -> tuple[Support | None, list[str]]:
        """Return the classes of the parts that are not folded yet, and the names of all parts.

        Raises:
            ValueError: If the log is older than at the last compaction: parts that were removed would count again.
        """
        if not self._has("log"):
            return None, []
        log, folded_parts = self._open("log"), json.loads(state["parts"])
        versions = [part for part in folded_parts if part.startswith(VERSION)]
        if versions and log.version < int(versions[0].removeprefix(VERSION)):
            raise ValueError("the newest version of its log is gone")
        rows = log.to_arrow()
        parts = rows.column("part").to_numpy(zero_copy_only=False)
        return _to_support(rows.filter(~np.isin(parts, folded_parts))), np.unique(parts).tolist()

    def _open_folded(self, state: dict[str, Any]) -> Any:
        """Return the folded table that counts, or None; a table that has lost classes is a ValueError."""
        if not state["folded"]:
            return None
        table, n_classes = self._open(state["folded"]), state["folded"].split("-")[2]
        if table.count_rows() != int(n_classes):
            raise ValueError(f"{table.count_rows()} of {n_classes} classes are there")
        return table

    # ------------------------------------------------------------------------------------------------------ compaction

    def compact(self) -> int:
        """Add up the rows of each class, index the prototypes, and return the number of classes.

        Where several processes compact at the same time, one of them succeeds.
        """
        with self._errors_as_bad_input():
            folded, recent, state, parts = self._read_consistently(_read_all)
            if folded is None and recent is None:
                return 0
            support, number = self._merge(folded, recent), state["number"] + 1
            name = f"folded-{number}-{len(support)}-{uuid.uuid4().hex}"
            if self._fold(name, number, support, parts):
                with suppress(Exception):  # Parts that stay in the log only take room.
                    for rows in split_rows(len(parts), DELETED_AT_ONCE):
                        self._open("log").delete(f"part IN ({', '.join(map(_to_sql, parts[rows]))})")
                self._optimize_tables()
                self._drop_stale_tables()
            return len(support)

    def _fold(self, name: str, number: int, support: Support, parts: list[str]) -> bool:
        """Write a folded table and let it count, unless another process was faster; return whether it counts."""
        try:
            self._write_folded(name, support)
        except Exception:
            if self._read_state()["number"] < number:
                raise
            return False  # A faster process has removed the table.
        version = [f"{VERSION}{self._open('log').version}"] if self._has("log") else []
        values = {"number": number, "folded": name, "parts": json.dumps([*parts, *version])}
        if self._open("state").update(where=f"number = {number - 1}", values=values).rows_updated:
            return True
        with suppress(Exception):
            self._database.drop_table(name)
        return False

    def _write_folded(self, name: str, support: Support) -> None:
        """Write a table of classes with the points that the database's index compares, and index many of them."""
        classifier = self._restore(support)
        head = classifier.learned_head_.head
        points = class_points(head, classifier.prototypes_).float().numpy()
        table = self._database.create_table(name, _to_rows(support, vector=_to_lists(points)))
        if len(support) >= INDEX_FROM:
            partitions = max(1, len(support) // PARTITION)
            table.create_index(
                _metric(head), vector_column_name="vector", num_partitions=partitions, index_type="IVF_FLAT"
            )

    def _drop_stale_tables(self) -> None:
        """Remove folded tables that cannot count any more."""
        with suppress(Exception):
            state = self._read_state()
            for name in self._database.list_tables().tables:
                number = name.split("-")[1] if name.startswith("folded-") and name != state["folded"] else ""
                if number.isdecimal() and int(number) <= state["number"]:
                    self._database.drop_table(name)

    def _optimize_tables(self) -> None:
        """Let the database join the pieces that many calls of `add` appended, and drop old versions of its tables.

        Each appended version lists all pieces before it, so that the lists grow with the square of the calls.
        """
        with suppress(Exception):  # Another process may be doing it.
            self._open("log").optimize(cleanup_older_than=VERSION_AGE)
            self._open("state").optimize(cleanup_older_than=VERSION_AGE)

    # ---------------------------------------------------------------------------------------------------------- state

    @cached_property
    def _bare_classifier(self) -> FewShotClassifier:
        """A classifier with the bank's head and parameters, which never change; its one class has no meaning."""
        with self._errors_as_bad_input():
            row = self._read_state()
            arguments = json.loads(row["law"])
            features = arguments.pop("features")
            parameters, base = from_parameter_tensors(
                {name: value.numpy() for name, value in load(row["tensors"]).items()}
            )
            arguments |= {"parameters": parameters, "base": base, "registry": self._registry, "keep": 0}
            return FewShotClassifier(**arguments).fit(np.ones((1, features)), [0])

    def _restore(self, support: Support) -> FewShotClassifier:
        """Return a classifier of these classes with the bank's head."""
        return copy.copy(self._bare_classifier).restore(support, self._bare_classifier.n_features_in_)

    def _create(self, classifier: FewShotClassifier) -> None:
        """Make a bank for the head and the parameters of a classifier, unless another process just did."""
        import pyarrow

        head = classifier.learned_head_.head
        if head.estimator is not None or not has_points(head):  # An estimator needs all examples; a writer sees some.
            raise BadInput(
                f"a class bank compares each class alone, by a product, a cosine or a distance, and {classifier.head} "
                "does not: choose proto, cosine-proto, or the readout posterior, fitted on examples of other classes."
            )
        tensors = {name: value.contiguous() for name, value in to_parameter_tensors(classifier).items()}
        arguments = {name: getattr(classifier, name) for name in ARGUMENTS}
        arguments |= {"positions": classifier.positions_, "features": classifier.n_features_in_}
        row = {"number": 0, "folded": "", "parts": "[]", "law": json.dumps(arguments), "tensors": save(tensors)}
        with suppress(ValueError):  # Another process made it.
            self._database.create_table("state", pyarrow.Table.from_pylist([row]))

    def _read_state(self) -> dict[str, Any]:
        """Return the newest row of the table `state`."""
        return max(self._open("state").to_arrow().to_pylist(), key=lambda row: row["number"])

    def _open(self, name: str) -> Any:
        """Return the newest version of a table."""
        table = self._database.open_table(name)
        table.checkout_latest()
        return table

    def _errors_as_bad_input(self) -> AbstractContextManager[None]:
        """Re-raise errors of the database as BadInput: it is damaged or cannot be reached."""
        return as_bad_input(Exception, f"the class bank {self._place} is damaged or cannot be reached", ".")

    def _has(self, name: str) -> bool:
        """Return whether there is a table of this name."""
        with self._errors_as_bad_input(), suppress(FileNotFoundError, ValueError):
            self._database.open_table(name)
            return True
        return False

    def _merge(self, *supports: Support | None) -> Support:
        """Return the classes of several supports."""
        given = [support for support in supports if support]
        if not given:
            raise BadInput(f"the class bank {self._place} has no classes yet.")
        return reduce(Support.merge, given)


def _metric(head: Head) -> str:
    """Return what the database calls the distance by which the points of classes are compared."""
    return "cosine" if head.score_name == "cosine" else "l2"


def _read_all(folded: Any, _: list[Any]) -> Support | None:
    """Return all classes of a folded table."""
    return None if folded is None else _to_support(folded.to_arrow())


def _find_candidates(folded: Any, labels: list[Any], *, points: Any, metric: str, limit: int) -> Support | None:
    """Return the classes of a folded table that its index finds for some points, and those of some labels."""
    if folded is None:
        return None
    searches = [folded.search(point, vector_column_name="vector").distance_type(metric) for point in points]
    searches = [one.nprobes(PROBES).limit(limit) for one in searches]
    if labels:
        where = f"label IN ({', '.join(map(_to_sql, labels))})"
        searches.append(folded.search().where(where).limit(len(labels)))
    import pyarrow

    rows = pyarrow.concat_tables([one.to_arrow().select(["label", "sum", "count"]) for one in searches])
    return _to_support(rows.take(np.unique(rows.column("label").to_pylist(), return_index=True)[1]))


def _to_rows(support: Support, **columns: Any) -> Any:
    """Return classes as rows of a table, with more columns."""
    import pyarrow

    labels, sums = pyarrow.array(support.labels.tolist()), _to_lists(support.sums)
    return pyarrow.table({"label": labels, "sum": sums, "count": pyarrow.array(support.counts), **columns})


def _to_lists(array: Float[np.ndarray, "row d"]) -> Any:
    """Return the rows of an array as a column of lists."""
    import pyarrow

    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(array.ravel()), array.shape[1])


def _to_support(rows: Any) -> Support | None:
    """Return the classes of rows of a table, each the sum of its rows; None where there are no rows."""
    if rows is None or not rows.num_rows:
        return None
    sums = rows.column("sum").combine_chunks()
    flat = sums.flatten().to_numpy(zero_copy_only=False).reshape(rows.num_rows, -1)
    labels = np.array(rows.column("label").to_pylist())
    names, class_index = np.unique(labels, return_inverse=True)
    counts = np.bincount(class_index, rows.column("count").to_numpy()).astype(np.int64)
    totals = torch.zeros(len(names), flat.shape[1], dtype=torch.float64)
    totals.index_add_(0, torch.from_numpy(class_index), torch.tensor(flat))
    return Support.from_arrays(names, totals.numpy(), counts)


def _to_sql(value: Any) -> str:
    """Return a value as it stands in an SQL filter."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
