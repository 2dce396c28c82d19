"""Transcribe every printed number of the paper's LaTeX source into tidy rows.

    python tools/transcribe_paper.py ../shared/paper.tex src/anyshot/paper/numbers.csv

Tables are read cell by cell. Numbers in the text and the captions are found by the patterns of TEXT below, one
capturing group per number. `left_over` lists what neither the tables nor the text took, so that a test can ask that it
is empty. Values stay as printed, a decimal comma included; colour and bold are kept in the column `mark`.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from anyshot.tables import Row, write_table

COLUMNS = ["table", "data", "backbone", "head", "readout", "train_shot", "test_shot", "quantity", "printed", "mark"]
NUMBER = re.compile(r"(?<![A-Za-z_^\d.])[-+]?\.?\d[\d,.]*(?<![,.])K?")
DATA = {"CUB": "cub", "mIN": "mini", "tIN": "tiered", "iNat": "meta-inat", "meta-iNat": "meta-inat"}
DATA |= {"mini-ImageNet": "mini", "tiered-ImageNet": "tiered"}
BACKBONES = {"Conv-4": "conv4", "ResNet-12": "resnet12"}
HEADS = {
    "Proto": ("proto", "own"),
    "PCA": ("proto", "pca60"),
    "EST": ("proto", "est60"),
    "Cosine Proto": ("cosine-proto", "own"),
    "FEAT": ("feat", "own"),
    "Cosine FEAT": ("cosine-feat", "own"),
    "FRN": ("frn", "own"),
    "FRN (new)": ("frn", "own"),
    "FRN (old)": ("frn-old", "own"),
    "Cosine FRN": ("cosine-frn", "own"),
}

# Names with digits in them, and digits that count nothing: never transcribed.
NAMES = [
    r"Conv-4",
    r"ResNet-12",
    r"\d+- (?:vs|or) \d+-shot",
    r"\d+-(?:shot|way|layer)",
    r"step \d",
    r"\(col \d vs \d\)",
]
NAMES += [r"IIS-\d+", r"term-1 to term-2", r"= 2S_c", r"\$2n", r"= 2QS_c\^T\$", r"\$1/d\$", r"1 or 5"]

# What each number in the text counts, and the few words around it that find it.
TEXT = [
    ("cosine bound", r"\\pm (\d)\$"),
    ("consistency trials", r"After (\d+) trials"),
    ("frn ratio train shot", r"with shot (\d) on"),
    ("frn ratio trials", r"meta-iNat, (\d+) "),
    ("frn ratio", r"ratio of ([\d.]+)"),
    ("frn ratio deviation", r"deviation only ([\d.]+)\."),
    ("frn ratio deviation within a query", r"further to ([\d.]+)\."),
    ("train shots", r"numbers \((\d+), (\d+), (\d+), (\d+)\)"),
    ("test shots", r"test shots \((\d+), (\d+), (\d+), (\d+), (\d+), (\d+)\)"),
    ("test episodes", r"over (\d+K) trials"),
    ("confidence level", r"(\d+)\\% confidence"),
    ("confidence interval", r"\(about (.\d+), (.\d+), (.\d+), (.\d+), (.\d+), (.\d+)"),
    ("confidence interval test shot", r" for (\d+), (\d+), (\d+), (\d+), (\d+), (\d+) test shot"),
    ("batch size", r"constant at (\d+)"),
    ("example sensitivity", r"sensitivity of ([\d.]+) vs ([\d.]+)\)"),
    ("example score", r"score of (\d+) indicates"),
    ("example score", r"within (\d+) points of its"),
    ("example gain", r"gain (\d) points"),
    ("example gain", r"up by (\d),"),
    ("conv4 proto sensitivity", r"within (\d+) to (\d+) points"),
    ("small advance", r"(two) points or smaller"),
    ("parameter factor", r"over (\d+)x"),
    ("sensitivity exceptions", r"(single)\} exception"),
    ("worst cosine, best euclidean", r"\(([\d.]+) vs ([\d.]+)\)"),
    ("sensitivity factor", r"factor of ([\d.]+)\}"),
    ("1-shot gain", r"cosine by ([\d.]+) points"),
    ("high-shot loss", r"saturates to (\d+) point"),
    ("gain without 4-shot models", r"by \$([\d.]+)\$ points"),
    ("swapped models", r"(eight) of our"),
    ("test shot range", r"shot \((\d+)-(\d+)\)"),
    ("usual largest test shot", r"caps at (\d+)"),
    ("test shots of est", r"only (\d+)/(\d+)/(\d+)\)"),
    ("1-shot gain, at most", r"up to (double-digit) gains"),
    ("low-shot gain, at most", r"\(up to (double-digit)\)"),
    ("high-shot loss, less than", r"less than (\d+) point"),
    ("meta-inat classes", r": of (\d+) classes"),
    ("meta-inat images a class", r"between (\d+) and (\d+) images"),
    ("meta-inat test share", r"(one fifth)"),
    ("meta-inat test classes", r"fifth \((\d+)\)"),
    ("cub images", r"of ([\d,]+) images from"),
    ("cub classes", r"from (\d+) bird"),
    ("cub split", r"into (\d+) classes for training, (\d+) for validation and (\d+) for evaluation"),
    ("mini classes", r"containing (\d+) classes"),
    ("mini images a class", r"with (\d+) examples"),
    ("mini split", r"into (\d+) classes for training, (\d+) for validation and (\d+) for test"),
    ("tiered split", r"with (\d+)-(\d+)-(\d+) categories"),
    ("image side", r"(\d+)\$\\times\$(\d+) resolution"),
    ("projection dimensions", r"to (\d+) dimensions"),
    ("way cut, percent", r"by \$(\d+)\\%\$"),
    ("feat learning rate cut", r"models by a factor of (\d+)"),
    ("feat momentum", r"momentum ([\d.]+) for"),
    ("feat epochs", r"for (\d+) epochs"),
    ("feat epochs, tiered", r"epochs \((\d+) for"),
    ("feat extractor learning rate", r"rate (\de-\d) for"),
    ("feat head learning rate", r"and (\de-\d) for"),
    ("feat learning rate drop", r"rate by (\d+) halfway"),
    ("rows of the comparison", r"rows (\d+)-(\d+) and (\d+)-(\d+) of"),
]


def transcribe(source: str) -> list[Row]:
    """All rows of the paper: the tables', then the text's, both in the order of the source."""
    paper = _body(source)
    places = _places(paper)
    rows = [row for at, tabular in _tabulars(paper) for row in _table_rows(_place(places, at), tabular)]
    return rows + [row for _, row in sorted(_text_rows(paper, places), key=lambda placed: placed[0])]


def left_over(source: str) -> list[str]:
    """Numbers of the text that no pattern took, each with what is around it."""
    prose = _prose(_body(source))
    text = list(prose)
    for pattern in (*(f"({name})" for name in NAMES), *(pattern for _, pattern in TEXT)):
        for match in re.finditer(pattern, prose):
            for start, end in match.regs[1:]:
                text[start:end] = "#" * (end - start)
    rest = "".join(text)
    return [rest[max(0, m.start() - 30) : m.end() + 20] for m in NUMBER.finditer(rest)]


def numbers_in_tables(source: str) -> int:
    """How many numbers the tabulars hold below their headers, the test shots that open a grid's lines included."""
    bodies = (re.sub("Conv-4|ResNet-12", "", line) for _, tab in _tabulars(_body(source)) for line in _lines(tab))
    return sum(len(NUMBER.findall(_plain(line))) for line in bodies)


def _body(source: str) -> str:
    """From the abstract on, comments blanked; nothing moves, so positions stay those of the source."""
    start = source.index(r"\begin{abstract}")
    return " " * start + re.sub(r"(?<!\\)%.*", lambda m: " " * len(m[0]), source[start:])


def _prose(paper: str) -> str:
    """The text alone, tables, equations, references and lengths blanked."""
    for pattern in (
        r"\\begin\{(tabularx?|equation)\}.*?\\end\{\1\}",
        r"\\(cite|ref|label|vspace|includegraphics|begin|end|url)\*?(\[[^\]]*\])?(\{[^}]*\})+(\[[^\]]*\])?",
    ):
        paper = re.sub(pattern, lambda m: " " * len(m[0]), paper, flags=re.S)
    return paper


def _places(paper: str) -> list[tuple[int, int, str]]:
    """(start, end, name) of every section and of every float, numbered as LaTeX does."""
    places, section, subsection, letter = [(0, len(paper), "Abstract")], 0, 0, ""
    for match in re.finditer(r"\\(appendix|section|subsection)\b", paper):
        if match[1] == "appendix":
            letter, section = "A", 0
            continue
        section, subsection = (section + 1, 0) if match[1] == "section" else (section, subsection + 1)
        chapter = letter or str(section)
        places.append((match.start(), len(paper), f"Sec. {chapter}" + (f".{subsection}" if subsection else "")))
    for kind, name in (("figure", "Fig."), ("table", "Table")):
        floats = re.finditer(rf"\\begin\{{((?:wrap)?{kind}\*?)\}}.*?\\end\{{\1\}}", paper, flags=re.S)
        places += [(m.start(), m.end(), f"{name} {number}") for number, m in enumerate(floats, 1)]
    return places


def _place(places: list[tuple[int, int, str]], at: int) -> str:
    """The innermost place, the one that starts last."""
    return max((place for place in places if place[0] <= at < place[1]), key=lambda place: place[0])[2]


def _text_rows(paper: str, places: list[tuple[int, int, str]]) -> Iterator[tuple[int, Row]]:
    prose = _prose(paper)
    for quantity, pattern in TEXT:
        for match in re.finditer(pattern, prose):
            for group, printed in enumerate(match.groups(), 1):
                yield match.start(group), _row(_place(places, match.start()), quantity, printed)


def _tabulars(paper: str) -> list[tuple[int, str]]:
    return [(m.start(), m[2]) for m in re.finditer(r"\\begin\{(tabularx?)\}(.*?)\\end\{\1\}", paper, flags=re.S)]


def _lines(tabular: str) -> list[str]:
    """The lines that hold numbers to transcribe: those after the header's rule."""
    body = re.split(r"\\midrule|\\hline", tabular, maxsplit=1)[1]
    return re.split(r"\\\\(?!\\textbf|iNat|tIN)", body)  # but not the line breaks inside a cell


def _table_rows(table: str, tabular: str) -> list[Row]:
    """The rows of one tabular, by what its header says it is."""
    if "Train Shot" in tabular:
        return _grid(table, tabular)
    if "Training}" in tabular:
        return _consistency(table, tabular)
    if "#Images" in tabular:
        return _datasets(table, tabular)
    if r"\textbf{SS}" in tabular:
        return _gains(table, tabular)
    return _sensitivities(table, tabular) if r"\ref" not in tabular else []


def _grid(table: str, tabular: str) -> list[Row]:
    setting, head = re.findall(r"\\multicolumn\{2\}\{c\|\}\{\\textbf\{(.*?)\}\}", tabular)
    data, backbone = setting.split()
    train_shots = re.search(r"& 4 & 8 & 16 & 32 &", tabular)[0].strip("& ").split(" & ")  # type: ignore[index]
    rows = []
    for line in _lines(tabular):
        shot, *cells = [_plain(cell) for cell in line.split("&")[1:]] or [""]
        if not cells:
            continue
        where = {"data": DATA[data], "backbone": BACKBONES[backbone], **_head(head)}
        quantities, last = ("accuracy", "mean") if shot != "Offset" else ("offset", "sensitivity")
        where |= {"test_shot": shot if shot != "Offset" else ""}
        for train_shot, cell in zip(train_shots, cells, strict=False):
            rows.append(_row(table, quantities, cell, **where, train_shot=train_shot))
        rows.append(_row(table, last, cells[-1], **where))
    return rows


def _consistency(table: str, tabular: str) -> list[Row]:
    rows = []
    for line in _lines(tabular):
        score, *cells = [_plain(cell) for cell in line.split("&")]
        for (head, shot), cell in zip(
            ((h, s) for h in ("proto", "cosine-proto") for s in (4, 32)), cells, strict=False
        ):
            where = {"data": "meta-inat", "backbone": "conv4", "head": head, "readout": score.lower()}
            rows.append(_row(table, "consistency", cell, **where, train_shot=shot, test_shot=1))
    return rows


def _datasets(table: str, tabular: str) -> list[Row]:
    rows = []
    for line in _lines(tabular):
        name, *cells = [_plain(cell) for cell in line.split("&")]
        if cells:
            images, classes, split = cells
            counts = zip(
                ("images", "classes", "train", "val", "test"), (images, classes, *split.split("/")), strict=True
            )
            rows += [_row(table, quantity, count, data=DATA[name.split()[0]]) for quantity, count in counts]
    return rows


def _gains(table: str, tabular: str) -> list[Row]:
    caption = {"Table 5": "cub", "Table 6": "mini"}
    rows, setting = [], {}
    for line in _lines(tabular):
        network, *cells = line.split("&")
        if not cells:
            continue
        for name, backbone in BACKBONES.items():
            if name in network:
                setting = {"backbone": backbone, "data": caption.get(table) or DATA[_plain(network).split()[-1]]}
        where = {**setting, **_head(_plain(cells[0]))}
        rows.append(_row(table, "sensitivity", _plain(cells[1]), **where, mark=_mark(cells[1])))
        for test_shot, cell in zip((1, 2, 4, 8, 16, 32), cells[2:], strict=True):
            mean, *gain = NUMBER.findall(_plain(cell))
            rows.append(_row(table, "mean", mean, **where, test_shot=test_shot))
            rows += [_row(table, "gain", g, **where, test_shot=test_shot, mark=_mark(cell)) for g in gain]
    return rows


def _sensitivities(table: str, tabular: str) -> list[Row]:
    settings = [("conv4", d) for d in ("CUB", "mIN", "iNat")] + [("resnet12", d) for d in ("CUB", "mIN", "tIN")]
    rows = []
    for line in _lines(tabular):
        head, *cells = line.split("&")
        for (backbone, data), cell in zip(settings, cells, strict=False):
            where = {"data": DATA[data], "backbone": backbone, **_head(_plain(head))}
            rows.append(_row(table, "sensitivity", _plain(cell), **where, mark=_mark(cell)))
    return rows


def _head(printed: str) -> dict[str, str]:
    return dict(zip(("head", "readout"), HEADS[printed], strict=True))


def _mark(cell: str) -> str:
    marks = {r"\textbf": "bold", "{blue}": "blue", "{red}": "red"}
    return next((name for mark, name in marks.items() if mark in cell), "")


def _plain(cell: str) -> str:
    """A cell without its markup."""
    cell = re.sub(r"~?\\cite\{[^}]*\}|\\(Tstrut|hline|midrule|bottomrule)|\\cline\{[^}]*\}|\((mIN|tIN)\)", " ", cell)
    cell = re.sub(r"\\(multirow\{\d\}\{\*\}|textcolor\{\w+\}|textbf|shortstack|makecell|-|%)", " ", cell)
    return " ".join(re.sub(r"[{}\\]", " ", cell).split())


def _row(table: str, quantity: str, printed: str, **where: object) -> Row:
    return {column: "" for column in COLUMNS} | {"table": table, "quantity": quantity, "printed": printed} | where


if __name__ == "__main__":
    rows = transcribe(Path(sys.argv[1]).read_text(encoding="utf-8"))
    write_table(Path(sys.argv[2]), rows)
    print(f"{len(rows)} numbers")
