"""Fill the numbers of the pages in from `results/` and the tables of the log, or check that they are up to date.

    python tools/fill_numbers.py            rewrite every number that has changed
    python tools/fill_numbers.py --check    name the pages and lines that are out of date, and exit with 1

A number in a page names its source in a comment that readers do not see:

    <!--= results/cub32/sensitivity.csv head=proto readout=own : sensitivity .2f -->4.62<!--/-->

that is a file below the repository (a CSV file, or a page of the log with its Markdown tables), conditions on columns
(`name="some words"`; a column without a heading is called `row`), what to show, and how. What to show is a column, a
ratio or a difference of two (`ci95_classes/ci95`), the smallest or largest of one (`min(accuracy)`), or the number of
rows in which one is above or below another column or a number (`count(lead<-1)`); the mean is taken where several rows
meet the conditions. Several of these, with a comma between, go into a form with braces:

    <!--= results/cub32/sensitivity.csv head=proto readout=own : low,high {:.2f} to {:.2f} -->4.50 to 4.75<!--/-->

The README.md of every study in `results/` is written anew from its tables, too.

A condition `test_shot=*` gives one number for each value of the column, as cells of a table. Beside columns that end in
`low_classes` and `high_classes`, which hold the 95 % confidence interval over all classes of the kind, there are
`low_predicted` and `high_predicted`: where another set of as many classes lies, 1.41 times as wide.
"""

import csv
import re
import shlex
import sys
from functools import cache
from math import copysign, sqrt
from pathlib import Path

from anyshot.study.publishing import describe_folder
from anyshot.study.study import StudySource, find_study

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))))
NUMBER = re.compile(r"<!--= (\S+) ([^:]*): (\S+) (.+?) -->([^<]*)<!--/-->")
NUMERAL = re.compile(r"-?\d[\d,]*\.?\d*(?:e-?\d+)?")
Rows = list[dict[str, str]]


@cache
def read_rows(path: Path) -> Rows:
    """Return the rows of a CSV file, or of all tables of a Markdown page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        return [row | predict_new_classes(row) for row in csv.DictReader(text.splitlines())]
    rows: Rows = []
    for block in re.findall(r"(?:^ *\|.*\n?)+", text, re.MULTILINE):
        lines = [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in block.splitlines()]
        header = [name or "row" for name in lines[0]]
        rows += [dict(zip(header, line, strict=False)) for line in lines[2:]]
    return rows


def predict_new_classes(row: dict[str, str]) -> dict[str, str]:
    """Return the ends of the prediction interval beside those of each confidence interval over classes."""
    ends = {}
    for name in row:
        prefix = name.removesuffix("high_classes")
        if prefix == name or not row[name]:
            continue
        value = float(row[next(of for of in (prefix[:-1], "sensitivity", "difference") if of in row)])
        half = sqrt(2) * (float(row[name]) - value)
        ends |= {f"{prefix}low_predicted": str(value - half), f"{prefix}high_predicted": str(value + half)}
    return ends


def compute(file: str, conditions: str, shown: str, form: str, root: Path = ROOT) -> str:
    """Return the number that a source describes, as text.

    Raises:
        ValueError: If no row meets the conditions, or a column is missing.
    """
    wanted = dict(word.split("=", 1) for word in shlex.split(conditions))
    each = [name for name, value in wanted.items() if value == "*"]
    groups: dict[tuple[str, ...], Rows] = {}
    for row in read_rows(root / file):
        if all(value == "*" or row.get(name) == value for name, value in wanted.items()):
            groups.setdefault(tuple(row[name] for name in each), []).append(row)
    if not groups:
        raise ValueError(f"no row of {file} has {conditions.strip()}")
    form = form if "{" in form else f"{{:{form}}}"
    numbers = [[aggregate(rows, file, one) for one in shown.split(",")] for rows in groups.values()]
    # Ties go away from zero, as in `anyshot.text.format_decimals`.
    return " | ".join(form.format(*(value + copysign(1e-9, value) for value in values)) for values in numbers)


def aggregate(rows: Rows, file: str, shown: str) -> float:
    """Return the mean of a column or expression over rows, its smallest or largest value, or a number of rows."""
    if count := re.fullmatch(r"count\((.*)([<>])(.*)\)", shown):
        pairs = [[float(row.get(count[part]) or count[part]) for part in (1, 3)] for row in rows]
        return sum(one > other if count[2] == ">" else one < other for one, other in pairs)
    match = re.fullmatch(r"(min|max)\((.*)\)", shown)
    parts = re.split(r"([-/])", match[2] if match else shown)
    values = [evaluate(parts, row) for row in rows if all(row.get(name) for name in parts[::2])]
    if not values:
        raise ValueError(f"{file} has no column {shown} there")
    return {"min": min, "max": max}[match[1]](values) if match else sum(values) / len(values)


def evaluate(parts: list[str], row: dict[str, str]) -> float:
    """Return a column of a row, or the ratio or difference of two; of a cell with words, its first number."""
    texts = (NUMERAL.findall(row[name])[0] for name in parts[::2])
    first, *others = (float(text.replace(",", "")) for text in texts)
    if not others:
        return first
    return first / others[0] if parts[1] == "/" else first - others[0]


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
    for path, text in describe_results().items():
        if path.read_text(encoding="utf-8") != text:
            print(f"{path.relative_to(ROOT)} is not what its tables say")
            is_stale = True
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    return int(is_stale and "--check" in sys.argv)


def describe_results() -> dict[Path, str]:
    """Return the first page of every published study, as its tables say now."""
    folders = [path.parent for path in sorted((ROOT / "results").rglob("sensitivity.csv"))]
    studies = {folder: find_study(folder.relative_to(ROOT / "results").parts[0]) for folder in folders}
    return {folder / "README.md": describe_folder(StudySource(path), "", folder) for folder, path in studies.items()}


if __name__ == "__main__":
    sys.exit(main())
