"""What must pass before a change lands is one command, and it is the README's."""

import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
CHECKS = ("ruff check .", "ruff format --check .", "mypy", "python -m pytest")


def test_make_test_runs_all_that_must_pass():
    """Everything is told by the command's own plan, in an order in which the quick checks come first."""
    if shutil.which("make") is None:
        pytest.skip("there is no make here")
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "test"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    commands = [line.removeprefix(".venv/bin/") for line in done.stdout.splitlines()]
    assert tuple(commands[-len(CHECKS) :]) == CHECKS


def test_the_examples_in_docstrings_are_tests():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert "--doctest-modules" in shlex.split(settings["addopts"])
    assert "src" in settings["testpaths"]


def test_ci_runs_the_command_of_the_readme():
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("\nmake test")
    assert "\n    make test " in (ROOT / "README.md").read_text()
    assert "`make test`" in (ROOT / "CONTRIBUTING.md").read_text()


def test_hooks_before_a_commit_are_checks_of_make_test_and_need_no_network():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert {repo["repo"] for repo in config["repos"]} == {"local"}
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert {hook["language"] for hook in hooks} == {"system"}
    commands = [hook["entry"].removeprefix(".venv/bin/") for hook in hooks]
    assert commands == ["ruff check", "ruff format", "mypy"]
    assert all(any(check.startswith(command) for check in CHECKS) for command in commands)


def test_benchmarks_tools_and_examples_call_what_there_is():
    """They are run by hand and seldom: a name or an argument that is gone is found here, not months later."""
    noise = "misc,assignment,var-annotated,operator,func-returns-value,arg-type,index,union-attr"
    words = [f"--disable-error-code={code}" for code in noise.split(",")]
    words += ["--allow-untyped-defs", "--allow-incomplete-defs", "--no-warn-unused-ignores"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words, "benchmarks", "tools", "examples"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
