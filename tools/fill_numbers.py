"""Fill the numbers of the pages in from `results/`, or check that they are up to date.

    python tools/fill_numbers.py            rewrite every number that has changed
    python tools/fill_numbers.py --check    name the pages and lines that are out of date, and exit with 1

A number in a page names its source in a comment that readers do not see:

    <!--= results/cub32/sensitivity.csv head=proto readout=own : sensitivity .2f -->4.62<!--/-->

that is a CSV file below the repository, conditions on its columns, the column, and a format; the mean of the column is
taken where several rows meet the conditions. `interval(low,high)` in place of a column gives "4.50 to 4.75".
"""

import csv
import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))))
NUMBER = re.compile(r"<!--= (\S+) ([^:]*): (\S+) (\S+) -->([^<]*)<!--/-->")


@cache
def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def compute(file: str, conditions: str, column: str, form: str, root: Path = ROOT) -> str:
    """Return the number that a source describes, as text.

    Raises:
        ValueError: If no row meets the conditions, or a column is missing.
    """
    wanted = dict(word.split("=", 1) for word in conditions.split())
    rows = [row for row in read_rows(root / file) if all(row.get(name) == value for name, value in wanted.items())]
    if not rows:
        raise ValueError(f"no row of {file} has {conditions.strip()}")
    if match := re.fullmatch(r"interval\((\w+),(\w+)\)", column):
        return " to ".join(format(mean(rows, file, name), form) for name in match.groups())
    return format(mean(rows, file, column), form)


def mean(rows: list[dict[str, str]], file: str, column: str) -> float:
    """Return the mean of a column."""
    if column not in rows[0]:
        raise ValueError(f"{file} has no column {column}")
    return sum(float(row[column]) for row in rows) / len(rows)


def update(text: str, root: Path = ROOT) -> tuple[str, list[tuple[int, str, str]]]:
    """Return a page with its numbers filled in, and the changes: line, old text, new text."""
    changes = []

    def replace(match: re.Match[str]) -> str:
        new = compute(*match.groups()[:4], root=root)
        if new != match[5]:
            changes.append((text.count("\n", 0, match.start()) + 1, match[5], new))
        return match[0][: match.start(5) - match.start()] + new + match[0][match.end(5) - match.start() :]

    return NUMBER.sub(replace, text), changes


def main() -> int:
    """Update or check all pages; return the exit code."""
    is_stale = False
    for name in PAGES:
        path = ROOT / name
        text, changes = update(path.read_text(encoding="utf-8"))
        for line, old, new in changes:
            print(f"{name}:{line}: {old!r} is out of date: the source says {new!r}")
        is_stale |= bool(changes)
        if changes and "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    return int(is_stale and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
