"""anyshot: few-shot image classification that holds at any shot."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Threads that wait for each other sleep instead of spinning, which would slow everything else on the machine. Only
# where the user has not chosen, and before torch and OpenBLAS are loaded, which read these variables once.
if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "10")  # threads spin for 2 ** 10 cycles

if TYPE_CHECKING:  # for type checkers and editors; the table below does the same when a name is first used
    from anyshot.classify.bank import ClassBank as ClassBank
    from anyshot.classify.classifier import FewShotClassifier as FewShotClassifier
    from anyshot.classify.images import ImageClassifier as ImageClassifier
    from anyshot.data.open import open_source as open_source
    from anyshot.errors import BadInput as BadInput
    from anyshot.errors import MissingFile as MissingFile
    from anyshot.inspect.advice import advise as advise
    from anyshot.inspect.corrections import apply_corrections as apply_corrections
    from anyshot.inspect.unlabelled import rank_unlabelled as rank_unlabelled
    from anyshot.measure.evaluate import evaluate as evaluate
    from anyshot.measure.plan import Protocol as Protocol
    from anyshot.measure.recalls import Recalls as Recalls
    from anyshot.measure.recalls import read_recalls as read_recalls
    from anyshot.measure.sensitivity import decompose as decompose
    from anyshot.models.backbones import Backbone as Backbone
    from anyshot.models.law import Head as Head
    from anyshot.models.model import load_model as load_model
    from anyshot.models.readouts import Readout as Readout
    from anyshot.models.registry import BUILTIN as BUILTIN
    from anyshot.models.registry import PACKAGE as PACKAGE
    from anyshot.models.registry import Registry as Registry
    from anyshot.models.registry import list_backbones as list_backbones
    from anyshot.models.registry import list_heads as list_heads
    from anyshot.models.registry import list_readouts as list_readouts
    from anyshot.recipe import Recipe as Recipe
    from anyshot.study.study import Study as Study
    from anyshot.study.study import packed as packed

# Modules and their public names, imported when a name is first used, so that `import anyshot` takes no time.
_NAMES = {
    "classify.bank": "ClassBank",
    "classify.classifier": "FewShotClassifier",
    "classify.images": "ImageClassifier",
    "data.open": "open_source",
    "errors": "BadInput MissingFile",
    "inspect.advice": "advise",
    "inspect.corrections": "apply_corrections",
    "inspect.unlabelled": "rank_unlabelled",
    "measure.evaluate": "evaluate",
    "measure.plan": "Protocol",
    "measure.recalls": "Recalls read_recalls",
    "measure.sensitivity": "decompose",
    "models.backbones": "Backbone",
    "models.law": "Head",
    "models.model": "load_model",
    "models.readouts": "Readout",
    # PACKAGE is the name of BUILTIN in version 0.1.
    "models.registry": "BUILTIN PACKAGE Registry list_backbones list_heads list_readouts",
    "recipe": "Recipe",
    "study.study": "Study packed",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [*_MODULES, "__version__"]


if not TYPE_CHECKING:  # a type checker would take every name for a public one

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return getattr(import_module(f"anyshot.{_MODULES[name]}"), name)
        raise AttributeError(f"module 'anyshot' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
