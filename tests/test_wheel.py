"""The wheel has all that the package needs: built, installed into an empty folder, and used from there."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def pip(*words: object) -> subprocess.CompletedProcess[str]:
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-deps")
    command = [sys.executable, "-m", "pip", words[0], *quiet, *words[1:]]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built by hatchling of this environment, else by one that pip gets from its registry for the build."""
    folder = tmp_path_factory.mktemp("wheel")
    here = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    done = pip("wheel", *here, "--wheel-dir", folder, ROOT)
    if "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("hatchling is not installed, and pip finds none: a wheel cannot be built here")
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("anyshot-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A folder with the installed wheel and nothing else; what anyshot needs comes from this environment."""
    folder = tmp_path_factory.mktemp("installed") / "site"
    done = pip("install", "--no-index", "--target", folder, wheel)
    assert done.returncode == 0, done.stderr
    return folder


def run(installed: Path, folder: Path, *command: str) -> str:
    """What a command prints that sees the installed package first, and runs in a folder of its own."""
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(installed)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def files_of(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_has_every_file_of_the_package_and_its_studies(wheel):
    package = files_of(ROOT / "src" / "anyshot") | {f"studies/{file}" for file in files_of(ROOT / "studies")}
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.removeprefix("anyshot/") for name in names if name.startswith("anyshot/")} == package
    assert {name.partition("/")[0] for name in names} == {"anyshot", wheel.name.split("-py3")[0] + ".dist-info"}


def test_it_is_the_installed_package_that_runs(installed, tmp_path):
    where = run(installed, tmp_path, sys.executable, "-c", "import anyshot; print(anyshot.__file__)")
    assert Path(where.strip()) == installed / "anyshot" / "__init__.py"


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (("--help",), "Few-shot image classification that holds at any shot"),
        (("paper", "audit"), "Contradicted (16)"),
        (("study", "cub32", "--ready", "--only", "cosine-proto/4-shot"), "report.html"),
    ],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_its_commands_run(installed, tmp_path, words, printed):
    assert printed in run(installed, tmp_path, str(installed / "bin" / "anyshot"), *words)
