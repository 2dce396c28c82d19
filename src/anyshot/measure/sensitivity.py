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
    """Take a grid of accuracies apart: test bias, model bias and residual (Eq. 7), whose range is the sensitivity.

    >>> decompose([[50, 54], [80, 82]]).sensitivity
    1.0

    Args:
        grid: Accuracies, one row per test shot and one column per train shot.
    """
    accuracy = np.asarray(grid, dtype=np.float64)
    if accuracy.ndim != 2 or accuracy.size == 0:
        raise BadInput(f"a grid has a row a test shot and a column a train shot; this one has shape {accuracy.shape}.")
    if not np.isfinite(accuracy).all():
        test, train = np.argwhere(~np.isfinite(accuracy))[0]
        raise BadInput(f"the grid has no accuracy in row {test}, column {train}: every cell is needed.")
    test_bias, model_bias, residual = _parts(accuracy)
    return Decomposition(test_bias, model_bias, residual, float(_range(residual)))


@dataclass(frozen=True)
class Certainty:
    """A sensitivity score with what is known of it.

    `low` to `high` covers the score of these models over all possible episodes with at least 95 % confidence.
    `noise_floor` is the score that perfectly robust models would show on average at this number of episodes, by chance
    alone. `over_seeds` has the score of each seed, where there are several."""

    sensitivity: float
    low: float
    high: float
    noise_floor: float
    over_seeds: tuple[float, ...] = ()


def certainty(cells: Float[np.ndarray, "seed test_shot train_shot episode"], draws: int = 1000) -> Certainty:
    """Bootstrap over episodes; paired: an episode is drawn with all its cells, so what they share drops out.

    Why the interval holds: a range changes by at most the range of the change, |range(a) - range(b)| <= range(a - b).
    So the 95 % quantile of the range of the bootstrap's deviations bounds the error of the score, whichever cells are
    largest and smallest; near zero, where a plain bootstrap of a maximum fails, it still covers."""
    episodes = cells.shape[-1]
    grid = cells.mean(0, dtype=np.float64)
    flat = grid.reshape(-1, episodes)
    rng = np.random.default_rng(0)
    deviations = np.empty((draws, len(flat)))
    for draw in range(draws):
        weight = np.bincount(rng.integers(episodes, size=episodes), minlength=episodes)
        deviations[draw] = flat @ (weight - 1.0) / episodes
    ranges = _range(_parts(deviations.reshape(draws, *grid.shape[:2]))[2])
    score = decompose(grid.mean(-1)).sensitivity
    margin = float(np.quantile(ranges, 0.95))
    seeds = tuple(decompose(one.mean(-1)).sensitivity for one in cells) if len(cells) > 1 else ()
    return Certainty(score, max(0.0, score - margin), score + margin, float(np.mean(ranges)), seeds)


def _parts(grid: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Test bias, model bias and residual of grids stacked along any leading axes."""
    test_bias = grid.mean(-1)
    offsets = grid - test_bias[..., None]
    model_bias = offsets.mean(-2)
    return test_bias, model_bias, offsets - model_bias[..., None, :]


def _range(residual: np.ndarray) -> np.ndarray | np.floating:
    return residual.max((-2, -1)) - residual.min((-2, -1))
