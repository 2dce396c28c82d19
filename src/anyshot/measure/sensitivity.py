"""Shot sensitivity: accuracy = test bias + model bias + residual (the paper's Eq. 7), and how well the score is known.

The test bias is the mean accuracy of a grid's models at a test shot; the model bias is how far a model lies above its
group on average; what remains depends on both shots, and its largest minus its smallest value is the score.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from anyshot.errors import BadInput
from anyshot.measure.intervals import episodes_without_class


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
class SensitivityEstimate:
    """A sensitivity score with what is known of it.

    `low` to `high` covers the score of these models over all possible episodes with at least 95 % confidence.
    `noise_floor` is the score that perfectly robust models would show on average at this number of episodes, by chance
    alone. `bias` is by how much the noise of the episodes has raised the score on average, as a further round of the
    same noise would raise it. `over_seeds` has the score of each seed, where there are several."""

    sensitivity: float
    low: float
    high: float
    noise_floor: float
    bias: float
    over_seeds: tuple[float, ...] = ()


def bootstrap_sensitivity(
    cells: Float[np.ndarray, "seed test_shot train_shot episode"], draws: int = 1000
) -> SensitivityEstimate:
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
    noise = _parts(deviations.reshape(draws, *grid.shape[:2]))[2]
    ranges = _range(noise)
    whole = decompose(grid.mean(-1))
    score, margin = whole.sensitivity, float(np.quantile(ranges, 0.95))
    bias = float(np.mean(_range(whole.residual + noise)) - score)
    seeds = tuple(decompose(one.mean(-1)).sensitivity for one in cells) if len(cells) > 1 else ()
    return SensitivityEstimate(score, max(0.0, score - margin), score + margin, float(np.mean(ranges)), bias, seeds)


@dataclass(frozen=True)
class ClassJackknife:
    """What new classes of the same kind may make of a sensitivity: 95 % intervals by `interval` and `difference`.

    Args:
        residual: The residual of the grid.
        deviations: Draws of how far this residual may be from the one over all classes there might be.
    """

    residual: Float[np.ndarray, "test_shot train_shot"]
    deviations: Float[np.ndarray, "draw test_shot train_shot"]

    @property
    def sensitivity(self) -> float:
        """The score of these classes."""
        return float(_range(self.residual))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the score over draws of new classes."""
        rise = self._rise(self.deviations)
        margin = float(np.quantile(np.maximum(rise, self._rise(-self.deviations)), 0.95))
        return max(0.0, self.sensitivity - margin), self.sensitivity + margin

    def difference(self, other: "ClassJackknife") -> tuple[float, float]:
        """The 95 % interval of this score less another's, drawn together: what classes do to both drops out."""
        middle = self.sensitivity - other.sensitivity
        drawn = _range(self.residual + self.deviations) - _range(other.residual + other.deviations)
        margin = float(np.quantile(np.abs(drawn - middle), 0.95))
        return middle - margin, middle + margin

    def _rise(self, deviations: np.ndarray) -> np.ndarray:
        """By how much the range can grow: only cells that may be the largest or the smallest have a part in it. Where
        all cells are alike these are all of them, and the bound is the one of `certainty`."""
        near = float(np.quantile(_range(self.deviations), 0.95))
        top, bottom = self.residual >= self.residual.max() - near, self.residual <= self.residual.min() + near
        return deviations[:, top].max(1) - deviations[:, bottom].min(1)


def jackknife_classes(
    grids: Sequence[Float[np.ndarray, "seed test_shot train_shot episode"]],
    classes: Int[np.ndarray, "episode way"],
    draws: int = 2000,
) -> list[ClassJackknife] | None:
    """A jackknife over classes: leave a class out, and see how far the residuals move in the episodes without it.

    As in `intervals.class_interval`, the part of this that is noise of the episodes is subtracted, and Student's t
    accounts for few classes; here with the covariance of all cells of all grids, from which deviations are drawn
    together. None where every episode holds nearly all classes."""
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
        ClassJackknife(one.mean(0), part.reshape(draws, *one.shape[1:]))
        for one, part in zip(by_episode, np.split(drawn, ends, 1), strict=True)
    ]


def _parts(grid: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Test bias, model bias and residual of grids stacked along any leading axes."""
    test_bias = grid.mean(-1)
    offsets = grid - test_bias[..., None]
    model_bias = offsets.mean(-2)
    return test_bias, model_bias, offsets - model_bias[..., None, :]


def _range(residual: np.ndarray) -> np.ndarray | np.floating:
    return residual.max((-2, -1)) - residual.min((-2, -1))
