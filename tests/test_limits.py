"""Limits that keep functions readable. (Numbers of arguments, names and docstrings are checked by ruff.)"""

from pathlib import Path

import pytest
from radon.complexity import cc_visit

SOURCE = Path(__file__).parents[1] / "src" / "anyshot"
MOST_COMPLEX = 15  # cyclomatic complexity as `radon cc` counts it: boolean operators and comprehensions too


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_no_function_is_too_complex(path):
    blocks = cc_visit(path.read_text(encoding="utf-8"))
    functions = [method for block in blocks for method in getattr(block, "methods", [block])]
    assert {f"{one.name}: {one.complexity}" for one in functions if one.complexity > MOST_COMPLEX} == set()
