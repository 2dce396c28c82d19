"""What turns pictures into features for a classifier: a trained model, a timm model by name, or any function."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8

from anyshot.data.augmentation import MARGIN
from anyshot.deploy.classifier import FewShotClassifier
from anyshot.errors import BadInput
from anyshot.models.model import Model, find_model, load_model
from anyshot.rows import read_table

Pictures = UInt8[np.ndarray, "image side side 3"]
Embed = Callable[[Pictures], np.ndarray]


@dataclass(frozen=True)
class ImageBackbone:
    """Pictures of `side` pixels in, features out; the head that fits them, and what a model card should say of it."""

    features: Callable[[Pictures], Float[np.ndarray, "image ..."]]
    side: int
    make_classifier: Callable[..., FewShotClassifier]
    about: dict[str, Any] = field(default_factory=dict)
    model: Model | None = None
    """The trained model, where it is one of ours: it travels with the classifier."""
    margin: float = 1.0
    """Larger pictures are resized to so much more than `side` before the centre is cut, as in evaluation."""


def image_backbone(source: "str | Path | Model | Embed", side: int | None = None) -> ImageBackbone:
    """From the folder or file of a trained model, `timm:NAME`, or a function of uint8 images "image side side 3"."""
    if isinstance(source, Model):
        return _own(source, None)
    if isinstance(source, str | Path):
        if str(source).startswith("timm:"):
            return _timm(str(source).removeprefix("timm:"))
        path = find_model(Path(source), f"; a timm model is named like timm:{Path(source).name}")
        return _own(load_model(path), path)
    return ImageBackbone(
        source, side or 224, FewShotClassifier, {"backbone": getattr(source, "__name__", "a function")}
    )


def _own(model: Model, path: Path | None) -> ImageBackbone:
    recipe = model.recipe
    about = {"backbone": f"{recipe.backbone}, trained on {recipe.data} with {recipe.head} at {recipe.train_shot} shots"}
    about |= {} if path is None else _sensitivity(model, path if path.is_dir() else path.parent)
    return ImageBackbone(model.reader(), recipe.size, partial(FewShotClassifier.from_run, model), about, model, MARGIN)


def _sensitivity(model: Model, run: Path) -> dict[str, str]:
    """The sensitivity of the model's head, where its study has measured it."""
    table = run.resolve().parent / "sensitivity.csv"
    if not table.is_file():
        return {}
    recipe = model.recipe
    mine = (recipe.data, recipe.backbone, recipe.label, "own")
    for row in read_table(table):
        if tuple(row.get(key) for key in ("data", "backbone", "head", "readout")) == mine:
            return {"sensitivity": f"{row['sensitivity']:.2f} ({row['low']:.2f} to {row['high']:.2f})"}
    return {}


def _timm(name: str) -> ImageBackbone:
    try:
        import timm
    except ImportError:
        raise BadInput("timm models need the packages of an extra: pip install 'anyshot[timm]'.") from None
    try:
        model = timm.create_model(name, pretrained=True, num_classes=0).eval()
    except (RuntimeError, OSError, ValueError) as error:
        raise BadInput(f"timm could not make {name!r} with its weights ({error}).") from None
    config = model.pretrained_cfg
    mean, deviation = (torch.tensor(config[key]).view(3, 1, 1) for key in ("mean", "std"))

    @torch.inference_mode()
    def features(pictures: Pictures) -> np.ndarray:
        pixels = torch.from_numpy(np.array(pictures)).permute(0, 3, 1, 2).float() / 255
        return model((pixels - mean) / deviation).float().numpy()

    return ImageBackbone(features, config["input_size"][-1], FewShotClassifier, {"backbone": f"timm:{name}"})
