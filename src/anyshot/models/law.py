"""The law that every learner follows, its slots, and batch folding.

A class is the mean, over its support images, of one vector per image, and the number of images. Every learner is that
law with three slots:

    logits = scale * score(embed(query), refine(mean over the support of embed(image), count))

`embed` turns features into a vector, `refine` turns prototypes and their counts into prototypes, `score` turns a query
and a prototype into a logit (higher means likelier). A head is these small functions; the paper's are in `heads`.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyshot.recipe import Recipe

Features = Float[Tensor, "*batch position channel"]
Vectors = Float[Tensor, "*batch d"]
Prototypes = Float[Tensor, "*batch way d"]
Counts = Int[Tensor, "*#batch way"]
Parameters = Mapping[str, Tensor]


@runtime_checkable
class Embed(Protocol):
    """A function that turns the features of images into one vector per image."""

    def __call__(self, features: Tensor, parameters: Parameters, /) -> Tensor:
        """Return the vectors of images.

        Args:
            features: Features "image position channel", with any leading axes.
            parameters: What the head has learned, by name.

        Returns:
            Vectors "image d", with the same leading axes. A class is the mean of those of its images.
        """
        ...


@runtime_checkable
class Refine(Protocol):
    """A function that turns the mean vectors of classes into what queries are scored against."""

    def __call__(self, prototypes: Tensor, counts: Tensor, parameters: Parameters, /) -> Tensor:
        """Return refined prototypes.

        Args:
            prototypes: Mean vectors "way d", with any leading axes.
            counts: The number of images behind each prototype, "way", broadcast over the leading axes.
            parameters: What the head has learned, by name.

        Returns:
            One row per class, "way refined", with the same leading axes; its length may be another than d, as long as
            `score` knows what to do with it.
        """
        ...


class Score(Protocol):
    """A function that compares queries with prototypes."""

    def __call__(self, query: Tensor, prototypes: Tensor, parameters: Parameters, /) -> Tensor:
        """Return the logits of queries before they are scaled.

        Args:
            query: Vectors "query d", with any leading axes.
            prototypes: Refined prototypes "way refined", with the same leading axes or axes that broadcast.
            parameters: What the head has learned, by name. A score that learns nothing may leave this argument out.

        Returns:
            Logits "query way", higher for more likely classes.
        """
        ...


# ---------------------------------------------------------------------------------------------------------------- embed


def flatten(features: Features, parameters: Parameters) -> Vectors:
    """Concatenate all positions: 1600 numbers for Conv-4 at 84x84."""
    return features.flatten(-2)


def mean_pool(features: Features, parameters: Parameters) -> Vectors:
    """Average over positions."""
    return features.mean(-2)


def max_pool(features: Features, parameters: Parameters) -> Vectors:
    """Take the maximum over positions."""
    return features.amax(-2)


def normalize(vectors: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Scale vectors to length one; a vector of zeros stays zero."""
    tiny = torch.finfo(vectors.dtype).tiny
    vectors = vectors / vectors.abs().amax(-1, keepdim=True).clamp_min(tiny)  # squares of huge numbers overflow
    length = vectors.norm(dim=-1, keepdim=True).clamp_min(tiny)
    return vectors / length if vectors.requires_grad else vectors.div_(length)


def keep_vectors(vectors: Vectors, parameters: Parameters) -> Vectors:
    """Return vectors as they are."""
    return vectors


def move_parameters(parameters: Parameters, device: torch.device) -> Parameters:
    """Return parameters on a device."""
    return {name: value.to(device) for name, value in parameters.items()}


# ---------------------------------------------------------------------------------------------------------------- score


@dataclass(frozen=True)
class InnerProductScore:
    """A score that needs only inner products: of query and prototype (qp), and of each with itself (qq, pp).

    Many heads and shots can be answered from one matrix product.

    Args:
        name: What tables call the score.
        from_products: `from_products(qp, qq, pp, d)` returns the logits, where d is the length of the vectors.
        centred: Whether the score does not change when all vectors are shifted together. It is then computed about
            their centre, where it loses no digits.
    """

    name: str
    from_products: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    centred: bool = False

    def __call__(
        self,
        query: Float[Tensor, "*#batch query d"],
        prototypes: Float[Tensor, "*#batch way d"],
        parameters: Parameters | None = None,
    ) -> Float[Tensor, "*#batch query way"]:
        """Return logits, one row per query."""
        return self._score(query, prototypes, lambda query, prototypes: query @ prototypes.mT)

    def by_prototype(
        self, query: Float[Tensor, "*#batch query d"], prototypes: Float[Tensor, "*#batch way d"], alike: bool
    ) -> Float[Tensor, "*#batch way query"]:
        """Return logits, one row per prototype.

        The product is faster this way round when prototypes are fewer than queries. `alike`, whether all classes have
        the same count, makes no difference here.
        """
        return self._score(query, prototypes, lambda query, prototypes: (prototypes @ query.mT).mT).mT

    def _score(self, query: Tensor, prototypes: Tensor, multiply: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        if self.centred:
            centre = prototypes.mean(-2, keepdim=True).detach()
            query, prototypes = query - centre, prototypes - centre
        # The product comes last: gradients are added in the order of operations, and published models depend on it.
        qq, pp = query.square().sum(-1), prototypes.square().sum(-1)
        return self.from_products(multiply(query, prototypes), qq[..., :, None], pp[..., None, :], query.shape[-1])


def _euclidean(qp: Tensor, qq: Tensor, pp: Tensor, d: int) -> Tensor:
    return (2 * qp - qq - pp) / d


def _cosine(qp: Tensor, qq: Tensor, pp: Tensor, d: int) -> Tensor:
    # A vector of zeros has no direction: the floor makes its cosine 0 and its gradient finite.
    return qp * (qq.clamp_min(1e-24).rsqrt() * pp.clamp_min(1e-24).rsqrt())


def _dot(qp: Tensor, qq: Tensor, pp: Tensor, d: int) -> Tensor:
    return qp


@dataclass(frozen=True)
class QuadraticScore:
    """A score that is quadratic in the query: prototypes hold the weights of its numbers, of their squares and of 1."""

    name: str

    def __call__(
        self,
        query: Float[Tensor, "*#batch query d"],
        prototypes: Float[Tensor, "*#batch way weights"],
        parameters: Parameters | None = None,
    ) -> Float[Tensor, "*#batch query way"]:
        """Return logits, one row per query."""
        linear, square, constant = self._split_weights(query, prototypes)
        return query @ linear.mT + query.square() @ square.mT + constant.mT

    def by_prototype(
        self, query: Float[Tensor, "*#batch query d"], prototypes: Float[Tensor, "*#batch way weights"], alike: bool
    ) -> Float[Tensor, "*#batch way query"]:
        """Return logits, one row per prototype.

        Where all classes have the same count (`alike`), the weights of the squares are the same for all of them. They
        then change no prediction and are left out.
        """
        linear, square, constant = self._split_weights(query, prototypes)
        logits = linear @ query.mT + constant
        return logits if alike else logits + square @ query.square().mT

    @staticmethod
    def _split_weights(query: Tensor, prototypes: Tensor) -> tuple[Tensor, ...]:
        d = query.shape[-1]
        return prototypes.split([d, d, 1], -1)


euclidean = InnerProductScore("Euclidean", _euclidean, centred=True)  # Eq. 1: -|q - p|^2 / d
cosine = InnerProductScore("cosine", _cosine)  # Eq. 2
dot = InnerProductScore("dot", _dot)  # Eq. 5

# ------------------------------------------------------------------------------------------ estimating from the support


class Moments(NamedTuple):
    """What is known of the vectors of some classes, as sums over images.

    Attributes:
        counts: Images of each class.
        means: Their mean vectors.
        scatter: The sum over images of (x - class mean)(x - class mean)'.
        degrees_of_freedom: Images that tell of the variation within classes: all but one of each class.
        basis: Orthonormal columns that span all vectors, where means and scatter are in these coordinates (and in one
            more, the length outside of the span, which is 0 here).
    """

    counts: Int[Tensor, " way"]
    means: Float[Tensor, "way m"]
    scatter: Float[Tensor, "m m"]
    degrees_of_freedom: int
    basis: Float[Tensor, "d n"] | None = None

    @property
    def prototypes(self) -> Float[Tensor, "way d"]:
        """The mean vectors in all dimensions."""
        return self.means if self.basis is None else self.means[:, :-1] @ self.basis.mT


class Examples(NamedTuple):
    """Vectors of a support, their classes, and the groups (bursts, copies) whose images are left out together.

    Classes and groups are counted from 0; without groups each image is alone.
    """

    vectors: Float[Tensor, "image d"]
    owner: Int[Tensor, " image"]
    groups: Int[Tensor, " image"] | None = None


class LeaveOneOut(NamedTuple):
    """Logits that examples would have got as new images.

    Attributes:
        logits: For every class, their own included.
        evidence: The same over the logit of a class of which nothing was seen: what speaks against "none of these".
        owner: The classes of these examples. Those that are all that their class has are not among them.
    """

    logits: Float[Tensor, "image way"]
    evidence: Float[Tensor, "image way"]
    owner: Int[Tensor, " image"]


@dataclass(frozen=True)
class Estimator:
    """How a head estimates parameters from its support.

    Args:
        fit: `fit(moments, examples, base)` returns parameters by name, among them the factor of the logits, `scale`.
            Examples are all images of the support or some; `base` is what `fit_base` returned, or None.
        transform: `transform(vectors, parameters)` returns what the score sees of queries.
        evidence: `evidence(vectors, means, counts, parameters)` returns what speaks for each class over a class of
            which nothing was seen, in the unit of scores.
        leave_one_out: `leave_one_out(moments, examples, parameters)` returns a `LeaveOneOut`.
        fit_base: `fit_base(vectors, labels)` returns what is to be known of other classes, as tensors by name.
    """

    fit: Callable[[Moments, Examples, Parameters | None], Parameters]
    transform: Callable[[Tensor, Parameters], Tensor]
    evidence: Callable[[Tensor, Tensor, Tensor, Parameters], Tensor]
    leave_one_out: Callable[[Moments, Examples, Parameters], LeaveOneOut]
    fit_base: Callable[[Tensor, Tensor], Parameters]


# ----------------------------------------------------------------------------------------------------------------- head


def _no_parameters(features: Features, recipe: Recipe) -> dict[str, Tensor]:
    return {}


@dataclass(frozen=True)
class Head:
    """A learner: the slots of the law, what it learns, and what it is best trained with.

    A hyperparameter of a head is an argument of the function that makes it, and its name in the registry says which
    value it has: `heads={"shrink-4": shrink(4)}`.

    Args:
        embed: Features to vectors; see `Embed`. A recipe may name another of `EMBEDS`.
        score: Queries and prototypes to logits; see `Score`.
        refine: Prototypes and counts to prototypes; see `Refine`. None leaves prototypes as they are.
        parameters: `parameters(features, recipe)` returns the starting values of what the head learns, given blank
            features "1 position channel". Every head also learns a temperature, `scale`. Parameters require gradients
            while they are learned; a head with dropout can tell training by that.
        needs_training: Whether the head is of no use with its starting values.
        couples: Whether refining one prototype looks at the other classes of the episode.
        refine_folds: How a head that couples refines all folds of a batch at once:
            `refine_folds(prototypes, prototypes without the query, counts, parameters)`.
        refine_rows: `refine_rows(rows, parameters)` refines from the features of the support, where that is cheaper
            than from their mean Gram matrix.
        has_onnx: Whether `refine` can be written as ONNX operators.
        alternative_to: The name of the head that this one is an alternative of: gains are measured against it.
        estimator: How it estimates parameters from the support itself; None where it does not.
        temperature: Starting value of `scale` that suits a short training; studies pass it to their recipes.
        lr: Learning rate of a short training from scratch (SGD, one-cycle) that does not diverge.
        auxiliary: `auxiliary(head, parameters, classes, recipe)` returns a weighted term of the training loss, given
            the vectors of a batch "way shot d", or None for no term.
        class_logits: For pretraining: `class_logits(parameters, vectors)` returns logits among all training classes.
    """

    embed: Embed
    score: Callable[..., Tensor]
    refine: Refine | None = None
    parameters: Callable[[Tensor, Recipe], dict[str, Tensor]] = _no_parameters
    needs_training: bool = False
    couples: bool = False
    refine_folds: Callable[[Tensor, Tensor, Tensor, Parameters], Tensor] | None = None
    refine_rows: Callable[[Tensor, Parameters], Tensor] | None = None
    has_onnx: bool = True
    alternative_to: str = ""
    estimator: Estimator | None = None
    temperature: float = 1.0
    lr: float = 0.1
    auxiliary: Callable[["Head", Parameters, Tensor, Recipe], Tensor | None] | None = None
    class_logits: Callable[[Parameters, Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        """Let a score of two arguments ignore the parameters."""
        score, arguments = self.score, inspect.signature(self.score).parameters.values()
        if sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in arguments) == 2:
            with_parameters = wraps(score)(lambda query, prototypes, parameters=None: score(query, prototypes))
            object.__setattr__(self, "score", with_parameters)

    @property
    def score_name(self) -> str:
        """What tables call the score."""
        return str(getattr(self.score, "name", "") or getattr(self.score, "__name__", "a score"))

    def refined(
        self, prototypes: Prototypes, counts: Counts, parameters: Parameters
    ) -> Float[Tensor, "*batch way refined"]:
        """Return what queries are scored against."""
        return prototypes if self.refine is None else self.refine(prototypes, counts, parameters)


@dataclass(frozen=True)
class BoundHead:
    """A head together with its parameters."""

    head: Head
    parameters: Parameters

    @property
    def inner(self) -> InnerProductScore | None:
        """The score, where the shared products of queries and prototypes are all it needs; else None."""
        score = self.head.score
        return score if self.head.refine is None and isinstance(score, InnerProductScore) else None

    def transform(self, vectors: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch z"]:
        """Return what the score sees of queries: themselves, unless the head estimates from its support."""
        estimator = self.head.estimator
        return vectors if estimator is None else estimator.transform(vectors, self.parameters)

    def evidence(
        self,
        vectors: Float[Tensor, "*#batch query d"],
        means: Float[Tensor, "*#batch way d"],
        counts: Int[Tensor, "*#batch way"],
    ) -> Float[Tensor, "*batch query way"]:
        """Return what speaks for classes rather than none of them: the score, where the head has nothing better."""
        if self.head.estimator is not None:
            return self.head.estimator.evidence(vectors, means, counts, self.parameters)
        return self.score(vectors, self.head.refined(means, counts, self.parameters))

    def score(self, query: Tensor, prototypes: Tensor) -> Tensor:
        """Return the logits of queries before they are scaled."""
        return self.head.score(query, prototypes, self.parameters)

    def to(self, device: torch.device) -> "BoundHead":
        """Return it with its parameters on a device."""
        return BoundHead(self.head, move_parameters(self.parameters, device))


# ----------------------------------------------------------------------------------------------------------------- fold


def fold_logits(
    head: Head, parameters: Parameters, vectors: Float[Tensor, "way shot d"]
) -> Float[Tensor, "way*shot way"]:
    """Return the logits of batch folding (Sec. 4.1).

    Every image is a query once. Its own class is the mean of the other shot - 1 images, every other class the mean of
    all its shot images. This is exact for every head, and gradients flow through both roles.

    All classes are given the same count, shot - 1: a head that saw that one class has an image less could read off the
    answer.
    """
    way, shot, _ = vectors.shape
    score = BoundHead(head, parameters).score
    total = vectors.sum(1)
    means = total / shot
    others = ((total[:, None] - vectors) / (shot - 1)).flatten(0, 1)  # a query's own class, without the query
    query = vectors.flatten(0, 1)
    is_own = torch.eye(way, dtype=torch.bool, device=vectors.device).repeat_interleave(shot, 0)
    count = torch.tensor([shot - 1], device=vectors.device)
    if head.couples:  # each fold has its own set of prototypes: refining once would show the query to its own class
        if head.refine_folds is None:
            sets = head.refined(torch.where(is_own[..., None], others[:, None], means), count.expand(way), parameters)
        else:
            sets = head.refine_folds(means, others, count.expand(way), parameters)
        return parameters["scale"] * score(query[:, None], sets)[:, 0]
    logits = score(query, head.refined(means, count.expand(way), parameters))
    own_logits = score(query[:, None], head.refined(others, count.expand(len(others)), parameters)[:, None])[:, 0]
    return parameters["scale"] * torch.where(is_own, own_logits, logits)


def contrastive_logits(
    head: Head, parameters: Parameters, vectors: Float[Tensor, "way shot d"]
) -> Float[Tensor, "way*shot way"]:
    """Return the logits of FEAT's auxiliary term (Ye et al. 2020).

    The images of a class refine each other, and each image should be nearest to the mean of its own refined class.
    """
    single = torch.ones(vectors.shape[:2], dtype=torch.long, device=vectors.device)
    centres = head.refined(vectors, single, parameters).mean(1)
    return parameters["scale"] * BoundHead(head, parameters).score(vectors.flatten(0, 1), centres)
