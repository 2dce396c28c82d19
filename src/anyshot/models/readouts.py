"""Readouts: ways to read a trained model at test time, without training. Each is fitted on base classes (or on nothing)
and applied to vectors; a head then reads what it gives.

    own       as it was trained
    swapped   the other score: cosine for a Euclidean head, Euclidean for a cosine one (Sec. 5, Fig. 5)
    pcaN      the N leading principal directions of the base classes' vectors, then the head's score
    estN      the N directions that EST keeps: those in which classes differ and images of a class do not come first

PCA and EST keep the leading directions of a symmetric matrix, orthonormal and without whitening: PCA of the covariance
of all vectors, EST of the covariance of the class means less a little of the mean within-class covariance.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyshot.errors import BadInput
from anyshot.models.law import BoundHead, Head, Parameters, cosine, euclidean

Vectors = Float[Tensor, "image d"]
Labels = Int[Tensor, " image"]
Basis = Float[Tensor, "d kept"]


def _as_it_is(head: Head) -> Head | None:
    return head


@dataclass(frozen=True)
class Readout:
    """A way to read vectors: fit, apply, and the head that scores what comes out.

    Args:
        fit: `fit(vectors, labels)` of base classes to tensors by name; with `is_numbered`, `fit(vectors, labels,
            number)`. None where nothing has to be fitted.
        apply: `apply(vectors, fitted)` to the vectors that the head reads; None leaves them as they are.
        head: The head that reads them in place of the model's, or None where the readout does not fit that head. Its
            slots find the fitted tensors among their parameters.
        fits: The heads that it fits, in words.
        is_numbered: Whether its name ends in a number, as pca60 does.
    """

    fit: Callable[..., Parameters] | None = None
    apply: Callable[[Tensor, Parameters], Tensor] | None = None
    head: Callable[[Head], Head | None] = _as_it_is
    fits: str = "every head"
    is_numbered: bool = False

    def reading(self, reading: BoundHead, fitted: Parameters) -> BoundHead:
        """The reading of the applied vectors."""
        head = self.head(reading.head)
        assert head is not None
        return BoundHead(head, {**reading.parameters, **fitted})

    def applied(self, vectors: Float[Tensor, "*batch d"], fitted: Parameters) -> Float[Tensor, "*batch kept"]:
        """What the head reads."""
        return vectors if self.apply is None else self.apply(vectors, fitted)


def pca(vectors: Vectors, labels: Labels, dimensions: int = 60) -> dict[str, Basis]:
    """The directions of largest variance."""
    return _leading(_covariance(vectors.double()), dimensions, vectors.dtype)


def est(vectors: Vectors, labels: Labels, dimensions: int = 60, rho: float = 1e-3) -> dict[str, Basis]:
    """The directions of largest variance between classes, less rho times the variance within."""
    x = vectors.double()
    classes, count = labels.unique(return_inverse=True)[1], labels.unique(return_counts=True)[1]
    means = torch.zeros(len(count), x.shape[1], dtype=x.dtype).index_add_(0, classes, x) / count[:, None]
    inside = x - means[classes]
    # The mean over classes of each class's covariance: every class counts the same, whatever its number of images.
    weight = (1 / (count.clamp_min(2) - 1) / len(count))[classes]
    within = (inside * weight[:, None]).mT @ inside
    return _leading(_covariance(means) - rho * within, dimensions, vectors.dtype)


def _covariance(x: Vectors) -> Float[Tensor, "d d"]:
    centred = x - x.mean(0)
    return centred.mT @ centred / (len(x) - 1)


def _leading(matrix: Float[Tensor, "d d"], dimensions: int, dtype: torch.dtype) -> dict[str, Basis]:
    if dimensions < 1:
        raise BadInput(f"a projection keeps at least one dimension, not {dimensions}.")
    if dimensions >= len(matrix):
        why = f"leaves nothing out of vectors that have only {len(matrix)}"
        raise BadInput(f"a projection to {dimensions} dimensions {why}: keep fewer.")
    return {"basis": torch.linalg.eigh(matrix)[1].flip(1)[:, :dimensions].to(dtype)}


def project(vectors: Float[Tensor, "*batch d"], fitted: Parameters) -> Float[Tensor, "*batch kept"]:
    """Vectors in the basis that was fitted."""
    return vectors @ fitted["basis"]


def swap_score(head: Head) -> Head | None:
    """The same head with the other score."""
    other = cosine if head.score is euclidean else euclidean if head.score is cosine else None
    return None if other is None else replace(head, score=other)


def _without_refinement(head: Head) -> Head | None:
    return head if head.refine is None else None


_PLAIN = "heads that leave their prototypes as they are, such as proto and cosine-proto"
READOUTS: dict[str, Readout] = {
    "own": Readout(),
    "swapped": Readout(head=swap_score, fits="heads whose score is Euclidean or a cosine"),
    "pca": Readout(pca, project, _without_refinement, _PLAIN, is_numbered=True),
    "est": Readout(est, project, _without_refinement, _PLAIN, is_numbered=True),
}


def split_readout_name(name: str) -> tuple[str, int | None]:
    """The two parts of a readout's name, such as pca60; None where it ends in no number."""
    match = re.fullmatch(r"(.*?)([1-9]\d*)", name)
    return (match[1], int(match[2])) if match else (name, None)
