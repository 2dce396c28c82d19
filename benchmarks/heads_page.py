"""What the table of `heads.py` says, for people."""

from collections.abc import Callable, Mapping, Sequence

Row = Mapping[str, object]
NEEDS_NO_BASE = (
    "proto",
    "cosine-proto",
    "posterior",
    "posterior (foreign base)",
    "logistic regression",
    "logistic regression, balanced",
    "LinearSVC",
    "LinearSVC, balanced",
    "RidgeClassifier",
    "RidgeClassifier, balanced",
    "LDA, shrinkage",
    "SimpleShot",
    "nearest neighbour",
    "NearestCentroid",
)
WITH_BASE = ("posterior (base)", "SimpleShot (base)", "est60 (base)", "LDA (base)", "PLDA (base)")
PROBABLE = (
    "cosine-proto",
    "posterior",
    "posterior (base)",
    "logistic regression",
    "logistic regression, balanced",
    "LDA, shrinkage",
    "LDA (base)",
    "PLDA (base)",
)

HEAD = """# Which classifier to use on given features

Made by one command, which says what each set, support and classifier is:

    COMMAND

All columns are in [heads.csv](heads.csv). Accuracy in %; in bold the first of a column, and all whose paired 95 %
interval does not tell them from the first: among those that need no base, and, for those that have one, among all.
Features of 1,280 numbers are seen in 320 random directions, the same for all, but for `natural`. `step`: half of the
classes have 1 image and half 16; `tail`: 16 falling to 1; `natural`: all images that the set has, against photos of
other days (groceries) or images that were set apart. (base): fitted on other classes of the same kind; (foreign base):
on classes of another kind. Intervals are over episodes (5 classes) or over classes (all classes). What it means, and
why the posterior is behind where it is: [docs/posterior.md](../../docs/posterior.md). Intervals of calibration errors
are over episodes."""


def page(rows: Sequence[Row], command: str) -> str:
    """The page of a table that a command made."""
    rows = [{**row, "support": _support(row), "classes": int(float(str(row["classes"])))} for row in rows]
    lines = [HEAD.replace("COMMAND", command)]
    for name, way in dict.fromkeys((row["set"], row["way"]) for row in rows):
        lines += [
            "",
            f"## {name}, {way} classes at once" if way == "all" else f"## {name}, {way} classes at a time",
            "",
            *_accuracies([r for r in rows if (r["set"], r["way"]) == (name, way)]),
        ]
    lines += ["", "## Points of the posterior over the best of all others", ""]
    lines += ["The best of a column is chosen after the fact, which favours it.", ""]
    lines += ["Without a base, over those that need none:", "", *_leads(rows, "posterior"), ""]
    lines += ["With a base, over all:", "", *_leads(rows, "posterior (base)")]
    lines += ["", "## Where the posterior is not among the first", ""]
    lines += ["Without a base, among all that need none:", ""]
    lines += _lost(rows, "posterior") or ["- nowhere"]
    lines += ["", "With a base, among all:", ""]
    lines += _lost(rows, "posterior (base)") or ["- nowhere"]
    lines += ["", "## Where a posterior is more than half a point below cosine-proto", ""]
    lines += _below(rows) or ["- nowhere"]
    lines += ["", "## Rare classes: accuracy on classes of one or two images", ""]
    lines += _by_set(rows, ("step", "tail"), lambda row: _number(row, "rare", 1), (*NEEDS_NO_BASE, *WITH_BASE))
    lines += ["", "## Probabilities: expected calibration error in % / log-loss", ""]
    every = ("1", "2", "4", "5", "8", "10", "16", "20", "32", "step", "tail", "natural")
    supports = [support for support in every if any(row["support"] == support for row in rows)]
    both = lambda row: f"{_error(row)} / {_number(row, 'log_loss', 2)}"  # noqa: E731
    lines += _by_set(rows, supports, both, PROBABLE)
    lines += [
        "",
        "## None of these: AUROC of unknown classes, by the posterior's likelihood ratio / by largest probability",
        "",
    ]
    both = lambda row: f"{_number(row, 'auroc_unknown', 2)} / {_number(row, 'auroc_by_probability', 2)}"  # noqa: E731
    lines += _by_set([r for r in rows if str(r["way"]) == "5"], [s for s in supports if s != "natural"], both, PROBABLE)
    lines += ["", "## CPU milliseconds of fit / of all predictions", ""]
    both = lambda row: f"{1e3 * float(str(row['fit_seconds'])):.0f} / {1e3 * float(str(row['predict_seconds'])):.0f}"  # noqa: E731
    lines += _by_set(rows, ("1", "16", "natural"), both, (*NEEDS_NO_BASE, *WITH_BASE))
    return "\n".join(lines) + "\n"


def _accuracies(rows: Sequence[Row]) -> list[str]:
    """Of one set and way: a row per classifier, a column per support."""
    supports = list(dict.fromkeys(str(row["support"]) for row in rows))
    many = {str(row["support"]): f" ({row['classes']})" for row in rows if str(row["way"]) == "all"}
    lines = ["| | " + " | ".join(s + many.get(s, "") for s in supports) + " |", "|---|" + "---:|" * len(supports)]
    of = {(row["classifier"], str(row["support"])): row for row in rows}
    for title in dict.fromkeys(row["classifier"] for row in rows):
        cells = [_shown(of.get((title, support))) for support in supports]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    episodes = max(int(str(row["episodes"])) for row in rows)
    return [*lines, "", f"Draws of each support: {episodes}."]


def _by_set(
    rows: Sequence[Row], supports: Sequence[str], show: Callable[[Row], str], titles: Sequence[str]
) -> list[str]:
    lines = ["| set | way | classifier | " + " | ".join(supports) + " |", "|---|---|---|" + "---:|" * len(supports)]
    of = {(row["set"], row["way"], row["classifier"], str(row["support"])): row for row in rows}
    for name, way in dict.fromkeys((row["set"], row["way"]) for row in rows):
        for title in titles:
            cells = [of.get((name, way, title, support)) for support in supports]
            if any(cells):
                lines.append(f"| {name} | {way} | {title} | " + " | ".join(show(c) if c else "" for c in cells) + " |")
    return lines


def _support(row: Row) -> str:
    """A number of images, or a word."""
    return str(row["support"]).removesuffix(".0")


def _number(row: Row, key: str, digits: int) -> str:
    return "" if row[key] in ("", "nan") else f"{float(str(row[key])):.{digits}f}"


def _value(row: Row, key: str) -> float:
    return 0.0 if row[key] in ("", "nan") else float(str(row[key]))


def _shown(row: Row | None) -> str:
    if row is None:
        return ""
    accuracy = f"{_value(row, 'accuracy'):.1f}"
    return f"**{accuracy}**" if _value(row, "behind") <= _value(row, "behind_ci95") else accuracy


def _leads(rows: Sequence[Row], ours: str) -> list[str]:
    """A table of the lead over the best rival, and how many cells are ahead, level and behind."""
    mine = [row for row in rows if row["classifier"] == ours]
    supports = list(dict.fromkeys(str(row["support"]) for row in mine))
    show = lambda row: f"{_value(row, 'lead'):+.1f} ± {_value(row, 'lead_ci95'):.1f} {row['rival']}"  # noqa: E731
    table = _by_set(mine, supports, show, (ours,))
    ends = [(_value(row, "lead") - (w := _value(row, "lead_ci95")), _value(row, "lead") + w) for row in mine]
    ahead, behind = sum(low > 0 for low, _ in ends), sum(high < 0 for _, high in ends)
    far = sum(_value(row, "lead") < -1 for row in mine)
    words = f"Of {len(mine)} cells {ahead} are ahead beyond the interval, {behind} behind, {len(mine) - ahead - behind}"
    return [*table, "", f"{words} level; in {far} the posterior is more than a point behind."]


def _error(row: Row) -> str:
    """The calibration error, with its interval where there are episodes enough."""
    error = _number(row, "calibration_error", 1)
    return f"{error} ± {_number(row, 'calibration_error_ci95', 1)}" if int(str(row["episodes"])) >= 10 else error


def _lost(rows: Sequence[Row], ours: str) -> list[str]:
    """Cells in which ours is behind the first by more than chance."""
    low = [row for row in rows if row["classifier"] == ours and _value(row, "behind") > _value(row, "behind_ci95")]
    return [f"- {_cell(row)}: {_value(row, 'behind'):.1f} ± {_value(row, 'behind_ci95'):.1f}" for row in low]


def _cell(row: Row) -> str:
    return f"{row['set']}, {row['way']} classes, {row['support']}"


def _below(rows: Sequence[Row]) -> list[str]:
    low = [row for row in rows if str(row["classifier"]).startswith("posterior") and _value(row, "gain") < -0.5]
    return [
        f"- {_cell(row)}, {row['classifier']}: {_value(row, 'gain'):+.1f} ± {_value(row, 'gain_ci95'):.1f}"
        for row in low
    ]
