"""What is public is documented: functions and classes by a docstring, what `anyshot` offers by every argument too."""

import ast
import inspect
import re
from dataclasses import is_dataclass
from pathlib import Path

import pytest
from helpers import typed_api

import anyshot

SOURCE = Path(__file__).parents[1] / "src" / "anyshot"
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
OFFERED = [name for name in anyshot.__all__ if callable(getattr(anyshot, name))]
ERRORS = ["BadInput", "MissingFile"]  # take a message, as all errors do


def is_claim(node: ast.AST) -> bool:
    """Whether it is a claim of the paper, which says in its decorator what it is: @claim(where, words)."""
    return any(isinstance(each, ast.Call) and ast.unparse(each.func) == "claim" for each in node.decorator_list)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_every_public_function_and_class_has_a_docstring(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    public = [node for node in tree.body if isinstance(node, DEFINITIONS) and not node.name.startswith("_")]
    assert ast.get_docstring(tree)
    assert [node.name for node in public if not ast.get_docstring(node) and not is_claim(node)] == []


@pytest.mark.parametrize("name", OFFERED)
def test_every_method_of_what_is_offered_has_a_docstring(name):
    offered = getattr(anyshot, name)
    methods = {
        key: getattr(value, "fget", None) or getattr(value, "func", None) or getattr(value, "__func__", value)
        for key, value in (vars(offered).items() if inspect.isclass(offered) else ())
        if not key.startswith("_") and key not in getattr(offered, "__dataclass_fields__", ())
    }
    assert offered.__doc__
    assert [key for key, value in methods.items() if inspect.isfunction(value) and not value.__doc__] == []


def documented_fields(offered: type) -> set[str]:
    """Fields of a dataclass that a docstring of their own follows."""
    (definition,) = ast.parse(inspect.getsource(offered)).body
    return {
        str(field.target.id)
        for field, after in zip(definition.body, definition.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }


@pytest.mark.parametrize("name", [name for name in OFFERED if name not in ERRORS])
def test_every_argument_of_what_is_offered_is_documented(name):
    """In the section Args of the docstring, or below the field of a dataclass."""
    offered = getattr(anyshot, name)
    arguments = set(inspect.signature(offered).parameters)
    section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", inspect.getdoc(offered) or "", re.M)
    listed = set(re.findall(r"^    \*{0,2}(\w+): \S", section[1], re.M)) if section else set()
    if is_dataclass(offered):
        listed |= documented_fields(offered)
    assert listed == arguments


def test_the_typed_examples_run(tmp_path):
    assert typed_api.open_or_none(tmp_path / "nowhere") is None
    with pytest.raises(AttributeError, match="no_such_name"):
        typed_api.check_types(tmp_path, [[0.0, 1.0], [1.0, 0.0], [0.0, 2.0], [2.0, 0.0]], ["a", "b"] * 2)
    assert (SOURCE / "py.typed").is_file()


def test_what_is_offered_can_be_listed():
    assert {"proto", "cosine-proto", "frn", "posterior"} <= set(anyshot.list_heads())
    assert "conv4" in anyshot.list_backbones()
    assert {"own", "swapped", "pcaN"} <= set(anyshot.list_readouts())
    own = anyshot.Registry(heads={"mine": anyshot.BUILTIN.head("proto")})
    assert anyshot.list_heads(own) == ["mine"]


def taught_names() -> set[str]:
    """Whole names of all that the pages and notebooks of the docs import from anyshot."""
    root = SOURCE.parents[1]
    pages = [root / "README.md", *root.glob("docs/*.md"), *root.glob("docs/notebooks/*.ipynb")]
    lines = re.findall(r"from (anyshot[\w.]*) import ([\w, ]+)", "\n".join(page.read_text() for page in pages))
    return {f"{module}.{name.strip()}" for module, names in lines for name in names.split(",")}


def test_what_the_docs_teach_is_public_or_in_the_reference():
    reference = (SOURCE.parents[1] / "docs" / "reference.md").read_text()
    public = {f"anyshot.{name}" for name in anyshot.__all__}
    public |= {f"anyshot.{home}.{name}" for name, home in anyshot._MODULES.items()}
    assert [name for name in sorted(taught_names() - public) if f"::: {name}\n" not in reference] == []
