"""The results of a study or an evaluation for people: a page, and a summary in the terminal. Nothing imports torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anyshot.errors import BadInput
from anyshot.files import write_text

if TYPE_CHECKING:
    from anyshot.report.runs import Findings


def write_report(runs: Sequence[Path], out: Path, paper: bool = False) -> Path:
    """Write the report of these runs (or of the paper alone) to `out`, and return where it is."""
    from anyshot.report.page import render_page

    write_text(out, render_page(_findings(runs, paper=paper), audit=paper))
    return out


def show_report(runs: Sequence[Path], paper: bool = False) -> None:
    """Print the report of these runs (or of the paper alone) to the terminal."""
    from anyshot.report.text import print_report

    print_report(_findings(runs, paper=paper))
    if paper:
        from anyshot.paper import audit

        audit.print_audit(audit.run_checks())


def _findings(runs: Sequence[Path], *, paper: bool) -> "Findings":
    from anyshot.report.runs import paper_findings, read_runs

    if not runs and not paper:
        raise BadInput("name at least one run's folder, or give --paper for a report of the paper's own numbers.")
    folders = [path.parent if path.is_file() and path.name in ("table.csv", "recalls.npz") else path for path in runs]
    return read_runs(folders) if runs else paper_findings()
