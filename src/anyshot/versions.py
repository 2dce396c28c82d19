"""The versions a run was made with, kept in its folder for the methods paragraph of its report."""

import platform
from importlib.metadata import PackageNotFoundError, version

import anyshot


def versions() -> dict[str, str]:
    """anyshot, Python and the packages that numbers depend on."""
    found = {"anyshot": anyshot.__version__, "Python": platform.python_version()}
    for name in ("torch", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found
