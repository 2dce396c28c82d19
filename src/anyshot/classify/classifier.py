"""A scikit-learn classifier in which a class is the mean of its examples.

    logits = scale * score(embed(query), refine(sum of the class / its count, its count))

`fit` on all examples, `partial_fit` on them in any order and batching, and `merge` of classifiers that saw parts of
them end in the same classifier (to rounding). Probabilities are calibrated on the support itself, at whatever shots
the classes have (`anyshot.classify.calibration`).
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped, UInt64
from scipy.special import logsumexp, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from anyshot.classify.calibration import Coverage, calibration_error, fit_scale, next_shot
from anyshot.classify.fitted import FittedState
from anyshot.classify.keys import hash_groups, hash_rows
from anyshot.classify.support import Support, build_support, find_repeats, uninterrupted
from anyshot.classify.topk import TopK
from anyshot.concurrency import make_lock
from anyshot.errors import BadInput, as_bad_input, look_up
from anyshot.models.gaussian import read_base
from anyshot.models.heads import EMBEDS
from anyshot.models.law import BoundHead, Embed, Head, Parameters
from anyshot.models.readouts import Readout
from anyshot.models.registry import BUILTIN, Registry, untrained_parameters

if TYPE_CHECKING:
    from anyshot.models.model import Model

DEFAULT_HEAD = "posterior"  # of features that no head was trained on
CHUNK_FLOATS = 1_000_000  # numbers of features and vectors that are in memory at once: 8 MB
FLOATS = (np.float64, np.float32)
FEATURE_RANGE = 1e-9, 1e100  # largest numbers of features: squares below and above lose their digits or overflow
SAME = 1e-9  # squared distance of two vectors of one example, as a share of their squares: rounding of float32


T = TypeVar("T")

if hasattr(os, "register_at_fork"):  # the threads of torch do not survive a fork: who waits for them would hang
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))

Rows = Float[np.ndarray, "image feature"]
Labels = Shaped[np.ndarray, " image"]
Vectors = Float[np.ndarray, "image d"]


class FittedValue(Generic[T]):
    """An attribute of a fitted classifier, computed on first use, while nobody learns."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, classifier: "FewShotClassifier", _: Any = None) -> T:
        if classifier is None:
            raise AttributeError("this is an attribute of classifiers that have learned a class")
        with classifier._lock:
            if "state_" not in classifier.__dict__:
                raise AttributeError("this classifier has not learned a class yet")
            value: T = getattr(classifier.state_, self.name)
            return value


@dataclass(eq=False, repr=False)
class FewShotClassifier(ClassifierMixin, BaseEstimator):
    """Classify by comparing with the mean of each class, at any number of classes and of examples of each.

    Each class is represented by the mean of its examples (a prototype, Snell et al. 2017); the head decides how
    features become a vector, how a prototype is refined and how it is compared with a query. Examples are a set: one
    that is learned twice under one label counts once. Several threads may learn and predict at once.

    Args:
        head: posterior, proto, cosine-proto, frn, cosine-frn, or another of the registry. feat has to be trained:
            `from_run`.
        positions: Positions of a feature map in a row of X; 3-d X shows its own, 2-d X has one.
        embed: How features become a vector (flatten, mean, max, gram); the head's own where None.
        readout: own, swapped, or one that is fitted on `base`: pca60, est60, ...
        base: Examples (X, y) of other classes that the readout or the posterior is fitted on, or what was fitted
            before, by name.
        parameters: Learned values of the head by name, as in a trained model.
        scale: Factor of the logits; fitted by leave-one-out on the support where None.
        reject: Share of the known classes' images that `is_known` may reject to find those of unknown classes.
        keep: Exemplars of a class, for calibration; of many classes fewer, 0 for none. The class itself is the mean of
            all its examples.
        index: Whether `predict` asks an approximate index (extra: index) where there are 4,096 classes or more; what it
            finds is scored exactly. `top` goes through all classes, for its probabilities are shares of all. It is not
            saved: set it again on a classifier that was loaded.
        registry: What head and readout are looked up in; the package's own where None.

    Attributes:
        classes_: The labels, in order.
        n_features_in_: Numbers in a row of X.
        feature_names_in_: Names of the columns of X, where it had names.
        support_: The classes in order of their labels: sums, counts, exemplars, keys (a copy that is read-only).
        head_: The head with its parameters, and with what it has estimated from the support.
        prototypes_: What queries are scored against.
        scale_: The factor of the logits.
        calibrated_: Whether that factor was fitted by leaving examples out.
        threshold_: The evidence below which an image is of none of the classes; minus infinity where it is not known.
        coverage_: What the threshold does to examples that are left out; None where nothing can be left out.
        recalls_: Accuracy on each class's exemplars, left out; NaN where nothing is left of the class, and for classes
            that took no part in the calibration of very many.
        single_group_classes_: Classes whose examples are all one group: nothing is known of new images of them, and
            none of these is rejected.
        n_repeated_: Examples of the last call that were there already, or twice in it, and were not counted again.

    Examples:
        >>> import numpy as np
        >>> from anyshot import FewShotClassifier
        >>> X = np.array([[1.0, 0.1], [0.9, 0.2], [0.1, 1.0], [0.2, 0.8]])
        >>> classifier = FewShotClassifier().fit(X, ["a", "a", "b", "b"])
        >>> classifier.predict([[1.0, 0.3]])
        array(['a'], dtype='<U1')
    """

    head: str = DEFAULT_HEAD
    _: KW_ONLY
    positions: int | None = None
    embed: str | None = None
    readout: str = "own"
    base: tuple[Any, Any] | Mapping[str, np.ndarray] | None = None
    parameters: Mapping[str, np.ndarray] | None = None
    scale: float | None = None
    reject: float = 0.05
    keep: int = 32
    index: bool = False
    registry: Registry | None = None

    @staticmethod
    def from_run(run: "str | Path | Model", head: str | None = None, **arguments: Any) -> "FewShotClassifier":
        """Return a classifier of a trained model's features, with what its head has learned.

        Args:
            run: The folder of a trained model, or the model.
            head: Another head; it does not use what the model's own has learned.
            **arguments: Of FewShotClassifier.
        """
        from anyshot.models.model import Model, load_model

        registry = arguments.get("registry") or BUILTIN
        model = run if isinstance(run, Model) else load_model(Path(run), registry)
        recipe = model.recipe
        blank = np.zeros((1, recipe.size, recipe.size, model.channels), np.uint8)
        positions = model.positions if recipe.frozen else model.features(blank).shape[1]
        defaults: dict[str, Any] = {"positions": positions}
        if head in (None, recipe.head):
            learned = {name: value.detach().double().numpy() for name, value in model.learned.items()}
            defaults |= {"embed": recipe.embed, "parameters": learned}
        return FewShotClassifier(head or recipe.head, **{**defaults, **arguments})

    def save(self, path: str | Path) -> None:
        """Write the classifier to a folder that anyone can load (see `anyshot.classify.files`).

        Files of others in that folder stay; an earlier classifier is replaced as a whole or not at all.
        """
        from anyshot.classify.files import save_folder

        with self._lock:
            check_is_fitted(self)
            save_folder(self, Path(path))

    @staticmethod
    def load(path: str | Path, registry: Registry | None = None) -> "FewShotClassifier":
        """Return a classifier from its folder; nothing in it can run.

        Args:
            path: The folder.
            registry: Needed for a head that is not ours.
        """
        from anyshot.classify.files import load_folder

        return load_folder(Path(path), registry)

    def restore(self, support: Support, features: int) -> "FewShotClassifier":
        """Set the support that was saved, of rows of so many features, instead of fitting."""
        self.positions_, self.n_features_in_ = self.positions or 1, features
        self._prepare(features)
        self.n_repeated_ = 0
        return self._set_support(support)

    # ------------------------------------------------------------------------------------------------------- learning

    def fit(self, X: Any, y: Any, groups: Any = None) -> "FewShotClassifier":
        """Learn the classes of these examples, and forget all others.

        Args:
            X: Features, a row or a map "position channel" for each example.
            y: Their labels.
            groups: Which of them belong together, as the photos of one moment do: accuracy, scale and threshold are
                measured with whole groups left out. Where None, near-copies by their features are groups.
        """
        with self._lock:
            new = self._share_attributes()  # what is known stays until the new examples have been accepted
            new.forget()
            self.become(new.partial_fit(X, y, groups=groups))
            return self

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether there is a class: a fit that failed leaves other attributes behind."""
        return "state_" in self.__dict__

    def forget(self) -> None:
        """Forget all classes."""
        with self._lock:
            self.__dict__.pop("state_", None)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, groups: Any = None) -> "FewShotClassifier":
        """Learn from more examples, of known classes or new ones; all of them, or none if it is interrupted.

        Args:
            X: Features.
            y: Labels.
            classes: Not used: classes need not be announced.
            groups: Which examples belong together (see `fit`), None for one that is alone; a group may go on in a later
                call.
        """
        with self._lock:
            is_fresh = "state_" not in self.__dict__
            rows, labels = self._check_examples(X, y, is_fresh)
            if groups is not None and len(groups) != len(rows):
                raise BadInput(f"there are {len(rows)} examples and {len(groups)} groups: give one for each.")
            if is_fresh:
                self._prepare(rows.shape[1])
            keys = hash_rows(rows)
            names, owner = np.unique(labels, return_inverse=True)
            is_new = ~find_repeats(owner, keys)
            if not is_fresh:
                is_new &= ~self.state_.support.contains(names, owner, keys)
            hashes = keys if groups is None else hash_groups(groups, keys)
            if is_new.any():
                support = build_support(
                    self._vector_parts(rows if is_new.all() else rows[is_new]),
                    labels[is_new],
                    keys[is_new],
                    hashes[is_new],
                    keep=self.keep,
                    has_scatter=self.learned_head_.head.estimator is not None,
                )
                if is_fresh:
                    self._set_support(support)
                else:
                    self._change(lambda known: known.merge(support, is_disjoint=True))
            self.n_repeated_ = len(keys) - int(is_new.sum())
            return self

    def merge(self, *others: "FewShotClassifier") -> "FewShotClassifier":
        """Add the examples of other classifiers with the same head: what one fit on all of them would have given.

        Examples that several have count once, and `n_repeated_` says how many these are. Where two share some examples
        of a class, not all, the vectors of these must be among the exemplars of one of the two.
        """
        with ExitStack() as stack:
            for each in sorted({self, *others}, key=id):  # in one order everywhere, or two could wait for each other
                stack.enter_context(each._lock)
            check_is_fitted(self)
            for other in others:
                check_is_fitted(other)
                if self._merge_key() != other._merge_key():
                    raise BadInput("only classifiers with the same head, readout, parameters and positions can merge.")
                self.state_.support.check_compatible(other.state_.support)

            merged = self.state_.support.copy()  # another may have examples that cannot be merged
            repeated = sum(merged.merge(other.state_.support) for other in others)
            with uninterrupted():
                self.n_repeated_ = repeated
                return self._set_support(merged)

    def remove(self, labels: Sequence[Any] | Labels) -> "FewShotClassifier":
        """Remove these classes."""
        with self._lock:
            check_is_fitted(self)
            unwanted = dict.fromkeys(np.asarray(labels).reshape(-1).tolist())
            for label in unwanted:
                if self.state_.support.row_of(label) is None:
                    raise BadInput(f"there is no class {label!s} to remove.")
            if len(unwanted) == len(self.state_.support):
                raise BadInput("a classifier needs a class: the last one cannot be removed.")
            return self._change(lambda support: support.remove(unwanted))

    def become(self, other: "FewShotClassifier") -> None:
        """Take over all that another classifier has learned, at once."""
        with self._lock, uninterrupted():
            lock = self._lock
            self.__dict__ = {**other.__dict__, "_thread_lock": lock}

    def exemplar_keys(self) -> set[int]:
        """Return the keys of all exemplars."""
        with self._lock:
            return self.state_.support.exemplar_keys() if "state_" in self.__dict__ else set()

    def find_examples(self, X: Any) -> list[list[tuple[Any, int]]]:
        """Return the classes that have each of these examples, and its key there.

        Examples are found by their keys; exemplars, which may come from files without such keys, also by their vectors.
        """
        with self._lock:
            rows = self._check_rows(X)
            support, vectors = self.support_, self._embed(rows)
            results = []
            for key, vector in zip(hash_rows(rows).tolist(), vectors, strict=True):
                pairs = [(label, key) for label in self.state_.support.labels_with(key)]
                near = np.flatnonzero(((support.examples - vector) ** 2).sum(1) <= SAME * (vector**2).sum())
                labels = support.labels[support.owner[near]].tolist()
                pairs += [(label, int(support.keys[place])) for label, place in zip(labels, near, strict=True)]
                results.append(list({label: (label, one) for label, one in reversed(pairs)}.values()))
            return results

    def take_out(self, label: Any, key: int | None = None, x: Any = None) -> Support:
        """Remove a class, or one example of it, and return it for `put_back`.

        Without its last class the classifier is as if never fitted.

        Args:
            label: The class.
            key: The key of the example (see `find_examples`); without one the class goes.
            x: The features of the example, needed where it is no exemplar.
        """
        with self._lock:
            check_is_fitted(self)
            support = self.state_.support
            row = support.row_of(label)
            if row is None:
                raise BadInput(f"there is no class {label!s} to take from.")
            row_of_x = None if x is None else self._check_rows(np.asarray(x)[None])
            if key is not None:
                self._check_removable(support, label, key, row_of_x)
            vector = None if row_of_x is None else self._embed(row_of_x)[0]
            is_whole = key is None or support.counts[row] == 1
            if is_whole and len(support) == 1:
                part = support.copy()
                self.forget()
                return part
            with uninterrupted():
                part = support.split_off(label, None if is_whole else key, vector)
                self._set_support(support)
            return part

    @staticmethod
    def _check_removable(support: Support, label: Any, key: int, x: Rows | None) -> None:
        if key in support.exemplar_keys_of(label):
            return
        if label not in support.labels_with(key):
            raise BadInput(f"class {label!s} has no such example.")
        if x is None:
            raise BadInput(f"this example of class {label!s} is no exemplar: its features are needed to remove it.")
        if int(hash_rows(x)[0]) != key:
            raise BadInput(f"these features are those of another example of class {label!s} than the key is of.")

    def put_back(self, part: Support) -> "FewShotClassifier":
        """Add again what `take_out` returned."""
        with self._lock:
            if "state_" not in self.__dict__:
                return self._set_support(part.copy())
            return self._change(lambda support: support.merge(part))

    def _check_examples(self, X: Any, y: Any, is_fresh: bool) -> tuple[Rows, Labels]:
        if y is None:
            raise BadInput("this classifier requires y to be passed, but the target y is None.")
        if is_fresh:
            self.positions_ = _positions(X, self.positions)
        rows, labels = self._flatten(X), np.asarray(y) if isinstance(y, list) else y
        rows, labels = validate_data(self, rows, labels, reset=is_fresh, dtype=FLOATS)
        if labels.dtype.kind not in "iubU":  # those are labels whatever they are, and looking takes as long as learning
            check_classification_targets(labels)
        if labels.dtype == object and all(isinstance(label, str) for label in labels):
            labels = labels.astype(str)
        _check_scale(rows)
        return rows, labels

    def _check_rows(self, X: Any) -> Rows:
        check_is_fitted(self)
        rows = validate_data(self, self._flatten(X), reset=False, dtype=FLOATS)
        _check_scale(rows)
        return rows

    def _flatten(self, X: Any) -> Any:
        """Return 2-d rows of 3-d features "image position channel"; scikit-learn judges whatever else it is."""
        if getattr(X, "ndim", 2) != 3:
            return X
        if X.shape[1] != self.positions_:
            raise BadInput(f"X has {X.shape[1]} positions, but the classifier was made for {self.positions_}.")
        return np.asarray(X).reshape(len(X), -1)

    def _prepare(self, features: int) -> None:
        """Look up the head and the readout, once: nothing here depends on the classes."""
        registry = self.registry or BUILTIN
        head, readout = registry.head(self.head), registry.check_readout(self.readout, self.head)
        if not 0 <= self.reject < 1:
            raise BadInput(f"reject is a share of examples, from 0 to below 1, not {self.reject}.")
        if self.keep < 2 and self.keep != 0:
            raise BadInput(
                f"calibration leaves one example out and needs another: keep 0, or at least 2, not {self.keep}."
            )
        if features % self.positions_:
            raise BadInput(f"rows of {features} numbers cannot hold {self.positions_} positions.")
        self.embed_: Embed = look_up("embed", self.embed, EMBEDS) if self.embed else head.embed
        blank = torch.zeros(1, self.positions_, features // self.positions_)
        self.learned_ = _tensors(self.parameters or untrained_parameters(self.head, blank, registry))
        self.fitted_: Parameters = {}
        self.apply_ = Readout().applied  # until the readout is fitted, on vectors as they are
        self.fitted_ = self._fit_on_base(head, readout)
        self.apply_ = readout.applied
        self.learned_head_ = readout.bind(BoundHead(head, self.learned_), self.fitted_)
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in self.fitted_.items())
        unfit = f"what was fitted for {self.readout} ({shapes}) does not fit rows of {features} numbers: fit it anew."
        with as_bad_input((RuntimeError, KeyError), unfit):
            self.size_ = self.apply_(self.embed_(blank.double(), self.learned_), self.fitted_).shape[1]

    def _fit_on_base(self, head: Head, readout: Readout) -> Parameters:
        """Return what the readout, or a head that is fitted to the support, is to know of other classes."""
        fit = readout.fit if head.estimator is None else head.estimator.fit_base
        if fit is None or (self.base is None and head.estimator is not None):
            return {}
        if self.base is None:
            raise BadInput(f"{self.readout} is fitted on examples of other classes: give them as base=(X, y).")
        if isinstance(self.base, Mapping):
            return _tensors(self.base) if head.estimator is None else read_base(_tensors(self.base))
        X, y = self.base
        vectors = torch.from_numpy(self._embed(np.asarray(self._flatten(X), np.float64)))
        return fit(vectors, torch.from_numpy(np.unique(y, return_inverse=True)[1]))

    def _merge_key(self) -> tuple[Any, ...]:
        """Return all that must agree before two classifiers' sums may be added."""
        values = [*self.learned_.items(), *self.fitted_.items()]
        learned = sorted((name, value.numpy().tobytes()) for name, value in values)
        return self.head, self.readout, self.embed_, self.positions_, self.n_features_in_, learned

    def _change(self, change: Callable[[Support], Any]) -> "FewShotClassifier":
        """Change the classes and forget what was computed from them, both or (if it is interrupted) neither."""
        with uninterrupted():
            change(self.state_.support)
            return self._set_support(self.state_.support)

    def _set_support(self, support: Support) -> "FewShotClassifier":
        """Begin a new fitted state of these classes."""
        base = (self.learned_head_.head.estimator and self.fitted_) or None
        self.state_ = FittedState(support, self.learned_head_, self.scale, self.reject, base, self.index)
        return self

    # --------------------------------------------------------------------------------------------------- fitted state

    @property
    def _lock(self) -> Any:
        """The lock of all that learns, and of what is computed from the support."""
        return self.__dict__.get("_thread_lock") or self.__dict__.setdefault("_thread_lock", make_lock())

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            state: dict[str, Any] = dict(super().__getstate__())
        state.pop("_thread_lock", None)
        return state

    def __copy__(self) -> "FewShotClassifier":
        with self._lock:
            other = self._share_attributes()
            return other._set_support(self.state_.support.copy()) if "state_" in self.__dict__ else other

    def _share_attributes(self) -> "FewShotClassifier":
        """Return another classifier with the same attributes, and a lock for itself."""
        other = object.__new__(type(self))
        other.__dict__ = {name: value for name, value in self.__dict__.items() if name != "_thread_lock"}
        return other

    support_ = FittedValue[Support]("snapshot")
    classes_ = FittedValue[np.ndarray]("labels")
    prototypes_ = FittedValue[torch.Tensor]("prototypes")
    head_ = FittedValue[BoundHead]("bound")
    scale_ = FittedValue[float]("scale")
    calibrated_ = FittedValue[bool]("is_calibrated")
    coverage_ = FittedValue[Coverage | None]("coverage")
    recalls_ = FittedValue[np.ndarray]("recalls")

    @property
    def threshold_(self) -> float:
        """The evidence below which an image is of none of the classes; minus infinity where that is not known."""
        return -np.inf if self.coverage_ is None else self.coverage_.threshold

    @property
    def single_group_classes_(self) -> Shaped[np.ndarray, " class"]:
        """Classes whose examples are all one group: nothing is known of new images of them, and none is rejected."""
        with self._lock:
            return self.classes_[self.state_.is_single_group]

    def leave_one_out(self) -> tuple[Float[np.ndarray, "image way"], Int[np.ndarray, " image"]]:
        """Return logits of exemplars left out of their classes with their groups, and the places of these classes.

        Only classes of two groups or more take part, with 2,048 exemplars in all, or two of each class.
        """
        with self._lock:
            check_is_fitted(self)
            return self.state_.leave_one_out_logits

    # ----------------------------------------------------------------------------------------------------- predicting

    def logits(self, X: Any) -> Float[np.ndarray, "image way"]:
        """Return a logit for each class."""
        rows = self._check_rows(X)
        with self._lock:  # all rows are compared with the same classes
            return np.concatenate([self.logits_of(part) for part in self._vector_parts(rows)])

    def logits_of(self, vectors: Vectors) -> Float[np.ndarray, "image way"]:
        """Return logits of `vectors`, for those who ask several classifiers about the same images."""
        with self._lock:
            scale, bound, prototypes, query = self.scale_, self.head_, self.prototypes_, self._transform(vectors)
        return scale * bound.score(query, prototypes).numpy()

    def evidence_of(self, vectors: Vectors) -> Float[np.ndarray, " image"]:
        """Return the evidence for one of the classes rather than none of these.

        It is the best logit, less that of a new class where the head has one; infinite where the best class cannot be
        judged (`single_group_classes_`).
        """
        with self._lock:
            best = self._top(vectors, 1).rows[:, 0]
            evidence = self.state_.evidence_of(vectors, best)
            if len(unknown := self.single_group_classes_):
                evidence = np.where(np.isin(self.state_.support.labels_of(best), unknown), np.inf, evidence)
            return evidence

    def _transform(self, vectors: Vectors) -> Float[torch.Tensor, "image z"]:
        return self.state_.bound.transform(torch.from_numpy(np.require(vectors, requirements="W")))

    def _top(self, vectors: Vectors, k: int, with_sums: bool = False) -> TopK:
        """Return the best classes of each image, as rows of the support; with sums also what makes probabilities."""
        with self._lock:
            state = self.state_
            if state.searches:
                return state.top(vectors, k, with_sums)
            scale = state.scale if with_sums else 1.0
            order, bound, prototypes, query = state.order, state.bound, state.prototypes, self._transform(vectors)
        scores = bound.score(query, prototypes).numpy()
        best = np.argsort(-scores, 1, kind="stable")[:, :k] if k > 1 else scores.argmax(1)[:, None]
        log_sums = logsumexp(scale * scores, axis=1) if with_sums else None
        return TopK(order[best], np.take_along_axis(scores, best, 1), log_sums)

    def vectors(self, X: Any) -> Vectors:
        """Return what a class is a mean of: the embedded and projected vector of each image."""
        return self._embed(self._check_rows(X))

    def nearest(self, vector: Float[np.ndarray, " d"], label: Any, many: int = 4) -> UInt64[np.ndarray, " example"]:
        """Return the keys of the exemplars of a class that, each alone in its place, speak most for this vector."""
        with self._lock:
            support, bound = self.support_, self.head_
            here = support.owner == np.searchsorted(support.labels, label)
            mine = torch.from_numpy(support.examples[here])
            alone = bound.head.refined(mine, torch.ones(len(mine), dtype=torch.int64), bound.parameters)
            scores = bound.score(self._transform(vector[None]), alone)[0]
        return support.keys[here][scores.argsort(descending=True).numpy()[:many]]

    def at_shot(self, shot: int) -> "FewShotClassifier":
        """Return the classifier it would be with at most `shot` examples of each class: the first of the exemplars.

        The scale of its logits is fitted on all of them.
        """
        check_is_fitted(self)
        if not 1 <= shot <= self.keep:
            raise BadInput(f"a classifier that keeps {self.keep} examples a class has shots 1 to {self.keep}.")
        with self._lock:
            support, base = self.support_, self.state_.base
            with_exemplars = int((support.exemplar_counts > 0).sum())
            if with_exemplars < len(support):
                raise BadInput(
                    f"examples are kept of {with_exemplars} of the {len(support)} classes: fewer shots of all of them "
                    "are not to be had."
                )
            fewer, is_calibrated = self._share_attributes(), self.calibrated_
            about = self.learned_head_, self._scale_at(shot), self.reject, base
            fewer.state_ = FittedState(support.first(shot), *about, is_calibrated=is_calibrated)
        return fewer

    def _scale_at(self, shot: int) -> float | None:
        """Return the factor of the logits at fewer shots, as far as leaving out tells."""
        if not self.calibrated_:
            return self.scale
        if self.state_.has_estimator or shot >= self.support_.counts.max():
            return self.scale_
        # Leaving one out of one more makes classes of exactly this shot; only where there is no more is it a guess.
        more = FittedState(self.support_.first(shot + 1), self.learned_head_, None, self.reject)
        scores, owner = more.leave_one_out_scores
        if not len(owner):  # classes of one group have nothing to leave out
            return self.scale_
        counts = more.support.counts
        gained = np.where(counts > shot, 1.0, next_shot(counts))
        return fit_scale(scores, owner) * float(gained[owner].mean())

    def decision_function(self, X: Any) -> Float[np.ndarray, " image"] | Float[np.ndarray, "image way"]:
        """Return logits; of two classes, by scikit-learn's habit, only the second's over the first's."""
        logits = self.logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict(self, X: Any) -> Labels:
        """Return the likeliest class of each image."""
        rows = self._check_rows(X)
        with self._lock:
            support = self.state_.support
            best = np.concatenate([self._top(part, 1).rows[:, 0] for part in self._vector_parts(rows)])
            return support.labels_of(best)

    def top(self, X: Any, k: int = 5) -> tuple[Shaped[np.ndarray, "image k"], Float[np.ndarray, "image k"]]:
        """Return the `k` likeliest classes of each image and their probabilities.

        All classes are compared, also with an index, but never in one matrix.
        """
        if k < 1:
            raise BadInput(f"at least one class is asked for, not {k}.")
        rows = self._check_rows(X)
        with self._lock:
            parts = [self._top(part, k, with_sums=True) for part in self._vector_parts(rows)]
            best, scores, sums = (
                np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "scores", "log_sums")
            )
            # Sums over very many classes are of float32, and all classes together are at least the best of them.
            sums = np.maximum(sums, logsumexp(self.scale_ * scores, axis=1))
            return self.state_.support.labels_of(best), np.exp(self.scale_ * scores - sums[:, None])

    def predict_proba(self, X: Any) -> Float[np.ndarray, "image way"]:
        """Return calibrated probabilities of the classes, for images that are of one of them."""
        return softmax(self.logits(X), axis=1)

    def is_known(self, X: Any) -> Bool[np.ndarray, " image"]:
        """Return whether each image looks like one of the classes, rather than none of these."""
        vectors = self.vectors(X)
        with self._lock:
            return self.evidence_of(vectors) >= self.threshold_

    def calibration_error(self, X: Any, y: Any) -> float:
        """Return the expected calibration error on labelled images; without any, see `support_calibration_error`."""
        place = np.searchsorted(self.classes_, np.asarray(y)).clip(0, len(self.classes_) - 1)
        place = np.where(self.classes_[place] == np.asarray(y), place, -1)  # an unknown label is never right
        return calibration_error(self.predict_proba(X), place)

    def support_calibration_error(self) -> float:
        """Return the expected calibration error on exemplars that are left out; NaN where none can be."""
        logits, owner = self.leave_one_out()
        return calibration_error(softmax(logits, axis=1), owner) if len(owner) else float("nan")

    def _embed(self, rows: Rows) -> Vectors:
        return np.concatenate(list(self._vector_parts(rows)))

    def _vector_parts(self, rows: Rows) -> Iterator[Vectors]:
        """Yield the vectors of the rows, some at a time."""
        channels = rows.shape[1] // self.positions_
        # The length of a vector is known except while the readout is fitted; the longest is a Gram matrix.
        floats = rows.shape[1] + getattr(self, "size_", channels * channels)
        size = max(1, CHUNK_FLOATS // floats)
        for start in range(0, len(rows), size):
            part = np.array(rows[start : start + size], np.float64)
            features = torch.from_numpy(part).unflatten(1, (self.positions_, -1))
            yield self.apply_(self.embed_(features, self.learned_), self.fitted_).numpy()


def _check_scale(rows: Rows) -> None:
    """Refuse features whose squares would overflow or vanish."""
    largest = max(float(rows.max(initial=0)), -float(rows.min(initial=0)))
    if largest > FEATURE_RANGE[1] or 0 < largest < FEATURE_RANGE[0]:
        raise BadInput(
            f"the largest number of these features is {largest:.0e}: multiply all of them by a constant that brings it "
            "near 1."
        )


def _tensors(values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(np.asarray(value), dtype=torch.float64) for name, value in values.items()}


def _positions(X: Any, given: int | None) -> int:
    if getattr(X, "ndim", 2) == 3 and given is None:
        return int(X.shape[1])
    if given is not None and given < 1:
        raise BadInput(f"features have at least one position, not {given}.")
    return given or 1
