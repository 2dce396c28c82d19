"""The table of promises names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = re.findall(r"`(tests/[\w./]+::\w+)`", (ROOT / "docs" / "promises.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("test", TESTS)
def test_a_promise_names_a_test_that_exists(test):
    path, _, name = test.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(rf"^def {name}\(|^(\w+, )*{name}\b.* = ", text, re.MULTILINE)


def test_every_row_of_the_table_names_a_test():
    lines = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and line != "| promise | kept by |"]
    assert len(rows) > 20
    assert all("`tests/" in row for row in rows)
