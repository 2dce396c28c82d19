"""Numbers in README and docs are those of the files in results/ that they name."""

import importlib.util
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
    assert changes == [], f"{page} is out of date: python tools/fill_numbers.py"


def test_the_readme_names_the_sources_of_its_main_table():
    assert len(numbers.NUMBER.findall((ROOT / "README.md").read_text(encoding="utf-8"))) >= 20


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
