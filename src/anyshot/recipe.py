"""A recipe: everything that determines one trained model. Its id is the hash of its JSON.

The JSON has every field of the first version, and of later fields those that are not at their default, so that a new
field renames no existing model. (Changing the default of a first field would.)
"""

import hashlib
import json
import re
from dataclasses import MISSING, dataclass, fields
from math import isfinite
from numbers import Real
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from anyshot.errors import BadInput, as_bad_input, check_names

MAX_SIDE = 1024  # of the network's input in pixels, and of its width in channels
MAX_VALUES = 70_000_000  # of the first layer's output for one image: 280 MB
MAX_INTEGER = 1 << 32  # of counts and seeds that come from a file
MAX_TEXT = 200  # characters of a name
# The fields of the first version; do not add to them.
FIRST_FIELDS = {
    "data", "head", "train_shot", "way", "mixed", "batch", "start", "backbone",
    "width", "size", "embed", "feature_scale", "temperature", "alpha", "layer_norm", "contrastive",
    "augment", "optimiser", "lr", "head_lr", "weight_decay", "epochs", "schedule", "drops",
    "factor", "validate_every", "validation_episodes", "validation_queries", "seed", "amp", "compile",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One model to train. The defaults are the paper's where it has one for all settings."""

    data: str
    """Name of the store, as the study knows it."""
    head: str
    """Name of the head in the registry."""
    train_shot: int
    """Images per class in a training batch; also the shot of validation."""
    way: int
    """Classes in a training batch; way x train_shot images in all."""
    mixed: tuple[int, ...] = ()
    """Mixed-shot training: each batch draws its shot from these and has as many ways as keep the number of images."""
    batch: int = 0
    """Pretraining: images in a batch, drawn over all `way` training classes. 0: batch folding."""
    start: "Recipe | str | None" = None
    """Where the backbone's first weights come from: another recipe (a pretraining), a trained model by its folder or
    name, or a file of FRN's or FEAT's authors (.pth). None: drawn at random, or those that the backbone brings."""
    backbone: str = "conv4"
    """Name of the backbone in the registry, or `timm:NAME`, which brings its weights."""
    width: int = 64
    """Channels of Conv-4 and of ResNet-12's first block (its last has ten times as many), or numbers that a learned map
    gives; EfficientNet-Lite0 has its own."""
    size: int = 84
    """Side of the network's input."""
    embed: str | None = None
    """How features become a vector (flatten, mean, max, gram); the head's own where None."""
    feature_scale: float = 1.0
    """What the backbone's features are multiplied by (FRN on ResNet-12: 1 / sqrt 640)."""
    temperature: float = 1.0
    """Starting value of the learned scale of the logits; `Head.temperature` is what suits a head."""
    alpha: float = 0.0
    """FRN: starting value of log lambda."""
    layer_norm: bool = False
    """FEAT: LayerNorm after the attention."""
    contrastive: float = 0.0
    """FEAT: weight of its auxiliary term (`heads.contrastive_loss`)."""
    overlap: float = 0.0
    """FRN: weight of the auxiliary term of its authors' code, where it is 0.03 (`heads.overlap_loss`)."""
    augment: tuple[str, ...] = ()
    """What is done to training images, by name and in order."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """SGD with a Nesterov momentum of 0.9, or Adam."""
    lr: float = 0.1
    """Learning rate that the schedule begins with (step) or rises to (one-cycle)."""
    head_lr: float | None = None
    """Learning rate of the head's parameters, where it is not that of the backbone."""
    weight_decay: float = 5e-4
    """Weight of the squared parameters in the loss."""
    epochs: int = 100
    """Passes over the training images."""
    schedule: Literal["step", "one-cycle"] = "step"
    """The learning rate drops at some epochs, or rises for 0.3 of the updates and falls to 0."""
    drops: tuple[int, ...] = ()
    """Epochs at which the step schedule drops."""
    factor: float = 0.1
    """What the step schedule multiplies the learning rate by."""
    validate_every: int = 20
    """Epochs between validations; 0: never, the last epoch counts."""
    validation_episodes: int = 1000
    """Episodes of a validation."""
    validation_queries: int = 16
    """Queries per class of a validation."""
    seed: int = 0
    """Decides the starting weights, batches, augmentation and dropout."""
    amp: bool = False
    """Run the backbone in bfloat16 where that loses nothing that matters (for GPUs)."""
    compile: bool = False
    """Compile the backbone with torch.compile (for GPUs)."""
    frozen: bool = False
    """The backbone is not trained: the head learns on its features, which are computed once. The backbone is then any
    name that `--model` takes, or a word for features that were made elsewhere."""
    start_scale: bool = False
    """Whether the temperature begins with that of `start`, too, as in FRN's finetuning."""
    fused: bool = False
    """Conv-4 on a CPU: normalise, pool and rectify in one operation (`convolve_block`), in half the memory; the same
    weights up to rounding."""

    def __post_init__(self) -> None:
        self._check_types()
        if set("/\\\0") & set(self.data + self.head):  # they become part of a folder's name
            raise BadInput(f"{self.data!r}, {self.head!r}: names of data and heads in a recipe have no slashes.")
        if max(self.width, self.size) > MAX_SIDE or self.width * self.size**2 > MAX_VALUES:
            raise BadInput(f"a network of width {self.width} on images of side {self.size} is too large.")
        at_least = {"train_shot": 1 if self.batch else 2, "way": 2, "epochs": 1, "width": 1, "size": 1}
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise BadInput(f"{name} of a recipe must be at least {least}, not {getattr(self, name)}.")
        for shot in self.mixed:
            if shot < 2 or self.images % shot or self.images // shot < 2:
                raise BadInput(f"a batch of {self.images} images cannot be cut into classes of {shot} (mixed shots).")

    def _check_types(self) -> None:
        """Raise BadInput where a value is not of its field's type: recipes come from files too."""
        for name, kind in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if not _has_type(value, kind) or (name == "start" and value == ""):
                raise BadInput(f"{name} of a recipe cannot be {str(value)[:80]!r}.")
            if get_origin(kind) is Literal:
                check_names(name, [value], get_args(kind))

    @property
    def images(self) -> int:
        """Images in a training batch."""
        return self.batch or self.way * self.train_shot

    @property
    def id(self) -> str:
        """The first 12 digits of the hash of its JSON: equal recipes, and only they, share it."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """The head as tables name it; training with mixed shots makes another learner."""
        return f"{self.head}-mixed" if self.mixed else self.head

    @property
    def path(self) -> tuple[str, ...]:
        """The words that select a model of a study."""
        return (self.data, self.backbone, self.label, f"{self.train_shot}-shot", f"seed-{self.seed}")

    @property
    def name(self) -> str:
        """The name of the model's folder: readable, and unique by the id."""
        shot = "" if self.batch else f"{self.train_shot}shot-"
        backbone = re.sub(r"[^\w.-]+", "_", self.backbone)  # it may be named by a path
        return f"{self.data}-{backbone}-{self.label}-{shot}{self.id}"

    def to_dict(self) -> dict[str, Any]:
        """Return its fields, without those that were added later and are at their default."""
        values = {one.name: (getattr(self, one.name), one.default) for one in fields(self)}
        shown = {name: now for name, (now, default) in values.items() if name in FIRST_FIELDS or now != default}
        return shown | ({"start": self.start.to_dict()} if isinstance(self.start, Recipe) else {})

    def to_json(self) -> str:
        """Return the JSON that `from_json` reads; the id is its hash."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Recipe":
        """Return the recipe that `to_json` wrote; raise BadInput for a field that recipes do not have."""
        with as_bad_input((json.JSONDecodeError, RecursionError), "a recipe is not written as JSON."):
            return cls._from_dict(json.loads(text))

    @classmethod
    def _from_dict(cls, value: Any) -> "Recipe":
        if not isinstance(value, dict):
            raise BadInput(f"a recipe is an object with names, not a {type(value).__name__}.")
        for field in fields(cls):
            if field.default is MISSING and field.name not in value:
                raise BadInput(f"a recipe has no {field.name}.")
        check_names("field of a recipe", value, [field.name for field in fields(cls)])
        values: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}
        if isinstance(values.get("start"), dict):
            values["start"] = cls._from_dict(values["start"])
        return cls(**values)

    def learning_rate(self, done: float) -> float:
        """Return the share of the learning rate to use after a share `done` of all updates (0 <= done < 1)."""
        if self.schedule == "step":
            return self.factor ** sum(done * self.epochs >= drop for drop in self.drops)
        return done / 0.3 if done < 0.3 else (1 - done) / 0.7


def _has_type(value: Any, kind: Any) -> bool:
    """Return whether a value is of an annotated type; numbers must be finite, integers and texts not too large."""
    if get_origin(kind) is UnionType:
        return any(_has_type(value, one) for one in get_args(kind))
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_has_type(one, get_args(kind)[0]) for one in value)
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    if kind is int:
        return type(value) is int and 0 <= value < MAX_INTEGER
    if kind is str or get_origin(kind) is Literal:
        return isinstance(value, str) and len(value) <= MAX_TEXT
    return isinstance(value, kind)
