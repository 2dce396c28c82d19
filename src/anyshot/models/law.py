"""The law, its three slots, and batch folding.

A class is the mean, over its support images, of one vector per image, and the number of images. Every learner is that
law with three slots:

    logits = scale * score(embed(query), refine(mean over the support of embed(image), count))

`embed` takes features to a vector, `refine` takes prototypes and their counts to prototypes, `score` takes a query
and a prototype to a logit (higher = likelier). A head is these three small functions; the paper's are in `heads`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyshot.recipe import Recipe

Features = Float[Tensor, "*batch position channel"]
Vectors = Float[Tensor, "*batch d"]
Prototypes = Float[Tensor, "*batch way d"]
Counts = Int[Tensor, "*#batch way"]
Parameters = Mapping[str, Tensor]
Embed = Callable[[Tensor, Parameters], Tensor]
Score = Callable[[Tensor, Tensor], Tensor]
Refine = Callable[[Tensor, Tensor, Parameters], Tensor]

# ---------------------------------------------------------------------------------------------------------------- embed


def flatten(features: Features, parameters: Parameters) -> Vectors:
    """All positions side by side: 1600 numbers for Conv-4 at 84x84."""
    return features.flatten(-2)


def mean(features: Features, parameters: Parameters) -> Vectors:
    """Global average pool."""
    return features.mean(-2)


def peak(features: Features, parameters: Parameters) -> Vectors:
    """Global max pool."""
    return features.amax(-2)


# ---------------------------------------------------------------------------------------------------------------- score


@dataclass(frozen=True)
class Inner:
    """A score that needs only the inner products of query and prototype (qp) and of each with itself (qq, pp): many
    heads and shots can be answered from one matrix product. `centred`: the score does not change when all vectors move
    together, so it is computed about their centre, where it loses no digits. `norms`: it looks at qq and pp at all."""

    name: str
    of: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    centred: bool = False
    norms: bool = True

    def __call__(
        self, query: Float[Tensor, "*#batch query d"], prototypes: Float[Tensor, "*#batch way d"]
    ) -> Float[Tensor, "*#batch query way"]:
        query, prototypes = self._about_centre(query, prototypes)
        if not self.norms:
            qp = query @ prototypes.mT
            return self.of(qp, qp, qp, query.shape[-1])
        # The product comes last: gradients are added in the order of operations, and published models depend on it.
        qq, pp = query.square().sum(-1), prototypes.square().sum(-1)
        return self.of(query @ prototypes.mT, qq[..., :, None], pp[..., None, :], query.shape[-1])

    def by_prototype(
        self, query: Float[Tensor, "*#batch query d"], prototypes: Float[Tensor, "*#batch way d"], alike: bool
    ) -> Float[Tensor, "*#batch way query"]:
        """The same, one row per prototype: the product is faster that way round when prototypes are fewer than queries.
        (Whether all classes have the same count makes no difference here.)"""
        query, prototypes = self._about_centre(query, prototypes)
        qp = prototypes @ query.mT
        if not self.norms:
            return self.of(qp, qp, qp, query.shape[-1])
        qq, pp = query.square().sum(-1), prototypes.square().sum(-1)
        return self.of(qp, qq[..., None, :], pp[..., :, None], query.shape[-1])

    def _about_centre(self, query: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
        if not self.centred:
            return query, prototypes
        centre = prototypes.mean(-2, keepdim=True).detach()
        return query - centre, prototypes - centre


def _euclidean(qp: Tensor, qq: Tensor, pp: Tensor, d: int) -> Tensor:
    return (2 * qp - qq - pp) / d


def _cosine(qp: Tensor, qq: Tensor, pp: Tensor, d: int) -> Tensor:
    # A vector of zeros has no direction: the floor makes its cosine 0 and its gradient finite.
    return qp * (qq.clamp_min(1e-24).rsqrt() * pp.clamp_min(1e-24).rsqrt())


def _dot(qp: Tensor, qq: Tensor, pp: Tensor, d: int) -> Tensor:
    return qp


@dataclass(frozen=True)
class Quadratic:
    """A score with a square in it: prototypes hold what a query's numbers, their squares and 1 are multiplied by."""

    name: str

    def __call__(
        self, query: Float[Tensor, "*#batch query d"], prototypes: Float[Tensor, "*#batch way weights"]
    ) -> Float[Tensor, "*#batch query way"]:
        linear, square, constant = self._weights(query, prototypes)
        return query @ linear.mT + query.square() @ square.mT + constant.mT

    def by_prototype(
        self, query: Float[Tensor, "*#batch query d"], prototypes: Float[Tensor, "*#batch way weights"], alike: bool
    ) -> Float[Tensor, "*#batch way query"]:
        """The same, one row per prototype. Where the weights of the squares are alike for all classes they change no
        prediction, and are left out."""
        linear, square, constant = self._weights(query, prototypes)
        logits = linear @ query.mT + constant
        return logits if alike else logits + square @ query.square().mT

    @staticmethod
    def _weights(query: Tensor, prototypes: Tensor) -> tuple[Tensor, ...]:
        d = query.shape[-1]
        return prototypes.split([d, d, 1], -1)


euclidean = Inner("Euclidean", _euclidean, centred=True)  # Eq. 1: -|q - p|^2 / d
cosine = Inner("cosine", _cosine)  # Eq. 2
dot = Inner("dot", _dot, norms=False)  # Eq. 5

# ------------------------------------------------------------------------------------------------------------ estimator


@dataclass(frozen=True)
class Moments:
    """What is known of the vectors of some classes, as sums over images: all that an estimator needs of most of them.

    Attributes:
        counts: Images of each class.
        means: Their mean vectors.
        scatter: The sum over images of (x - class mean)(x - class mean)'.
        degrees_of_freedom: Images that tell of the variation within classes: all but one of each class.
        basis: Orthonormal columns that span all vectors, where means and scatter are given in these coordinates.
    """

    counts: Int[Tensor, " way"]
    means: Float[Tensor, "way m"]
    scatter: Float[Tensor, "m m"]
    degrees_of_freedom: int
    basis: Float[Tensor, "d m"] | None = None


@dataclass(frozen=True)
class LabelledVectors:
    """Vectors of a support, all of them or some of each class, their classes, and which belong together.

    Attributes:
        vectors: One per image.
        owner: Their classes, counted from 0.
        groups: Images of one class and group (a burst, copies) are left out together; None where each is alone.
    """

    vectors: Float[Tensor, "image d"]
    owner: Int[Tensor, " image"]
    groups: Int[Tensor, " image"] | None = None

    def first(self, most: int) -> "LabelledVectors":
        """Return at most so many examples, about as many of each class, two at least; all of a group or none."""
        if len(self.owner) <= most:
            return self
        each = max(2, most // len(self.owner.unique()))
        order = self.owner.argsort(stable=True)
        counts = torch.bincount(self.owner)
        rank = torch.empty_like(self.owner)
        rank[order] = torch.arange(len(order)) - (counts.cumsum(0) - counts)[self.owner[order]]
        chosen = rank < each
        if self.groups is not None:
            pair = torch.stack([self.owner, self.groups]).unique(dim=1, return_inverse=True)[1]
            chosen = torch.isin(pair, pair[chosen])
        groups = None if self.groups is None else self.groups[chosen]
        return LabelledVectors(self.vectors[chosen], self.owner[chosen], groups)


@dataclass(frozen=True)
class LeaveOneOut:
    """Logits that examples would have got as new images, each left out of all that was estimated with it.

    Attributes:
        logits: For every class, their own included.
        evidence: The same over the logit of a class of which nothing was seen: what speaks against "none of these".
        owner: The classes of the examples.
        image: Their places among the examples; those that are all that their class has are not asked.
    """

    logits: Float[Tensor, "image way"]
    evidence: Float[Tensor, "image way"]
    owner: Int[Tensor, " image"]
    image: Int[Tensor, " image"]


@dataclass(frozen=True)
class Estimator:
    """How a head estimates parameters from its support.

    Args:
        fit: `fit(moments, examples, base)` to parameters by name, with the factor of the logits, `scale`, among them.
            Examples are for what cannot be told from moments. `base` is what `fit_base` returned, or None.
        transform: `transform(vectors, parameters, has_length)`, vectors to what the score sees of a query; with
            `has_length` as it is compared with a class of which nothing was seen.
        leave_one_out: `leave_one_out(moments, examples, parameters)` to a `LeaveOneOut`.
        fit_base: `fit_base(vectors, labels)` of other classes to tensors by name.
        can_calibrate: `can_calibrate(counts, examples)`, whether `scale` comes from the examples.
        moments: `moments(vectors, owner)` of examples.
    """

    fit: "Callable[[Moments, LabelledVectors, Parameters | None], dict[str, Tensor]]"
    transform: Callable[..., Tensor]
    leave_one_out: "Callable[[Moments, LabelledVectors, Parameters], LeaveOneOut]"
    fit_base: Callable[[Tensor, Tensor], dict[str, Tensor]]
    can_calibrate: "Callable[[Tensor, LabelledVectors], bool]"
    moments: "Callable[[Tensor, Tensor], Moments]"


# ----------------------------------------------------------------------------------------------------------------- head


def _no_parameters(features: Features, recipe: Recipe) -> dict[str, Tensor]:
    return {}


@dataclass(frozen=True)
class Head:
    """A learner: three slots, and what it learns.

    Args:
        embed: `embed(features, parameters)`, features "image position channel" to vectors "image d"; a recipe may name
            another of `EMBEDS`.
        score: `score(query, prototypes)`, vectors "query d" and "way d" (with any leading axes) to logits "query way".
        refine: `refine(prototypes, counts, parameters)`, prototypes "way d" (with any leading axes) and the number of
            images behind each to prototypes; None leaves them as they are.
        parameters: `parameters(features, recipe)`, the starting values of what the head learns, for blank features "1
            position channel"; every head also learns a temperature, `scale`. While they are learned they require
            gradients, by which a head with dropout knows.
        needs_training: Whether the head is of no use with its starting values.
        couples: Whether refining one prototype looks at the other classes of the episode.
        refine_folds: How a head that couples refines all folds of a batch at once:
            `refine_folds(prototypes, prototypes without the query, counts, parameters)`.
        refine_rows: `refine_rows(rows, parameters)` from the features of the support, where that is cheaper than from
            their mean Gram.
        has_onnx: Whether `refine` can be written as ONNX operators.
        alternative_to: The name of the head that this one is an alternative of: gains are measured against it.
        estimator: How it estimates parameters from the support itself; None where it does not.
    """

    embed: Embed
    score: Score
    refine: Refine | None = None
    parameters: Callable[[Tensor, Recipe], dict[str, Tensor]] = _no_parameters
    needs_training: bool = False
    couples: bool = False
    refine_folds: Callable[[Tensor, Tensor, Tensor, Parameters], Tensor] | None = None
    refine_rows: Callable[[Tensor, Parameters], Tensor] | None = None
    has_onnx: bool = True
    alternative_to: str = ""
    estimator: Estimator | None = None

    @property
    def score_name(self) -> str:
        """What tables call the score."""
        return str(getattr(self.score, "name", "") or getattr(self.score, "__name__", "a score"))

    def refined(
        self, prototypes: Prototypes, counts: Counts, parameters: Parameters
    ) -> Float[Tensor, "*batch way refined"]:
        """What queries are scored against."""
        return prototypes if self.refine is None else self.refine(prototypes, counts, parameters)


@dataclass(frozen=True)
class Reading:
    """A head with its parameters: one way to read a bank of vectors."""

    head: Head
    parameters: Parameters

    def transform(self, vectors: Float[Tensor, "*batch d"], has_length: bool = False) -> Float[Tensor, "*batch z"]:
        """Return what the score sees of vectors: themselves, unless the head estimates from its support."""
        estimator = self.head.estimator
        return vectors if estimator is None else estimator.transform(vectors, self.parameters, has_length)

    def new_class_score(self, vectors: Float[Tensor, "image d"]) -> Float[Tensor, " image"]:
        """Return the score of a class of which no image has been seen, for a head that estimates from its support."""
        nothing = torch.zeros_like(vectors[:1]), torch.zeros(1, dtype=torch.long)
        unseen = self.head.refined(*nothing, self.parameters)
        return self.head.score(self.transform(vectors, has_length=True), unseen)[:, 0]

    @property
    def inner(self) -> Inner | None:
        """The score, where the shared products of queries and prototypes are all it needs."""
        score = self.head.score
        return score if self.head.refine is None and isinstance(score, Inner) else None


def score_support(
    head: Head, support: Float[Tensor, "image d"], owner: Int[Tensor, " image"], query: Float[Tensor, "query d"]
) -> Float[Tensor, "query way"]:
    """Return the scores of queries after a head has estimated its parameters from a support, but for their factor."""
    assert head.estimator is not None
    support, query = support.double(), query.double()
    moments = head.estimator.moments(support, owner)
    parameters = head.estimator.fit(moments, LabelledVectors(support, owner), None)
    means = moments.means if moments.basis is None else moments.means @ moments.basis.mT
    return head.score(head.estimator.transform(query, parameters), head.refined(means, moments.counts, parameters))


# ----------------------------------------------------------------------------------------------------------------- fold


def fold(head: Head, parameters: Parameters, vectors: Float[Tensor, "way shot d"]) -> Float[Tensor, "way*shot way"]:
    """Logits of batch folding (Sec. 4.1): every image is a query once; its own class is the mean of the other shot - 1
    images, every other class the mean of all its shot images. Exact for every head; gradients flow through both roles.

    All classes are told the same count, shot - 1: a head that saw that one class has an image less would read off the
    answer."""
    way, shot, _ = vectors.shape
    total = vectors.sum(1)
    everyone = total / shot
    others = ((total[:, None] - vectors) / (shot - 1)).flatten(0, 1)  # the own class, without the query
    query = vectors.flatten(0, 1)
    own = torch.eye(way, dtype=torch.bool, device=vectors.device).repeat_interleave(shot, 0)
    count = torch.tensor([shot - 1], device=vectors.device)
    if head.couples:  # each fold has its own set of prototypes: refining once would show the query to its own class
        if head.refine_folds is None:
            sets = head.refined(torch.where(own[..., None], others[:, None], everyone), count.expand(way), parameters)
        else:
            sets = head.refine_folds(everyone, others, count.expand(way), parameters)
        return parameters["scale"] * head.score(query[:, None], sets)[:, 0]
    logits = head.score(query, head.refined(everyone, count.expand(way), parameters))
    mine = head.score(query[:, None], head.refined(others, count.expand(len(others)), parameters)[:, None])[:, 0]
    return parameters["scale"] * torch.where(own, mine, logits)


def contrastive(
    head: Head, parameters: Parameters, vectors: Float[Tensor, "way shot d"]
) -> Float[Tensor, "way*shot way"]:
    """Logits of FEAT's auxiliary term: the images of a class refine each other, and each image should find the mean of
    its own refined class."""
    single = torch.ones(vectors.shape[:2], dtype=torch.long, device=vectors.device)
    centres = head.refined(vectors, single, parameters).mean(1)
    return parameters["scale"] * head.score(vectors.flatten(0, 1), centres)
