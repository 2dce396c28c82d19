"""anyshot: few-shot image classification that holds at any shot."""

import os
import sys
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Threads that wait for each other sleep: they else spin, and choke a machine that does other things too. Only where
# nobody has chosen, and before torch and OpenBLAS are loaded, which look once.
if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "10")  # it spins for so many doublings of a cycle

# Public names and the modules they live in, imported when first used: `import anyshot` costs nothing.
_HOMES = {
    "BUILTIN": "models.registry",
    "PACKAGE": "models.registry",
    "Backbone": "models.backbones",
    "ClassBank": "classify.bank",
    "BadInput": "errors",
    "FewShotClassifier": "classify.classifier",
    "Head": "models.law",
    "ImageClassifier": "classify.images",
    "Protocol": "measure.plan",
    "Readout": "models.readouts",
    "Recalls": "measure.recalls",
    "Recipe": "recipe",
    "Registry": "models.registry",
    "Study": "study.study",
    "advise": "inspect.advice",
    "decompose": "measure.sensitivity",
    "evaluate": "measure.evaluate",
    "load_model": "models.model",
    "packed": "study.study",
    "read_recalls": "measure.recalls",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"anyshot.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'anyshot' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
