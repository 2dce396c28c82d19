"""What is public is documented: functions and classes by a docstring, what `anyshot` offers by every argument too."""

import ast
import inspect
import re
from dataclasses import is_dataclass
from pathlib import Path

import pytest

import anyshot

SOURCE = Path(__file__).parents[1] / "src" / "anyshot"
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
OFFERED = [name for name in anyshot.__all__ if callable(getattr(anyshot, name))]
ERRORS = ["BadInput"]  # takes a message, as all errors do


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
    listed = set(re.findall(r"^    (\w+): \S", section[1], re.M)) if section else set()
    if is_dataclass(offered):
        listed |= documented_fields(offered)
    assert listed == arguments
