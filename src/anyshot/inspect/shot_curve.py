"""Accuracy by shot, and what it will be with more: a - b / (k + c).

A class's mean of k examples misses the class's true mean by a variance that falls as 1 / k, and what accuracy is still
missing falls with it; c stands for how far the first examples already are. A few noisy shots hardly tell c, and a large
one promises gains that never come: so it is drawn to what it usually is, the more the noisier they are. What twice the
examples would bring is then said to about 1 point from 5 images per class and to 0.5 from 10 and 18, in the mean
neither too high nor too low; the 95 % interval holds it in 95 to 100 % of pools of 5 or 20 classes of 5 to 18 images,
judged on these images themselves (docs/log/advice.md has others). Nothing here imports torch.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

OFFSETS = np.geomspace(0.02, 30, 200)
USUAL_OFFSET = 0.8  # chosen with DOUBT on groceries and on validation classes of CUB, pretrained and Conv-4
DOUBT = 0.03  # what a factor of e away from it weighs, in units of the squared noise of the accuracies
UNSEEN = 0.25  # of the half-width of an accuracy: what doubling may bring beyond what redrawn episodes show
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
    shots: Shots,
    accuracy: Float[np.ndarray, " shot"],
    noise: float = 0.0,
) -> Curve:
    """Least squares; accuracy never falls with the shot and never passes 1. The larger the squared `noise` of the
    accuracies, the nearer the offset stays to the usual one.

    All shots weigh the same: episodes that are all right do not differ, and a weight by how little they do would trust
    that shot alone and expect nothing more."""
    return Curve(*fit_curves(shots, accuracy[None], noise)[0].tolist())


def fit_curves(
    shots: Shots, accuracy: Float[np.ndarray, "draw shot"], noise: float = 0.0
) -> Float[np.ndarray, "draw 3"]:
    """`fit_curve` of many accuracies at once: for every offset the best line in 1 / (k + c), then the best offset."""
    x = 1 / (shots[:, None] + OFFSETS)  # shot, offset
    apart = x - x.mean(0)
    b = np.maximum(-(accuracy @ apart) / (apart * x).sum(0), 0)  # draw, offset
    a = accuracy.mean(1, keepdims=True) + b * x.mean(0)
    capped = (1 - accuracy) @ x / (x**2).sum(0)
    a, b = np.where(a > 1, 1.0, a), np.where(a > 1, capped, b)
    missed = a[:, None] - b[:, None] * x - accuracy[..., None]  # draw, shot, offset
    unusual = DOUBT * noise * np.log(OFFSETS / USUAL_OFFSET) ** 2
    best = ((missed**2).mean(1) + unusual).argmin(1)
    rows = np.arange(len(accuracy))
    return np.stack([a[rows, best], b[rows, best], OFFSETS[best]], 1)


@dataclass(frozen=True)
class EpisodePool:
    """What the episodes were drawn from, and how: images per class (the median), and classes; and how many images in
    all were asked, where these are others than the ones learned from."""

    images: int
    classes: int
    way: int
    queries: int
    asked: int | None = None

    def independent(self, accuracies: Accuracies, shots: Shots) -> Float[np.ndarray, " shot"]:
        """How many independent episodes would know each mean accuracy as well as the pool does.

        Episodes of one pool overlap, so that their own number proves nothing. Each image has one say as a query, and
        the pool holds only images / shot disjoint supports: that is what other images of the same classes may change.
        """
        mean, variance = accuracies.mean(1), np.maximum(accuracies.var(1, ddof=1), 1e-9)
        total = self.images * self.classes if self.asked is None else self.asked
        smooth = (mean * total + 1) / (total + 2)  # nobody is sure of 100 %
        of_query = smooth * (1 - smooth)
        of_support = np.maximum(variance - of_query / (self.queries * self.way), 0)
        error = of_query / total + of_support * (shots / self.images) * (self.way / self.classes)
        return np.minimum(variance / error, accuracies.shape[1])

    def half_widths(self, accuracies: Accuracies, shots: Shots) -> Float[np.ndarray, " shot"]:
        """Half of the 95 % interval of each mean accuracy, for other images of the same classes."""
        variance = np.maximum(accuracies.var(1, ddof=1), 1e-9)
        return 1.96 * np.sqrt(variance / self.independent(accuracies, shots))


@dataclass(frozen=True)
class Forecast:
    """What more examples per class will bring: gains in accuracy over `now`, with a 95 % interval each."""

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
        return max((abs(fit - measured) for _, fit, measured in self.held_out), default=float("nan"))


def forecast_gains(
    shots: Shots,
    accuracies: Accuracies,
    now: int,
    more: tuple[int, ...],
    pool: EpisodePool,
    seed: int = 0,
) -> Forecast | None:
    """Extrapolate a shot curve from paired episodes; None where the shots are too few to fit one.

    The interval is that of curves through redrawn episodes, as many as are worth independent ones, and is no narrower
    than the error that the same fit made at held-out shots, or than so few images allow."""
    if len(shots) < LEAST_SHOTS:
        return None
    wanted = now + np.array((0, *more))
    independent = pool.independent(accuracies, shots)
    noise = float((accuracies.var(1, ddof=1) / independent).mean())
    curve = fit_curve(shots, accuracies.mean(1), noise)
    rng = np.random.default_rng(seed)
    many = max(2, round(float(independent.min())))
    drawn = accuracies[:, rng.integers(accuracies.shape[1], size=(REDRAWS, many))].mean(2).T
    a, b, c = fit_curves(shots, drawn, noise).T[..., None]
    redrawn = a - b / (wanted + c)
    gain = curve(wanted)[1:] - curve(wanted)[0]
    spread = np.quantile(redrawn[:, 1:] - redrawn[:, :1], [0.025, 0.975], axis=0)
    check = _hold_out(shots, accuracies, noise)
    slack = max((abs(fit - measured) for _, fit, measured in check), default=0.0)
    # Where every image is right, redrawn episodes agree that all is well; the images are few all the same.
    few = UNSEEN * pool.half_widths(accuracies, shots)[-1] * 2 * np.array(more) / (now + np.array(more))
    slack = np.maximum(slack, few)
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


def _hold_out(shots: Shots, accuracies: Accuracies, noise: float) -> tuple[tuple[int, float, float], ...]:
    """Fit the smaller shots, predict those above half of the largest (as many as leave enough to fit)."""
    seen = np.maximum((shots <= shots.max() / 2).sum(), LEAST_SHOTS)
    if seen >= len(shots):
        return ()
    curve = fit_curve(shots[:seen], accuracies[:seen].mean(1), noise)
    return tuple(
        (int(shot), float(fit), float(measured))
        for shot, fit, measured in zip(shots[seen:], curve(shots[seen:]), accuracies[seen:].mean(1), strict=True)
    )
