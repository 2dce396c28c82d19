"""The verbs of `anyshot paper`."""

from dataclasses import asdict
from json import dumps
from typing import Literal

from anyshot.cli.options import OutOption


def audit(*, json: bool = False, markdown: bool = False, all: bool = False) -> None:
    """Compute the paper's numbers and claims again from its grids, and say which hold.

    Args:
        json: Print all checks as a JSON list of objects.
        markdown: Print the page docs/paper.md.
        all: Show also the table numbers that hold, one line each.
    """
    from anyshot.paper import audit

    checks = audit.run_checks()
    if json:
        print(dumps([asdict(check) for check in checks], indent=2, ensure_ascii=False))
    elif markdown:
        print(audit.markdown(checks), end="")
    else:
        audit.print_audit(checks, everything=all)


def tables(*, out: OutOption, format: Literal["markdown", "latex", "csv"] = "markdown") -> None:
    """Write the paper's tables, each computed again from its grids: sensitivities, gains, and the grids themselves.

    Args:
        out: Folder to write to.
        format: The format of the files.
    """
    from anyshot.paper import publish

    publish.write_tables(out, format)


def figures(*, out: OutOption, format: Literal["svg", "png", "pdf", "json"] = "svg") -> None:
    """Draw the paper's figures again from its printed numbers, by the code that draws our own studies.

    Args:
        out: Folder to write to.
        format: The format of the files; json is the Vega-Lite specification.
    """
    from anyshot.paper import publish

    publish.write_figures(out, format)
