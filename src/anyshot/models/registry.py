"""What is offered: heads, backbones and readouts by name, as one value that is passed to whoever has to look one up.

`PACKAGE` holds our own. A Python file of anyone's may define another, and wherever that file is named (`--using FILE`)
what it offers is known beside ours:

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

from anyshot.errors import BadInput, choose, first_line, unknown
from anyshot.models.backbones import BACKBONES, Backbone
from anyshot.models.gaussian import POSTERIOR, POSTERIOR_HEAD, UNIT_PROTO
from anyshot.models.heads import HEADS, LINEAR, PRETRAINING
from anyshot.models.law import Head
from anyshot.models.readouts import READOUTS, Readout, stem_and_number
from anyshot.recipe import Recipe

TIMM = "timm"


@dataclass(frozen=True)
class Registry:
    """What is offered by name. `a | b` has what both offer, b's where they share a name.

    Args:
        heads: Heads by name.
        backbones: Backbones by name.
        readouts: Readouts by name; that of a numbered one, such as pca60, goes without the number.
        file: Name of the Python file they come from, if they are not ours: what is trained with them remembers it.
    """

    heads: Mapping[str, Head] = field(default_factory=dict)
    backbones: Mapping[str, Backbone] = field(default_factory=dict)
    readouts: Mapping[str, Readout] = field(default_factory=dict)
    file: str = ""

    def __or__(self, other: "Registry") -> "Registry":
        """Both, the other's first where they share a name."""
        return Registry(
            {**self.heads, **other.heads},
            {**self.backbones, **other.backbones},
            {**self.readouts, **other.readouts},
            other.file or self.file,
        )

    def head(self, name: str) -> Head:
        """The head of this name."""
        return choose("head", name, self.heads)

    def backbone(self, name: str) -> Backbone:
        """The backbone of this name, to be trained: one that is offered, or `timm:NAME`."""
        kind = name.partition(":")[0]
        if kind == TIMM and name not in self.backbones:
            from anyshot.models.timm_backbone import trainable

            return trainable(name.removeprefix(f"{TIMM}:"))
        if name.lower().endswith(".onnx"):
            raise BadInput(f"{name} cannot be trained, as no ONNX file can: a recipe for it must be frozen.")
        if kind in self.backbones and name not in self.backbones:
            raise BadInput(f"{name} names a frozen backbone: to train it, name {kind}, and give the recipe its size.")
        return choose("backbone", name, self.backbones)

    def offers(self, recipe: Recipe) -> bool:
        """Whether the head of a recipe is there, and its backbone where it is part of the model."""
        is_named = recipe.backbone in self.backbones or recipe.backbone.startswith(f"{TIMM}:")
        return recipe.head in self.heads and (recipe.frozen or is_named)

    def readout(self, name: str) -> Readout:
        """The readout of this name; that of a numbered one, such as pca60, keeps as many dimensions."""
        readout = self.readouts.get(name)
        if readout is not None and not readout.is_numbered:
            return readout
        stem, number = stem_and_number(name)
        readout = self.readouts.get(stem)
        if readout is None or number is None or not readout.is_numbered:
            examples = [key + "60" if value.is_numbered else key for key, value in self.readouts.items()]
            raise BadInput(unknown("readout", name, examples))
        fit = readout.fit
        assert fit is not None
        return replace(readout, fit=lambda vectors, labels: fit(vectors, labels, number), is_numbered=False)

    def fits(self, readout: str, head: str) -> bool:
        """Whether a readout fits a head."""
        return self.readout(readout).head(self.head(head)) is not None

    def check_readout(self, readout: str, head: str) -> Readout:
        """The readout, if it fits the head."""
        offered = self.readout(readout)
        if offered.head(self.head(head)) is None:
            raise BadInput(f"the readout {readout} does not fit {head}: it fits {offered.fits}.")
        return offered


PACKAGE = Registry(
    {**HEADS, **LINEAR, "unit-proto": UNIT_PROTO, "posterior": POSTERIOR_HEAD, **PRETRAINING},
    BACKBONES,
    {**READOUTS, "posterior": POSTERIOR},
)


def load_module(path: Path) -> ModuleType:
    """A Python file of a user's, run; it may import what lies beside it."""
    if not path.is_file():
        raise BadInput(f"there is no Python file {path}.")
    spec = importlib.util.spec_from_file_location(f"anyshot_using_{path.stem}", path.resolve())
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} is not a Python file: its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        with said(path):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


@contextlib.contextmanager
def said(path: Path) -> Iterator[None]:
    """While a user's own code runs: what it raises is one sentence that says where; `--debug` shows all of it."""
    try:
        yield
    except BadInput:
        raise
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
        where = f", line {lines[-1]}" if lines else ""
        raise BadInput(f"{path}{where} raised {type(error).__name__}: {first_line(error)}.") from error


def registry_of(using: Path | None) -> Registry:
    """Ours, and what the Python file offers that the user has named."""
    if using is None:
        return PACKAGE
    theirs = getattr(load_module(using), "registry", None)
    if not isinstance(theirs, Registry):
        raise BadInput(f"{using} offers nothing: it must define `registry = anyshot.Registry(heads=..., ...)`.")
    return PACKAGE | theirs | Registry(file=using.name)
