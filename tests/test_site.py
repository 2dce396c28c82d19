"""The site: it builds without a warning, every link in it leads somewhere, nothing in it asks anything of the network,
and its notebooks run."""

import calendar
import json
import os
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
import yaml

import anyshot

ROOT = Path(__file__).parents[1]
run = runpy.run_path(str(ROOT / "tools" / "notebooks.py"))["run"]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SIZES = {"photos": 3, "study": 4, "head": 3}  # at least so many cells of code


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    where = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=where, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


class Html(HTMLParser):
    """What a page links to, what it loads, and the places in it that can be linked to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.places, self.words = [], [], {""}, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.places |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev", "alternate"):
            self.loads.append(given["href"])
        if given.get("src"):
            self.loads.append(given["src"])

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def pages(site):
    return {path: Html(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def target(page, link):
    """The file that a link leads to."""
    path = unquote(urlsplit(link).path)
    return (page.parent / path).resolve() if path else page.resolve()


def test_every_link_leads_somewhere(pages, site):
    broken = []
    for page, html in pages.items():
        if page.name == "404.html":  # shown at any address, so that its links begin at the root
            continue
        for link in [*html.links, *html.loads]:
            if urlsplit(link).scheme in ("http", "https", "mailto", "data"):
                continue
            there, place = target(page, link), unquote(urlsplit(link).fragment)
            if not there.is_file() or (there in pages and place not in pages[there].places):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert broken == []


def test_nothing_is_asked_of_the_network(pages, site):
    loads = [load for html in pages.values() for load in html.loads if urlsplit(load).netloc]
    styles = [path.name for path in site.rglob("*.css") if re.search(r"url\(['\"]?(https?:)?//", path.read_text())]
    assert loads + styles == []


def test_all_that_is_offered_is_in_the_reference(pages, site):
    names = set(anyshot.__all__) - {"__version__"}
    homes = {f"anyshot.{anyshot._MODULES[name]}.{name}" for name in names - {"BUILTIN", "PACKAGE"}}
    assert homes - pages[site / "reference.html"].places == set()
    assert "PACKAGE" in " ".join(pages[site / "reference.html"].words)


def test_every_verb_is_in_the_reference(pages, site):
    verbs = {f"anyshot-{verb}" for verb in ("fit", "serve", "study", "paper-audit", "pack")}
    assert verbs <= pages[site / "commands.html"].places


def test_every_page_of_docs_is_in_the_navigation(pages, site):
    home = pages[site / "index.html"]
    shown = {target(site / "index.html", link) for link in home.links if not urlsplit(link).scheme}
    assert {page.relative_to(site) for page in pages} - {path.relative_to(site) for path in shown} <= {Path("404.html")}


def test_the_docs_are_of_four_kinds_and_beside_them_the_evidence(pages, site):
    words = {name: " ".join(" ".join(html.words).split()) for name, html in pages.items()}
    kinds = [next(iter(part)) for part in yaml.load((ROOT / "mkdocs.yml").read_text(), yaml.BaseLoader)["nav"]]
    assert kinds == ["Start", "How to", "Concepts", "Reference", "Evidence"]
    assert all(kind in words[site / "index.html"] for kind in kinds)
    others = words[site / "comparison.html"]
    assert re.search(rf"\d+ ({'|'.join(calendar.month_name[1:])}) 20\d\d", others)  # dated
    assert "When another is the better choice" in others


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))])
def test_links_of_the_repository_lead_somewhere(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
    links = [link for link in re.findall(r"\]\(([^)\s#]+)", text) if not urlsplit(link).scheme]
    assert [link for link in links if not (path.parent / link).exists()] == []


# -------------------------------------------------------------------------------------------------------- notebooks


def test_there_are_three_notebooks():
    assert {path.stem for path in NOTEBOOKS} == set(SIZES)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_executed_from_top_to_bottom_and_says_nothing_of_where(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert len(cells) >= SIZES[path.stem]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}  # no warnings
    assert not re.search(r"/(tmp|home|root|work)/", path.read_text())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    scripts = tmp_path / "bin"
    scripts.mkdir()
    (scripts / "anyshot").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m anyshot "$@"\n')
    (scripts / "anyshot").chmod(0o755)
    monkeypatch.setenv("PATH", f"{scripts}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    book, committed = run(path, tmp_path), nbformat.read(path, as_version=4)
    for ran, shown in zip(book.cells, committed.cells, strict=True):
        kinds = [
            [(one.output_type, sorted(one.get("data", []))) for one in cell.get("outputs", [])] for cell in (ran, shown)
        ]
        assert kinds[0] == kinds[1]


# --------------------------------------------------------------------------------------------------------- citation


def test_the_citation_is_of_this_version_and_of_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == anyshot.__version__
    assert [author["family-names"] for author in citation["preferred-citation"]["authors"]] == [
        "Wertheimer",
        "Tang",
        "Hariharan",
    ]
