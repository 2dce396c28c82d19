"""anyshot: few-shot image classification that holds at any shot."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Public names and the modules they live in, imported when first used: `import anyshot` costs nothing.
_HOMES = {
    "BadInput": "errors",
    "FewShotClassifier": "deploy.classifier",
    "ImageClassifier": "deploy.image_classifier",
    "decompose": "measure.sensitivity",
    "evaluate": "measure.evaluation",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"anyshot.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'anyshot' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
