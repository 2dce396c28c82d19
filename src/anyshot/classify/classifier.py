"""A scikit-learn classifier in which a class is the mean of its examples.

    logits = scale * score(embed(query), refine(sum of the class / its count, its count))

`fit` on all examples, `partial_fit` on them in any order and batching, and `merge` of classifiers that saw parts of
them end in the same classifier (to rounding). Probabilities are calibrated on the support itself, at whatever shots
the classes have (`anyshot.classify.calibration`).
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped, UInt64
from scipy.special import logsumexp, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from anyshot.arrays import split_rows
from anyshot.classify.calibration import Coverage, calibration_error, fit_scale, next_shot, to_tensor
from anyshot.classify.fitted import FittedState
from anyshot.classify.keys import hash_groups, hash_rows
from anyshot.classify.support import Support, build_support, find_new
from anyshot.concurrency import make_lock
from anyshot.errors import BadInput, as_bad_input, look_up
from anyshot.models.gaussian import read_base
from anyshot.models.heads import EMBEDS
from anyshot.models.law import BoundHead, Embed, Head, Parameters
from anyshot.models.readouts import Readout
from anyshot.models.registry import BUILTIN, Registry, untrained_parameters

if TYPE_CHECKING:
    from anyshot.models.model import Model

DEFAULT_HEAD = "posterior"  # for features that no head was trained on
CHUNK_FLOATS = 1_000_000  # floats of features and their vectors that are in memory at once: 8 MB
FLOATS = (np.float64, np.float32)
FEATURE_RANGE = 1e-9, 1e100  # bounds of the largest feature: outside of them squares lose their digits or overflow
SAME_EXAMPLE = 1e-9  # relative squared distance up to which two vectors are of one example: float32 rounds this much

T = TypeVar("T")

if hasattr(os, "register_at_fork"):  # The threads of torch do not survive a fork; waiting for them would hang.
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))

FeatureRows = Float[np.ndarray, "image feature"]
Labels = Shaped[np.ndarray, " image"]
Vectors = Float[np.ndarray, "image d"]


class FittedValue(Generic[T]):
    """An attribute of a classifier that reads its fitted state, which computes it on first use, under the lock."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, classifier: "FewShotClassifier", _: Any = None) -> T:
        with classifier._lock:  # The class itself has no such attribute, which is an AttributeError, too.
            if not classifier.is_fitted:
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
        embed: How features become a vector (flatten, mean, max, gram); None for the way of the head.
        readout: own, swapped, or one that is fitted on `base`: pca60, est60, ...
        base: Examples (X, y) of other classes on which the readout or the posterior is fitted, or the values that such
            a fit gave before, by name.
        parameters: Learned values of the head by name, as in a trained model.
        scale: Factor of the logits; fitted by leave-one-out on the support where None.
        reject: Share of the known classes' images that `is_known` may reject to find those of unknown classes.
        keep: The most examples of a class whose vectors are stored for calibration (exemplars); fewer where there are
            many classes, 0 for none. The mean of a class is always that of all its examples.
        index: Whether `predict` searches by an approximate index (extra: index) where there are 4,096 classes or more;
            the classes that it finds are scored exactly. `top` compares all classes, because its probabilities need
            their sum. It is not saved: set it again on a classifier that was loaded.
        registry: What head and readout are looked up in; the package's own where None.

    Attributes:
        classes_: The labels, in order.
        n_features_in_: Numbers in a row of X.
        feature_names_in_: Names of the columns of X, where it had names.
        support_: The classes in order of their labels: sums, counts, exemplars, keys (read-only).
        parameters_: The parameters of the head, as given, or those that it starts with untrained.
        fitted_: What the readout, or the head, was fitted to on `base`, by name.
        learned_head_: The head with these, before it is fitted on the support.
        head_: The head with what it has estimated from the support.
        prototypes_: What queries are scored against.
        scale_: The factor of the logits.
        calibrated_: Whether that factor was fitted by leaving examples out.
        threshold_: The evidence below which an image is of none of the classes; minus infinity where it is not known.
        coverage_: What the threshold does to examples that are left out; None where nothing can be left out.
        recalls_: Accuracy on the exemplars of each class when they are left out; NaN where the class has no other
            examples, and for classes that are not in the sample by which very many classes are calibrated.
        single_group_classes_: Classes whose examples are all one group. How their new images vary is not known, so none
            of these is rejected.
        n_repeated_: Examples of the last call that were known already, or twice in it, and were not counted again.

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
    keep: int = 256
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

    def restore(self, support: Support, n_features: int) -> "FewShotClassifier":
        """Set a support that was fitted before, on rows of so many features, and return the classifier."""
        self.positions_, self.n_features_in_ = self.positions or 1, n_features
        self._prepare(n_features)
        self.n_repeated_ = 0
        return self._set_support(support)

    # ------------------------------------------------------------------------------------------------------- learning

    def fit(self, X: Any, y: Any, groups: Any = None) -> "FewShotClassifier":
        """Learn the classes of these examples, and forget all others.

        Args:
            X: Features, a row or a map "position channel" for each example.
            y: Their labels.
            groups: A name for each example; those with the same name belong together, as photos of one moment do, and
                accuracy, scale and threshold are measured with whole groups left out. Where None, examples of a class
                with nearly equal features are a group.
        """
        with self._lock:
            new = copy(self)  # If the new examples are refused, this classifier stays as it is.
            new.forget()
            self.become(new.partial_fit(X, y, groups=groups))
            return self

    @property
    def is_fitted(self) -> bool:
        """Whether there is a class."""
        return "state_" in self.__dict__

    def __sklearn_is_fitted__(self) -> bool:
        """Return `is_fitted`; scikit-learn would look for any fitted attribute, and a failed fit leaves some."""
        return self.is_fitted

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
            groups: Which examples belong together (see `fit`); the name None is no group. A later call may add to a
                group.
        """
        with self._lock:
            is_fresh = not self.is_fitted
            rows, labels = self._check_examples(X, y, is_fresh)
            if groups is not None and len(groups) != len(rows):
                raise BadInput(f"there are {len(rows)} examples and {len(groups)} groups: give one for each.")
            if is_fresh:
                self._prepare(rows.shape[1])
            keys = hash_rows(rows)
            is_new = find_new(labels, keys, None if is_fresh else self.state_.support)
            group_hashes = keys if groups is None else hash_groups(groups, keys)
            if is_new.any():
                support = build_support(
                    self._vector_parts(rows if is_new.all() else rows[is_new]),
                    labels[is_new],
                    keys[is_new],
                    group_hashes[is_new],
                    keep=self.keep,
                    has_scatter=self.learned_head_.head.estimator is not None,
                )
                self._set_support(support if is_fresh else self.state_.support.merge(support))
            self.n_repeated_ = len(keys) - int(is_new.sum())
            return self

    def merge(self, *others: "FewShotClassifier") -> "FewShotClassifier":
        """Add the examples of other classifiers with the same head: what one fit on all of them would have given.

        Examples that several have count once, and `n_repeated_` says how many these are. Where two share some examples
        of a class, not all, the vectors of these must be among the exemplars of one of the two.
        """
        with ExitStack() as stack:
            for each in sorted({self, *others}, key=id):  # In any other order two threads could wait for each other.
                stack.enter_context(each._lock)
            for each in (self, *others):
                check_is_fitted(each)
                if self._merge_key() != each._merge_key():
                    same = "only classifiers with the same head, readout, parameters and positions can merge"
                    raise BadInput(f"{same}: {self._describe_difference(each)}.")
            supports = [each.state_.support for each in (self, *others)]
            merged = reduce(Support.merge, supports)
            self.n_repeated_ = int(sum(each.counts.sum() for each in supports) - merged.counts.sum())
            return self._set_support(merged)

    def remove(self, labels: Sequence[Any] | Labels) -> "FewShotClassifier":
        """Remove these classes."""
        with self._lock:
            check_is_fitted(self)
            removed = list(dict.fromkeys(np.asarray(labels).reshape(-1).tolist()))
            for label in removed:
                if label not in self.state_.support.classes:
                    raise BadInput(f"there is no class {label!s} to remove.")
            if len(removed) == len(self.state_.support):
                raise BadInput("a classifier needs a class: the last one cannot be removed.")
            return self._set_support(self.state_.support.remove(removed)[0])

    def become(self, other: "FewShotClassifier") -> None:
        """Take over all that another classifier has learned, at once."""
        with self._lock:
            self.__dict__ = {**other.__dict__, "_thread_lock": self._lock}

    def exemplar_keys(self) -> set[int]:
        """Return the keys of all exemplars."""
        with self._lock:
            return self.state_.support.exemplar_keys() if self.is_fitted else set()

    def find_examples(self, X: Any) -> list[list[tuple[Any, int]]]:
        """Return the classes that have each of these examples, and its key there.

        Examples are found by their keys. Exemplars are found by their vectors too: early files have other keys.
        """
        with self._lock:
            rows = self._check_rows(X)
            support, exemplars, vectors = self.support_, self.support_.exemplars, self._embed(rows)
            results = []
            for key, vector in zip(hash_rows(rows).tolist(), vectors, strict=True):
                pairs = [(label, key) for label in self.state_.support.labels_with(key)]
                near = np.flatnonzero(((exemplars.vectors - vector) ** 2).sum(1) <= SAME_EXAMPLE * (vector**2).sum())
                labels = support.labels[exemplars.class_index[near]].tolist()
                pairs += zip(labels, exemplars.keys[near].tolist(), strict=True)
                results.append(list(dict(reversed(pairs)).items()))  # a class that is found by both counts once
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
            if label not in support.classes:
                raise BadInput(f"there is no class {label!s} to take from.")
            features = None if x is None else self._check_rows(np.asarray(x)[None])
            if key is not None and key not in support.classes[label].exemplars:
                if key not in support.classes[label].keys:
                    raise BadInput(f"class {label!s} has no such example.")
                if features is None:
                    raise BadInput(
                        f"this example of class {label!s} is no exemplar: its features are needed to remove it."
                    )
                if int(hash_rows(features)[0]) != key:
                    raise BadInput(f"these features are of another example of class {label!s} than the key is of.")
            if key is None or support.classes[label].count == 1:
                rest, part = support.remove([label])
            else:
                rest, part = support.split_off(label, key, None if features is None else self._embed(features)[0])
            if len(rest):
                self._set_support(rest)
            else:
                self.forget()
            return part

    def put_back(self, part: Support) -> "FewShotClassifier":
        """Add again what `take_out` returned."""
        with self._lock:
            return self._set_support(self.state_.support.merge(part) if self.is_fitted else part)

    def _check_examples(self, X: Any, y: Any, is_fresh: bool) -> tuple[FeatureRows, Labels]:
        """Return the examples as rows of features, and their labels; raise BadInput where they do not fit."""
        if y is None:  # in the words that scikit-learn's checks of estimators look for
            raise BadInput("this classifier requires y to be passed, but the target y is None.")
        if is_fresh:
            if self.positions is not None and self.positions < 1:
                raise BadInput(f"features have at least one position, not {self.positions}.")
            self.positions_ = self.positions or (int(X.shape[1]) if getattr(X, "ndim", 2) == 3 else 1)
        rows, labels = self._flatten(X), np.asarray(y) if isinstance(y, list) else y
        rows, labels = self._validate(rows, labels, reset=is_fresh)
        if labels.dtype.kind not in "iubU":  # The check is slow, and values of these types always pass it.
            check_classification_targets(labels)
        if labels.dtype == object and all(isinstance(label, str) for label in labels):
            labels = labels.astype(str)
        _check_scale(rows)
        return rows, labels

    def _check_rows(self, X: Any) -> FeatureRows:
        """Return new features as rows; raise BadInput where they do not fit what was learned."""
        check_is_fitted(self)
        rows = self._validate(self._flatten(X), reset=False)
        _check_scale(rows)
        return rows

    def _validate(self, *arrays: Any, reset: bool) -> Any:
        """Check arrays as scikit-learn does; what it refuses is bad input, such as rows of another length."""
        try:
            return validate_data(self, *arrays, reset=reset, dtype=FLOATS)
        except ValueError as error:
            raise BadInput(str(error)) from error

    def _flatten(self, X: Any) -> Any:
        """Return 2-d rows of 3-d features "image position channel", and X unchanged where it is anything else."""
        if getattr(X, "ndim", 2) != 3:
            return X
        if X.shape[1] != self.positions_:
            raise BadInput(f"X has {X.shape[1]} positions, but the classifier was made for {self.positions_}.")
        return np.asarray(X).reshape(len(X), -1)

    def _prepare(self, n_features: int) -> None:
        """Check the arguments, and set all attributes that do not depend on the examples."""
        registry = self.registry or BUILTIN
        head, readout = registry.head(self.head), registry.check_readout(self.readout, self.head)
        if not 0 <= self.reject < 1:
            raise BadInput(f"reject is a share of examples, from 0 to below 1, not {self.reject}.")
        if self.keep < 2 and self.keep != 0:
            raise BadInput(
                f"calibration leaves one example out and needs another: keep 0, or at least 2, not {self.keep}."
            )
        if n_features % self.positions_:
            raise BadInput(f"rows of {n_features} numbers cannot hold {self.positions_} positions.")
        self.embed_: Embed = look_up("embed", self.embed, EMBEDS) if self.embed else head.embed
        blank = torch.zeros(1, self.positions_, n_features // self.positions_)
        self.parameters_ = _to_tensors(self.parameters or untrained_parameters(self.head, blank, registry))
        self.fitted_: Parameters = {}
        self.apply_readout_ = Readout().applied  # The readout is fitted on vectors that no readout has changed.
        self.fitted_ = self._fit_on_base(head, readout)
        self.apply_readout_ = readout.applied
        self.learned_head_ = readout.bind(BoundHead(head, self.parameters_), self.fitted_)
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in self.fitted_.items())
        misfit = (
            f"what was fitted for {self.readout} ({shapes}) does not fit rows of {n_features} numbers: fit it anew."
        )
        with as_bad_input((RuntimeError, KeyError), misfit):
            vectors = self.apply_readout_(self.embed_(blank.double(), self.parameters_), self.fitted_)
        self.vector_size_ = vectors.shape[1]

    def _fit_on_base(self, head: Head, readout: Readout) -> Parameters:
        """Return what the readout, or a head that is fitted on the support, learns from the base classes."""
        fit = readout.fit if head.estimator is None else head.estimator.fit_base
        if fit is None or (self.base is None and head.estimator is not None):
            return {}
        if self.base is None:
            raise BadInput(f"{self.readout} is fitted on examples of other classes: give them as base=(X, y).")
        if isinstance(self.base, Mapping):
            return _to_tensors(self.base) if head.estimator is None else read_base(_to_tensors(self.base))
        X, y = self.base
        vectors = torch.from_numpy(self._embed(np.asarray(self._flatten(X), np.float64)))
        return fit(vectors, torch.from_numpy(np.unique(y, return_inverse=True)[1]))

    def _merge_key(self) -> tuple[Any, ...]:
        """Return what two classifiers must have in common so that their sums may be added."""
        values = [*self.parameters_.items(), *self.fitted_.items()]
        learned = sorted((name, value.numpy().tobytes()) for name, value in values)
        return self.head, self.readout, self.embed_, self.positions_, self.n_features_in_, learned

    def _describe_difference(self, other: "FewShotClassifier") -> str:
        """Return the first thing that another classifier must have in common to merge, and has not."""
        words = "the head", "the readout", "the way to embed", "so many positions:", "so many numbers per example:"
        for word, mine, theirs in zip(words, self._merge_key(), other._merge_key(), strict=False):
            if mine != theirs:
                return f"these have {word} {getattr(mine, '__name__', mine)} and {getattr(theirs, '__name__', theirs)}"
        return "these have learned other parameters"

    def _set_support(self, support: Support) -> "FewShotClassifier":
        """Set the classes, and a fitted state in which nothing has been computed from them yet."""
        base = (self.learned_head_.head.estimator and self.fitted_) or None
        self.state_ = FittedState(support, self.learned_head_, self.scale, self.reject, base, self.index)
        return self

    # --------------------------------------------------------------------------------------------------- fitted state

    @property
    def _lock(self) -> Any:
        """The lock that every method holds while it changes the support or computes from it."""
        return self.__dict__.get("_thread_lock") or self.__dict__.setdefault("_thread_lock", make_lock())

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle or a copy gets. A support never changes, so that copies can share it and learn apart."""
        with self._lock:
            state: dict[str, Any] = dict(super().__getstate__())
        state.pop("_thread_lock", None)
        return state

    support_ = FittedValue[Support]("support")
    prototypes_ = FittedValue[torch.Tensor]("prototypes")
    head_ = FittedValue[BoundHead]("head")
    scale_ = FittedValue[float]("scale")
    calibrated_ = FittedValue[bool]("is_calibrated")
    coverage_ = FittedValue[Coverage | None]("coverage")
    recalls_ = FittedValue[np.ndarray]("recalls")

    @property
    def classes_(self) -> Shaped[np.ndarray, " class"]:
        """The labels, in order."""
        return self.support_.labels

    @property
    def labels_by_name(self) -> dict[str, Any]:
        """The labels by their names, which are text; none without a class."""
        return {str(label): label for label in self.classes_} if self.is_fitted else {}

    def parse_labels(self, names: Sequence[str]) -> list[Any]:
        """Return the labels of classes by their names; a new class gets a label of the type of the others.

        Args:
            names: The names, of known classes or new ones.

        Raises:
            BadInput: If the labels are numbers, and a new name is none.
        """
        labels = self.labels_by_name
        if labels and self.classes_.dtype.kind in "iuf":
            for name in {*names} - labels.keys():
                with as_bad_input((ValueError, OverflowError), f"the classes are numbers: {name!r} cannot be one."):
                    labels[name] = self.classes_.dtype.type(name)
        return [labels.get(name, name) for name in names]

    @property
    def threshold_(self) -> float:
        """The evidence below which an image is of none of the classes; minus infinity where that is not known."""
        return -np.inf if self.coverage_ is None else self.coverage_.threshold

    @property
    def single_group_classes_(self) -> Shaped[np.ndarray, " class"]:
        """Classes whose examples are all one group; none of their images is rejected."""
        with self._lock:
            return self.classes_[self.state_.is_single_group]

    def leave_one_out(self) -> tuple[Float[np.ndarray, "image class"], Int[np.ndarray, " image"]]:
        """Return the logits of exemplars that are left out of their classes with their groups, and their class indices.

        Only exemplars of classes of two groups or more are among them: 2,048 in all, or two of each class.
        """
        with self._lock:
            check_is_fitted(self)
            scores, class_index, _ = self.state_.leave_one_out
            return self.scale_ * scores, class_index

    # ----------------------------------------------------------------------------------------------------- predicting

    def logits(self, X: Any) -> Float[np.ndarray, "image class"]:
        """Return a logit for each class."""
        rows = self._check_rows(X)
        with self._lock:  # Nobody may add a class between two parts.
            return np.concatenate([self.logits_of(part) for part in self._vector_parts(rows)])

    def logits_of(self, vectors: Vectors) -> Float[np.ndarray, "image class"]:
        """Return the logits of what `vectors` returned, so that several classifiers can share one embedding."""
        with self._lock:
            return self.state_.logits(vectors)

    def evidence_of(self, vectors: Vectors) -> Float[np.ndarray, " image"]:
        """Return the evidence for one of the classes rather than none of these.

        It is the best logit, minus that of a class without examples where the head knows one. It is infinite where the
        best class is among `single_group_classes_`.
        """
        with self._lock:
            return self.state_.evidence(vectors)

    def vectors(self, X: Any) -> Vectors:
        """Return the vector of each image, embedded and changed by the readout: a class is the mean of such vectors."""
        return self._embed(self._check_rows(X))

    def nearest(self, vector: Float[np.ndarray, " d"], label: Any, k: int = 4) -> UInt64[np.ndarray, " example"]:
        """Return the keys of the k exemplars of a class that score highest for this vector, each as a class of one."""
        with self._lock:
            support, head, exemplars = self.support_, self.head_, self.support_.exemplars
            is_member = exemplars.class_index == np.searchsorted(support.labels, label)
            query, members = to_tensor(vector[None]), torch.from_numpy(exemplars.vectors[is_member])
            counts = torch.ones(len(members), dtype=torch.int64)
            if head.head.couples and head.head.estimator is not None:  # Its parameters are of classes, not of examples.
                scores = head.evidence(query, members, counts)[0]
            else:
                prototypes = head.head.refined(members, counts, head.parameters)
                scores = head.score(head.transform(query), prototypes)[0]
        return exemplars.keys[is_member][scores.argsort(descending=True).numpy()[:k]]

    def at_shot(self, shot: int) -> "FewShotClassifier":
        """Return a classifier of the same classes with at most `shot` examples each: the first exemplars.

        The scale of its logits is fitted on all exemplars.
        """
        check_is_fitted(self)
        if not 1 <= shot <= self.keep:
            raise BadInput(
                f"shot is a number from 1 to {self.keep}, the examples of a class that are kept, not {shot}."
            )
        with self._lock:
            support = self.support_
            n_with_exemplars = int((support.exemplar_counts > 0).sum())
            if n_with_exemplars < len(support):
                raise BadInput(
                    f"only {n_with_exemplars} of the {len(support)} classes have stored examples, and fewer shots need "
                    "those of all classes."
                )
            fewer = copy(self)
            fewer.state_ = replace(
                self.state_,
                support=support.limit_shots(shot),
                given_scale=self._scale_at(shot),
                was_calibrated=self.calibrated_,
                has_index=False,
            )
        return fewer

    def _scale_at(self, shot: int) -> float | None:
        """Return the factor of the logits at fewer shots, fitted by leaving examples out where that is possible."""
        if not self.calibrated_:
            return self.scale
        if self.state_.has_estimator or shot >= self.support_.counts.max():
            return self.scale_
        # Classes of shot + 1 examples have `shot` when one is left out; smaller ones need the correction `next_shot`.
        support = self.support_.limit_shots(shot + 1)
        scores, class_index, _ = FittedState(support, self.learned_head_, None, self.reject).leave_one_out
        if not len(class_index):  # Each class is a single group, and nothing can be left out.
            return self.scale_
        gains = np.where(support.counts > shot, 1.0, next_shot(support.counts))
        return fit_scale(scores, class_index) * float(gains[class_index].mean())

    def decision_function(self, X: Any) -> Float[np.ndarray, " image"] | Float[np.ndarray, "image class"]:
        """Return logits; of two classes, as scikit-learn does, the second's minus the first's."""
        logits = self.logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict(self, X: Any) -> Labels:
        """Return the likeliest class of each image."""
        rows = self._check_rows(X)
        with self._lock:
            best = [self.state_.top(part, 1).rows[:, 0] for part in self._vector_parts(rows)]
            return self.classes_[np.concatenate(best)]

    def top(self, X: Any, k: int = 5) -> tuple[Shaped[np.ndarray, "image k"], Float[np.ndarray, "image k"]]:
        """Return the `k` likeliest classes of each image and their probabilities.

        All classes are compared, also with an index, but never in one matrix.
        """
        if k < 1:
            raise BadInput(f"k, the number of classes to return, is at least 1, not {k}.")
        rows = self._check_rows(X)
        with self._lock:
            parts: list[Any] = [self.state_.top(part, k, with_sums=True) for part in self._vector_parts(rows)]
            best, scores, sums = map(np.concatenate, zip(*parts, strict=True))
            # The sums over very many classes are float32, and may round to less than the sum of the best.
            sums = np.maximum(sums, logsumexp(self.scale_ * scores, axis=1))
            return self.classes_[best], np.exp(self.scale_ * scores - sums[:, None])

    def predict_proba(self, X: Any) -> Float[np.ndarray, "image class"]:
        """Return calibrated probabilities of the classes, for images that are of one of them."""
        return softmax(self.logits(X), axis=1)

    def is_known(self, X: Any) -> Bool[np.ndarray, " image"]:
        """Return whether each image looks like one of the classes, rather than none of these."""
        rows = self._check_rows(X)
        with self._lock:
            evidence = [self.evidence_of(part) for part in self._vector_parts(rows)]
            return np.concatenate(evidence) >= self.threshold_

    def calibration_error(self, X: Any, y: Any) -> float:
        """Return the expected calibration error on labelled images.

        `support_calibration_error` needs none: it is measured on exemplars that are left out.
        """
        labels = np.asarray(y)
        class_index = np.searchsorted(self.classes_, labels).clip(0, len(self.classes_) - 1)
        class_index = np.where(self.classes_[class_index] == labels, class_index, -1)  # an unknown one is never right
        return calibration_error(self.predict_proba(X), class_index)

    def support_calibration_error(self) -> float:
        """Return the expected calibration error on exemplars that are left out; NaN where none can be."""
        logits, class_index = self.leave_one_out()
        return calibration_error(softmax(logits, axis=1), class_index) if len(class_index) else float("nan")

    def _embed(self, rows: FeatureRows) -> Vectors:
        """Return the vectors of the rows."""
        return np.concatenate(list(self._vector_parts(rows)))

    def _vector_parts(self, rows: FeatureRows) -> Iterator[Vectors]:
        """Yield the vectors of the rows, some at a time."""
        channels = rows.shape[1] // self.positions_
        # The length of a vector is not known while the readout is fitted. No embedding is longer than a Gram matrix.
        floats_per_row = rows.shape[1] + getattr(self, "vector_size_", channels * channels)
        size = max(1, CHUNK_FLOATS // floats_per_row)
        for part in split_rows(len(rows), size):
            features = torch.from_numpy(np.array(rows[part], np.float64)).unflatten(1, (self.positions_, -1))
            yield self.apply_readout_(self.embed_(features, self.parameters_), self.fitted_).numpy()


def _check_scale(rows: FeatureRows) -> None:
    """Refuse features whose squares would overflow or vanish."""
    largest = max(float(rows.max(initial=0)), -float(rows.min(initial=0)))
    if largest > FEATURE_RANGE[1] or 0 < largest < FEATURE_RANGE[0]:
        raise BadInput(
            f"the largest number of these features is {largest:.0e}: multiply all of them by a constant that brings it "
            "near 1."
        )


def _to_tensors(values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(np.asarray(value), dtype=torch.float64) for name, value in values.items()}
