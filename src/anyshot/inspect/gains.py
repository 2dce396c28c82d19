"""Step: what would bring most: correct labels, other features, photos of other days, or more examples."""

from typing import Any

import numpy as np

from anyshot.inspect.case import AdviceCase, OtherFeatures
from anyshot.inspect.curves import EpisodeSource
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
    other = case.options["other_features"](best, accuracy) if "other_features" in case.options else None
    # Where only the examples held out are hard, those at hand are too much alike, and others would help.
    is_low = max(accuracy, left_out.accuracy) < LOW_ACCURACY
    is_flat = doubling is not None and doubling < FLAT * (1 - accuracy)
    is_limit = is_low and is_flat and not labels
    sentences = [labels or _describe_features(other, is_limit, accuracy, doubling)]
    harder = left_out.accuracy - accuracy
    if values["holdout"] is not None and harder >= max(HARDER, 2 * (doubling or 0.0)):
        sentences.append(
            f"Examples of other days rather than more like these: {left_out.accuracy:.1%} of those at hand are "
            f"recognised, and {accuracy:.1%} of those held out."
        )
    sentences = [text for text in sentences if text]
    next_step = sentences[0] if sentences else ""
    tables: list[Table] = []
    if forecast is None:
        sentences.append("The examples are too few to say: see below.")
    else:
        more, tables = _describe_forecast(best, forecast, is_at_hand=source.judged_on == "at hand")
        sentences += more
        points = f"{tables[0].rows[-1][1]} points ({tables[0].rows[-1][2]})"
        next_step = next_step or f"Twice the examples are expected to bring {points}."
    gains = {
        "forecasts": forecasts,
        "other_features": other,
        "labels_first": bool(labels),
        "features_are_the_limit": is_limit,
        "next_step": next_step,
    }
    return Section("What more examples would bring", sentences, tables, _doubt_forecast(values, forecast), gains)


def _forecast_all(source: EpisodeSource, accuracies: dict[str, np.ndarray], seed: int) -> dict[str, Forecast]:
    pool, steps = source.pool, np.array(source.shots)
    more = tuple(sorted({step for step in MORE if step < pool.images} | {pool.images}))
    forecasts = {head: forecast_gains(steps, a, pool.images, more, pool, seed) for head, a in accuracies.items()}
    return {head: forecast for head, forecast in forecasts.items() if forecast is not None}


def _doubt_labels(values: dict[str, Any], examples: int) -> str:
    """Return that labels are to be looked at first, where conflicts or suspects explain much of the errors."""
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


def _describe_forecast(best: str, forecast: Forecast, *, is_at_hand: bool) -> tuple[list[str], list[Table]]:
    sentences = [
        f"With about {forecast.now} examples per class {best} should reach {forecast.accuracy:.1%} on "
        f"{'examples of the same kind' if is_at_hand else 'examples like those held out'}. More examples of the kind "
        "at hand, up to twice as many, are expected to bring these points:"
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
