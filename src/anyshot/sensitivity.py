"""Shot sensitivity: accuracy = test bias + model bias + residual (the paper's Eq. 7), and how well the score is known.

The test bias is the mean accuracy of a grid's models at a test shot; the model bias is how far a model lies above its
group on average; what remains depends on both shots, and its largest minus its smallest value is the score.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from anyshot.errors import BadInput


@dataclass(frozen=True)
class Decomposition:
    """A grid taken apart; `grid == test_bias[:, None] + model_bias[None, :] + residual`."""

    test_bias: Float[np.ndarray, " test_shot"]
    model_bias: Float[np.ndarray, " train_shot"]
    residual: Float[np.ndarray, "test_shot train_shot"]
    sensitivity: float


def decompose(grid: ArrayLike) -> Decomposition:
    """Take a grid (test shot x train shot, any size) of accuracies apart.

    >>> decompose([[50, 54], [80, 82]]).sensitivity
    1.0
    """
    accuracy = np.asarray(grid, dtype=np.float64)
    if accuracy.ndim != 2 or accuracy.size == 0:
        raise BadInput(f"a grid has a row a test shot and a column a train shot; this one has shape {accuracy.shape}.")
    if not np.isfinite(accuracy).all():
        test, train = np.argwhere(~np.isfinite(accuracy))[0]
        raise BadInput(f"the grid has no accuracy in row {test}, column {train}: every cell is needed.")
    test_bias, model_bias, residual = _parts(accuracy)
    return Decomposition(test_bias, model_bias, residual, float(_range(residual)))


def _parts(grid: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Test bias, model bias and residual of grids stacked along any leading axes."""
    test_bias = grid.mean(-1)
    offsets = grid - test_bias[..., None]
    model_bias = offsets.mean(-2)
    return test_bias, model_bias, offsets - model_bias[..., None, :]


def _range(residual: np.ndarray) -> np.ndarray | np.floating:
    return residual.max((-2, -1)) - residual.min((-2, -1))
