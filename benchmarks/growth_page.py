"""What the table of `classifier.py` says, for people."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
STEPS = ("fit", "predict", "calibrate", "index", "save", "load")
GROWS = ("fit", "first answer", "predict one", "save, wall time", "load, wall time", "add one")

HEAD = """# As classes grow

Made by one command, which says what is measured and how, and stops who takes too long:

    python benchmarks/classifier.py --out results/growth --chart docs/images/growth.png

All of it is in [growth.csv](growth.csv): generated classes of 5 examples x 384 numbers. CPU time of all threads, but
where it says wall time."""

MEMORY = (
    "## Memory at most, MB (times the sums)",
    "",
    "Kept examples are bounded in all (32,768; of more than 16,384 classes half as many, 25 MB in single precision),",
    "and so is what calibrating takes: of few classes that is most of it. `keep=0` keeps none.",
)
GROWTH = (
    "## Growth",
    "",
    "The power of the number of classes that each grows by, between its two largest sizes: 1 is linear, 0 is constant.",
)


def page(rows: Sequence[Row]) -> str:
    """The page of a table."""
    sizes = sorted({row["classes"] for row in rows})
    values = {(row["who"], row["what"], row["classes"]): row for row in rows}
    whos = list(dict.fromkeys(row["who"] for row in rows))
    ours = [who for who in whos if who.startswith("anyshot") and not who.endswith("index")]
    lines = [HEAD]
    whats = dict.fromkeys(row["what"] for row in rows if not row["what"].startswith(("memory", "stopped")))
    for what in whats:
        unit = next(row["unit"] for row in rows if row["what"] == what)
        lines += ["", f"## {what[0].upper()}{what[1:]}{f', {unit}' if unit else ''}", "", *_header(sizes)]
        lines += [
            _line(who, [_shown(values.get((who, what, size))) for size in sizes])
            for who in whos
            if any((who, what, size) in values for size in sizes)
        ]
    lines += ["", *MEMORY, "", *_header(sizes)]
    for who in ours:
        cells = [_shown(values.get((who, "memory of the sums", size))) for size in sizes]
        lines.append(_line(f"{who}: the sums", cells))
        for step in STEPS:
            what = f"memory at most, {step}"
            both = [(values.get((who, what, n)), values.get((who, f"{what}, over the sums", n))) for n in sizes]
            lines.append(_line(f"{who}: {step}", [f"{_shown(a)} ({_shown(b)})" if a and b else "" for a, b in both]))
    lines += ["", *GROWTH, ""]
    lines += ["| |" + "".join(f" {what} |" for what in GROWS), "|---|" + "---:|" * len(GROWS)]
    for who in whos:
        if any((who, what, sizes[-1]) in values for what in GROWS):
            lines.append(_line(who, [_power(values, who, what, sizes) for what in GROWS]))
    stopped = [row for row in rows if row["what"].startswith("stopped")]
    if stopped:
        lines += ["", "## Who was stopped", ""]
        lines += [
            f"- {row['who']} at {row['classes']:,} classes: {row['what'].removeprefix('stopped: ')}, "
            f"{row['value']:.3g} {row['unit']}"
            for row in stopped
        ]
    return "\n".join(lines) + "\n"


def _power(values: Mapping[tuple[str, str, int], Row], who: str, what: str, sizes: Sequence[int]) -> str:
    here = [(size, values[who, what, size]["value"]) for size in sizes if (who, what, size) in values]
    if len(here) < 2:
        return ""
    (few, small), (many, large) = here[-2:]
    return f"{math.log(large / small) / math.log(many / few):.2f}"


def _header(sizes: Sequence[int]) -> list[str]:
    return ["| classes |" + "".join(f" {size:,} |" for size in sizes), "|---|" + "---:|" * len(sizes)]


def _line(name: str, cells: Sequence[str]) -> str:
    return f"| {name} |" + "".join(f" {cell} |" for cell in cells)


def _shown(row: Row | None) -> str:
    if row is None:
        return ""
    value = row["value"]
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
