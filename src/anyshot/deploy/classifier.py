"""The law as a scikit-learn estimator: a class is a mean, so learning is adding and every example helps at once.

    logits = scale * score(embed(query), refine(sum of the class / its count, its count))

`fit` on all examples, `partial_fit` on them in any order and batching, and `merge` of classifiers that saw parts of
them end in the same classifier (to rounding). Probabilities are calibrated on the support itself, at whatever shots
the classes have (`anyshot.deploy.calibration`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped, UInt64
from scipy.special import logsumexp, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from anyshot.deploy.calibration import Coverage, answers, calibration_error, fit_scale, leave_one_out, next_shot
from anyshot.deploy.ledger import A_FEW, Batch, Ledger
from anyshot.deploy.search import Best
from anyshot.deploy.settled import Settled
from anyshot.deploy.support import Support
from anyshot.errors import BadInput, choose, explaining
from anyshot.machine import give_back_memory
from anyshot.measure.evaluation import untrained
from anyshot.models.gaussian import read_base
from anyshot.models.heads import EMBEDS
from anyshot.models.law import Embed, Head, Parameters, Reading
from anyshot.models.readouts import Readout
from anyshot.models.registry import PACKAGE, Registry

if TYPE_CHECKING:
    from anyshot.models.model import Model

CHUNK_FLOATS = 1_000_000  # of features and vectors that are in memory at once, and what is made of them on the way
FLOATS = (np.float64, np.float32)

Rows = Float[np.ndarray, "image feature"]
Labels = Shaped[np.ndarray, " image"]


@dataclass(eq=False, repr=False)
class FewShotClassifier(ClassifierMixin, BaseEstimator):
    """Any number of classes, any number of examples each, on features "image position channel" or plain vectors.

    Args:
        head: proto, cosine-proto, frn, cosine-frn, or another of the registry. feat has to be trained: `from_run`.
        positions: Positions of a feature map in a row of X; 3-d X shows its own, 2-d X has one.
        embed: How features become a vector (flatten, mean, max, gram); the head's own where None.
        readout: own, swapped, or one that is fitted on `base`: pca60, est60, ...
        base: Examples (X, y) of other classes that the readout is fitted on, or what was fitted before, by name.
        parameters: Learned values of the head by name, as in a trained model.
        scale: Factor of the logits; fitted by leave-one-out on the support where None.
        reject: Share of the known classes' images that `is_known` may give up to find those of unknown classes.
        keep: Examples of a class that are kept for calibration, of many classes fewer; 0 for none. The class itself is
            the mean of all.
        index: Whether `predict` asks an approximate index (extra: index), of 4,096 classes or more; what it finds is
            scored exactly. `top` goes through all classes, for its probabilities are shares of all.
        registry: What head and readout are looked up in; the package's own where None.
    """

    head: str = "cosine-proto"
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

    ledger_: Ledger = field(init=False)
    settled_: Settled = field(init=False)
    n_features_in_: int = field(init=False)
    positions_: int = field(init=False)

    @staticmethod
    def from_run(run: "str | Path | Model", head: str | None = None, **arguments: Any) -> "FewShotClassifier":
        """A classifier of a trained model's features, with what its head has learned (of no use to another head)."""
        from anyshot.models.model import Model, load_model

        registry = arguments.get("registry") or PACKAGE
        model = run if isinstance(run, Model) else load_model(Path(run), registry)
        recipe = model.recipe
        blank = np.zeros((1, recipe.size, recipe.size, model.channels), np.uint8)
        positions = model.positions if recipe.frozen else model.features(blank).shape[1]
        of_model: dict[str, Any] = {"positions": positions}
        if head in (None, recipe.head):
            learned = {name: value.detach().double().numpy() for name, value in model.learned.items()}
            of_model |= {"embed": recipe.embed, "parameters": learned}
        return FewShotClassifier(head or recipe.head, **{**of_model, **arguments})

    def save(self, path: str | Path) -> None:
        """Write the classifier as a folder that anyone can load (see `anyshot.deploy.sharing`)."""
        from anyshot.deploy.sharing import saved, write_card, write_classifier

        check_is_fitted(self, "ledger_")
        with saved(Path(path)) as aside:
            write_classifier(self, aside)
            write_card(self, aside, {})

    @staticmethod
    def load(path: str | Path, registry: Registry | None = None) -> "FewShotClassifier":
        """A classifier from its folder; nothing in it can run. One with a head that is not ours needs its registry."""
        from anyshot.deploy.sharing import read_classifier

        return read_classifier(Path(path), registry)

    def restore(self, support: Support, features: int) -> "FewShotClassifier":
        """The state that was saved, instead of a fit."""
        self.positions_, self.n_features_in_ = self.positions or 1, features
        self._prepare(features)
        self.ledger_ = Ledger(support, self.keep)
        return self._settle()

    # ------------------------------------------------------------------------------------------------------- learning

    def fit(self, X: Any, y: Any) -> "FewShotClassifier":
        """Learn the classes of these examples, and forget all others."""
        self.forget()
        return self.partial_fit(X, y)

    def forget(self) -> None:
        """Forget all classes."""
        for name in ("ledger_", "settled_"):
            self.__dict__.pop(name, None)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> "FewShotClassifier":
        """Learn from more examples, of known classes or new ones; `classes` need not be announced, and are not used."""
        fresh = "ledger_" not in self.__dict__
        rows, labels = self._check_examples(X, y, fresh)
        if fresh:
            self._prepare(rows.shape[1])
        has_scatter = self.learned_reading_.head.estimator is not None
        ledger = Ledger.empty(labels, self.size_, self.keep, has_scatter=has_scatter) if fresh else self.ledger_
        for place in self._places(rows):
            ledger.learn(Batch(rows[place], labels[place], self._embedding))
        self.ledger_ = ledger
        if len(rows) > A_FEW and self.ledger_.is_vast:
            give_back_memory()
        return self._settle()

    def merge(self, *others: "FewShotClassifier") -> "FewShotClassifier":
        """Take in the classes of others with the same head: what one fit on all examples would have given."""
        check_is_fitted(self, "ledger_")
        for other in others:
            check_is_fitted(other, "ledger_")
            if self._law() != other._law():
                raise BadInput("only classifiers with the same head, readout, parameters and positions can merge.")
        for other in others:
            for part in other.ledger_.parts():
                self.ledger_.add(part)
        return self._settle()

    def remove(self, labels: Sequence[Any] | Labels) -> "FewShotClassifier":
        """Forget these classes."""
        check_is_fitted(self, "ledger_")
        gone = np.asarray(labels).reshape(-1)
        for label in gone:
            if label not in self.classes_:
                raise BadInput(f"there is no class {label!s} to remove.")
        if len(np.unique(gone)) == len(self.classes_):
            raise BadInput("a classifier needs a class: the last one cannot be removed.")
        self.ledger_ = self.ledger_.without(gone)
        return self._settle()

    def take_out(self, label: Any, key: int | None = None) -> Support:
        """Forget a class, or one kept example of it (by its key in `support_`); `put_back` of what is returned undoes
        it. Without its last class the classifier is as if never fitted."""
        check_is_fitted(self, "ledger_")
        if label not in self.classes_:
            raise BadInput(f"there is no class {label!s} to take from.")
        support = self.support_
        place = int(np.searchsorted(support.labels, label))
        keys = support.keys[support.owner == place]
        if key is not None and key not in keys:
            raise BadInput(f"class {label!s} has no such example.")
        if key is not None and len(keys) == 1 < support.counts[place]:
            raise BadInput(f"this is the last example that was kept of class {label!s}: take out the class.")
        left, taken = support.taken(label, key)
        if left is None:
            self.forget()
            return taken
        self.ledger_ = Ledger(left, self.keep)
        self._settle()
        return taken

    def put_back(self, taken: Support) -> "FewShotClassifier":
        """Learn again what `take_out` took."""
        if "ledger_" in self.__dict__:
            self.ledger_.add(taken)
        else:
            self.ledger_ = Ledger(taken, self.keep).copy()
        return self._settle()

    def _check_examples(self, X: Any, y: Any, fresh: bool) -> tuple[Rows, Labels]:
        if y is None:
            raise BadInput("this classifier requires y to be passed, but the target y is None.")
        if fresh:
            self.positions_ = _positions(X, self.positions)
        rows, labels = self._flat(X), np.asarray(y) if isinstance(y, list) else y
        if fresh or not (self._is_plain(rows) and _are_plain(labels, len(rows))):
            rows, labels = validate_data(self, rows, y, reset=fresh, dtype=FLOATS)
        if labels.dtype.kind not in "iubU":  # those are labels whatever they say, and looking takes as long as learning
            check_classification_targets(labels)
        if labels.dtype == object and all(isinstance(label, str) for label in labels):
            labels = labels.astype(str)
        return rows, labels

    def _check_rows(self, X: Any) -> Rows:
        check_is_fitted(self, "ledger_")
        rows = self._flat(X)
        return rows if self._is_plain(rows) else validate_data(self, rows, reset=False, dtype=FLOATS)

    def _is_plain(self, rows: Any) -> bool:
        """Whether nothing is to be said of rows. For one of them scikit-learn takes longer to see that than we to
        answer."""
        is_array = type(rows) is np.ndarray and rows.ndim == 2 and rows.dtype in FLOATS and len(rows) > 0
        is_right = is_array and rows.shape[1] == self.n_features_in_ and not hasattr(self, "feature_names_in_")
        with np.errstate(over="ignore", invalid="ignore"):
            return is_right and bool(np.isfinite(rows.sum()))  # else some are not, or are huge

    def _flat(self, X: Any) -> Any:
        """2-d rows of the 3-d features "image position channel"; whatever else it is, scikit-learn judges it."""
        if getattr(X, "ndim", 2) != 3:
            return X
        if X.shape[1] != self.positions_:
            raise BadInput(f"X has {X.shape[1]} positions, but the classifier was made for {self.positions_}.")
        return np.asarray(X).reshape(len(X), -1)

    def _prepare(self, features: int) -> None:
        """Look up the law of this classifier, once: nothing here depends on the classes."""
        registry = self.registry or PACKAGE
        head, readout = registry.head(self.head), registry.check_readout(self.readout, self.head)
        if not 0 <= self.reject < 1:
            raise BadInput(f"reject is a share of examples, from 0 to below 1, not {self.reject}.")
        if self.keep < 2 and self.keep != 0:
            raise BadInput(
                f"calibration leaves one example out and needs another: keep 0, or at least 2, not {self.keep}."
            )
        if features % self.positions_:
            raise BadInput(f"rows of {features} numbers cannot hold {self.positions_} positions.")
        self.embed_: Embed = choose("embed", self.embed, EMBEDS) if self.embed else head.embed
        blank = torch.zeros(1, self.positions_, features // self.positions_)
        self.learned_ = _tensors(self.parameters or untrained(self.head, blank, registry))
        self.fitted_: Parameters = {}
        self.apply_ = Readout().applied  # until the readout is fitted, on vectors as they are
        is_based = head.estimator is not None and self.base is not None
        self.fitted_ = self._fit_base(head) if is_based else self._fit_readout(readout)
        self.apply_ = readout.applied
        self.learned_reading_ = readout.reading(Reading(head, self.learned_), self.fitted_)
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in self.fitted_.items())
        unfit = f"what was fitted for {self.readout} ({shapes}) does not fit rows of {features} numbers: fit it anew."
        with explaining((RuntimeError, KeyError), unfit):
            self.size_ = self.apply_(self.embed_(blank.double(), self.learned_), self.fitted_).shape[1]

    def _fit_base(self, head: Head) -> Parameters:
        """What a head that estimates from its support has to know of other classes."""
        assert head.estimator is not None
        if isinstance(self.base, Mapping):
            return _tensors(self.base)
        vectors, labels = self._base_vectors()
        return head.estimator.fit_base(vectors, labels)

    def _base_vectors(self) -> tuple[torch.Tensor, torch.Tensor]:
        assert isinstance(self.base, tuple)
        X, y = self.base
        rows = np.asarray(self._flat(X), np.float64)
        vectors = torch.cat([torch.from_numpy(part) for part, _ in self._vectors(rows)])
        return vectors, torch.from_numpy(np.unique(y, return_inverse=True)[1])

    def _fit_readout(self, readout: Readout) -> Parameters:
        if readout.fit is None:
            return {}
        if self.base is None:
            raise BadInput(f"{self.readout} is fitted on examples of other classes: give them as base=(X, y).")
        if isinstance(self.base, Mapping):
            return _tensors(self.base)
        return readout.fit(*self._base_vectors())

    def _law(self) -> tuple[Any, ...]:
        """All that must agree before two classifiers' sums may be added."""
        both = [*self.learned_.items(), *self.fitted_.items()]
        learned = sorted((name, value.numpy().tobytes()) for name, value in both)
        return self.head, self.readout, self.embed_, self.positions_, self.n_features_in_, learned

    def _settle(self) -> "FewShotClassifier":
        """Make way for all that follows from the classes: it is settled when it is asked for."""
        is_based = self.fitted_ and self.learned_reading_.head.estimator is not None
        base = read_base(self.fitted_) if is_based else None
        before: Settled | None = self.__dict__.get("settled_")
        self.settled_ = Settled(self.ledger_, self.learned_reading_, self.scale, self.reject, base, self.index)
        if before is not None:
            self.settled_.follow(before)
        return self

    # ------------------------------------------------------------------------------------------------ what is settled

    @property
    def support_(self) -> Support:
        """The classes in order of their labels: sums, counts and kept examples."""
        return self._settled.support

    @property
    def classes_(self) -> Shaped[np.ndarray, " way"]:
        """The labels, in order."""
        return self._settled.labels

    @property
    def prototypes_(self) -> Float[torch.Tensor, "way refined"]:
        """What queries are scored against."""
        return self._settled.prototypes

    @property
    def reading_(self) -> Reading:
        """The head with its parameters, and with what it estimates from the support."""
        return self._settled.reading

    @property
    def scale_(self) -> float:
        """The factor of the logits."""
        return self._settled.scale

    @property
    def calibrated_(self) -> bool:
        """Whether that factor was fitted by leaving examples out."""
        return self._settled.calibrated

    @property
    def coverage_(self) -> Coverage | None:
        """What the rejection threshold does; None where nothing can be left out."""
        return self._settled.coverage

    @property
    def threshold_(self) -> float:
        """The evidence below which an image is of none of the classes; minus infinity where that cannot be told."""
        return -np.inf if self.coverage_ is None else self.coverage_.threshold

    @property
    def recalls_(self) -> Float[np.ndarray, " way"]:
        """Of each class's kept examples, each left out, the share that is told right; NaN for a class of one, and for
        those of many that took no part."""
        return self._settled.recalls

    @property
    def _settled(self) -> Settled:
        if "settled_" not in self.__dict__:
            raise AttributeError("this classifier has not learned a class yet")
        return self.settled_

    def __copy__(self) -> "FewShotClassifier":
        other = object.__new__(type(self))
        other.__dict__ = dict(self.__dict__)
        if "ledger_" in other.__dict__:
            other.ledger_ = self.ledger_.copy()
            other._settle()
        return other

    def left_out(self, support: Support) -> tuple[Int[np.ndarray, " image"], Int[np.ndarray, " image"]]:
        """The classes that examples of a support are taken for, each left out of its class, and their own: examples of
        classes of two or more, and no more than 2,048, or two of each class."""
        return answers(self.learned_reading_, support, self._settled.base)

    # ----------------------------------------------------------------------------------------------------- predicting

    def logits(self, X: Any) -> Float[np.ndarray, "image way"]:
        """A logit for each class."""
        rows = self._check_rows(X)
        return np.concatenate([self.logits_of(part) for part, _ in self._vectors(rows)])

    def logits_of(self, vectors: Float[np.ndarray, "image d"]) -> Float[np.ndarray, "image way"]:
        """Logits of `vectors`, for those who ask several classifiers about the same images."""
        return self.scale_ * self.reading_.head.score(self._transform(vectors), self.prototypes_).numpy()

    def evidence_of(self, vectors: Float[np.ndarray, "image d"]) -> Float[np.ndarray, " image"]:
        """How much speaks for one of the classes rather than none of these: the best logit, over that of a new class
        where the head can tell one."""
        if self.reading_.head.estimator is None:
            return self._best(vectors, 1).scores[:, 0] * self.scale_
        best = self._best(vectors, 1, has_length=True).scores[:, 0]
        return self.scale_ * (best - self.reading_.new_class_score(torch.from_numpy(vectors)).numpy())

    def _transform(
        self, vectors: Float[np.ndarray, "image d"], has_length: bool = False
    ) -> Float[torch.Tensor, "image z"]:
        return self.reading_.transform(torch.from_numpy(vectors), has_length)

    def _best(
        self, vectors: Float[np.ndarray, "image d"], k: int, sums: bool = False, has_length: bool = False
    ) -> Best:
        """The best classes of each image, as rows of the ledger; with `sums` also what makes probabilities."""
        settled = self._settled
        if settled.searches:
            return settled.search.best(vectors, k, self.scale_ if sums else None, has_length)
        scores = self.reading_.head.score(self._transform(vectors, has_length), self.prototypes_).numpy()
        order = np.argsort(-scores, 1, kind="stable")[:, :k] if k > 1 else scores.argmax(1)[:, None]
        log_sums = logsumexp(self.scale_ * scores, axis=1) if sums else None
        return Best(settled.order[order], np.take_along_axis(scores, order, 1), log_sums)

    def vectors(self, X: Any) -> Float[np.ndarray, "image d"]:
        """What a class is a mean of: the embedded and projected vector of each image."""
        rows = self._check_rows(X)
        vectors = np.empty((len(rows), self.size_))
        for part, place in self._vectors(rows):
            vectors[place] = part
        return vectors

    def nearest(self, vector: Float[np.ndarray, " d"], label: Any, many: int = 4) -> UInt64[np.ndarray, " example"]:
        """Keys of the kept examples of a class that, each alone in its place, would speak most for this vector."""
        support = self.support_
        here = support.owner == np.searchsorted(support.labels, label)
        mine = torch.from_numpy(support.examples[here])
        alone = self.reading_.head.refined(mine, torch.ones(len(mine), dtype=torch.int64), self.reading_.parameters)
        scores = self.reading_.head.score(self._transform(vector[None]), alone)[0]
        return support.keys[here][scores.argsort(descending=True).numpy()[:many]]

    def at_shot(self, shot: int) -> "FewShotClassifier":
        """The classifier it would be with at most `shot` examples a class: the first of the kept ones. How sure it may
        be is told by all of them."""
        check_is_fitted(self, "ledger_")
        if not 1 <= shot <= self.keep:
            raise BadInput(f"a classifier that keeps {self.keep} examples a class has shots 1 to {self.keep}.")
        if len(self.ledger_.examples) < len(self.ledger_):
            raise BadInput(
                f"examples are kept of {len(self.ledger_.examples)} of the {len(self.ledger_)} classes: fewer shots of "
                "all of them are not to be had."
            )
        fewer, base = object.__new__(type(self)), self._settled.base
        fewer.__dict__ = dict(self.__dict__)
        fewer.ledger_ = Ledger(self.support_.first(shot), self.keep)
        law = self.learned_reading_, self._scale_at(shot), self.reject, base
        fewer.settled_ = Settled(fewer.ledger_, *law, calibrated=self.calibrated_)
        return fewer

    def _scale_at(self, shot: int) -> float | None:
        """The factor of the logits at fewer shots, as far as leaving out tells."""
        if not self.calibrated_ or self._settled.estimator is not None:
            return self.scale_ if self.calibrated_ else self.scale
        # Leaving one out of one more makes classes of exactly this shot; only where there is no more is it a guess.
        more = self.support_.first(shot + 1)
        scores, owner = leave_one_out(self.reading_, more)
        gained = np.where(more.counts > shot, 1.0, next_shot(more.counts))
        return fit_scale(scores, owner) * float(gained[owner].mean())

    def decision_function(self, X: Any) -> Float[np.ndarray, " image"] | Float[np.ndarray, "image way"]:
        """Logits; of two classes, by scikit-learn's habit, only the second's over the first's."""
        logits = self.logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict(self, X: Any) -> Labels:
        """The likeliest class."""
        rows = np.concatenate([self._best(part, 1).rows[:, 0] for part, _ in self._vectors(self._check_rows(X))])
        if len(rows) > A_FEW and self.ledger_.is_vast:
            give_back_memory()
        return self.ledger_.labels_of(rows)

    def top(self, X: Any, k: int = 5) -> tuple[Shaped[np.ndarray, "image k"], Float[np.ndarray, "image k"]]:
        """The `k` likeliest classes of each image and their probabilities, without a matrix of all classes; all of
        them are gone through, with an index too."""
        if k < 1:
            raise BadInput(f"at least one class is asked for, not {k}.")
        parts = [self._best(part, k, sums=True) for part, _ in self._vectors(self._check_rows(X))]
        chances = [np.exp(self.scale_ * part.scores - _column(part.log_sums)) for part in parts]
        return self.ledger_.labels_of(np.concatenate([part.rows for part in parts])), np.concatenate(chances)

    def predict_proba(self, X: Any) -> Float[np.ndarray, "image way"]:
        """Calibrated probabilities of the classes, for an image that is of one of them."""
        return softmax(self.logits(X), axis=1)

    def is_known(self, X: Any) -> Bool[np.ndarray, " image"]:
        """Whether each image looks like one of the classes, rather than none of these."""
        return self.evidence_of(self.vectors(X)) >= self.threshold_

    def calibration_error(self, X: Any, y: Any) -> float:
        """Expected calibration error on labelled images; without any, see `support_calibration_error`."""
        place = np.searchsorted(self.classes_, np.asarray(y)).clip(0, len(self.classes_) - 1)
        place = np.where(self.classes_[place] == np.asarray(y), place, -1)  # an unknown label is never right
        return calibration_error(self.predict_proba(X), place)

    def support_calibration_error(self) -> float:
        """Expected calibration error on the support, each example left out of its class; NaN for single examples."""
        check_is_fitted(self, "ledger_")
        logits, owner = self._settled.left_out_logits
        return calibration_error(softmax(logits, axis=1), owner) if len(owner) else float("nan")

    def _vectors(self, rows: Rows) -> Iterator[tuple[Float[np.ndarray, "image d"], slice]]:
        """Vectors of the rows in chunks."""
        for place in self._places(rows):
            yield self._embedding(rows[place]), place

    def _places(self, rows: Rows) -> Iterator[slice]:
        """Chunks of the rows."""
        channels = rows.shape[1] // self.positions_
        # Vectors are known to be as long as they are but while what makes them is fitted.
        floats = rows.shape[1] + getattr(self, "size_", channels * channels)
        size = max(1, CHUNK_FLOATS // floats)
        return (slice(start, start + size) for start in range(0, len(rows), size))

    @property
    def _embedding(self) -> Callable[[Rows], Float[np.ndarray, "image d"]]:
        """What rows become; it does not look at the classifier again."""
        return partial(_embedded, self.positions_, self.embed_, self.learned_, self.apply_, self.fitted_)


def _embedded(
    positions: int, embed: Embed, learned: Parameters, apply: Any, fitted: Parameters, rows: Rows
) -> Float[np.ndarray, "image d"]:
    features = torch.from_numpy(np.array(rows, np.float64)).unflatten(1, (positions, -1))
    return apply(embed(features, learned), fitted).numpy()


def _are_plain(labels: Any, many: int) -> bool:
    return type(labels) is np.ndarray and labels.shape == (many,) and labels.dtype.kind in "iubU"


def _column(values: np.ndarray | None) -> np.ndarray:
    assert values is not None
    return values[:, None]


def _tensors(values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(np.asarray(value), dtype=torch.float64) for name, value in values.items()}


def _positions(X: Any, given: int | None) -> int:
    if getattr(X, "ndim", 2) == 3 and given is None:
        return int(X.shape[1])
    if given is not None and given < 1:
        raise BadInput(f"features have at least one position, not {given}.")
    return given or 1
