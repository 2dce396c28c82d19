"""Advice in words: for the terminal, as Markdown, and as a page that stands alone. Nothing here imports torch."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import altair as alt
import vl_convert
from markupsafe import Markup

from anyshot.show.figures import BLACK, BLUE, GREEN, ORANGE, PINK, apply_theme, inline_data
from anyshot.show.pages import fill_template
from anyshot.text import format_range

if TYPE_CHECKING:
    from anyshot.inspect.advice import Advice

MOST = 10  # rows of a list about classes; all are in the JSON
MOST_IMAGES = 40  # and about images
MOST_PRINTED = 20  # of these, in a terminal
HARDER = 0.05  # accuracy that is lost on examples held out, from which photos of other days are asked for


class Picture(NamedTuple):
    """An image in a table: shown where it can be, named elsewhere."""

    image: int
    name: str


Cell = str | Picture


class Table(NamedTuple):
    """A heading, the names of the columns, and rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


class Part(NamedTuple):
    """A heading, paragraphs, and tables."""

    title: str
    words: Sequence[str]
    tables: Sequence[Table] = ()
    is_doubt: bool = False


def parts(advice: "Advice") -> list[Part]:
    """The whole advice, for whatever form it takes."""
    return [
        _accuracy(advice),
        Part("Which head", _head_words(advice), [_curve_table(advice)]),
        _gains(advice),
        _classes(advice),
        _confused(advice),
        _suspects(advice),
        _copies(advice),
        Part("What these data cannot say", [*advice.doubts, _unseen(advice)], is_doubt=True),
    ]


def _unseen(advice: "Advice") -> str:
    """What no examples of the past can say, and which of them said the rest."""
    test = advice.holdout
    if test is None:
        return (
            "All of this is of the examples at hand. How much harder those of other days, places and sources are they "
            "cannot say: --holdout FOLDER can."
        )
    _, low, high = test.accuracy
    return (
        f"{test.examples} examples held out tell the accuracy to about {50 * (high - low):.0f} points, for others like "
        "these. Labels that may be wrong, copies and classes that may be one are looked for among the examples at hand."
    )


def shown_images(advice: "Advice") -> list[int]:
    """The images that a page shows, by their numbers."""
    cells = (cell for part in parts(advice) for table in part.tables for row in table.rows for cell in row)
    return sorted({cell.image for cell in cells if isinstance(cell, Picture)})


def _accuracy(advice: "Advice") -> Part:
    words = [advice.left_out.words]
    test = advice.holdout
    if test is None:
        return Part("How accurate it is", [*words, "Name such examples, --holdout FOLDER, to know how much harder."])
    rate, low, high = test.accuracy
    words.append(
        f"On the {test.examples} examples that were held out, {advice.best} is right on {rate:.1%} "
        f"({low:.1%} to {high:.1%}): that is the accuracy to expect. Expected calibration error "
        f"{test.calibration_error:.1%}; {test.acceptance}"
    )
    if test.strangers:
        words.append(
            f"{test.strangers} examples of other classes are not counted; {test.strangers_rejected:.1%} of these are "
            "called none of the classes."
        )
    if test.absent:
        some = ", ".join(test.absent[:5]) + (" and more" if len(test.absent) > 5 else "")
        words.append(f"Not tested, for want of examples: {some}.")
    heads: list[Sequence[Cell]] = [
        [name, f"{accuracy:.1%}"]
        for name, accuracy in sorted(advice.holdout_accuracies.items(), key=lambda head: -head[1])
    ]
    worst = sorted(test.classes, key=lambda one: (one.recall[0], one.name))[:MOST]
    classes: list[Sequence[Cell]] = [
        [
            one.name,
            f"{one.right} of {one.examples}",
            f"{one.recall[1]:.0%} to {one.recall[2]:.0%}",
            ", ".join(f"{name} {times}" for name, times in one.taken_for[:2]) or "-",
        ]
        for one in worst
    ]
    tables = [Table("Every head on the examples held out", ["head", "accuracy"], heads)] if len(heads) > 1 else []
    columns = ["class", "right", "95 % interval", "mostly taken for"]
    return Part("How accurate it is", words, [*tables, Table("Recognised least, held out", columns, classes)])


_JUDGED = {
    "held out": "learned from the examples at hand, asked of those held out",
    "in bursts": "of the examples at hand, bursts drawn whole",
    "at hand": "of the examples at hand",
}


def _judged(advice: "Advice") -> str:
    if advice.judged_on == "at hand" and advice.left_out.in_bursts is not None:
        return "in bursts"
    return advice.judged_on


def _head_words(advice: "Advice") -> list[str]:
    shots = ", ".join(map(str, advice.expected_shots))
    seen = (
        f"({advice.way} classes at once, {sum(advice.counts)} examples, "
        f"{format_range(min(advice.counts), max(advice.counts))} per class; {_JUDGED[_judged(advice)]})"
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
    rows: list[Sequence[Cell]] = []
    for name, curve in advice.curves.items():
        rows.append([name, *(f"{100 * row['accuracy']:.1f} ± {50 * (row['high'] - row['low']):.1f}" for row in curve)])
    return Table("", ["accuracy at shot", *map(str, advice.shots)], rows)


def _gains(advice: "Advice") -> Part:
    title = "What more examples would bring"
    words = [*_features_words(advice), *_other_days_words(advice)]
    forecast = advice.forecasts.get(advice.best)
    if forecast is None:
        return Part(title, [*words, "The examples are too few to say: see below."])
    rows: list[Sequence[Cell]] = [
        [f"+{more}", f"{100 * gain:+.1f}", f"{100 * low:+.1f} to {100 * high:+.1f}"]
        for more, gain, low, high in zip(forecast.more, forecast.gain, forecast.low, forecast.high, strict=True)
    ]
    kind = "examples of the same kind" if advice.judged_on == "at hand" else "examples like those held out"
    words.append(
        f"With about {forecast.now} examples per class {advice.best} should reach {forecast.accuracy:.1%} on {kind}; "
        "further ones per class, of the kind at hand and up to twice as many, are expected to bring so many points:"
    )
    if forecast.held_out:
        held_out = (f"{fit:.1%} at {shot} shots ({measured:.1%} measured)" for shot, fit, measured in forecast.held_out)
        words.append(f"The check: fitted without the larger shots, the same curve says {', '.join(held_out)}.")
    return Part(title, words, [Table("", ["examples more", "points", "95 % interval"], rows)])


def _other_days_words(advice: "Advice") -> list[str]:
    """Whether the examples at hand are too much alike to learn more from further ones of their kind."""
    harder = advice.left_out.alone - advice.accuracy
    if advice.holdout is None or harder < HARDER or harder < 2 * (advice.doubling or 0.0):
        return []
    return [
        f"Photos of other days rather than more like these: of those at hand {advice.left_out.alone:.1%} are found, "
        f"of those held out {advice.accuracy:.1%}."
    ]


def _features_words(advice: "Advice") -> list[str]:
    """Whether better features would bring more than more labels."""
    other, doubling = advice.other_features, advice.doubling
    if other is not None:
        far, sample = (
            100 * (other.other - other.own),
            f"{other.way} classes, {other.shot} shots, {other.examples} examples",
        )
        twice = "" if doubling is None else f"; twice the examples would bring {100 * doubling:+.1f}"
        if other.other - other.own > max(doubling or 0.0, 0.01):
            return [
                f"Better features, not more labels: on a sample ({sample}) {other.backbone} is right on "
                f"{other.other:.1%} where these features are on {other.own:.1%}, {far:+.1f} points{twice}. Name "
                f"--model {other.backbone}, or none."
            ]
        return [
            f"Other features would not bring more: on a sample ({sample}) {other.backbone} is right on "
            f"{other.other:.1%}, these features on {other.own:.1%}{twice}."
        ]
    if advice.features_are_the_limit:
        return [
            f"Better features, not more labels: at {advice.accuracy:.1%} the curve is flat, and twice the examples "
            f"would bring {100 * (doubling or 0.0):+.1f} points. Try a stronger network, --model timm:NAME."
        ]
    return []


def _classes(advice: "Advice") -> Part:
    rows: list[Sequence[Cell]] = [
        [row["class"], str(row["examples"]), "-" if row["recall"] is None else f"{row['recall']:.0%}",
         f"{row['probability']:.0%}", row["judged_on"]]
        for row in advice.classes[:MOST]
    ]  # fmt: skip
    which = "examples held out" if advice.holdout else "own examples, left out,"
    words = f"Classes by how little their {which} are taken for them, and how few they have; the first profit most."
    columns = ["class", "examples", "found", "probability", "judged on examples"]
    return Part("Where to add examples first", [words], [Table("", columns, rows)])


def _confused(advice: "Advice") -> Part:
    words = [
        f"{' and '.join(pair['classes'])} are hardly told apart ({pair['told_apart']:.0%}, of the examples at hand): "
        "are they one class?"
        for pair in advice.same_class[:MOST]
    ]
    if not advice.confused:
        which = "Held out" if advice.holdout else "Left out"
        return Part("What is confused", [*words, f"{which}, every example is found in its own class."])
    rows: list[Sequence[Cell]] = [[c["class"], c["taken_for"], f"{c['share']:.0%}"] for c in advice.confused]
    of = "of its examples held out" if advice.holdout else "of its examples"
    return Part("What is confused", words, [Table("", ["class", "taken for", of], rows)])


def _suspects(advice: "Advice") -> Part:
    title = "Labels that may be wrong"
    if not advice.unlikely and not advice.mislabelled:
        return Part(title, ["None."])
    tables = [
        Table(
            f"Least likely under their own label ({len(advice.unlikely)})",
            ["example", "label", "probability of it", "looks like"],
            [
                [_picture(one), one["label"], f"{one['own_probability']:.1g}", one["looks_like"]]
                for one in advice.unlikely[:MOST_IMAGES]
            ],
        ),
        Table(
            f"Most likely of another class ({len(advice.mislabelled)})",
            ["example", "label", "looks like", "probability"],
            [
                [_picture(one), one["label"], one["looks_like"], f"{one['probability']:.0%}"]
                for one in advice.mislabelled[:MOST_IMAGES]
            ],
        ),
    ]
    words = (
        "Two rankings: the first finds labels mixed up at random, the second those confused with a class that looks "
        "alike. Look at them from the top, until they are right."
    )
    return Part(title, [words], [table for table in tables if table.rows])


def _copies(advice: "Advice") -> Part:
    title = "The same example twice"
    if not advice.duplicates:
        return Part(title, ["No example is found twice."])
    conflicts = sum(row["conflict"] for row in advice.duplicates)
    pairs = (
        "1 pair of examples is" if len(advice.duplicates) == 1 else f"{len(advice.duplicates)} pairs of examples are"
    )
    words = [f"{pairs} one, or of pictures a copy (cropped, turned, brighter) or the same scene a moment later."]
    if conflicts:
        have = "has" if conflicts == 1 else "have"
        words.append(f"{conflicts} of them {have} two labels: a conflict, one of the two is wrong.")
    rows: list[Sequence[Cell]] = [
        [
            _picture(row["one"]),
            _picture(row["other"]),
            f"{row['one']['label']} or {row['other']['label']}?" if row["conflict"] else row["one"]["label"],
            f"{row['likeness']:.0%}",
        ]
        for row in advice.duplicates[:MOST_IMAGES]
    ]
    return Part(title, words, [Table("", ["one", "other", "label", "alike"], rows)])


def _picture(row: dict[str, Any]) -> Picture:
    return Picture(row["image"], row["name"])


# ---------------------------------------------------------------------------------------------------------------- forms


def as_text(advice: "Advice") -> str:
    """For the terminal."""
    lines: list[str] = []
    for part in parts(advice):
        lines += [part.title, *(f"  {sentence}" for sentence in part.words)]
        for table in part.tables:
            rows = [table.columns, *(_plain(row) for row in table.rows[:MOST_PRINTED])]
            widths = [max(len(row[place]) for row in rows) for place in range(len(table.columns))]
            lines += [f"  {table.title}"] if table.title else []
            lines += ["    " + "  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
            if len(table.rows) > MOST_PRINTED:
                lines.append("    ... more on the page (--out FOLDER)")
        lines.append("")
    return "\n".join(lines).rstrip()


def as_markdown(advice: "Advice") -> str:
    """Advice as a Markdown page."""
    lines = ["# Advice", ""]
    for part in parts(advice):
        lines += [f"## {part.title}", "", *(line for sentence in part.words for line in (_markdown(sentence), ""))]
        for table in part.tables:
            rule = "|".join("---" for _ in table.columns)
            lines += [f"{_markdown(table.title)}:", ""] if table.title else []
            lines += [_row(table.columns), f"|{rule}|", *(_row(_plain(row)) for row in table.rows), ""]
    return "\n".join(lines)


def as_html(advice: "Advice", pictures: Mapping[int, bytes] | None = None) -> str:
    """A page of its own: words, tables, the curves as SVG; no script. `pictures` has small JPEGs of images."""
    encoded = {image: base64.b64encode(jpeg).decode() for image, jpeg in (pictures or {}).items()}
    drawn = Markup(curves_svg(advice))
    return (
        fill_template(Path(__file__).with_name("advice.html"), parts=parts(advice), pictures=encoded, curves=drawn)
        + "\n"
    )


def _plain(row: Sequence[Cell]) -> list[str]:
    return [cell if isinstance(cell, str) else cell.name for cell in row]


def curves(advice: "Advice") -> alt.LayerChart:
    """Accuracy by shot with intervals, and the forecast of the advised head, dashed."""
    rows = [{"head": name, **row} for name, curve in advice.curves.items() for row in curve]
    x = alt.X("shot:Q", title="shot", scale=alt.Scale(type="log", base=2))
    scale = alt.Scale(domain=list(advice.curves), range=[BLUE, ORANGE, GREEN, PINK, BLACK])
    colour = alt.Color("head:N", scale=scale, legend=alt.Legend(symbolOpacity=1))
    y = alt.Y("accuracy:Q", title="accuracy", axis=alt.Axis(format="%"), scale=alt.Scale(zero=False))
    base = alt.Chart(inline_data(rows)).encode(x=x, color=colour)
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
        future = alt.Chart(inline_data(ahead)).encode(x=x, color=colour)
        layers += [
            future.mark_line(strokeDash=[5, 4]).encode(y=y),
            future.mark_area(opacity=0.1).encode(y="low:Q", y2="high:Q"),
        ]
    return apply_theme(alt.layer(*layers).properties(width=560, height=300))


def curves_svg(advice: "Advice") -> str:
    """The curves of accuracy by shot, drawn as SVG."""
    return vl_convert.vegalite_to_svg(curves(advice).to_json())


def _markdown(sentence: str) -> str:
    return "".join(f"\\{c}" if c in "\\`*_[]<>|" else c for c in sentence)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_markdown(cell).replace("\n", " ") for cell in cells) + " |"
