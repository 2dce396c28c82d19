"""PCA and EST: linear projections fitted on the training classes' vectors, applied at test time. They need no training.

Both keep the leading directions of a symmetric matrix, orthonormal and without whitening: PCA of the covariance of all
vectors, EST of the covariance of the class means less a little of the mean within-class covariance, so that directions
in which classes differ and images of a class do not come first.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anyshot.errors import BadInput

Vectors = Float[Tensor, "image d"]
Basis = Float[Tensor, "d kept"]


def pca(vectors: Vectors, labels: Int[Tensor, " image"], kept: int = 60) -> Basis:
    """The directions of largest variance."""
    return _leading(_covariance(vectors.double()), kept).to(vectors.dtype)


def est(vectors: Vectors, labels: Int[Tensor, " image"], kept: int = 60, rho: float = 1e-3) -> Basis:
    """The directions of largest variance between classes, less rho times the variance within."""
    x = vectors.double()
    classes, count = labels.unique(return_inverse=True)[1], labels.unique(return_counts=True)[1]
    means = torch.zeros(len(count), x.shape[1], dtype=x.dtype).index_add_(0, classes, x) / count[:, None]
    inside = x - means[classes]
    # The mean over classes of each class's covariance: every class counts the same, whatever its number of images.
    weight = (1 / (count.clamp_min(2) - 1) / len(count))[classes]
    within = (inside * weight[:, None]).mT @ inside
    return _leading(_covariance(means) - rho * within, kept).to(vectors.dtype)


def _covariance(x: Vectors) -> Float[Tensor, "d d"]:
    centred = x - x.mean(0)
    return centred.mT @ centred / (len(x) - 1)


def _leading(matrix: Float[Tensor, "d d"], kept: int) -> Basis:
    if kept < 1:
        raise BadInput(f"a projection keeps at least one dimension, not {kept}.")
    return torch.linalg.eigh(matrix)[1].flip(1)[:, :kept]


PROJECTIONS = {"pca": pca, "est": est}
