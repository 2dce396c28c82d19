"""Accuracy by shot, and its extrapolation to more examples: a - b / (k + c).

The mean of k examples misses the true mean of a class by a variance that falls as 1 / k, and the accuracy that is still
missing falls with it; c says how far the first examples already are. A few noisy shots hardly determine c, and a large
one promises gains that never come: so c is drawn to its usual value, the more the noisier the shots are. The gain of
twice the examples is then known to about 1 point from 5 images per class and to 0.5 from 10 and 18, without a bias; the
95 % interval holds it in 95 to 100 % of pools of 5 or 20 classes of 5 to 18 images (docs/log/advice.md).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

OFFSETS = np.geomspace(0.02, 30, 200)  # values of c that are tried
# Chosen together on 159 pools of groceries and validation classes of CUB, pretrained and Conv-4 (docs/log/advice.md).
USUAL_OFFSET = 0.8  # the value that c is drawn to, in examples
PRIOR_WEIGHT = 0.03  # weight of a factor of e between c and that value, in units of the squared noise of the accuracies
# Chosen on 24 pools of 5 images, where the interval held the truth in 83 % without it, 96 % with it.
UNSEEN = 0.25  # part of the half-width of an accuracy that a doubling may bring beyond what redrawn episodes show
LEAST_SHOTS = 4  # shots, to fit three numbers
REDRAWS = 300  # bootstrap samples of episodes

Accuracies = Float[np.ndarray, "shot episode"]
Shots = Int[np.ndarray, " shot"]


@dataclass(frozen=True)
class Curve:
    """An accuracy, from 0 to 1, as a function of the shot; of arrays "draw" of a, b and c, one for each draw."""

    a: Any
    b: Any
    c: Any

    def __call__(self, shots: Shots | Float[np.ndarray, " shot"]) -> Float[np.ndarray, "*draw shot"]:
        """Return the accuracy at some shots."""
        a, b, c = (np.asarray(value)[..., None] for value in (self.a, self.b, self.c))
        return a - b / (shots + c)


def fit_curve(shots: Shots, accuracy: Float[np.ndarray, "*draw shot"], noise: float = 0.0) -> Curve:
    """Fit a curve by least squares that never falls with the shot and never passes 1.

    For every offset the best line in 1 / (k + c) is found, then the best offset. All shots weigh the same: a weight by
    how little the episodes of a shot differ would trust a shot without a mistake alone, and expect nothing more.

    Args:
        shots: The shots.
        accuracy: The mean accuracy at each.
        noise: The squared noise of these; the larger, the nearer the offset stays to the usual one.
    """
    x = 1 / (shots[:, None] + OFFSETS)  # shot, offset
    centred = x - x.mean(0)
    b = np.maximum(-(accuracy @ centred) / (centred * x).sum(0), 0)  # draw, offset
    a = accuracy.mean(-1, keepdims=True) + b * x.mean(0)
    capped = (1 - accuracy) @ x / (x**2).sum(0)
    a, b = np.where(a > 1, 1.0, a), np.where(a > 1, capped, b)
    residuals = a[..., None, :] - b[..., None, :] * x - accuracy[..., None]  # draw, shot, offset
    prior = PRIOR_WEIGHT * noise * np.log(OFFSETS / USUAL_OFFSET) ** 2
    best = ((residuals**2).mean(-2) + prior).argmin(-1)
    a, b = (np.take_along_axis(value, best[..., None], -1)[..., 0] for value in (a, b))
    return Curve(a, b, OFFSETS[best])


@dataclass(frozen=True)
class EpisodePool:
    """The sizes of a set of images, and of the episodes that are drawn from it."""

    images: int
    """Images per class (the median)."""
    classes: int
    way: int
    queries: int
    held_out: int | None = None
    """The number of images that are queries only, where some were held out."""

    def count_independent(self, accuracies: Accuracies, shots: Shots) -> Float[np.ndarray, " shot"]:
        """Return how many independent episodes would know each mean accuracy as well as the pool does.

        Episodes of one pool overlap, so that their own number proves nothing. Each image is a query once, and the pool
        holds only images / shot disjoint supports: that is what other images of the same classes may change.
        """
        mean, variance = accuracies.mean(1), np.maximum(accuracies.var(1, ddof=1), 1e-9)
        total = self.images * self.classes if self.held_out is None else self.held_out
        smooth = (mean * total + 1) / (total + 2)  # nobody is sure of 100 %
        of_query = smooth * (1 - smooth)
        of_support = np.maximum(variance - of_query / (self.queries * self.way), 0)
        error = of_query / total + of_support * (shots / self.images) * (self.way / self.classes)
        return np.minimum(variance / error, accuracies.shape[1])

    def half_widths(self, accuracies: Accuracies, shots: Shots) -> Float[np.ndarray, " shot"]:
        """Return half of the 95 % interval of each mean accuracy, for other images of the same classes."""
        variance = np.maximum(accuracies.var(1, ddof=1), 1e-9)
        return 1.96 * np.sqrt(variance / self.count_independent(accuracies, shots))


@dataclass(frozen=True)
class Forecast:
    """The gains in accuracy of more examples per class over `now`, with a 95 % interval each."""

    now: int
    accuracy: float
    more: tuple[int, ...]
    gain: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    held_out: tuple[tuple[int, float, float], ...]
    """The check: shots that the fit had not seen, what it says of them, and what was measured."""

    @property
    def error(self) -> float:
        """The largest error of the check; NaN where there were too few shots to hold any out."""
        return max((abs(fit - measured) for _, fit, measured in self.held_out), default=float("nan"))


def forecast_gains(
    shots: Shots, accuracies: Accuracies, now: int, more: tuple[int, ...], pool: EpisodePool, seed: int = 0
) -> Forecast | None:
    """Extrapolate a shot curve from paired episodes; None where the shots are too few to fit one.

    The interval is that of curves through redrawn episodes, as many as are worth independent ones. It is no narrower
    than the error that the same fit made at held-out shots, or than so few images allow.
    """
    if len(shots) < LEAST_SHOTS:
        return None
    wanted = now + np.array((0, *more))
    independent = pool.count_independent(accuracies, shots)
    noise = float((accuracies.var(1, ddof=1) / independent).mean())
    curve = fit_curve(shots, accuracies.mean(1), noise)
    rng, size = np.random.default_rng(seed), max(2, round(float(independent.min())))
    drawn = accuracies[:, rng.integers(accuracies.shape[1], size=(REDRAWS, size))].mean(2).T
    redrawn = fit_curve(shots, drawn, noise)(wanted)
    gain = curve(wanted)[1:] - curve(wanted)[0]
    spread = np.quantile(redrawn[:, 1:] - redrawn[:, :1], [0.025, 0.975], axis=0)
    check = _check_extrapolation(shots, accuracies, noise)
    error = max((abs(fit - measured) for _, fit, measured in check), default=0.0)
    # Where every image is right, redrawn episodes agree that all is well; the images are few all the same.
    few = UNSEEN * pool.half_widths(accuracies, shots)[-1] * 2 * np.array(more) / (now + np.array(more))
    slack = np.maximum(error, few)
    low, high = np.maximum(np.minimum(spread[0], gain - slack), 0.0), np.maximum(spread[1], gain + slack)
    gains, lows, highs = (tuple(values.tolist()) for values in (gain, low, high))
    return Forecast(now, float(curve(wanted)[0]), more, gains, lows, highs, check)


def _check_extrapolation(shots: Shots, accuracies: Accuracies, noise: float) -> tuple[tuple[int, float, float], ...]:
    """Fit the smaller shots, predict those above half of the largest (as many as leave enough to fit)."""
    seen = max(int((shots <= shots.max() / 2).sum()), LEAST_SHOTS)
    curve, rest = fit_curve(shots[:seen], accuracies[:seen].mean(1), noise), shots[seen:]
    return tuple(zip(rest.tolist(), curve(rest).tolist(), accuracies[seen:].mean(1).tolist(), strict=True))
