"""The versions a run was made with, for the methods paragraph of its report."""

import platform
from importlib.metadata import PackageNotFoundError, version

import anyshot


def versions() -> dict[str, str]:
    """Return the versions of anyshot, Python and the packages that numbers depend on."""
    made_with = {"anyshot": anyshot.__version__, "Python": platform.python_version()}
    for name in ("torch", "numpy"):
        try:
            made_with[name] = version(name)
        except PackageNotFoundError:
            made_with[name] = "unknown"
    return made_with
