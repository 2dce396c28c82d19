"""Advice in words: for the terminal, as Markdown, and as a page that stands alone. Nothing here imports torch."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import altair as alt
import vl_convert

from anyshot.data.doctor import spread
from anyshot.show.figures import BLACK, BLUE, GREEN, ORANGE, PINK, finish, inline

if TYPE_CHECKING:
    from anyshot.deploy.advice import Advice

MOST = 10  # rows of a list; all are in the JSON
STYLE = """
:root { color-scheme: light; font: 16px/1.55 system-ui, sans-serif; }
body { max-width: 54rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid #ddd; }
td { font-variant-numeric: tabular-nums; }
.doubt { border-left: 4px solid #D55E00; padding-left: .8rem; }
svg { max-width: 100%; height: auto; }
"""
Table = tuple[Sequence[str], list[Sequence[str]]]
Part = tuple[str, list[str], Table | None]
"""A heading, paragraphs, and a table."""


def parts(advice: "Advice", images: Sequence[str] | None = None) -> list[Part]:
    """The whole advice, for whatever form it takes. `images` has the names of the images."""
    names = images or []

    def image(index: int) -> str:
        return names[index] if index < len(names) else f"example {index}"

    return [
        ("Which head", _head_words(advice), _curve_table(advice)),
        ("What more examples would bring", *_gains(advice)),
        ("Where to add examples first", *_classes(advice)),
        ("What is confused", *_confused(advice)),
        ("What looks wrong", *_wrong(advice, image)),
        (
            "What these data cannot say",
            advice.doubts or ["Nothing: there are enough examples for all of the above."],
            None,
        ),
    ]


def _head_words(advice: "Advice") -> list[str]:
    shots = ", ".join(map(str, advice.expected_shots))
    seen = (
        f"({advice.way} classes at once, {sum(advice.counts)} examples, "
        f"{spread(min(advice.counts), max(advice.counts))} per class)"
    )
    if not advice.lead:
        return [f"Only {advice.best} was asked for; what follows is of it {seen}."]
    words = [f"Use {advice.best}: it is the most accurate over {shots} shots {seen}."]
    for name, (lead, half) in advice.lead.items():
        sure = "ahead of" if lead > half else "not surely better than"
        far = f"{100 * lead:+.1f} points, give or take {100 * half:.1f}" if half < 0.5 else "too few examples to tell"
        words.append(f"It is {sure} {name}: {far}.")
    if advice.robust == advice.best:
        words.append(
            "It is also the most robust: its worst shortfall from the best at any of these shots is the smallest."
        )
    else:
        words.append(f"The most robust is {advice.robust}: its worst shortfall at any of these shots is the smallest.")
    return words


def _curve_table(advice: "Advice") -> Table:
    rows: list[Sequence[str]] = []
    for name, curve in advice.curves.items():
        rows.append([name, *(f"{100 * row['accuracy']:.1f} ± {50 * (row['high'] - row['low']):.1f}" for row in curve)])
    return ["accuracy at shot", *map(str, advice.shots)], rows


def _gains(advice: "Advice") -> tuple[list[str], Table | None]:
    forecast = advice.forecasts.get(advice.best)
    if forecast is None:
        return ["The examples are too few to say: see below."], None
    rows: list[Sequence[str]] = [
        [f"+{more}", f"{100 * gain:+.1f}", f"{100 * low:+.1f} to {100 * high:+.1f}"]
        for more, gain, low, high in zip(forecast.more, forecast.gain, forecast.low, forecast.high, strict=True)
    ]
    words = [
        f"With about {forecast.now} examples per class {advice.best} should reach {forecast.accuracy:.1%}; further "
        "examples per class are expected to bring so many points:"
    ]
    if forecast.held_out:
        held_out = (f"{fit:.1%} at {shot} shots ({measured:.1%} measured)" for shot, fit, measured in forecast.held_out)
        words.append(f"The check: fitted without the larger shots, the same curve says {', '.join(held_out)}.")
    return words, (["examples more", "points", "95 % interval"], rows)


def _classes(advice: "Advice") -> tuple[list[str], Table | None]:
    rows: list[Sequence[str]] = [
        [row["class"], str(row["examples"]), "-" if row["recall"] is None else f"{row['recall']:.0%}",
         f"{100 * row['last_doubling']:+.1f}"]
        for row in advice.classes[:MOST]
    ]  # fmt: skip
    half = [shot for shot in advice.shots if shot <= advice.shots[-1] / 2] or advice.shots[:1]
    words = f"Classes by what going from {half[-1]} to {advice.shots[-1]} shots brought them; the first profit most."
    return [words], (["class", "examples", "found when left out", "points gained"], rows)


def _confused(advice: "Advice") -> tuple[list[str], Table | None]:
    if not advice.confused:
        return ["Left out, every example is found in its own class."], None
    rows: list[Sequence[str]] = [[c["class"], c["taken_for"], f"{c['share']:.0%}"] for c in advice.confused]
    return [], (["class", "taken for", "of its examples"], rows)


def _wrong(advice: "Advice", image: Any) -> tuple[list[str], Table | None]:
    words = [
        f"{' and '.join(pair['classes'])} are hardly told apart ({pair['told_apart']:.0%}): are they one class?"
        for pair in advice.same_class[:MOST]
    ]
    words += [f"{image(one)} and {image(other)} look like the same example." for one, other in advice.duplicates[:MOST]]
    if len(advice.duplicates) > MOST:
        words.append(f"{len(advice.duplicates) - MOST} more pairs look alike.")
    if not advice.mislabelled:
        return words or ["Nothing."], None
    rows: list[Sequence[str]] = [
        [image(one["image"]), one["label"], one["looks_like"], f"{one['probability']:.0%}"]
        for one in advice.mislabelled[:MOST]
    ]
    words.append(f"{len(advice.mislabelled)} examples may have the wrong label; the likeliest:")
    return words, (["example", "label", "looks like", "probability"], rows)


# ---------------------------------------------------------------------------------------------------------------- forms


def as_text(advice: "Advice", images: Sequence[str] | None = None) -> str:
    """For the terminal."""
    lines: list[str] = []
    for title, words, table in parts(advice, images):
        lines += [title, *(f"  {sentence}" for sentence in words)]
        if table:
            rows = [table[0], *table[1]]
            widths = [max(len(row[place]) for row in rows) for place in range(len(table[0]))]
            lines += ["    " + "  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
        lines.append("")
    return "\n".join(lines).rstrip()


def as_markdown(advice: "Advice", images: Sequence[str] | None = None) -> str:
    """Advice as a Markdown page."""
    lines = ["# Advice", ""]
    for title, words, table in parts(advice, images):
        lines += [f"## {title}", "", *(line for sentence in words for line in (_markdown(sentence), ""))]
        if table:
            rule = "|".join("---" for _ in table[0])
            lines += [_row(table[0]), f"|{rule}|", *(_row(row) for row in table[1]), ""]
    return "\n".join(lines)


def as_html(advice: "Advice", images: Sequence[str] | None = None) -> str:
    """A page of its own: words, tables, the curves as SVG; no script."""
    body = ["<h1>Advice</h1>", curves_svg(advice)]
    for title, words, table in parts(advice, images):
        kind = ' class="doubt"' if words is advice.doubts else ""
        body.append(f"<h2>{escape(title)}</h2>" + "".join(f"<p{kind}>{escape(sentence)}</p>" for sentence in words))
        if table:
            head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table[0])
            rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table[1])
            body.append(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>anyshot: advice</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>{''.join(body)}</body></html>\n"
    )


def curves(advice: "Advice") -> alt.LayerChart:
    """Accuracy by shot with intervals, and the forecast of the advised head, dashed."""
    rows = [{"head": name, **row} for name, curve in advice.curves.items() for row in curve]
    x = alt.X("shot:Q", title="shot", scale=alt.Scale(type="log", base=2))
    scale = alt.Scale(domain=list(advice.curves), range=[BLUE, ORANGE, GREEN, PINK, BLACK])
    colour = alt.Color("head:N", scale=scale, legend=alt.Legend(symbolOpacity=1))
    y = alt.Y("accuracy:Q", title="accuracy", axis=alt.Axis(format="%"), scale=alt.Scale(zero=False))
    base = alt.Chart(inline(rows)).encode(x=x, color=colour)
    layers = [
        base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title="accuracy"), y2="high:Q"),
        base.mark_line(point=True).encode(y=y),
    ]
    forecast = advice.forecasts.get(advice.best)
    if forecast is not None:
        now = forecast.accuracy
        ahead = [{"head": advice.best, "shot": forecast.now, "accuracy": now, "low": now, "high": now}]
        for more, gain, low, high in zip(forecast.more, forecast.gain, forecast.low, forecast.high, strict=True):
            point = {"accuracy": now + gain, "low": now + low, "high": min(now + high, 1)}
            ahead.append({"head": advice.best, "shot": forecast.now + more, **point})
        future = alt.Chart(inline(ahead)).encode(x=x, color=colour)
        layers += [
            future.mark_line(strokeDash=[5, 4]).encode(y=y),
            future.mark_area(opacity=0.1).encode(y="low:Q", y2="high:Q"),
        ]
    return finish(alt.layer(*layers).properties(width=560, height=300))


def curves_svg(advice: "Advice") -> str:
    """The curves of accuracy by shot, drawn as SVG."""
    return vl_convert.vegalite_to_svg(curves(advice).to_json())


def _markdown(sentence: str) -> str:
    return "".join(f"\\{c}" if c in "\\`*_[]<>|" else c for c in sentence)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_markdown(cell).replace("\n", " ") for cell in cells) + " |"
