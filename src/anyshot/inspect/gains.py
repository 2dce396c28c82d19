"""Step: what would bring most: correct labels, other features, photos of other days, or more examples.

Accuracy by shot is extrapolated to more examples by a - b / (k + c). The mean of k examples misses the true mean of a
class by a variance that falls as 1 / k, and the accuracy that is still missing falls with it; c says how far the first
examples already are. A few noisy shots hardly determine c, and a large one promises gains that never come: so c is
drawn to its usual value, the more the noisier the shots are. The gain of twice the examples is then known to about 1
point from 5 images per class and to 0.5 from 10 and 18, without a bias; the 95 % interval holds it in 95 to 100 % of
pools of 5 or 20 classes of 5 to 18 images (docs/log/advice.md).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from anyshot.inspect.case import AdviceCase, OtherFeatures
from anyshot.inspect.episodes import Accuracies, EpisodePool, EpisodeSource, Shots
from anyshot.inspect.sections import Section, Table
from anyshot.text import count_noun, list_first

MORE = (1, 2, 5, 10, 20)  # examples per class whose gain is forecast; and as many as there are
# Features are the limit below LOW_ACCURACY, where doubling ends less than FLAT of the errors. No log entry compares
# these with others; with them it was said of weak features in 24 of 24 pools, and of strong ones in 3 of 24.
LOW_ACCURACY, FLAT = 0.85, 0.15
SUSPECT_SHARE = 0.25  # share of the errors that suspected labels must make up, to be looked at first; not tuned
HARDER = 0.05  # loss of accuracy on examples held out from which photos of other days are asked for; not tuned
ROUGH = 0.02  # error of a forecast at shots held out from which it is called rough; not tuned
OFFSETS = np.geomspace(0.02, 30, 200)  # values of c that are tried
# Chosen together on 159 pools of groceries and validation classes of CUB, pretrained and Conv-4 (docs/log/advice.md).
USUAL_OFFSET = 0.8  # the value that c is drawn to, in examples
PRIOR_WEIGHT = 0.03  # weight of a factor of e between c and that value, in units of the squared noise of the accuracies
# Chosen on 24 pools of 5 images, where the interval held the truth in 83 % without it, 96 % with it.
UNSEEN = 0.25  # part of the half-width of an accuracy that a doubling may bring beyond what redrawn episodes show
LEAST_SHOTS = 4  # shots, to fit three numbers
REDRAWS = 300  # bootstrap samples of episodes


# --------------------------------------------------------------------------------------------------- curves of accuracy


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
class Forecast:
    """The gains in accuracy that more examples per class are expected to bring.

    Attributes:
        now: Examples per class from which the gains are counted.
        accuracy: The accuracy that the curve has there.
        more: Numbers of further examples per class.
        gain: The gain of each.
        low: The lower end of its 95 % interval.
        high: The upper end.
        held_out: The check: shots that the fit had not seen, what it says of them, and what was measured.
    """

    now: int
    accuracy: float
    more: tuple[int, ...]
    gain: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    held_out: tuple[tuple[int, float, float], ...]

    @property
    def error(self) -> float:
        """The largest error of the check; NaN where there were too few shots to hold any out."""
        return max((abs(fit - measured) for _, fit, measured in self.held_out), default=float("nan"))


def forecast_gains(
    shots: Shots, accuracies: Accuracies, now: int, more: tuple[int, ...], pool: EpisodePool, seed: int = 0
) -> Forecast | None:
    """Extrapolate a shot curve from paired episodes; None where the shots are too few to fit one.

    The interval is that of curves through redrawn episodes, of which each draw has as many as there are independent
    ones. It is no narrower than the error that the same fit made at held-out shots, or than so few images allow.
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
    """Fit a curve to the smaller shots, and return each larger shot with its forecast and its measured accuracy.

    Larger shots are those above half of the largest, or fewer, so that LEAST_SHOTS are left to fit.
    """
    n_fitted = max(int((shots <= shots.max() / 2).sum()), LEAST_SHOTS)
    curve, larger = fit_curve(shots[:n_fitted], accuracies[:n_fitted].mean(1), noise), shots[n_fitted:]
    return tuple(zip(larger.tolist(), curve(larger).tolist(), accuracies[n_fitted:].mean(1).tolist(), strict=True))


# ------------------------------------------------------------------------------------------------------ what it says


def expect_gains(
    case: AdviceCase, source: EpisodeSource, accuracies: dict[str, np.ndarray], values: dict[str, Any]
) -> Section:
    """Forecast the gain of more examples, and weigh it against other features and wrong labels.

    Its values are the forecasts by head, where the shots allow one; what another network would bring
    (`other_features`); whether so many labels are doubtful that nothing else can be concluded (`labels_first`); whether
    accuracy is low and more examples would hardly help (`features_are_the_limit`); and what to do next in a sentence
    (`next_step`), which is empty where nothing stands out.

    Args:
        case: The examples.
        source: What episodes were drawn from.
        accuracies: The accuracies of each head, by shot and episode.
        values: Those of the steps before, by name.
    """
    best, accuracy, left_out = values["best"], values["accuracy"], values["left_out"]
    forecasts = _forecast_all(source, accuracies, case.seed)
    forecast = forecasts.get(best)
    doubling = None if forecast is None else forecast.gain[-1]
    labels = _doubt_labels(values, len(case.labels))
    other = case.other_features(best, accuracy) if case.other_features is not None else None
    # Where only the examples held out are hard, those at hand are too much alike, and others would help.
    is_low = max(accuracy, left_out.accuracy) < LOW_ACCURACY
    is_flat = doubling is not None and doubling < FLAT * (1 - accuracy)
    is_limit = is_low and is_flat and not labels
    sentences = [labels or _describe_features(case, other, is_limit, accuracy, doubling)]
    harder = left_out.accuracy - accuracy
    if values["holdout"] is not None and harder >= max(HARDER, 2 * (doubling or 0.0)):
        sentences.append(
            f"Examples of other days rather than more like these: {left_out.accuracy:.1%} of those at hand are "
            f"recognised, and {accuracy:.1%} of those held out."
        )
    sentences = [text for text in sentences if text]
    next_step = next(iter(sentences), "")
    tables: list[Table] = []
    if forecast is None:
        sentences.append("The examples are too few to say: see below.")
        next_step = next_step or _name_smallest(case)
    else:
        more, tables = _describe_forecast(best, forecast, source, len(case.counts))
        sentences += more
        points = f"{tables[0].rows[-1][1]} points ({tables[0].rows[-1][2]})"
        next_step = next_step or _promise(points, accuracy + forecast.gain[-1], case, values)
    gains = {
        "forecasts": forecasts,
        "other_features": other,
        "labels_first": bool(labels),
        "features_are_the_limit": is_limit,
        "next_step": next_step,
    }
    return Section("What more examples would bring", sentences, tables, _doubt_forecast(values, forecast), gains)


def _forecast_all(source: EpisodeSource, accuracies: dict[str, np.ndarray], seed: int) -> dict[str, Forecast]:
    """Return the forecast of each head that has enough shots for one."""
    pool, steps = source.pool, np.array(source.shots)
    more = tuple(sorted({step for step in MORE if step < pool.images} | {pool.images}))
    forecasts = {head: forecast_gains(steps, a, pool.images, more, pool, seed) for head, a in accuracies.items()}
    return {head: forecast for head, forecast in forecasts.items() if forecast is not None}


def _doubt_labels(values: dict[str, Any], examples: int) -> str:
    """Return the advice to check labels first, where conflicts or suspects explain much of the errors; else nothing."""
    conflicts, suspects, accuracy = values["conflicts"], len(values["suspects"]), values["left_out"].accuracy
    if not conflicts and (suspects < SUSPECT_SHARE * (1 - accuracy) * examples or accuracy >= LOW_ACCURACY):
        return ""
    reasons = []
    if conflicts:
        reasons.append(f"{count_noun(conflicts, 'pair')} of copies {'has' if conflicts == 1 else 'have'} two labels")
    if suspects:
        reasons.append(f"{count_noun(suspects, 'label')} may be wrong")
    return (
        f"Check the labels first: {' and '.join(reasons)} (listed below), and wrong labels hide what the features can "
        "do."
    )


def _name_smallest(case: AdviceCase) -> str:
    """Return the advice to add examples of the classes that have too few for a forecast; nothing if none has."""
    sizes = sorted(zip(case.counts.tolist(), case.class_names, strict=True))
    smallest = [f"{name} ({count})" for count, name in sizes if count <= LEAST_SHOTS]
    return f"Add examples of the smallest classes first: {list_first(smallest)}." if smallest else ""


def _describe_features(
    case: AdviceCase, other: OtherFeatures | None, is_limit: bool, accuracy: float, doubling: float | None
) -> str:
    """Return whether better features would bring more than more labels, in words; nothing where that is not known."""
    if other is not None:
        sample = f"on a sample ({other.way} classes, {other.shot} shots, {other.examples} examples) {other.backbone}"
        twice = "" if doubling is None else f"; twice the examples would bring {100 * doubling:+.1f}"
        if other.other - other.own > max(doubling or 0.0, 0.01):
            return (
                f"Better features, not more labels: {sample} is right on {other.other:.1%} where these features are "
                f"on {other.own:.1%}, {100 * (other.other - other.own):+.1f} points{twice}. Name --model "
                f"{other.backbone}, or none."
            )
        return (
            f"Other features would not bring more: {sample} is right on {other.other:.1%}, these features on "
            f"{other.own:.1%}{twice}."
        )
    if is_limit:
        network = (
            "features of a stronger network" if case.source_noun == "FILE" else "a stronger network, --model timm:NAME"
        )
        return (
            f"Better features, not more labels: at {accuracy:.1%} the curve is flat, and twice the examples would "
            f"bring {100 * (doubling or 0.0):+.1f} points. Try {network}."
        )
    return ""


def _promise(points: str, expected: float, case: AdviceCase, values: dict[str, Any]) -> str:
    """Return what twice the examples bring; where it would be more than all right, what else to do, if anything.

    The gain is counted from the curve, which may be below the accuracy of the examples that were left out.
    """
    if expected < 1:
        return f"Twice the examples are expected to bring {points}."
    if values["holdout"] is not None:
        return ""
    return f"Of the examples at hand hardly any is mistaken; those of other days may be: --holdout {case.source_noun}."


def _describe_forecast(
    best: str, forecast: Forecast, source: EpisodeSource, classes: int
) -> tuple[list[str], list[Table]]:
    """Return the forecast in sentences and as a table; `classes` are all, also those too small for the curves."""
    drawn, kind = source.pool.classes, "examples of the same kind"
    of = "the median class has as many" if drawn == classes else f"the median of the {drawn} classes of the curves"
    if source.judged_on == "held out":
        kind = "examples like those held out"
    sentences = [
        f"The curve of {best} says {forecast.accuracy:.1%} with {forecast.now} examples of every class ({of}) on "
        f"{kind}. The table has the points "
        "that more examples of the kind at hand, up to twice as many, are expected to add to that number."
    ]
    if forecast.held_out:
        checks = (f"{fit:.1%} at {shot} shots ({measured:.1%} measured)" for shot, fit, measured in forecast.held_out)
        sentences.append(f"The check: fitted without the larger shots, the same curve says {', '.join(checks)}.")
    rows = [
        [f"+{more}", f"{100 * gain:+.1f}", f"{100 * low:+.1f} to {100 * high:+.1f}"]
        for more, gain, low, high in zip(forecast.more, forecast.gain, forecast.low, forecast.high, strict=True)
    ]
    return sentences, [Table("", ["examples more", "points", "95 % interval"], rows)]


def _doubt_forecast(values: dict[str, Any], forecast: Forecast | None) -> list[str]:
    """Return what the data are too few to say about gains."""
    if forecast is None:
        count, name = min(zip(values["counts"], values["class_names"], strict=True), key=lambda pair: pair[0])
        shots = values["shots"]
        return [
            f"Class {name} has {count} examples, so only shots {shots[0]} to {shots[-1]} can be measured: too few to "
            f"say what more examples would bring ({LEAST_SHOTS} different shots needed)."
        ]
    if not forecast.held_out:
        return ["There are too few shots to hold any out: the expected gains are not checked."]
    if forecast.error > max(ROUGH, *forecast.gain):
        return [
            f"At held-out shots the extrapolation was off by {forecast.error:.1%}, more than the gains it expects: "
            "take them as rough."
        ]
    return []
