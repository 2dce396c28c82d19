"""The audit: every check with its verdict, for a terminal, as JSON objects, and as the page docs/paper.md."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from anyshot.paper import claims
from anyshot.paper.checks import SUMMARIES, Check, check_claim, check_tables
from anyshot.paper.printed import numbers
from anyshot.paper.rounding import Verdict
from anyshot.show.pages import fill_template
from anyshot.show.summaries import Summary

VERDICTS: tuple[Verdict, ...] = ("holds", "rounding", "contradicted", "underivable")
KINDS = {
    "claim": "claims of abstract, text and captions",
    "grid": "means, offsets and sensitivities beside the 50 grids",
    "summary": "means, gains and sensitivities of the summary tables",
    "twice": "numbers printed in two places",
}


def run_checks() -> list[Check]:
    """Run all checks: the claims, which are the functions of `claims` with a public name, then the tables."""
    functions = (one for one in vars(claims).values() if getattr(one, "__module__", "") == claims.__name__)
    return [*(check_claim(one) for one in functions if not one.__name__.startswith("_")), *check_tables()]


def kind(check: Check) -> str:
    """Return the kind of a check, one of KINDS: a claim, a number printed twice, a summary table, or a grid."""
    if not check.id.startswith("table-"):
        return "claim"
    if check.id.endswith("/twice"):
        return "twice"
    return "summary" if check.where in SUMMARIES else "grid"


def counts(checks: Sequence[Check]) -> Summary:
    """Count how many checks of each kind got each verdict."""
    tally = Counter((kind(check), check.verdict) for check in checks)
    rows = [[words, *(str(tally[name, verdict]) for verdict in VERDICTS)] for name, words in KINDS.items()]
    totals = Counter(check.verdict for check in checks)
    return Summary("Verdicts", ["", *VERDICTS], [*rows, ["all", *(str(totals[verdict]) for verdict in VERDICTS)]])


def sections(checks: Sequence[Check]) -> dict[str, list[Check]]:
    """Return the checks that a reader should see, by title, the gravest first; the rest are table numbers that hold."""
    holds, rounding, contradicted, underivable = (
        [check for check in checks if check.verdict == verdict] for verdict in VERDICTS
    )
    return {
        "Contradicted": contradicted,
        "Depends on the reading": [check for check in holds + rounding if check.disputed],
        "Claims that hold": [check for check in holds if kind(check) == "claim" and not check.disputed],
        "Off by rounding": [check for check in rounding if not check.disputed],
        "Cannot be derived": underivable,
    }


def roots(checks: Sequence[Check]) -> str:
    """Return how many reasons the contradicted checks have, in a sentence."""
    many = len({check.root for check in checks if check.verdict == "contradicted"})
    return f"They have {many} roots: some numbers are printed in several places, or others are computed from them."


def markdown(checks: Sequence[Check]) -> str:
    """Return the page docs/paper.md."""
    return fill_template(
        Path(__file__).with_name("audit.md"),
        numbers=len(numbers()),
        counts=counts(checks),
        sections=sections(checks),
        roots=roots(checks),
        as_table=as_table,
        notation=_notation(),
    )


def print_audit(checks: Sequence[Check], everything: bool = False) -> None:
    """Print the audit to the terminal: contradictions first, the summary last."""
    console, shown = Console(), sections(checks)
    if everything:
        shown["Table numbers that hold"] = [c for c in checks if c.verdict == "holds" and kind(c) != "claim"]
    else:
        del shown["Off by rounding"]  # a long list of last digits
    for title, listed in shown.items():
        console.print(as_table(f"{title} ({len(listed)})", listed).terminal())
        if title == "Contradicted":
            console.print(roots(checks))
    console.print(counts(checks).terminal())
    if not everything:
        console.print("What is off by rounding alone is counted above and listed by --all, --json and --markdown.")
    totals = Counter(check.verdict for check in checks)
    by_verdict = ", ".join(f"{totals[verdict]} {verdict}" for verdict in VERDICTS)
    console.print(f"{len(checks)} checks: {by_verdict}", style="bold")


def as_table(title: str, checks: Sequence[Check]) -> Summary:
    """Return checks as a table, one row per check."""
    rows = [[check.where, check.claim, check.printed, check.recomputed] for check in checks]
    return Summary(title, ["where", "claim", "printed", "recomputed"], rows, names=4)


def _notation() -> list[str]:
    """Return a sentence for each slip of notation in the printed numbers, which are read as they are meant."""
    gains = [row for row in numbers() if row["quantity"] == "gain"]
    comma = [f"{row['printed']} ({row['table']})" for row in gains if "," in row["printed"]]
    unsigned = Counter(row["table"] for row in gains if row["printed"][0] not in "+-")
    return [
        f"A decimal comma stands for a point in {', '.join(comma)}.",
        *(f"{count} gains of {table} carry no sign; they are blue, hence gains." for table, count in unsigned.items()),
    ]
