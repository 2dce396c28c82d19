"""The pages of `advise` and `test`: one file each that needs no network, in the design of the report.

On the pages of `advise` a person decides on examples; a script makes a table of the decisions, which can be downloaded.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Any

import altair as alt
import vl_convert
from markupsafe import Markup

from anyshot.inspect.advice import Advice
from anyshot.inspect.holdout import HoldoutResult
from anyshot.inspect.unlabelled import RankedExample, describe_ranking
from anyshot.show.figures import BLACK, BLUE, GREEN, ORANGE, PINK, apply_theme, inline_data
from anyshot.show.pages import fill_template
from anyshot.text import count_noun

Jpegs = Mapping[int, bytes]


def render_advice(advice: Advice, jpegs: Jpegs | None = None, source: str = "SOURCE") -> str:
    """Return the page of advice.

    Args:
        advice: The advice.
        jpegs: Small JPEGs of `advice.pictures`, by the number of the example.
        source: The path of the examples, for the command that applies corrections.
    """
    facts = [
        (f"{advice.accuracy:.1%}", "held out" if advice.holdout else "left out"),
        (advice.best, "head"),
        (f"{sum(row['examples'] for row in advice.classes)}", f"examples of {len(advice.classes)} classes"),
        (str(len(advice.suspects)), "labels that may be wrong"),
        (str(advice.conflicts), "copies under two labels"),
    ]
    command = f"`anyshot fit {quote(source)} --corrections corrections.csv --out CLASSIFIER`"
    return _render(
        jpegs or {},
        title="Advice",
        kind="advice",
        headline=advice.headline,
        facts=facts,
        sections=advice.sections,
        figure=Markup(draw_curves(advice)),
        review={
            "kind": "corrections",
            "command": command,
            "classes": [row["class"] for row in advice.classes],
            "hint": "With a click you keep, correct or drop each label that may be wrong and each copy.",
        },
    )


def render_ranking(
    ranking: Sequence[RankedExample],
    names: Sequence[str],
    classes: Sequence[str],
    jpegs: Jpegs,
    source: str,
    *,
    is_features: bool = False,
) -> str:
    """Return the page of unlabelled examples that are to be labelled next.

    Args:
        ranking: The ranking.
        names: The names of all unlabelled examples.
        classes: The names of the classes.
        jpegs: Small JPEGs of the examples, by their numbers.
        source: The path of the unlabelled examples, for the command that adds them.
        is_features: Whether it is a file of features, which no table of paths and labels can name.
    """
    command = f"`anyshot add CLASSIFIER labels.csv --root {quote(source)}`"
    if is_features:
        command = f"write these labels into {source}, and learn it: `anyshot add CLASSIFIER {quote(source)}`"
    headline = f"All {count_noun(len(names), 'example')}: those come first whose labels should help most."
    if len(ranking) < len(names):
        headline = f"Of {len(names)} examples, labels of these {len(ranking)} should help most, the first ones first."
    return _render(
        jpegs,
        title="What to label next",
        kind="advice",
        headline=headline,
        sections=[describe_ranking(ranking, names)],
        review={
            "kind": "labels",
            "command": command,
            "classes": classes,
            "hint": "With a click you say what each one is; what is none of your classes is left out of the labels.",
        },
    )


def render_test(result: HoldoutResult, jpegs: Jpegs, title: str) -> str:
    """Return the page of a test.

    Args:
        result: What the test found.
        jpegs: Small JPEGs of mistakes, by their place.
        title: The title of the page.
    """
    facts = [
        (f"{result.accuracy[0]:.1%}", "right"),
        (f"{result.right_and_accepted:.1%}", "right and accepted"),
        (f"{result.accepted:.1%}", "taken for one of the classes"),
        (f"{result.calibration_error:.1%}", "calibration error"),
        (str(len(result.mistakes)), "mistakes"),
    ]
    return _render(jpegs, title=title, kind="test", headline=result.sentences[0], facts=facts, sections=result.sections)


def _render(jpegs: Jpegs, **values: Any) -> str:
    """Fill the template of both pages, with pictures, style and script inside."""
    css = files("anyshot.report").joinpath("page.css").read_text(encoding="utf-8")
    script = Path(__file__).with_name("review.js").read_text(encoding="utf-8")
    if review := values.get("review"):
        cells = [row for section in values["sections"] for table in section.tables for row in table.rows]
        review["page"] = sha256(repr((review, cells)).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    pictures = {place: b64encode(jpeg).decode() for place, jpeg in jpegs.items()}
    defaults: dict[str, Any] = {"facts": [], "figure": "", "review": None, "css": Markup(css), "script": Markup(script)}
    return fill_template(Path(__file__).with_name("page.html"), pictures=pictures, **defaults | values)


def draw_curves(advice: Advice) -> str:
    """Return an SVG of accuracy by shot with intervals; the forecast of the best head continues its curve, dashed."""
    rows = [{"head": head, **row} for head, curve in advice.curves.items() for row in curve]
    forecast = list_forecast_points(advice)
    most = max(row["shot"] for row in [*rows, *forecast])
    axis = alt.Axis(values=[2**power for power in range(most.bit_length())], format="d")
    x = alt.X("shot:Q", title="examples per class (shot)", scale=alt.Scale(type="log", base=2), axis=axis)
    y = alt.Y("accuracy:Q", title="accuracy", axis=alt.Axis(format="%"), scale=alt.Scale(zero=False))
    colours = alt.Scale(domain=list(advice.curves), range=[BLUE, ORANGE, GREEN, PINK, BLACK])
    # Browsers and the renderer measure text differently: a legend above the chart has room for either.
    legend = alt.Legend(orient="top", title=None, labelLimit=0, symbolType="stroke", symbolOpacity=1, columnPadding=30)
    colour = alt.Color("head:N", scale=colours, legend=legend)
    measured = alt.Chart(inline_data(rows)).encode(x=x, color=colour)
    layers: list[alt.Chart] = [
        measured.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title="accuracy"), y2="high:Q"),
        measured.mark_line(point=True).encode(y=y),
    ]
    if forecast:
        future = alt.Chart(inline_data(forecast)).encode(x=x, color=colour)
        layers += [
            future.mark_area(opacity=0.1).encode(y="low:Q", y2="high:Q"),
            future.mark_line(strokeDash=[5, 4], point=alt.OverlayMarkDef(filled=False, fill="white")).encode(y=y),
        ]
    return vl_convert.vegalite_to_svg(apply_theme(alt.layer(*layers).properties(width=620, height=300)).to_json())


def list_forecast_points(advice: Advice) -> list[dict[str, Any]]:
    """Return the points of the forecast, from the last measured one on."""
    forecast = advice.forecasts.get(advice.best)
    if forecast is None:
        return []
    now, last = forecast.accuracy, advice.curves[advice.best][-1]
    half = (last["high"] - last["low"]) / 2
    rows = [last] if last["shot"] < forecast.now else []
    rows.append({"shot": forecast.now, "accuracy": now, "low": now - half, "high": min(now + half, 1)})
    for more, gain, low, high in zip(forecast.more, forecast.gain, forecast.low, forecast.high, strict=True):
        interval = {"low": now - half + low, "high": min(now + half + high, 1)}
        rows.append({"shot": forecast.now + more, "accuracy": now + gain, **interval})
    return [{"head": advice.best, **row} for row in rows]
