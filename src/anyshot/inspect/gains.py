"""Step: what would bring most: correct labels, other features, photos of other days, or more examples."""

from dataclasses import dataclass

import numpy as np

from anyshot.inspect.accuracy import Accuracy, measure_accuracy
from anyshot.inspect.case import AdviceCase, OtherFeatures
from anyshot.inspect.curves import compare_heads, measure_curves
from anyshot.inspect.duplicates import find_duplicates
from anyshot.inspect.labels import find_label_errors
from anyshot.inspect.sections import Section, Table
from anyshot.inspect.shot_curve import LEAST_SHOTS, Forecast, forecast_gains
from anyshot.text import count_noun

MORE = (1, 2, 5, 10, 20)  # examples per class whose gain is forecast; and as many as there are
# Features are the limit below LOW_ACCURACY, where doubling ends less than FLAT of the errors. No log entry compares
# these with others; with them it was said of weak features in 24 of 24 pools, and of strong ones in 3 of 24.
LOW_ACCURACY, FLAT = 0.85, 0.15
SUSPECT_SHARE = 0.25  # share of the errors that suspected labels must make up, to be looked at first; not tuned
HARDER = 0.05  # loss of accuracy on examples held out from which photos of other days are asked for; not tuned
ROUGH = 0.02  # error of a forecast at shots held out from which it is called rough; not tuned


@dataclass(frozen=True)
class Gains:
    """What more examples, other features or correct labels would bring."""

    forecasts: dict[str, Forecast]
    """By head, where the shots allow one."""
    other_features: OtherFeatures | None
    """What the network that comes with anyshot would bring, where another one was used and is not accurate."""
    labels_first: bool
    """Whether so many labels are doubtful that nothing else can be concluded from the accuracy."""
    features_are_the_limit: bool
    """Whether accuracy is low and more examples would hardly help."""
    next_step: str
    """What to do next, in a sentence; empty where nothing stands out."""
    section: Section


def expect_gains(case: AdviceCase) -> Gains:
    """Forecast the gain of more examples, and weigh it against other features and wrong labels."""
    best, accuracy = case.result(compare_heads).best, case.result(measure_accuracy)
    forecasts = case.result(forecast_all)
    forecast = forecasts.get(best)
    doubling = None if forecast is None else forecast.gain[-1]
    labels = _doubt_labels(case, accuracy)
    other = case.options["other_features"](best, accuracy.accuracy) if "other_features" in case.options else None
    # Where only the examples held out are hard, those at hand are too much alike, and others would help.
    is_low = max(accuracy.accuracy, accuracy.left_out.accuracy) < LOW_ACCURACY
    is_flat = doubling is not None and doubling < FLAT * (1 - accuracy.accuracy)
    is_limit = is_low and is_flat and not labels
    features = labels or _describe_features(other, is_limit, accuracy.accuracy, doubling)
    sentences = [text for text in (features, _describe_other_days(accuracy, doubling)) if text]
    next_step = sentences[0] if sentences else ""
    tables: list[Table] = []
    if forecast is None:
        sentences.append("The examples are too few to say: see below.")
    else:
        more, tables = _describe_forecast(case, best, forecast)
        sentences += more
        if not next_step:
            next_step = (
                f"Twice the examples are expected to bring {100 * forecast.gain[-1]:+.1f} points "
                f"({100 * forecast.low[-1]:+.1f} to {100 * forecast.high[-1]:+.1f})."
            )
    section = Section("What more examples would bring", sentences, tables, _doubt_forecast(case, forecast))
    return Gains(forecasts, other, bool(labels), is_limit, next_step, section)


def forecast_all(case: AdviceCase) -> dict[str, Forecast]:
    """Forecast the gains of every head."""
    curves = case.result(measure_curves)
    pool, steps = curves.source.pool, np.array(curves.source.shots)
    more = tuple(sorted({step for step in MORE if step < pool.images} | {pool.images}))
    found = {
        head: forecast_gains(steps, a, pool.images, more, pool, case.seed) for head, a in curves.accuracies.items()
    }
    return {head: forecast for head, forecast in found.items() if forecast is not None}


def _doubt_labels(case: AdviceCase, accuracy: Accuracy) -> str:
    """Return that labels are to be looked at first, where conflicts or suspects explain much of the errors."""
    conflicts, suspects = case.result(find_duplicates).conflicts, len(case.result(find_label_errors).suspects)
    errors = (1 - accuracy.left_out.accuracy) * len(case.labels)
    if not conflicts and (suspects < SUSPECT_SHARE * errors or accuracy.left_out.accuracy >= LOW_ACCURACY):
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


def _describe_features(other: OtherFeatures | None, is_limit: bool, accuracy: float, doubling: float | None) -> str:
    """Return whether better features would bring more than more labels."""
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
        return (
            f"Better features, not more labels: at {accuracy:.1%} the curve is flat, and twice the examples would "
            f"bring {100 * (doubling or 0.0):+.1f} points. Try a stronger network, --model timm:NAME."
        )
    return ""


def _describe_other_days(accuracy: Accuracy, doubling: float | None) -> str:
    """Return whether the examples at hand are too much alike to learn more from further ones of their kind."""
    harder = accuracy.left_out.alone - accuracy.accuracy
    if accuracy.holdout is None or harder < HARDER or harder < 2 * (doubling or 0.0):
        return ""
    return (
        f"Examples of other days rather than more like these: of those at hand {accuracy.left_out.alone:.1%} are "
        f"found, of those held out {accuracy.accuracy:.1%}."
    )


def _describe_forecast(case: AdviceCase, best: str, forecast: Forecast) -> tuple[list[str], list[Table]]:
    is_at_hand = case.result(measure_curves).source.judged_on == "at hand"
    sentences = [
        f"With about {forecast.now} examples per class {best} should reach {forecast.accuracy:.1%} on "
        f"{'examples of the same kind' if is_at_hand else 'examples like those held out'}; further ones per class, of "
        "the kind at hand and up to twice as many, are expected to bring so many points:"
    ]
    if forecast.held_out:
        checks = (f"{fit:.1%} at {shot} shots ({measured:.1%} measured)" for shot, fit, measured in forecast.held_out)
        sentences.append(f"The check: fitted without the larger shots, the same curve says {', '.join(checks)}.")
    rows = [
        [f"+{more}", f"{100 * gain:+.1f}", f"{100 * low:+.1f} to {100 * high:+.1f}"]
        for more, gain, low, high in zip(forecast.more, forecast.gain, forecast.low, forecast.high, strict=True)
    ]
    return sentences, [Table("", ["examples more", "points", "95 % interval"], rows)]


def _doubt_forecast(case: AdviceCase, forecast: Forecast | None) -> list[str]:
    if forecast is None:
        choice = case.result(compare_heads)
        smallest = int(np.argmin(choice.counts))
        return [
            f"Class {choice.class_names[smallest]} has {choice.counts[smallest]} examples, so only shots "
            f"{choice.shots[0]} to {choice.shots[-1]} can be measured: too few to say what more examples would bring "
            f"({LEAST_SHOTS} different shots needed)."
        ]
    if not forecast.held_out:
        return ["There are too few shots to hold any out: the expected gains are not checked."]
    if forecast.error > max(ROUGH, *forecast.gain):
        return [
            f"At held-out shots the extrapolation was off by {forecast.error:.1%}, more than the gains it expects: "
            "take them as rough."
        ]
    return []
