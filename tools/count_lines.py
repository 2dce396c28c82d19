"""Count the lines of Python that carry code, without blank lines, comments and docstrings, by folder.

python tools/count_lines.py src
python tools/count_lines.py src --at v0.2.0 --at HEAD
"""

import argparse
import ast
import io
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> set[int]:
    """The lines of this source that carry code."""
    tokens = (token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in SILENT)
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    return lines - docstring_lines(source)


def docstring_lines(source: str) -> set[int]:
    """Lines of strings that stand alone as a statement: docstrings of modules, classes, functions and fields."""
    return {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, node.end_lineno + 1)
    }


def sources(folder: str, revision: str | None) -> dict[str, str]:
    """The text of every Python file below a folder, as it is now or was at a revision."""
    if revision is None:
        return {path.relative_to(folder).as_posix(): path.read_text() for path in Path(folder).rglob("*.py")}
    names = git("ls-tree", "-r", "--name-only", revision, "--", folder).splitlines()
    return {
        Path(name).relative_to(folder).as_posix(): git("show", f"{revision}:./{name}")
        for name in names
        if name.endswith(".py")
    }


def git(*arguments: str) -> str:
    """What git says."""
    return subprocess.run(("git", *arguments), check=True, capture_output=True, text=True).stdout


def by_folder(files: dict[str, str]) -> Counter[str]:
    """Lines of code in each folder, and in all."""
    lines: Counter[str] = Counter()
    for name, source in files.items():
        lines[Path(name).parent.as_posix()] += len(code_lines(source))
    lines["all"] = lines.total()
    return lines


def main() -> None:
    """Print one row per folder, one column per revision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--at", action="append", default=[], help="a git revision; without it, the files as they are")
    given = parser.parse_args()
    revisions = given.at or [None]
    counts = [by_folder(sources(given.folder, revision)) for revision in revisions]
    print(f"{'':28}" + "".join(f"{r or 'now'!s:>12}" for r in revisions))
    for folder in [*sorted({name for count in counts for name in count} - {"all"}), "all"]:
        print(f"{folder:28}" + "".join(f"{count[folder]:12}" for count in counts))


if __name__ == "__main__":
    main()
