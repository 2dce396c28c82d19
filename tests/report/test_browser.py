"""The page in a real browser: it opens from disk without a network, answers its reader, and hands out what it shows."""

import csv
import io
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.report_runs import rows, with_recalls, write_run

from anyshot.measure.grid import build_grids
from anyshot.measure.sensitivity import decompose
from anyshot.report.answer import accurate_slots, rank
from anyshot.report.page import write_report
from anyshot.report.runs import read_runs
from anyshot.text import format_decimals

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
playwright = pytest.importorskip("playwright.sync_api", reason="the report's browser tests need playwright")
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="the report's browser tests need chromium (apt-get install chromium)"
)
QUIET = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
QUIET += " --disable-component-update --disable-sync"
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator["playwright.Browser"]:
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=BROWSER, args=QUIET.split())
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "run", rows())


@pytest.fixture(scope="module")
def report(run: Path) -> Path:
    return write_report([run], run / "report.html")


@pytest.fixture
def visit(browser: "playwright.Browser"):
    """Open a page with the network off; at the end its console must be empty and nothing have been asked for."""
    contexts, said = [], []

    def open_page(path: Path, viewport: dict[str, int] = WIDE, scheme: str = "light") -> "playwright.Page":
        context = browser.new_context(viewport=viewport, color_scheme=scheme, offline=True, accept_downloads=True)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on(
            "request", lambda request: request.url.startswith(("file:", "blob:", "data:")) or said.append(request.url)
        )
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-drawn=yes]", timeout=20_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []


def answer(page: "playwright.Page") -> dict[str, str]:
    return {name: page.locator(f"[data-slot={name}]").text_content() for name in ("best", "accuracy", "margin")}


def ranking(page: "playwright.Page") -> list[list[str]]:
    script = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    return page.locator("#ranking-table tbody tr").evaluate_all(script)


def drawn(page: "playwright.Page") -> list[str]:
    """The names on the ranking chart, from top to bottom."""
    script = """texts => texts.map(text => [text.getBoundingClientRect().y, text.textContent])
                .filter(([, text]) => isNaN(text)).sort((one, other) => one[0] - other[0]).map(([, text]) => text)"""
    return page.locator("#ranking-chart .role-axis-label text").evaluate_all(script)


def download(page: "playwright.Page", button: str) -> bytes:
    with page.expect_download() as waiting:
        page.locator(button).first.click()
    return Path(waiting.value.path()).read_bytes()


@pytest.mark.parametrize("recalls", [True, False])
def test_the_reader_weighs_shots_and_the_ranking_follows(visit, tmp_path: Path, recalls: bool) -> None:
    run = write_run(tmp_path / "run", with_recalls(tmp_path / "run", rows()) if recalls else rows())
    page = visit(write_report([run], run / "report.html"))
    findings = read_runs([run])
    choices = findings.choices
    shots, pairs = choices[0].cells, findings.paired_intervals.get("glyphs/conv4", {})
    assert bool(pairs) == recalls

    def law(weights: dict[int, float]) -> None:
        """What the page says is what answer.py says."""
        ranked = rank(choices, "glyphs/conv4", weights)
        assert answer(page) == accurate_slots(ranked, weights, pairs)
        assert [row[:2] for row in ranking(page)] == [[c.label, format_decimals(v["accuracy"])] for c, v in ranked]

    law(dict.fromkeys(shots, 1.0))
    before = ranking(page)
    assert drawn(page) == [row[0] for row in before]
    for slider in page.locator("#shots input[type=range]").all()[1:]:  # by keyboard, as anyone can
        slider.focus()
        slider.press("Home")
    law({1: 1.0})
    assert ranking(page) != before
    page.get_by_role("button", name="only 32").click()
    law({32: 1.0})
    page.wait_for_timeout(300)
    assert drawn(page) == [row[0] for row in ranking(page)] != [row[0] for row in before]
    page.get_by_role("button", name="few (up to 4)").click()
    law({1: 1.0, 2: 1.0, 4: 1.0})
    page.get_by_label("weight of 4-shot").press("End")
    law({1: 5.0, 2: 5.0, 4: 10.0})


def test_intervals_are_those_the_reader_asks_for(visit, report: Path) -> None:
    page = visit(report)
    width = "() => document.querySelector('#ranking-chart .role-mark.mark-rule line').getBoundingClientRect().width"
    narrow = page.evaluate(width)
    page.get_by_label("new classes of the same kind").check()
    page.wait_for_function(f"narrow => ({width})() > 2 * narrow", arg=narrow)


def test_two_grids_are_compared(visit, report: Path, run: Path) -> None:
    page = visit(report)
    scores = {grid.name: decompose(grid.accuracy) for grid in build_grids(rows())}
    left, right = scores["proto"], scores["cosine-proto"]
    row = page.locator("#comparison tbody tr").first.locator("td").all_text_contents()
    gap = right.sensitivity - left.sensitivity
    assert row == [f"{left.sensitivity:.2f}", f"{right.sensitivity:.2f}", f"{gap:.2f}".replace("-", "\N{MINUS SIGN}")]
    assert f"{left.model_bias[0]:+.2f}".replace("-", "\N{MINUS SIGN}") in page.locator("#chart-a").text_content()
    page.locator("#grid-b").select_option(label="proto")
    page.wait_for_function("() => document.querySelector('#comparison tbody td:last-child').textContent === '+0.00'")
    page.get_by_label("accuracy", exact=True).check()
    page.wait_for_function("() => document.querySelector('#chart-a').textContent.includes('accuracy, sens')")
    page.locator("#chart-a .role-mark.mark-text text").first.hover()
    tip = page.locator("#vg-tooltip-element")
    tip.wait_for(state="visible")
    assert re.search(
        r"4-shot model at 1-shot test: \d+\.\d\d %.*± 0\.20 over episodes.*1,000 episodes", tip.text_content(), re.S
    )


def test_downloads_contain_the_right_numbers(visit, report: Path) -> None:
    page = visit(report)
    taken = list(csv.DictReader(io.StringIO(download(page, "[data-file='table.csv']").decode())))
    assert [float(row["accuracy"]) for row in taken] == [row["accuracy"] for row in rows()]
    score = f"{decompose(build_grids(rows())[0].accuracy).sensitivity:.2f}"
    page.locator("#take details summary").first.scroll_into_view_if_needed()
    assert score in download(page, "[data-file='sensitivity.csv']").decode()
    assert f"& {score} &" in download(page, "[data-file='sensitivity.tex']").decode()
    assert f"| {score} |" in download(page, "[data-file='sensitivity.md']").decode()
    svg = download(page, "[data-picture=grids][data-format=svg]").decode()
    assert svg.startswith("<svg")
    assert f"sensitivity {score}" in svg
    assert download(page, "[data-picture=ranking][data-format=png]").startswith(b"\x89PNG")
    assert b"proto, 8-shot" in download(page, "[data-picture=ranking][data-format=svg]")
    page.locator("figure details.behind summary").first.click()
    assert download(page, "#ranking-csv").decode().splitlines()[1].count(",") >= 3


@pytest.mark.parametrize(("scheme", "viewport"), [("light", WIDE), ("dark", PHONE)], ids=["light", "dark-phone"])
def test_no_serious_fault_of_access_and_no_sideways_scrolling(visit, report: Path, scheme: str, viewport: dict) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core comes with the dev extra")
    page = visit(report, viewport, scheme)
    page.evaluate("() => document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    faults = [v for v in axe.Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")]
    assert [(fault["id"], fault["nodes"][0]["html"]) for fault in faults] == []
    ink, ground = page.evaluate(
        "[getComputedStyle(document.querySelector('#ranking-chart .role-axis-label text')).fill,"
        " getComputedStyle(document.body).backgroundColor]"
    )
    light = [sum(map(int, re.findall(r"\d+", colour)[:3])) > 382 for colour in (ink, ground)]
    assert light == ([False, True] if scheme == "light" else [True, False])


def test_odd_runs_open_too(visit, tmp_path: Path) -> None:
    evil = "<script>document.title = 'owned'</script>"
    half = [row for i, row in enumerate(rows(heads=("proto", evil), data=evil)) if (i + i // 6) % 2]
    curves = [row | {"train_shot": "", "head": f"{row['head']}-b"} for row in rows(train_shots=(0,))]
    folders = [write_run(tmp_path / "half", half), write_run(tmp_path / "curves", curves, models=False)]
    page = visit(write_report(folders, tmp_path / "report.html"), PHONE)
    assert "owned" not in page.title()
    assert "12 of its 24 cells are missing" in page.locator("#about-a").text_content()
    assert "No residual here" in page.locator("#chart-a").text_content()
    page.get_by_label("accuracy", exact=True).check()
    page.locator("#chart-a svg").wait_for()
    page.locator("#setting").select_option(label="glyphs/conv4")
    assert ranking(page)[0][0] in ("proto-b", "cosine-proto-b")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_papers_own_report_opens(visit, tmp_path: Path) -> None:
    page = visit(write_report([], tmp_path / "report.html", paper=True))
    assert (tmp_path / "report.html").stat().st_size < 3_000_000
    assert "14.86" in page.locator("#about-a").text_content()
    assert "2.13" in page.locator("#about-b").text_content()
    page.locator("#setting").select_option(label="mini/resnet12")
    assert page.locator("[data-slot=robust]").text_content() == "cosine-feat"
    assert page.locator("#audit summary", has_text="Contradicted").is_visible()


def test_it_prints_in_dark_ink_with_its_tables_open(visit, report: Path) -> None:
    page = visit(report, scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#table-frontier").is_visible()
    assert not page.locator("nav").is_visible()
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(28, 32, 36)"
    assert page.pdf(format="A4").startswith(b"%PDF")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_table_that_goes_on_beyond_a_phone_has_a_shade_at_its_edge(visit, report: Path, scheme: str) -> None:
    """Two covers move with the table, and two shades stay at the edges."""
    page = visit(report, PHONE, scheme)
    style = "tables => getComputedStyle(tables[0]).{}"
    assert page.locator(".scroll").evaluate_all(style.format("backgroundAttachment")) == "local, local, scroll, scroll"
    shade = {"light": "rgba(0, 0, 0, 0.267)", "dark": "rgba(255, 255, 255, 0.267)"}[scheme]
    assert shade in page.locator(".scroll").evaluate_all(style.format("backgroundImage"))
