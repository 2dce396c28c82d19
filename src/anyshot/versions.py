"""The versions a run was made with, for the methods paragraph of its report."""

import platform
from importlib.metadata import PackageNotFoundError, version

import anyshot


def versions() -> dict[str, str]:
    """Return the versions of anyshot, Python and the packages that numbers depend on."""
    names = {"anyshot": anyshot.__version__, "Python": platform.python_version()}
    for name in ("torch", "numpy"):
        try:
            names[name] = version(name)
        except PackageNotFoundError:
            names[name] = "unknown"
    return names
