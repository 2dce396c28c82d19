"""Accuracy by shot, and what it will be with more: a - b / (k + c).

A class's mean of k examples misses the class's true mean by a variance that falls as 1 / k, and what accuracy is still
missing falls with it; c stands for how far the first examples already are. On CUB and mini-ImageNet features this
curve, fitted on shots up to 4 or 8, is off by half a point at twice the shot; a power of k is off by thrice as much.
Nothing here imports torch.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.special import stdtrit

OFFSETS = np.geomspace(0.02, 30, 40)
LEAST_SHOTS = 4  # three numbers are fitted
REDRAWS = 300

Accuracies = Float[np.ndarray, "shot episode"]
Shots = Int[np.ndarray, " shot"]


@dataclass(frozen=True)
class Curve:
    """Accuracies from 0 to 1."""

    a: float
    b: float
    c: float

    def __call__(self, shots: Shots | Float[np.ndarray, " shot"]) -> Float[np.ndarray, " shot"]:
        return self.a - self.b / (shots + self.c)


def fit_curve(
    shots: Shots, accuracy: Float[np.ndarray, " shot"], weight: Float[np.ndarray, " shot"] | None = None
) -> Curve:
    """Weighted least squares; accuracy never falls with the shot and never passes 1."""
    weight = np.ones(len(shots)) if weight is None else weight
    x = 1 / (shots[:, None] + OFFSETS)  # shot, offset
    mean_x, mean_y = np.average(x, 0, weight), np.average(accuracy, weights=weight)
    cross = (weight[:, None] * (x - mean_x) * (accuracy - mean_y)[:, None]).sum(0)
    b = np.maximum(-cross / (weight[:, None] * (x - mean_x) ** 2).sum(0), 0)
    a = mean_y + b * mean_x
    capped = (weight[:, None] * x * (1 - accuracy)[:, None]).sum(0) / (weight[:, None] * x**2).sum(0)
    a, b = np.where(a > 1, 1.0, a), np.where(a > 1, capped, b)
    loss = (weight[:, None] * (a - b * x - accuracy[:, None]) ** 2).sum(0)
    best = int(loss.argmin())
    return Curve(float(a[best]), float(b[best]), float(OFFSETS[best]))


def half_widths(accuracies: Accuracies, shots: Shots, queries: int, images: float) -> Float[np.ndarray, " shot"]:
    """Half of the 95 % interval of each mean accuracy, for other images of the same classes.

    Episodes of one pool overlap, so that their number proves nothing; the pool holds only images / (shot + queries)
    disjoint ones, and a mean over all overlapping episodes is at least as good as one over those (Hoeffding)."""
    disjoint = np.maximum(images / (shots + queries), 1.0)
    return stdtrit(np.maximum(disjoint - 1, 1), 0.975) * accuracies.std(1, ddof=1) / np.sqrt(disjoint)


@dataclass(frozen=True)
class Forecast:
    """What more examples a class will bring: gains in accuracy over `now`, with a 95 % interval each."""

    now: int
    accuracy: float
    more: tuple[int, ...]
    gain: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    held_out: tuple[tuple[int, float, float], ...]
    """The check: at shots that the fit had not seen, what it said and what was measured."""

    @property
    def error(self) -> float:
        """The largest error of the check; NaN where there were too few shots to hold any out."""
        return max((abs(said - seen) for _, said, seen in self.held_out), default=float("nan"))


def forecast(
    shots: Shots,
    accuracies: Accuracies,
    now: int,
    more: tuple[int, ...],
    queries: int,
    images: float,
    seed: int = 0,
) -> Forecast | None:
    """Extrapolate a shot curve from paired episodes; None where the shots are too few to fit one.

    The interval is that of curves through redrawn episodes, as many as are disjoint, and is no narrower than the error
    that the same fit made at held-out shots."""
    if len(shots) < LEAST_SHOTS:
        return None
    wanted = now + np.array((0, *more))
    weight = 1 / np.maximum(accuracies.var(1, ddof=1), 1e-6)
    curve = fit_curve(shots, accuracies.mean(1), weight)
    rng = np.random.default_rng(seed)
    many = max(2, round(images / (float(shots.max()) + queries)))
    draws = [accuracies[:, rng.integers(accuracies.shape[1], size=many)].mean(1) for _ in range(REDRAWS)]
    redrawn = np.stack([fit_curve(shots, draw, weight)(wanted) for draw in draws])
    gain = curve(wanted)[1:] - curve(wanted)[0]
    spread = np.quantile(redrawn[:, 1:] - redrawn[:, :1], [0.025, 0.975], axis=0)
    check = _hold_out(shots, accuracies, weight)
    slack = max((abs(said - seen) for _, said, seen in check), default=0.0)
    low, high = np.minimum(spread[0], gain - slack), np.maximum(spread[1], gain + slack)
    return Forecast(
        now,
        float(curve(wanted)[0]),
        more,
        tuple(gain.tolist()),
        tuple(np.maximum(low, 0.0).tolist()),
        tuple(high.tolist()),
        check,
    )


def _hold_out(
    shots: Shots, accuracies: Accuracies, weight: Float[np.ndarray, " shot"]
) -> tuple[tuple[int, float, float], ...]:
    """Fit the smaller shots, predict those above half of the largest (as many as leave enough to fit)."""
    seen = np.maximum((shots <= shots.max() / 2).sum(), LEAST_SHOTS)
    if seen >= len(shots):
        return ()
    curve = fit_curve(shots[:seen], accuracies[:seen].mean(1), weight[:seen])
    return tuple(
        (int(shot), float(said), float(mean))
        for shot, said, mean in zip(shots[seen:], curve(shots[seen:]), accuracies[seen:].mean(1), strict=True)
    )
