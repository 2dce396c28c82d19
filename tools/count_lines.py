"""Count the lines of Python that carry code, without blank lines, comments and docstrings, by folder.

python tools/count_lines.py src
python tools/count_lines.py src --at v0.2.0 --at HEAD
python tools/count_lines.py src --since v0.2.0    how much of today's code serves what was there then, at the most
"""

import argparse
import ast
import io
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from keyword import iskeyword
from pathlib import Path

SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> dict[int, list[str]]:
    """The lines of this source that carry code, and the words that begin on each."""
    silent, words = docstring_lines(source), {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT:
            for line in range(token.start[0], token.end[0] + 1):
                words.setdefault(line, []).extend([token.string] if line == token.start[0] else [])
    return {line: each for line, each in words.items() if line not in silent}


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


@dataclass(eq=False)
class Piece:
    """A function, a method, a class but for its methods; without a name an import or a constant."""

    file: str
    name: str
    words: dict[int, list[str]]
    gives: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        every = (word for line in self.words.values() for word in line)
        self.bag = Counter(word for word in every if word.strip("\"'_")[:1].isalnum() and not iskeyword(word))

    def likeness(self, other: "Piece") -> float:
        """Which share of their words they have in common: names, texts and numbers."""
        return 2 * (self.bag & other.bag).total() / max(1, self.bag.total() + other.bag.total())


def pieces(files: dict[str, str]) -> Iterator[Piece]:
    """All that the files consist of."""
    for file, source in files.items():
        words = code_lines(source)
        for node in ast.parse(source).body:
            inner = [
                one for one in getattr(node, "body", []) if isinstance(node, ast.ClassDef) and hasattr(one, "args")
            ]
            spans = {f"{getattr(node, 'name', '')}.{one.name}": span(one) for one in inner}
            spans[getattr(node, "name", "")] = span(node) - set().union(*spans.values())
            gives = {one.asname or one.name.partition(".")[0] for one in ast.walk(node) if isinstance(one, ast.alias)}
            gives |= {
                one.id
                for one in ast.walk(node)
                if isinstance(getattr(one, "ctx", None), ast.Store) and hasattr(one, "id")
            }
            for name, lines in spans.items():
                yield Piece(file, name, {line: words[line] for line in sorted(lines & words.keys())}, gives)


def span(node: ast.stmt) -> set[int]:
    """The lines of a statement, with its decorators."""
    return set(range(min(one.lineno for one in (node, *getattr(node, "decorator_list", ()))), node.end_lineno + 1))


def since(old: list[Piece], new: list[Piece]) -> None:
    """Print how many lines of today serve what was there: at the most, as all that old definitions gained is counted.

    Definitions are paired by name, the most alike first; then each old one that is left with the new one that is most
    like it, whatever the likeness. Imports and constants count in which a paired definition of their file has a use."""
    total, left, served = Counter(), [one for one in old if one.name], []
    for by_name in (True, False):
        fresh = [one for one in new if one.name and one not in served]
        pairs = [(a.likeness(b), a, b) for a in left for b in fresh if not by_name or a.name == b.name]
        for likeness, a, b in sorted(pairs, key=lambda pair: -pair[0]):
            if a in left and b in fresh:
                left.remove(a)
                fresh.remove(b)
                served.append(b)
                alike = "at least half alike" if likeness >= 0.5 else "less than half alike"
                kind = "of the same name" if by_name else f"of another name, {alike}"
                total[kind, "then"] += len(a.words)
                total[kind, "now"] += len(b.words)
                total["all of these, without what they gained", "now"] += min(len(a.words), len(b.words))
    loose = [one for one in new if not one.name]
    used = {(one.file, word.strip("\"'")) for one in served for word in one.bag}
    while some := [one for one in loose if any((one.file, word) in used for word in one.gives)]:
        served += some
        loose = [one for one in loose if one not in some]
        used |= {(one.file, word.strip("\"'")) for one in some for word in one.bag}
        total["imports and constants", "now"] += sum(len(one.words) for one in some)
    total["imports and constants", "then"] = sum(len(one.words) for one in old if not one.name)
    total["that nothing took the place of", "then"] = sum(len(one.words) for one in left)
    for kind in dict.fromkeys(kind for kind, _ in total):
        print(f"{kind:44} {total[kind, 'then']:8} {total[kind, 'now']:8}")
    for what, many in (("lines", lambda one: len(one.words)), ("words", lambda one: sum(map(len, one.words.values())))):
        print(f"{what + ' in all':44} {sum(map(many, old)):8} {sum(map(many, served)):8}")


def main() -> None:
    """Print one row per folder, one column per revision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--at", action="append", default=[], help="a git revision; without it, the files as they are")
    parser.add_argument("--since", help="a git revision; what of today's lines serves what was there")
    given = parser.parse_args()
    if given.since:
        since(*(list(pieces(sources(given.folder, revision))) for revision in (given.since, None)))
        return
    revisions = given.at or [None]
    counts = [by_folder(sources(given.folder, revision)) for revision in revisions]
    print(f"{'':28}" + "".join(f"{r or 'now'!s:>12}" for r in revisions))
    for folder in [*sorted({name for count in counts for name in count} - {"all"}), "all"]:
        print(f"{folder:28}" + "".join(f"{count[folder]:12}" for count in counts))


if __name__ == "__main__":
    main()
