"""Readouts: ways to read a trained model at test time, without training it again.

A readout is fitted on vectors of base classes (or on nothing) and applied to vectors; a head then scores the result.

    own       as it was trained
    swapped   the other score: cosine for a Euclidean head, Euclidean for a cosine one (Sec. 5, Fig. 5)
    pcaN      the N leading principal components of the base classes' vectors, then the head's score
    estN      the N leading directions of EST (Cao et al. 2020): classes differ in them most, images of a class least

PCA and EST keep the leading eigenvectors of a symmetric matrix, without whitening: PCA those of the covariance of all
vectors, EST those of the covariance of the class means less a little of the mean within-class covariance.

Cao et al. 2020: A Theoretical Analysis of the Number of Shots in Few-Shot Learning, ICLR.
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
EST_RHO = 1e-3  # weight of the variance within classes, as in Cao et al. 2020


def _same_head(head: Head) -> Head | None:
    return head


@dataclass(frozen=True)
class Readout:
    """A way to read vectors: fit, apply, and the head that scores the result.

    Args:
        fit: `fit(vectors, labels)` returns tensors by name, given the vectors and labels of base classes. With
            `is_numbered` it is `fit(vectors, labels, number)`. None where nothing has to be fitted.
        apply: `apply(vectors, fitted)` returns the vectors that the head scores; None leaves them as they are.
        head: `head(model's head)` returns the head that scores them, or None where the readout does not suit that
            head. Its slots find the fitted tensors among their parameters.
        fits: The heads that it suits, in words.
        is_numbered: Whether its name ends in a number, as pca60 does.
    """

    fit: Callable[..., Parameters] | None = None
    apply: Callable[[Tensor, Parameters], Tensor] | None = None
    head: Callable[[Head], Head | None] = _same_head
    fits: str = "every head"
    is_numbered: bool = False

    def bind(self, bound: BoundHead, fitted: Parameters) -> BoundHead:
        """Return the head that scores the applied vectors, with its parameters and what was fitted."""
        head = self.head(bound.head)
        assert head is not None
        return BoundHead(head, {**bound.parameters, **fitted})

    def applied(self, vectors: Float[Tensor, "*batch d"], fitted: Parameters) -> Float[Tensor, "*batch kept"]:
        """Return the vectors that the head scores."""
        return vectors if self.apply is None else self.apply(vectors, fitted)


def pca(vectors: Vectors, labels: Labels, dimensions: int = 60) -> dict[str, Basis]:
    """Return the directions of largest variance."""
    return _leading(_covariance(vectors.double()), dimensions, vectors.dtype)


def est(vectors: Vectors, labels: Labels, dimensions: int = 60, rho: float = EST_RHO) -> dict[str, Basis]:
    """Return the directions of largest variance between classes, less rho times that within (Cao et al. 2020)."""
    x = vectors.double()
    _, classes, count = labels.to(x.device).unique(return_inverse=True, return_counts=True)
    means = x.new_zeros(len(count), x.shape[1]).index_add_(0, classes, x) / count[:, None]
    residuals = x - means[classes]
    # The mean over classes of each class's covariance: every class counts the same, whatever its number of images.
    weight = (1 / (count.clamp_min(2) - 1) / len(count))[classes]
    within = (residuals * weight[:, None]).mT @ residuals
    return _leading(_covariance(means) - rho * within, dimensions, vectors.dtype)


def _covariance(x: Vectors) -> Float[Tensor, "d d"]:
    centred = x - x.mean(0)
    return centred.mT @ centred / (len(x) - 1)


def _leading(matrix: Float[Tensor, "d d"], dimensions: int, dtype: torch.dtype) -> dict[str, Basis]:
    if dimensions < 1:
        raise BadInput(f"a projection keeps at least one dimension, not {dimensions}.")
    if dimensions >= len(matrix):
        raise BadInput(
            f"a projection to {dimensions} dimensions leaves nothing out of vectors that have only {len(matrix)}: "
            "keep fewer."
        )
    return {"basis": torch.linalg.eigh(matrix)[1].flip(1)[:, :dimensions].to(dtype)}


def project(vectors: Float[Tensor, "*batch d"], fitted: Parameters) -> Float[Tensor, "*batch kept"]:
    """Return vectors in the fitted basis."""
    return vectors @ fitted["basis"]


def swap_score(head: Head) -> Head | None:
    """Return the head with the other score, or None where it has another than Euclidean or cosine."""
    other = cosine if head.score is euclidean else euclidean if head.score is cosine else None
    return None if other is None else replace(head, score=other)


def _without_refinement(head: Head) -> Head | None:
    return head if head.refine is None else None


_UNREFINED = "heads that leave their prototypes as they are, such as proto and cosine-proto"
READOUTS: dict[str, Readout] = {
    # The head as it was trained.
    "own": Readout(),
    # A cosine in place of the Euclidean distance, or the other way round (Fig. 5 of the paper).
    "swapped": Readout(head=swap_score, fits="heads whose score is Euclidean or a cosine"),
    # The leading principal components of the base classes' vectors.
    "pca": Readout(pca, project, _without_refinement, _UNREFINED, is_numbered=True),
    # The leading directions of the class means, less the variance within classes (EST, Cao et al. 2020).
    "est": Readout(est, project, _without_refinement, _UNREFINED, is_numbered=True),
}


def split_readout_name(name: str) -> tuple[str, int | None]:
    """Return the two parts of a readout's name, such as pca60; None where it does not end in a number."""
    match = re.fullmatch(r"(.*?)([1-9][0-9]{0,8})", name)
    return (match[1], int(match[2])) if match else (name, None)
