"""What advice is given on: labelled features, what else is known of them, and what the user asks for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike

from anyshot.classify.classifier import DEFAULT_HEAD, FewShotClassifier
from anyshot.classify.keys import hash_rows
from anyshot.classify.leave_one_out import LeaveOneOutScores, leave_out_examples
from anyshot.errors import BadInput
from anyshot.measure.groups import Groups, Vectors, find_groups, name_bursts, unit_vectors
from anyshot.measure.inputs import LabelledFeatures, check_features, check_labels, describe_size
from anyshot.models.law import Parameters
from anyshot.models.registry import BUILTIN, Registry
from anyshot.progress import OnProgress, no_progress

HEADS_TO_TRY = ("posterior", "cosine-proto", "proto")  # heads that need no training
HEADS_OF_MAPS = ("cosine-frn", "frn")  # the same, of features at several positions
MOST_FLOATS = 400_000_000  # numbers in the Gram matrices of all examples, 1.6 GB: beyond, heads of maps are not tried


@dataclass(frozen=True)
class OtherFeatures:
    """The accuracy of another backbone beside that of the features at hand, on a sample of the pictures.

    Attributes:
        backbone: The name of the other backbone.
        own: The accuracy of the features at hand.
        other: The accuracy of the other backbone.
        shot: Examples per class that both learned from.
        way: Classes of the sample.
        examples: Pictures of the sample.
    """

    backbone: str
    own: float
    other: float
    shot: int
    way: int
    examples: int


class AdviceOptions(TypedDict, total=False):
    """What may be known of labelled features beside their labels; `anyshot.advise` explains each."""

    holdout: LabelledFeatures | None
    names: Sequence[str]
    times: Sequence[float | None]
    groups: Sequence[Any] | None
    is_confirmed: Sequence[bool]
    picture: Callable[[int], np.ndarray] | None
    parameters: Mapping[str, Parameters]
    embed: Mapping[str, str]
    registry: Registry
    progress: OnProgress
    other_features: Callable[[str, float], OtherFeatures | None]


@dataclass(frozen=True)
class HeldOutExamples:
    """Examples that were held out for a test.

    Attributes:
        features: Their features.
        labels: Their labels.
        codes: Their classes, counted as those of the examples at hand; -1 for other classes.
    """

    features: torch.Tensor
    labels: list[str]
    codes: np.ndarray


class AdviceCase:
    """The examples and options that all steps of advice read; the arguments are those of `anyshot.advise`."""

    def __init__(
        self,
        features: ArrayLike | torch.Tensor,
        labels: ArrayLike,
        heads: Sequence[str] = (),
        shots: Sequence[int] = (),
        way: int | Literal["all"] = "all",
        episodes: int = 400,
        seed: int = 0,
        **options: Unpack[AdviceOptions],
    ) -> None:
        self.features = check_features(features)
        self.class_names, self.labels = check_labels(labels, len(self.features))
        self.heads, self.shots, self.way = list(heads) or choose_default_heads(self.features), shots, way
        self.episodes, self.seed = episodes, seed
        self.names, self.times = options.get("names", ()), options.get("times", [None] * len(self.labels))
        groups, holdout = options.get("groups"), options.get("holdout")
        self.named_groups = [] if groups is None else list(groups)
        self.is_confirmed = np.array(options.get("is_confirmed", [False] * len(self.labels)), bool)
        self.picture, self.other_features = options.get("picture"), options.get("other_features")
        self.parameters, self.embed = options.get("parameters", {}), options.get("embed", {})
        self.registry, self.progress = options.get("registry", BUILTIN), options.get("progress", no_progress)
        for head in self.heads:
            self.registry.head(head)
        if any(shot < 1 for shot in shots):
            raise BadInput(f"the shots that you expect must be at least 1, not {min(shots)}.")
        if self.named_groups and len(self.named_groups) != len(self.labels):
            raise BadInput(f"groups must name a group for each of the {len(self.labels)} examples.")
        if len(self.is_confirmed) != len(self.labels):
            raise BadInput(f"is_confirmed must have a value for each of the {len(self.labels)} examples.")
        self.held_out = None if holdout is None else self._read_held_out(*holdout)

    def _read_held_out(self, features: ArrayLike | torch.Tensor, labels: ArrayLike) -> HeldOutExamples:
        """Return examples that were held out, with their classes counted as those of the examples at hand."""
        names = [str(label) for label in np.asarray(labels).tolist()]
        places = {name: place for place, name in enumerate(self.class_names)}
        held_out = HeldOutExamples(check_features(features), names, np.array([places.get(name, -1) for name in names]))
        if held_out.features.shape[1:] != self.features.shape[1:]:
            theirs, ours = describe_size(held_out.features.shape), describe_size(self.features.shape)
            raise BadInput(f"the examples held out have {theirs} numbers each, those at hand {ours}.")
        return held_out

    @property
    def source_noun(self) -> str:
        """What more examples are in, as the help of `anyshot advise` calls it."""
        return "FILE" if self.picture is None else "FOLDER"

    @property
    def default_head(self) -> str:
        """The head that `anyshot fit` takes by default: that of the trained model, where there is one."""
        return next(iter(self.parameters)) if len(self.parameters) == 1 else DEFAULT_HEAD

    @cached_property
    def counts(self) -> np.ndarray:
        """The number of examples of each class."""
        return np.bincount(self.labels)

    @cached_property
    def unit_vectors(self) -> Vectors:
        """The features as vectors of length one: what groups and copies are found by, whatever the head."""
        return unit_vectors(self.features.numpy())

    @cached_property
    def groups(self) -> Groups:
        """Which examples belong together."""
        return find_groups(self.unit_vectors, self.labels, self.names, self.times, self.named_groups)

    def classifier(self, head: str) -> FewShotClassifier:
        """Return a classifier with this head, before it has learned anything."""
        tensors = self.parameters.get(head)
        arrays = None if tensors is None else {name: tensor.double().numpy() for name, tensor in tensors.items()}
        return FewShotClassifier(head, embed=self.embed.get(head), parameters=arrays, registry=self.registry)

    def fit(self, head: str) -> FewShotClassifier:
        """Return the classifier that `anyshot fit` makes of all examples with this head."""
        names = np.array(self.class_names)[self.labels]
        return self.classifier(head).fit(
            self.features.numpy(), names, self.named_groups or name_bursts(names, self.times)
        )

    def leave_out(self, head: str) -> LeaveOneOutScores:
        """Score the examples with this head, each with its group left out."""
        about = self.names, self.times, self.named_groups
        return leave_out_examples(self.fit(head), self.features.numpy(), self.labels, *about)

    def describe(self, example: int) -> dict[str, Any]:
        """Return the number, the name, the label and the key of an example, for JSON."""
        name = self.names[example] if example < len(self.names) else f"example {example}"
        key = hash_rows(self.features[example].reshape(1, -1).numpy())[0]
        return {"image": example, "name": name, "label": self.class_names[self.labels[example]], "key": f"{key:016x}"}


def choose_default_heads(maps: torch.Tensor | np.ndarray) -> list[str]:
    """Return heads that need no training; those of maps only for maps of several positions that are not too large."""
    floats = len(maps) * maps.shape[-1] * (maps.shape[-1] + 1) // 2
    has_maps = maps.ndim == 3 and maps.shape[1] > 1 and floats <= MOST_FLOATS
    return [*HEADS_TO_TRY, *(HEADS_OF_MAPS if has_maps else ())]
