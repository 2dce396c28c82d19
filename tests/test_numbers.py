"""Numbers in README and docs are those of the files in results/ that they name."""

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("numbers_tool", ROOT / "tools" / "fill_numbers.py")
numbers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(numbers)


@pytest.mark.parametrize("page", numbers.PAGES)
def test_every_number_of_a_page_is_that_of_its_source(page):
    _, changes = numbers.update((ROOT / page).read_text(encoding="utf-8"))
    stale = [f"{page}:{line}: {old!r} is out of date, the source says {new!r}" for line, old, new in changes]
    assert not stale, "\n".join([*stale, "python tools/fill_numbers.py fills them in."])


def test_the_page_of_every_published_study_says_what_its_tables_say():
    pages = numbers.describe_results()
    assert len(pages) >= 7
    stale = [path.parent.name for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "python tools/fill_numbers.py writes them anew."


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("README.md", 30),
        ("docs/pretrained.md", 70),
        ("docs/statistics.md", 12),
        ("docs/comparison.md", 8),
        ("docs/deploy.md", 2),
        ("docs/posterior.md", 30),
    ],
)
def test_pages_name_the_sources_of_their_numbers(page, least):
    assert len(numbers.NUMBER.findall((ROOT / page).read_text(encoding="utf-8"))) >= least


GENERATED = ("docs/findings.md", "docs/paper.md")  # by tools, from files
BLOCKS = re.compile(r"<!--=.*?<!--/-->|```.*?```|`[^`]*`|\]\([^)]*\)", re.DOTALL)
MEASURED = re.compile(r"\d\.\d+ ?(?:%|points|times|ms|s|MB|GB|images/s)(?![\w.])|± ?\d")
NOT_MEASURED = re.compile(r"6\.85 MB|98\.3 %|0\.001 times")  # the size of a file; 1 - 5 % / 3; a choice


@pytest.mark.parametrize("page", [page for page in numbers.PAGES if "/log/" not in page and page not in GENERATED])
def test_no_measured_number_of_a_page_is_typed_by_hand(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    text = BLOCKS.sub(lambda block: "\n" * block[0].count("\n"), text)
    typed = [
        f"{page}:{line}: {found!r}"
        for line, words in enumerate(NOT_MEASURED.sub("", text).split("\n"), 1)
        for found in MEASURED.findall(words)
    ]
    assert not typed, "\n".join([*typed, "name the file that each comes from, see tools/fill_numbers.py"])


def test_a_number_may_come_from_a_table_of_the_log_or_be_several(tmp_path):
    (tmp_path / "log.md").write_text(
        "# Log\n\n| | ours | peer |\n|---|---:|---:|\n| a, b | 1,200 ms | 300 |\n| c | 2 | 4 |\n"
    )
    assert numbers.compute("log.md", 'row="a, b"', "ours/peer", ".1f", tmp_path) == "4.0"
    assert numbers.compute("log.md", "", "min(peer),max(peer)", "{:.0f} to {:.0f}", tmp_path) == "4 to 300"
    (tmp_path / "table.csv").write_text("head,test_shot,accuracy\nproto,1,50\nproto,1,52\nproto,2,60\n")
    assert numbers.compute("table.csv", "head=proto test_shot=*", "accuracy", ".0f", tmp_path) == "51 | 60"
    assert numbers.compute("table.csv", "", "count(accuracy>51)", ".0f", tmp_path) == "2"
    assert numbers.compute("table.csv", "", "count(test_shot<accuracy)", ".0f", tmp_path) == "3"
    with pytest.raises(ValueError, match="no column"):
        numbers.compute("table.csv", "head=proto", "recall", ".0f", tmp_path)


def test_another_set_of_classes_varies_more_than_the_mean_of_all(tmp_path):
    (tmp_path / "table.csv").write_text("sensitivity,low_classes,high_classes\n3,2,4\n")
    predicted = numbers.compute("table.csv", "", "low_predicted,high_predicted", "{:.2f} to {:.2f}", tmp_path)
    assert predicted == "1.59 to 4.41"


def test_a_changed_result_names_page_and_line(tmp_path):
    source = tmp_path / "results" / "cub32" / "first-training" / "sensitivity.csv"
    source.parent.mkdir(parents=True)
    shutil.copy(ROOT / "results" / "cub32" / "first-training" / "sensitivity.csv", source)
    where = "results/cub32/first-training/sensitivity.csv head=proto readout=own"
    page = f"first line\n| <!--= {where} : sensitivity .2f -->4.64<!--/--> |\n"
    assert numbers.update(page, tmp_path)[1] == []
    numbers.read_rows.cache_clear()
    source.write_text(source.read_text().replace("4.6441", "4.7441"))
    assert numbers.update(page, tmp_path)[1] == [(2, "4.64", "4.74")]
    with pytest.raises(ValueError, match="no row"):
        numbers.compute("results/cub32/first-training/sensitivity.csv", "head=nobody", "sensitivity", ".2f", tmp_path)
