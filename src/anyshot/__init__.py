"""anyshot: few-shot image classification that holds at any shot."""

import ast
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

# Threads that wait for each other sleep instead of spinning, which would slow everything else on the machine. Only
# where the user has not chosen, and before torch and OpenBLAS are loaded, which read these variables once.
if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "10")  # threads spin for 2 ** 10 cycles

# The module of each public name. It is imported when the name is first used, so that `import anyshot` takes no time.
_MODULES = {
    name.name: str(line.module).removeprefix("anyshot.")
    for line in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(line, ast.ImportFrom)
    for name in line.names
}
__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"anyshot.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'anyshot' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
