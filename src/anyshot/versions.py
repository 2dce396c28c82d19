"""The versions a run was made with, written to its folder for the methods paragraph of its report."""

import platform
from importlib.metadata import PackageNotFoundError, version

import anyshot


def versions() -> dict[str, str]:
    """anyshot, Python and the packages that numbers depend on."""
    names = {"anyshot": anyshot.__version__, "Python": platform.python_version()}
    for name in ("torch", "numpy"):
        try:
            names[name] = version(name)
        except PackageNotFoundError:
            names[name] = "unknown"
    return names
