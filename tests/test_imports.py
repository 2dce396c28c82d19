"""Stages are folders, and their order is the import rule: a module imports only from its own stage or an earlier one.

The graph is read from the source, so that imports inside functions and under TYPE_CHECKING count as much as those at
the top of a file.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import anyshot

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "anyshot"
BASE = ("text", "errors", "files", "progress", "machine", "concurrency", "arrays", "tables", "recipe")
FOLDERS = ("data", "models", "measure", "train", "show", "paper", "report", "study", "classify", "inspect", "serve")
STAGES = (*BASE, *FOLDERS, "cli", "__main__")
# From the recalls on nothing needs torch, so that a report opens at once; nor does what describes a model.
NEVER_TORCH = (
    *BASE,
    "measure.recalls",
    "measure.sensitivity",
    "measure.grid",
    "measure.comparisons",
    "show",
    "paper",
    "report",
)
NEVER_TORCH_AT_THE_TOP = ("cli.main", "cli", "measure")  # verbs import what they need when they run
NEEDS_TORCH = ("torch", "timm", "torchvision", "safetensors.torch")


def modules() -> dict[str, ast.Module]:
    """The package's modules by their name without `anyshot.`; the package itself has the name ''."""
    trees = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        trees[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


MODULES = modules()


def imported(name: str, tree: ast.AST) -> set[str]:
    """Whole names of all modules that the nodes of a tree import, and of what they take from them."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import: write it out."
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "anyshot":
            names.add(f"anyshot.{node.attr}")
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module" and name:
            names.add(beginning(node.args[0]))
    return names


def beginning(argument: ast.expr) -> str:
    """The module that a call of `import_module` names, or the package it chooses from (`f"anyshot.data.{name}"`)."""
    first = argument.values[0] if isinstance(argument, ast.JoinedStr) else argument
    assert isinstance(first, ast.Constant), "import_module must be told at least a package by a constant."
    return str(first.value).removesuffix(".")


def own(names: set[str]) -> set[str]:
    """The package's own modules among imported names; a public name of the package stands for the module it is in."""
    imported = set()
    for name in names:
        if name == "anyshot" or name.startswith("anyshot."):
            inside = name.removeprefix("anyshot").removeprefix(".")
            inside = anyshot._MODULES.get(inside, inside)
            imported.add(inside if inside in MODULES else inside.rpartition(".")[0])
    return imported


class AtTheTop(ast.NodeTransformer):
    """Leaves of a module what runs when it is imported: no bodies of functions, nothing under TYPE_CHECKING."""

    def visit_FunctionDef(self, node):
        return None

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    def visit_If(self, node):
        return None if getattr(node.test, "id", "") == "TYPE_CHECKING" else self.generic_visit(node)


def packages_of(name: str) -> set[str]:
    """The packages that a module is in, which are imported before it."""
    return {f"anyshot.{'.'.join(name.split('.')[:depth])}".rstrip(".") for depth in range(name.count(".") + 1)}


def at_the_top(name: str) -> set[str]:
    """What importing a module imports at once."""
    return imported(name, AtTheTop().visit(ast.parse(ast.unparse(MODULES[name])))) | packages_of(name)


def everything(name: str) -> set[str]:
    """What a module imports at any time."""
    return imported(name, MODULES[name]) | packages_of(name)


def way_to_torch(name: str, edges) -> list[str]:
    """The chain of imports by which a module comes to torch; empty where there is none."""
    ways, seen = [[name]], {name}
    while ways:
        way = ways.pop(0)
        names = edges(way[-1])
        if heavy := [
            each for each in names if any(each == needs or each.startswith(f"{needs}.") for needs in NEEDS_TORCH)
        ]:
            return [*way, heavy[0]]
        ways += [[*way, other] for other in sorted(own(names) - seen)]
        seen |= own(names)
    return []


def is_in(module: str, places: tuple[str, ...]) -> bool:
    return any(module == place or module.startswith(f"{place}.") for place in places)


def test_every_module_is_in_a_stage():
    assert {name.partition(".")[0] for name in MODULES} == {"", *STAGES}


@pytest.mark.parametrize("stage", STAGES)
def test_a_module_imports_only_from_its_own_stage_and_earlier_ones(stage):
    allowed = {"", *STAGES[: STAGES.index(stage) + 1]}
    wrong = [
        f"{name} imports {other}"
        for name in MODULES
        if name.partition(".")[0] == stage
        for other in sorted(own(everything(name)))
        if other.partition(".")[0] not in allowed
    ]
    assert wrong == []


def test_the_package_of_measures_imports_nothing():
    """Some of its modules never import torch; importing them must not bring in the others."""
    assert imported("measure", MODULES["measure"]) == set()


def test_the_package_itself_imports_nothing_of_its_own():
    assert own(at_the_top("")) <= {""}
    assert {home for home in anyshot._MODULES.values() if home not in MODULES} == set()


@pytest.mark.parametrize("name", [name for name in MODULES if is_in(name, NEVER_TORCH)])
def test_what_must_never_import_torch_never_does(name):
    assert way_to_torch(name, everything) == []


@pytest.mark.parametrize("name", ["", "__main__", *NEVER_TORCH_AT_THE_TOP])
def test_what_must_start_at_once_imports_torch_only_when_it_is_needed(name):
    assert way_to_torch(name, at_the_top) == []


def test_importing_the_light_modules_loads_neither_torch_nor_altair():
    names = "anyshot, anyshot.cli.main, anyshot.measure.grid, anyshot.report, anyshot.paper, anyshot.measure.recalls"
    code = f"import sys, {names}\nprint(*({{'torch', 'altair'}} & set(sys.modules)))"
    where = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=where)
    assert done.stdout.strip() == ""


# ------------------------------------------------------------------------------------------------- the tree in the docs


def tree_in_the_docs() -> list[str]:
    """Paths of the annotated tree of docs/architecture.md, in its order: folders end in a slash."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^    src/anyshot/\n((?:    .*\n)+)", page, re.M)
    paths, folders = [], []
    for line in block.splitlines():
        parts = re.fullmatch(r" {4}((?:  )+)(\S+) +(\S.*)", line)
        assert parts, f"a line of the tree is a path, some spaces and what it is: {line!r}"
        depth = len(parts[1]) // 2
        folders[depth - 1 :] = [parts[2]]
        paths.append("".join(folders))
    return paths


def test_the_tree_in_the_docs_is_that_of_the_files():
    """Every module is named, or a folder that is listed without its files; and nothing is named that is not there."""
    listed = tree_in_the_docs()
    assert [path for path in listed if not (SOURCE / path).exists()] == []
    opened = {path.rpartition("/")[0] + "/" for path in listed if path.endswith(".py")}
    closed = tuple(path for path in listed if path.endswith("/") and path not in opened)
    files = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if path.name != "__init__.py"}
    assert {path for path in files if not path.startswith(closed)} == {path for path in listed if path.endswith(".py")}


def test_the_tree_in_the_docs_has_the_stages_in_their_order():
    outer = [path.rstrip("/").removesuffix(".py") for path in tree_in_the_docs() if "/" not in path.rstrip("/")]
    assert outer == list(STAGES)
