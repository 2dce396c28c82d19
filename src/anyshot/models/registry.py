"""The registry: heads, backbones and readouts by name, as one value that is passed to whoever looks one up.

`BUILTIN` holds the package's own. A user's Python file may define another registry, and wherever that file is named
(`--using FILE`) its entries are known beside the built-in ones:

    registry = Registry(heads={"mine": Head(...)})
"""

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from anyshot.errors import BadInput, describe_unknown_name, first_line, look_up
from anyshot.models.backbones import BACKBONES, Backbone
from anyshot.models.gaussian import POSTERIOR
from anyshot.models.heads import FEATURE_HEADS, HEADS, PRETRAINING
from anyshot.models.law import Head, Parameters
from anyshot.models.readouts import READOUTS, Readout, split_readout_name
from anyshot.recipe import Recipe

TIMM = "timm"


@dataclass(frozen=True)
class Registry:
    """Heads, backbones and readouts by name. `a | b` has the entries of both, b's where they share a name.

    Args:
        heads: Heads by name.
        backbones: Backbones by name.
        readouts: Readouts by name; a numbered one, such as pca60, without its number.
        file: Name of the user's Python file that they come from; models trained with them record it.
    """

    heads: Mapping[str, Head] = field(default_factory=dict)
    backbones: Mapping[str, Backbone] = field(default_factory=dict)
    readouts: Mapping[str, Readout] = field(default_factory=dict)
    file: str = ""

    def __or__(self, other: "Registry") -> "Registry":
        """Join two registries; the second wins where they share a name."""
        return Registry(
            {**self.heads, **other.heads},
            {**self.backbones, **other.backbones},
            {**self.readouts, **other.readouts},
            other.file or self.file,
        )

    def head(self, name: str) -> Head:
        """Return the head of this name."""
        return look_up("head", name, self.heads)

    def backbone(self, name: str) -> Backbone:
        """Return the backbone of this name, to be trained: an entry, or `timm:NAME`."""
        kind = name.partition(":")[0]
        if kind == TIMM and name not in self.backbones:
            from anyshot.models.timm_backbone import trainable_timm

            return trainable_timm(name.removeprefix(f"{TIMM}:"))
        if name.lower().endswith(".onnx"):
            raise BadInput(f"{name} cannot be trained, as no ONNX file can: a recipe for it must be frozen.")
        if kind in self.backbones and name not in self.backbones:
            raise BadInput(f"{name} names a frozen backbone: to train it, name {kind}, and give the recipe its size.")
        return look_up("backbone", name, self.backbones)

    def offers(self, recipe: Recipe) -> bool:
        """Return whether it has the head of a recipe, and the backbone where that is part of the model."""
        is_named = recipe.backbone in self.backbones or recipe.backbone.startswith(f"{TIMM}:")
        return recipe.head in self.heads and (recipe.frozen or is_named)

    def readout(self, name: str) -> Readout:
        """Return the readout of this name; the number of a numbered one, such as pca60, is passed to its `fit`."""
        readout = self.readouts.get(name)
        if readout is not None and not readout.is_numbered:
            return readout
        stem, number = split_readout_name(name)
        readout = self.readouts.get(stem)
        if readout is None or number is None or not readout.is_numbered:
            examples = [key + "60" if value.is_numbered else key for key, value in self.readouts.items()]
            raise BadInput(describe_unknown_name("readout", name, examples))
        fit = readout.fit
        assert fit is not None
        return replace(readout, fit=lambda vectors, labels: fit(vectors, labels, number), is_numbered=False)

    def fits(self, readout: str, head: str) -> bool:
        """Return whether a readout suits a head."""
        return self.readout(readout).head(self.head(head)) is not None

    def check_readout(self, readout: str, head: str) -> Readout:
        """Return the readout, or raise BadInput where it does not suit the head."""
        offered = self.readout(readout)
        if offered.head(self.head(head)) is None:
            raise BadInput(f"the readout {readout} does not fit {head}: it fits {offered.fits}.")
        return offered


BUILTIN = Registry(
    {**HEADS, **FEATURE_HEADS, **PRETRAINING},
    BACKBONES,
    {**READOUTS, "posterior": POSTERIOR},  # Gaussian classes whose covariances were estimated on base classes
)
PACKAGE = BUILTIN  # its name in version 0.1


def untrained_parameters(name: str, features: Tensor, registry: Registry = BUILTIN) -> Parameters:
    """Return the parameters of a head that works without training, for features of this shape."""
    head = registry.head(name)
    if head.needs_training:
        others = ", ".join(key for key, other in registry.heads.items() if not other.needs_training)
        raise BadInput(f"{name} has to be trained: name a model with it, or choose among {others}.")
    blank = torch.zeros(1, *features.shape[-2:])
    return head.parameters(blank, Recipe(data="", head=name, train_shot=2, way=2))


def list_heads(registry: Registry = BUILTIN) -> list[str]:
    """Return the names of the heads that can be trained or used.

    Args:
        registry: Where to look; by default what comes with anyshot.
    """
    return sorted(registry.heads)


def list_backbones(registry: Registry = BUILTIN) -> list[str]:
    """Return the names of the backbones that can be trained; `timm:NAME` is known, too.

    Args:
        registry: Where to look; by default what comes with anyshot.
    """
    return sorted(registry.backbones)


def list_readouts(registry: Registry = BUILTIN) -> list[str]:
    """Return the names of the readouts; those that need a number of dimensions end in N, as `pcaN` for `pca60`.

    Args:
        registry: Where to look; by default what comes with anyshot.
    """
    return sorted(f"{name}N" if readout.is_numbered else name for name, readout in registry.readouts.items())


def run_python_file(path: Path) -> ModuleType:
    """Run a user's Python file, which may import modules beside it, and return it as a module."""
    if not path.is_file():
        raise BadInput(f"there is no Python file {path}.")
    spec = importlib.util.spec_from_file_location(f"anyshot_using_{path.stem}", path.resolve())
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} is not a Python file: its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        with user_code_errors(path):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


@contextlib.contextmanager
def user_code_errors(path: Path) -> Iterator[None]:
    """Re-raise what a user's own code raises as BadInput that names the line; `--debug` shows the traceback."""
    try:
        yield
    except BadInput:
        raise
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
        where = f", line {lines[-1]}" if lines else ""
        raise BadInput(f"{path}{where} raised {type(error).__name__}: {first_line(error)}.") from error


def load_registry(using: Path | None) -> Registry:
    """Return the built-in registry, joined with that of a user's Python file where one is named."""
    if using is None:
        return BUILTIN
    theirs = getattr(run_python_file(using), "registry", None)
    if not isinstance(theirs, Registry):
        raise BadInput(f"{using} offers nothing: it must define `registry = anyshot.Registry(heads=..., ...)`.")
    return BUILTIN | theirs | Registry(file=using.name)
