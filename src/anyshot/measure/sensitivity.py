"""Shot sensitivity: accuracy = test bias + model bias + residual (the paper's Eq. 7), and how well it is known.

The test bias is the mean accuracy of a grid's models at a test shot; the model bias is how far a model lies above its
group on average; the residual is what depends on both shots. Three statistics describe it: its range is the paper's
score, its standard deviation has less noise, and its trend has a sign.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from anyshot.errors import BadInput
from anyshot.measure.recalls import episodes_without_class

Residual = Float[np.ndarray, "*draw test_shot train_shot"]
Values = np.ndarray | np.floating
Statistic = Callable[[Residual], Values]


def residual_range(residual: Residual) -> Values:
    """Return the largest minus the smallest residual: the paper's sensitivity, in points."""
    return residual.max((-2, -1)) - residual.min((-2, -1))


def residual_deviation(residual: Residual) -> Values:
    """Return the standard deviation of the residual, in points: every cell has a part in it, not only the extremes."""
    return residual.std((-2, -1))


UNSIGNED = (residual_range, residual_deviation)


def residual_trend(test_shots: Sequence[int | str], train_shots: Sequence[int | str]) -> Statistic:
    """Return the statistic that tells overfitting to the train shot (positive) from the opposite (negative).

    It fits the residual by a multiple of log test shot times log train shot (each less its mean), and gives the range
    of this fit in points, with the sign of the multiple. It is NaN where shots are not numbers, or all alike.
    """
    weights = np.full((len(test_shots), len(train_shots)), np.nan)
    if all(isinstance(shot, int) and shot > 0 for shot in (*test_shots, *train_shots)):
        test, train = (np.log2(np.array(shots, float)) for shots in (test_shots, train_shots))
        product = np.outer(test - test.mean(), train - train.mean())
        if product.any():
            weights = product * np.ptp(product) / (product**2).sum()
    return lambda residual: (residual * weights).sum((-2, -1))


def list_statistics(test_shots: Sequence[int | str], train_shots: Sequence[int | str]) -> Mapping[str, Statistic]:
    """Return the statistics of a residual at these shots, by the name of their column."""
    trend = residual_trend(test_shots, train_shots)
    return {"sensitivity": residual_range, "deviation": residual_deviation, "trend": trend}


@dataclass(frozen=True)
class Decomposition:
    """The parts of a grid, which add up to it: `test_bias[:, None] + model_bias[None, :] + residual`.

    Args:
        test_bias: The mean accuracy of all models at each test shot.
        model_bias: How far each model lies above the mean of its group.
        residual: What remains of each cell.
        sensitivity: The range of the residual, in points: the paper's score.
        deviation: Its standard deviation, in points.
        trend: Its signed term of log test shot times log train shot, in points: positive where models overfit to their
            train shot. NaN where the shots are not given.
    """

    test_bias: Float[np.ndarray, " test_shot"]
    model_bias: Float[np.ndarray, " train_shot"]
    residual: Float[np.ndarray, "test_shot train_shot"]
    sensitivity: float
    deviation: float
    trend: float


def decompose(
    grid: ArrayLike, test_shots: Sequence[int | str] = (), train_shots: Sequence[int | str] = ()
) -> Decomposition:
    """Split a grid of accuracies into test bias, model bias and residual (Eq. 7), whose range is the sensitivity.

    >>> decompose([[50, 54], [80, 82]]).sensitivity
    1.0
    >>> decompose([[50, 54], [80, 82]], test_shots=[1, 32], train_shots=[4, 32]).trend
    -1.0

    Args:
        grid: Accuracies, one row per test shot and one column per train shot.
        test_shots: The shot of each row, for the trend.
        train_shots: The shot of each column, for the trend.

    Raises:
        BadInput: The grid is not two-dimensional, or a cell is missing.
    """
    accuracy = np.asarray(grid, dtype=np.float64)
    if accuracy.ndim != 2 or accuracy.size == 0:
        raise BadInput(f"a grid has a row a test shot and a column a train shot; this one has shape {accuracy.shape}.")
    if not np.isfinite(accuracy).all():
        test, train = np.argwhere(~np.isfinite(accuracy))[0]
        raise BadInput(f"the grid has no accuracy in row {test}, column {train}: every cell is needed.")
    shots = test_shots or [""] * accuracy.shape[0], train_shots or [""] * accuracy.shape[1]
    if tuple(map(len, shots)) != accuracy.shape:
        raise BadInput(f"a grid of shape {accuracy.shape} needs a test shot a row and a train shot a column.")
    test_bias, model_bias, residual = _parts(accuracy)
    values = {name: float(statistic(residual)) for name, statistic in list_statistics(*shots).items()}
    return Decomposition(test_bias, model_bias, residual, **values)


@dataclass(frozen=True)
class ResidualDraws:
    """A residual, and draws of how far it may be from the true one; 95 % intervals of its statistics.

    Args:
        residual: The residual of the grid.
        deviations: Draws of its error.
    """

    residual: Float[np.ndarray, "test_shot train_shot"]
    deviations: Float[np.ndarray, "draw test_shot train_shot"]

    def interval(self, statistic: Statistic = residual_range) -> tuple[float, float]:
        """Return the 95 % interval of a statistic; ranges and standard deviations do not go below zero."""
        value, margin = float(statistic(self.residual)), self._margin(statistic)
        return max(0.0 if statistic in UNSIGNED else -np.inf, value - margin), value + margin

    def difference(
        self, other: "ResidualDraws", statistic: Statistic = residual_range, level: float = 0.95
    ) -> tuple[float, float]:
        """Return the interval of this statistic less another's, drawn together: what both share drops out."""
        middle = float(statistic(self.residual) - statistic(other.residual))
        drawn = statistic(self.residual + self.deviations) - statistic(other.residual + other.deviations)
        margin = float(np.quantile(np.abs(drawn - middle), level))
        return middle - margin, middle + margin

    @property
    def noise_floor(self) -> float:
        """The sensitivity that perfectly robust models would show on average, by chance alone."""
        return float(np.mean(residual_range(self.deviations)))

    def _margin(self, statistic: Statistic) -> float:
        """Return the 95 % quantile of a bound of the error.

        Why the bound holds: ranges, standard deviations and trends change by at most their value of the change,
        |range(a) - range(b)| <= range(a - b). It holds whichever cells are largest and smallest, and also near zero,
        where a plain bootstrap of a maximum fails.
        """
        return float(np.quantile(np.abs(statistic(self.deviations)), 0.95))


@dataclass(frozen=True)
class ClassDraws(ResidualDraws):
    """Draws of how far a residual may be from the one over all classes there might be."""

    def _margin(self, statistic: Statistic) -> float:
        """Return a narrower bound for the range: only cells that may be largest or smallest have a part in it.

        Where all cells are alike these are all of them, and the bound is that of `ResidualDraws`.
        """
        if statistic is not residual_range:
            return super()._margin(statistic)
        near = float(np.quantile(residual_range(self.deviations), 0.95))
        top, bottom = self.residual >= self.residual.max() - near, self.residual <= self.residual.min() + near
        rises = [draws[:, top].max(1) - draws[:, bottom].min(1) for draws in (self.deviations, -self.deviations)]
        return float(np.quantile(np.maximum(*rises), 0.95))


def bootstrap_episodes(
    cells: Float[np.ndarray, "seed test_shot train_shot episode"], draws: int = 1000
) -> ResidualDraws:
    """Bootstrap the residual over episodes (Efron and Tibshirani 1993).

    The draws are paired: an episode is drawn with all its cells, so what they share drops out.
    """
    episodes = cells.shape[-1]
    grid = cells.mean(0, dtype=np.float64)
    flat = grid.reshape(-1, episodes)
    rng = np.random.default_rng(0)
    deviations = np.empty((draws, len(flat)))
    for draw in range(draws):
        weight = np.bincount(rng.integers(episodes, size=episodes), minlength=episodes)
        deviations[draw] = flat @ (weight - 1.0) / episodes
    noise = _parts(deviations.reshape(draws, *grid.shape[:2]))[2]
    return ResidualDraws(_parts(grid.mean(-1))[2], noise)


def jackknife_classes(
    grids: Sequence[Float[np.ndarray, "seed test_shot train_shot episode"]],
    classes: Int[np.ndarray, "episode way"],
    draws: int = 2000,
) -> list[ClassDraws] | None:
    """Jackknife the residuals of several grids over classes (Efron and Tibshirani 1993).

    A class is left out, and the residuals move in the episodes without it. As in `recalls.class_interval`, the part
    of this that is noise of the episodes is subtracted, and Student's t accounts for few classes; here with the
    covariance of all cells of all grids, from which deviations are drawn together.

    Returns:
        Draws for each grid; None where every episode holds nearly all classes.
    """
    parts = episodes_without_class(classes)
    if parts is None:
        return None
    inside, without = parts
    by_episode = [_parts(np.moveaxis(grid.mean(0, dtype=np.float64), -1, 0))[2] for grid in grids]
    residual = np.concatenate([one.reshape(len(one), -1) for one in by_episode], 1)
    n, many = len(residual), len(without)
    noise = np.cov(residual.T)
    moved = (~inside).T.astype(np.float64) @ residual / without[:, None]
    moved -= moved.mean(0)
    chance = ((n - without) / (n * without)).sum()
    values, turn = np.linalg.eigh((many - 1) / many * (moved.T @ moved - chance * noise))
    # A covariance less its noise may have directions below zero; without them the rest is too large by as much.
    spread = values.clip(0) * max(0.0, values.sum()) / max(values.clip(0).sum(), 1e-30)
    rng = np.random.default_rng(0)
    drawn = (rng.normal(size=(draws, len(values))) * spread**0.5) @ turn.T
    drawn += rng.multivariate_normal(np.zeros(len(values)), noise / n, draws, method="eigh")
    drawn *= ((many - 1) / rng.chisquare(many - 1, draws))[:, None] ** 0.5
    ends = np.cumsum([one[0].size for one in by_episode])[:-1]
    return [
        ClassDraws(one.mean(0), part.reshape(draws, *one.shape[1:]))
        for one, part in zip(by_episode, np.split(drawn, ends, 1), strict=True)
    ]


def _parts(grid: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return test bias, model bias and residual of grids stacked along any leading axes."""
    test_bias = grid.mean(-1)
    offsets = grid - test_bias[..., None]
    model_bias = offsets.mean(-2)
    return test_bias, model_bias, offsets - model_bias[..., None, :]
