"""A recipe: all that makes one trained model, frozen. Its id is the hash of its JSON: a changed default changes it."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from anyshot.errors import BadInput, unknown


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One model to train. The defaults are the paper's where it has one for all settings."""

    data: str
    """Name of the store, as the study knows it."""
    head: str
    train_shot: int
    """Images a class in a training batch."""
    way: int
    """Classes in a training batch; way x train_shot images in all."""
    backbone: str = "conv4"
    width: int = 64
    """Channels of Conv-4; ResNet-12 has its own."""
    size: int = 84
    """Side of the network's input."""
    embed: str | None = None
    """How features become a vector (flatten, mean, max, gram); the head's own where None."""
    feature_scale: float = 1.0
    """What the backbone's features are multiplied by (FRN on ResNet-12: 1 / sqrt 640)."""
    temperature: float = 1.0
    """Starting value of the learned scale of the logits."""
    alpha: float = 0.0
    """FRN: starting value of log lambda."""
    layer_norm: bool = False
    """FEAT: LayerNorm after the attention."""
    contrastive: float = 0.0
    """FEAT: weight of the auxiliary term."""
    augment: tuple[str, ...] = ()
    """What is done to training images, by name and in order."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.1
    head_lr: float | None = None
    """Learning rate of the head's parameters, where it is not that of the backbone."""
    weight_decay: float = 5e-4
    epochs: int = 100
    schedule: Literal["step", "one-cycle"] = "step"
    drops: tuple[int, ...] = ()
    """Epochs at which the step schedule multiplies the learning rate by `factor`."""
    factor: float = 0.1
    validate_every: int = 20
    """Epochs between validations; 0: never, the last epoch is kept."""
    validation_episodes: int = 1000
    validation_queries: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("train_shot", 2), ("way", 2), ("epochs", 1), ("width", 1), ("size", 1)):
            if getattr(self, name) < least:
                raise BadInput(f"{name} of a recipe must be at least {least}, not {getattr(self, name)}.")

    @property
    def id(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """What the model's folder is called: for people first, unique by the id."""
        return f"{self.data}-{self.backbone}-{self.head}-{self.train_shot}shot-{self.id}"

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Recipe":
        value: dict[str, Any] = json.loads(text)
        names = [field.name for field in fields(cls)]
        for name in value:
            if name not in names:
                raise BadInput(unknown("field of a recipe", name, names))
        kept: dict[str, Any] = {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}
        return cls(**kept)

    def learning_rate(self, done: float) -> float:
        """Share of the starting learning rate after a share `done` of all updates (0 <= done < 1)."""
        if self.schedule == "step":
            return self.factor ** sum(done * self.epochs >= drop for drop in self.drops)
        return done / 0.3 if done < 0.3 else (1 - done) / 0.7
