"""Options that several verbs share, as values that are passed on whole."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from anyshot.data.layout import SourceOptions
from anyshot.errors import BadInput

if TYPE_CHECKING:
    from anyshot.models.cache import FeatureCache
    from anyshot.models.registry import Registry

Splits = tuple[Literal["train", "val", "test"], ...]
OutOption = Annotated[Path, Parameter(name=["--out", "-o", "--output"])]
OptionalOut = Annotated[Path | None, Parameter(name=["--out", "-o", "--output"])]


@Parameter(name="*", group="Networks")
@dataclass(frozen=True)
class DeviceOptions:
    """Networks: where they come from and where they run.

    Attributes:
        using: A Python file with heads, backbones or readouts of your own (`registry = anyshot.Registry(...)`).
        device: Where networks run, as torch names it: cpu, cuda, cuda:1, mps; the CPU by default.
    """

    using: Path | None = None
    device: str = ""

    def registry(self) -> "Registry":
        """Select the device, and return the registry: ours, with what the user's file adds."""
        from anyshot.models.devices import use_device
        from anyshot.models.registry import load_registry

        if self.device:
            use_device(self.device)
        return load_registry(self.using)


@Parameter(name="*", group="Networks")
@dataclass(frozen=True)
class EmbedOptions(DeviceOptions):
    """Networks: where they come from, where they run, and whether their features are cached.

    Attributes:
        cache: Keep the features of pictures on disk, and use those that are there.
    """

    cache: bool = True

    def open_cache(self) -> "FeatureCache | None":
        """Return the cache of features, or None where it is switched off."""
        from anyshot.models.cache import FeatureCache

        return FeatureCache() if self.cache else None


@Parameter(name="*", group="Networks")
@dataclass(frozen=True)
class ReadOptions(EmbedOptions):
    """Networks: where they come from, where they run, and whether their features are cached."""

    layout: Annotated[SourceOptions, Parameter(name="*", group="Source")] = field(default_factory=SourceOptions)


@Parameter(name="*", group="Examples")
@dataclass(frozen=True)
class ExampleOptions:
    """Examples: which of the source are learned from, and under which labels.

    Attributes:
        split: What to learn from, where the source is divided: train by default.
        corrections: Tables of reviewed labels, as the page of `anyshot advise` and that of `anyshot serve` write them:
            examples are relabelled or dropped, by one table after the other, before they are learned.
    """

    split: Splits = ()
    corrections: tuple[Path, ...] = ()


def parse_way(way: str) -> int:
    """Return a number of classes; 0 stands for 'all'."""
    if way != "all" and not re.fullmatch("[0-9]{1,9}", way):
        raise BadInput(f"way is a number of classes or 'all', not {way!r}.")
    return 0 if way == "all" else int(way)
