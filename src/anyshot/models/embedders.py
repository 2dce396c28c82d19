"""What turns pictures into features: a trained model, a timm model by name, or any function. One name means the same in
every verb (`--model`)."""

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image

from anyshot.data.pictures import picture
from anyshot.errors import BadInput
from anyshot.models.model import Model, find_model, load_model
from anyshot.models.registry import PACKAGE, Registry
from anyshot.rows import read_table

Images = UInt8[np.ndarray, "image height width channel"]
Pictures = UInt8[np.ndarray, "image side side 3"]
Embed = Callable[[Pictures], np.ndarray]
BATCH = 64


@dataclass(frozen=True)
class Embedder:
    """Pictures in, features out.

    Args:
        network: Pictures of `side` pixels to features "image d" or "image position channel".
        side: Pixels of the square that it sees.
        margin: Larger pictures are resized to so much more than `side` before the centre is cut.
        about: What a model card should say of it.
        model: The trained model, where it is one of ours: it travels with a classifier.
    """

    network: Callable[[Any], Float[np.ndarray, "image ..."]]
    side: int
    margin: float = 1.0
    about: dict[str, Any] = field(default_factory=dict)
    model: Model | None = None

    def features(self, images: Images, done: Callable[[int], None] = lambda images: None) -> np.ndarray:
        """Features of images of any size, batch by batch."""
        parts = []
        for start in range(0, len(images), BATCH):
            parts.append(np.asarray(self.network(self._squares(np.asarray(images[start : start + BATCH])))))
            done(len(parts[-1]))
        features = np.concatenate(parts)
        if features.ndim not in (2, 3) or len(features) != len(images) or features.dtype.kind != "f":
            raise BadInput(
                f"the backbone gave {features.dtype} of shape {features.shape} for {len(images)} pictures: it must "
                'give "image d" or "image position channel".'
            )
        return features

    def square(self, data: bytes | UInt8[np.ndarray, "height width channel"]) -> UInt8[np.ndarray, "side side 3"]:
        """The central square of a picture, as the backbone's own evaluation would see it."""
        shorter = min(data.shape[:2]) if isinstance(data, np.ndarray) else min(Image.open(io.BytesIO(data)).size)
        larger = round(self.side * self.margin) if shorter > self.side else self.side
        start = round((larger - self.side) / 2)
        return picture(data, larger, "crop")[start : start + self.side, start : start + self.side]

    def _squares(self, images: Images) -> Images:
        if self.model is not None or images.shape[1:] == (self.side, self.side, 3):
            return images  # a model of ours prepares images of any size itself
        return np.stack([self.square(image if image.shape[2] == 3 else image.repeat(3, 2)) for image in images])


def embedder(
    source: "str | Path | Model | Embed | Embedder", side: int | None = None, registry: Registry = PACKAGE
) -> Embedder:
    """The embedder that a name means (the folder, file or name of a trained model, `timm:NAME`), or that of a model or
    of a function of uint8 images "image side side 3"."""
    if isinstance(source, Embedder):
        return source
    if isinstance(source, Model):
        return _own(source, None)
    if isinstance(source, str | Path):
        if str(source).startswith("timm:"):
            return _timm(str(source).removeprefix("timm:"))
        path = find_model(Path(source), f"; a timm model is named like timm:{Path(source).name}")
        return _own(load_model(path, registry), path)
    return Embedder(source, side or 224, about={"backbone": getattr(source, "__name__", "a function")})


def _own(model: Model, path: Path | None) -> Embedder:
    recipe = model.recipe
    about = {"backbone": f"{recipe.backbone}, trained on {recipe.data} with {recipe.head} at {recipe.train_shot} shots"}
    about |= {} if path is None else _sensitivity(model, path if path.is_dir() else path.parent)
    return Embedder(model.reader(), recipe.size, model.kind.margin, about, model)


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


def _timm(name: str) -> Embedder:
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
    def network(pictures: Pictures) -> np.ndarray:
        pixels = torch.from_numpy(np.array(pictures)).permute(0, 3, 1, 2).float() / 255
        return model((pixels - mean) / deviation).float().numpy()

    return Embedder(network, config["input_size"][-1], about={"backbone": f"timm:{name}"})
