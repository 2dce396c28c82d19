"""Classes that many writers learn at once, in a LanceDB database: on a disk, or the same on object storage.

Sums and counts only add, so a writer appends what it learned and never waits for another: a class is the sum of its
rows. Compaction folds rows together and lets the database index the prototypes; it may run at any time, beside writers.

    log               (label, sum, count, part): one row per class and call of `add`; a part is one call, one commit
    folded-N-M-NAME   (label, sum, count, vector): one row per class, M in all, of all parts up to some moment
    state             one row: the law of the classes; which folded table counts, and which parts of the log are in it

A part counts once it is in the log and as long as `state` does not name it. Compaction writes a new folded table, then
changes `state` in one step if nobody else has, and only then removes what is folded. Who reads looks at `state` before
and after, so that both belong together. `state` counts its changes, and a folded table is named by the one that it was
made for: when that has passed, and it is not the one that counts, its compaction was too slow or died, and it may go.
"""

import json
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Shaped
from safetensors.torch import load, save
from sklearn.base import clone
from torch import Tensor

from anyshot.classify.classifier import FewShotClassifier
from anyshot.classify.support import Support, build_support
from anyshot.classify.topk import ProductForm, is_product
from anyshot.errors import BadInput, as_bad_input
from anyshot.models.law import Head
from anyshot.models.registry import Registry

ARGUMENTS = ("head", "embed", "readout", "scale", "reject")
INDEX_FROM = 4096  # classes: fewer are compared one by one
CANDIDATES = 64  # that the database's index is asked for, and that are then scored exactly
PARTITION, PROBES = 1024, 32  # classes of a cell of the index, about; cells that are looked into
TIDY = 256  # calls of `add` after which a writer tidies up
FORGET = timedelta(minutes=10)  # what nobody has been reading for so long
VERSION = "version "  # before the version of the log at a compaction, among the parts that `state` names
T = TypeVar("T")


class ClassBank:
    """A bank that is there, or a new one for the classes of a classifier.

    >>> bank = ClassBank("bank", FewShotClassifier("cosine-proto"))        # doctest: +SKIP
    >>> bank.add(features, labels)                                         # doctest: +SKIP
    >>> bank.predict(features)                                             # doctest: +SKIP

    Args:
        place: A folder, or an address that LanceDB knows (s3://...).
        classifier: Whose head, readout and parameters the bank is for; what it has learned is not taken. Only the first
            who opens a bank gives one.
        registry: What a head that is not ours is looked up in.
    """

    def __init__(
        self, place: str | Path, classifier: FewShotClassifier | None = None, registry: Registry | None = None
    ) -> None:
        self._database = _lancedb().connect(str(place))
        self._place, self._registry, self._template = str(place), registry, classifier
        self._log: Any = None
        self._added = 0
        self._law: FewShotClassifier | None = None
        self._law_row: dict[str, Any] | None = None
        with self._sound():
            is_there = self._has("state")
        if classifier is None and not is_there:
            raise BadInput(f"there is no class bank in {place}: give the classifier that it is for.")

    # ------------------------------------------------------------------------------------------------------- learning

    def add(self, X: Any, y: Any) -> None:
        """Learn from examples. When this returns they are counted, whatever happens; before that, none of them is."""
        with self._sound():
            is_there = self._law_row is not None or self._has("state")
        if not is_there:
            assert self._template is not None
            self._make(clone(self._template).set_params(keep=0).fit(X, y))
        with self._sound():
            empty = self._empty()
        support = empty.fit(X, y).support_
        with self._sound():
            self._append("log", support, part=uuid.uuid4().hex)
        self._added += 1
        if self._added % TIDY == 0:
            self._tidy()

    def _append(self, table: str, support: Support, **more: Any) -> None:
        import pyarrow

        labels = pyarrow.array(support.labels.tolist())
        d = support.sums.shape[1]
        columns = {
            "label": labels,
            "sum": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(support.sums.ravel()), d),
            "count": pyarrow.array(support.counts),
            **{
                name: pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(value.ravel()), value.shape[1])
                if isinstance(value, np.ndarray)
                else pyarrow.array([value] * len(labels))
                for name, value in more.items()
            },
        }
        rows = pyarrow.table(columns)
        if table == "log" and self._log is None:
            self._log = self._database.create_table("log", schema=rows.schema, exist_ok=True)
        target = self._log if table == "log" else self._database.create_table(table, schema=rows.schema)
        if target.schema.field("label").type != rows.schema.field("label").type:
            raise BadInput(f"labels like {support.labels[0]!r} are of another type than those of {self._place}.")
        if target.schema.field("sum").type != rows.schema.field("sum").type:
            raise BadInput(f"examples of {d} numbers do not fit the classes of {self._place}.")
        target.add(rows)

    # -------------------------------------------------------------------------------------------------------- reading

    def classifier(self) -> FewShotClassifier:
        """All classes as a classifier in memory."""
        with self._sound():
            support = _together(*self._whole(_all))
            if support is None:
                raise BadInput(f"the class bank {self._place} has no classes yet.")
            return self._empty().restore(support.sort_by_label(), self._features())

    def predict(self, X: Any) -> Shaped[np.ndarray, " image"]:
        """Return the likeliest class of each image, with all examples that were added since the last compaction."""
        return self.top(X, 1)[0][:, 0]

    def top(self, X: Any, k: int = 5) -> tuple[Shaped[np.ndarray, "image k"], Float[np.ndarray, "image k"]]:
        """The `k` best classes of each image and their scores."""
        if self._law is None:
            with self._sound():
                self._law = self._empty().fit(np.ones((1, self._features())), [0])
        vectors = self._law.vectors(X)
        head, parameters = self._law.learned_head_.head, self._law.learned_head_.parameters
        linear = _linear(head, self._law.prototypes_)
        asked = linear.query_points(linear.queries(torch.from_numpy(vectors))).numpy()

        def candidates(folded: Any, also: list[Any]) -> tuple[list[Support | None], Support | None]:
            if folded is None:
                return [None] * len(vectors), None
            asks = (folded.search(one, vector_column_name="vector") for one in asked)
            asks = (ask.distance_type(self._metric(head)).nprobes(PROBES).limit(max(k, CANDIDATES)) for ask in asks)
            return [_support(ask.to_arrow()) for ask in asks], _rows_of(folded, also)

        with self._sound():
            (per_query, stored), recent = self._whole(candidates)
        also = [] if recent is None else recent.labels.tolist()
        labels, scores = [], []
        for vector, one in zip(vectors, per_query, strict=True):
            support = _together(_apart(one, also), stored, recent)
            if support is None:
                raise BadInput(f"the class bank {self._place} has no classes yet.")
            means, counts = torch.from_numpy(support.means), torch.from_numpy(support.counts)
            refined = head.refined(means, counts, parameters)
            score = head.score(torch.from_numpy(vector)[None], refined, parameters)[0].numpy()
            order = np.argsort(-score, kind="stable")[:k]
            labels.append(support.labels_of(order))
            scores.append(score[order])
        return np.stack(labels), np.stack(scores)

    def _whole(self, read: Callable[[Any, list[Any]], T]) -> tuple[T, Support | None]:
        """Read the folded table and the classes of all parts that are not in it, as of one moment.

        `read` is called with the table and the labels that were added to since.
        """
        while True:
            state = self._state()
            try:
                recent = self._recent(state)
                first = read(self._folded(state), [] if recent is None else recent.labels.tolist())
            except (FileNotFoundError, ValueError, RuntimeError, OSError):
                if self._state()["number"] == state["number"]:
                    raise
                continue  # it was folded meanwhile
            if self._state()["number"] == state["number"]:
                return first, recent

    def _recent(self, state: dict[str, Any]) -> Support | None:
        if not self._has("log"):
            return None
        rows = self._open("log").to_arrow()
        self._check_log(state)
        parts = rows.column("part").to_numpy(zero_copy_only=False)
        return _support(rows.filter(~np.isin(parts, json.loads(state["parts"]))))

    def _check_log(self, state: dict[str, Any]) -> None:
        """Raise ValueError where the log is older than at the last compaction.

        Rows that were removed from it since then would count again.
        """
        versions = [part for part in json.loads(state["parts"]) if part.startswith(VERSION)]
        if versions and self._open("log").version < int(versions[0].removeprefix(VERSION)):
            raise ValueError("the newest version of its log is gone")

    def _folded(self, state: dict[str, Any]) -> Any:
        if not state["folded"]:
            return None
        table, (_, *about) = self._open(state["folded"]), state["folded"].split("-")
        if len(about) == 3 and table.count_rows() != int(about[1]):  # earlier ones do not say
            raise ValueError(f"{table.count_rows()} of {about[1]} classes are there")
        return table

    # ------------------------------------------------------------------------------------------------------ compaction

    def compact(self) -> int:
        """Fold all rows of each class into one, index the prototypes, and return the number of classes.

        Where another process folds at the same time, one of the two does it.
        """
        with self._sound():
            return self._compact()

    def _compact(self) -> int:
        state = self._state()
        support, _ = self._whole(_all)
        rows = self._open("log").to_arrow() if self._has("log") else None
        already = json.loads(state["parts"])
        parts = np.unique(rows.column("part").to_numpy(zero_copy_only=False)).tolist() if rows is not None else []
        if rows is not None and parts:
            rows = rows.filter(~np.isin(rows.column("part").to_numpy(zero_copy_only=False), already))
        support = _together(support, _support(rows) if parts else None)
        if support is None:
            return 0
        number = state["number"] + 1
        name = f"folded-{number}-{len(support)}-{uuid.uuid4().hex}"
        if self._fold(name, number, support.sort_by_label(), parts):
            with suppress(Exception):  # what is left only takes room
                log = self._open("log")
                for start in range(0, len(parts), 1000):
                    log.delete(f"part IN ({', '.join(map(_quoted, parts[start : start + 1000]))})")
            self._tidy()
            self._sweep()
        return len(support)

    def _fold(self, name: str, number: int, support: Support, parts: list[str]) -> bool:
        """Write a folded table and let it count, unless another was faster."""
        try:
            self._append(name, support, vector=self._vectors(support))
            if len(support.labels) >= INDEX_FROM:
                self._index(name, len(support.labels))
        except Exception:
            if self._state()["number"] < number:
                raise
            return False  # who was faster has swept it away
        version = [f"{VERSION}{self._open('log').version}"] if self._has("log") else []
        values = {"number": number, "folded": name, "parts": json.dumps([*parts, *version])}
        if self._open("state").update(where=f"number = {number - 1}", values=values).rows_updated:
            return True
        with suppress(Exception):
            self._database.drop_table(name)
        return False

    def _sweep(self) -> None:
        """Remove folded tables that cannot count any more."""
        with suppress(Exception):
            state = self._state()
            for name in self._database.list_tables().tables:
                number = name.split("-")[1] if name.startswith("folded-") and name != state["folded"] else ""
                if number.isdecimal() and int(number) <= state["number"]:
                    self._database.drop_table(name)

    def _tidy(self) -> None:
        """Let the database join the pieces that many calls of `add` appended, and drop old versions.

        Each appended version lists all pieces before it, so that the lists grow with the square of the calls.
        """
        with suppress(Exception):  # another does it just now
            self._open("log").optimize(cleanup_older_than=FORGET)
            self._open("state").optimize(cleanup_older_than=FORGET)

    def _vectors(self, support: Support) -> Float[np.ndarray, "class d"]:
        """Classes as the database's index compares them."""
        law = self._empty().restore(support, self._features())
        linear = _linear(law.learned_head_.head, law.prototypes_)
        rows = linear.rows(law.prototypes_)
        return linear.points(rows, linear.longest(rows)).numpy()

    def _index(self, name: str, classes: int) -> None:
        law = self._empty().fit(np.ones((1, self._features())), [0])
        self._open(name).create_index(
            self._metric(law.learned_head_.head),
            vector_column_name="vector",
            num_partitions=max(1, classes // PARTITION),
            index_type="IVF_FLAT",
        )

    @staticmethod
    def _metric(head: Head) -> str:
        return "cosine" if head.score_name == "cosine" else "l2"

    # ---------------------------------------------------------------------------------------------------------- state

    def _empty(self) -> FewShotClassifier:
        """A classifier of the bank's law that has learned nothing."""
        row = self._row()
        tensors = {name: value.numpy() for name, value in load(row["tensors"]).items()}
        learned, fitted = (
            {name.partition(".")[2]: value for name, value in tensors.items() if name.startswith(part)}
            for part in ("parameters.", "fitted.")
        )
        law = json.loads(row["law"])
        arguments: dict[str, Any] = {name: law[name] for name in (*ARGUMENTS, "positions")}
        arguments |= {"parameters": learned or None, "base": fitted or None, "registry": self._registry, "keep": 0}
        return FewShotClassifier(**arguments)

    def _features(self) -> int:
        return int(json.loads(self._row()["law"])["features"])

    def _row(self) -> dict[str, Any]:
        """The law of the classes, which never changes."""
        if self._law_row is None:
            self._law_row = self._state()
        return self._law_row

    def _make(self, classifier: FewShotClassifier) -> None:
        import pyarrow

        head = classifier.learned_head_.head
        if head.estimator is not None:
            raise BadInput(
                f"{classifier.head} estimates from all examples how images vary, and a writer sees some: a class bank "
                "answers with the readout posterior, fitted on examples of other classes."
            )
        if not is_product(head):
            raise BadInput(
                f"a class bank is for scores that are a product, a cosine, a distance or the posterior's, "
                f"not for {classifier.head}."
            )
        tensors = {f"parameters.{name}": value for name, value in classifier.parameters_.items()}
        tensors |= {f"fitted.{name}": value for name, value in classifier.fitted_.items()}
        contiguous = {name: value.contiguous() for name, value in tensors.items()}
        law = {name: getattr(classifier, name) for name in ARGUMENTS}
        law |= {"positions": classifier.positions_, "features": classifier.n_features_in_}
        row = {"number": 0, "folded": "", "parts": "[]", "law": json.dumps(law), "tensors": save(contiguous)}
        fields = {"number": pyarrow.int64(), "tensors": pyarrow.binary()}
        schema = pyarrow.schema([(name, fields.get(name, pyarrow.string())) for name in row])
        with suppress(ValueError):  # another process made it meanwhile
            self._database.create_table("state", pyarrow.Table.from_pylist([row], schema))

    def _state(self) -> dict[str, Any]:
        return max(self._open("state").to_arrow().to_pylist(), key=lambda row: row["number"])

    def _open(self, name: str) -> Any:
        table = self._database.open_table(name)
        table.checkout_latest()
        return table

    def _sound(self) -> AbstractContextManager[None]:
        """Re-raise errors of the database as BadInput: it is damaged or cannot be reached."""
        return as_bad_input(Exception, f"the class bank {self._place} is damaged or cannot be reached", ".")

    def _has(self, name: str) -> bool:
        try:
            self._database.open_table(name)
        except (FileNotFoundError, ValueError):
            return False
        return True


def _linear(head: Head, prototypes: Float[Tensor, "class refined"]) -> ProductForm:
    """The head's score as one product, about zero: the centre of the classes is another tomorrow."""
    linear = ProductForm.from_head(head, prototypes)
    return replace(linear, centre=torch.zeros_like(linear.centre))


def _together(*supports: Support | None) -> Support | None:
    """Return the classes of all."""
    given = [support for support in supports if support is not None]
    if not given:
        return None
    whole = given[0].copy()  # what is added to it may be needed again
    for other in given[1:]:
        whole.merge(other, is_disjoint=True)
    return whole


def _all(folded: Any, _: list[Any]) -> Support | None:
    """The classes of a folded table."""
    return None if folded is None else _support(folded.to_arrow())


def _rows_of(folded: Any, labels: list[Any]) -> Support | None:
    """Some classes of a folded table."""
    if not labels:
        return None
    rows = folded.search().where(f"label IN ({', '.join(map(_quoted, labels))})").limit(len(labels)).to_arrow()
    return _support(rows)


def _apart(support: Support | None, labels: list[Any]) -> Support | None:
    """Without these classes."""
    if support is None or not labels:
        return support
    gone = {support.row_of(label) for label in labels}
    rows = [row for row in range(len(support)) if row not in gone]
    return support.select(np.array(rows)) if rows else None


def _support(rows: Any) -> Support | None:
    """The classes of rows of a table: of each the sum of its rows."""
    if not rows.num_rows:
        return None
    sums = rows.column("sum").combine_chunks()
    flat = sums.flatten().to_numpy(zero_copy_only=False).reshape(rows.num_rows, -1)
    labels = np.array(rows.column("label").to_pylist())
    names, class_index = np.unique(labels, return_inverse=True)
    counts = np.zeros(len(names), np.int64)
    np.add.at(counts, class_index, rows.column("count").to_numpy())
    return Support(names, build_support([flat], labels).sums, counts)


def _quoted(value: Any) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def _lancedb() -> Any:
    try:
        import lancedb
    except ImportError:
        raise BadInput("a class bank needs the packages of an extra: pip install 'anyshot[bank]'.") from None
    return lancedb
