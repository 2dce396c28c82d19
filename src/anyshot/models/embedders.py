"""Load a network by its name and turn pictures into features.

Every verb takes the same names (`--model`), and functions of Python take a function "pictures in, features out" too:

    efficientnet-lite0        pretrained on ImageNet; comes with the package; the default
    efficientnet-lite0:160    the same on smaller pictures: almost twice as fast, a little less accurate
    FOLDER or NAME            a model that anyshot trained, or one of those that come with a study
    timm:NAME                 a model of timm, with its weights
    FILE.onnx                 any network as an ONNX file; `anyshot export` writes such files too
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from anyshot.data.pictures import Box, Resample, describe_failure, evaluation_square
from anyshot.data.store import Frames
from anyshot.errors import BadInput
from anyshot.models.cache import FeatureCache, hash_picture
from anyshot.models.devices import embedding_device, map_in_threads
from anyshot.models.efficientnet import LITE0_SHA256, SIZE, EfficientNetLite0, FoldedLite0, load_pretrained
from anyshot.models.model import Model, find_model, load_model
from anyshot.models.registry import BUILTIN, Registry
from anyshot.progress import OnProgress, no_progress
from anyshot.tables import GridKey, read_table
from anyshot.text import format_decimals

DEFAULT_EMBEDDER = "efficientnet-lite0"
MIN_SIDE, MAX_SIDE = 32, 1024  # pixels of the pictures that efficientnet-lite0 can be given
Image = UInt8[np.ndarray, "height width channel"]
Images = UInt8[np.ndarray, "image height width channel"]
Pictures = UInt8[np.ndarray, "image side side 3"]
Embed = Callable[[Pictures], np.ndarray]
BATCH = 64  # pictures that go through a network together
BACKBONE_FILES = ("backbone.onnx", "backbone.safetensors")  # where a classifier's folder has its frozen backbone
PREPARATION_VERSION = 2  # to be raised when pictures are decoded or resized differently: cached features are then stale


@dataclass(frozen=True)
class Embedder:
    """A network, and how pictures are prepared for it.

    Args:
        network: Turns uint8 pictures "image side side 3" into features "image d" or "image position channel".
        side: Side of its square input, in pixels.
        margin: Larger pictures are resized to `margin` times `side` before the centre is cut.
        resample: The filter that resizes pictures.
        name: The name that `load_embedder` takes for it; empty for a trained model, whose weights a classifier stores
            itself, and for a function, which the user has to pass again.
        about: Entries for a model card.
        model: The model trained by anyshot, if it is one.
        pixel_network: The network as a torch module of pixels from 0 to 255 "image channel side side", for export.
        weights_hash: The hash of its weights; empty for a function, whose features cannot be cached.
        file: The bytes of an ONNX file, which a classifier stores itself.
        pixel_model: The model trained by anyshot that reads the pixels, if there is one; it takes images of any size.
            It is another than `model` where that is a head on frozen features.
    """

    network: Callable[[Any], Float[np.ndarray, "image ..."]]
    side: int
    margin: float = 1.0
    resample: Resample = "bilinear"
    name: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    model: Model | None = None
    pixel_network: nn.Module | None = None
    weights_hash: str = ""
    file: bytes | None = None
    pixel_model: Model | None = None

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the weights and of how pictures are prepared, which identify the features; "" of a function."""
        parts = (self.weights_hash, self.side, self.margin, self.resample)
        return self.weights_hash and hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    @property
    def channels(self) -> int:
        """Channels of its input: 3, or 1 for a model trained on grey images."""
        return 3 if self.pixel_model is None else self.pixel_model.channels

    def features(
        self, images: Images | Frames, advance: OnProgress = no_progress, cache: FeatureCache | None = None
    ) -> np.ndarray:
        """Return the features of images of any size.

        Batches run in parallel, one per core, except for a trained model, whose features must not depend on the number
        of cores.

        Args:
            images: The images.
            advance: Called with the number of images of each finished batch.
            cache: Features of earlier runs; only missing ones are computed.
        """
        starts = range(0, len(images), BATCH)
        parts = []

        def embed(start: int) -> np.ndarray:
            batch = images[start : start + BATCH]
            if isinstance(batch, Frames):
                batch = [self.crop_square(frame) for frame in batch]
            batch = np.asarray(batch)
            keys = [hash_picture(image, "stored") for image in batch]
            rows: dict[int, Any] = {index: self.get_cached(cache, key) for index, key in enumerate(keys)}
            if missing := [index for index, row in rows.items() if row is None]:
                for index, row in zip(missing, self.run_network(self._squares(batch[missing])), strict=True):
                    rows[index] = row
                    self.add_cached(cache, keys[index], row)
            return np.stack(list(rows.values()))

        for part in map(embed, starts) if self.pixel_model is not None else map_in_threads(embed, starts):
            parts.append(part)
            advance(float(len(part)))
        return np.concatenate(parts)

    def run_network(self, pictures: UInt8[np.ndarray, "image height width colour"]) -> Float[np.ndarray, "image ..."]:
        """Run the network on pictures of its size, and check the shape of the features."""
        features = np.asarray(self.network(pictures))
        if features.ndim not in (2, 3) or len(features) != len(pictures) or features.dtype.kind != "f":
            raise BadInput(
                f"the backbone gave {features.dtype} of shape {features.shape} for {len(pictures)} pictures: it must "
                'give "image d" or "image position channel".'
            )
        return features

    def get_cached(self, cache: FeatureCache | None, key: str) -> np.ndarray | None:
        """Return the cached features of a picture; None where there are none, and for a function."""
        if cache is None or not self.fingerprint:
            return None
        return cache.get(f"{self.fingerprint}-{PREPARATION_VERSION}", key)

    def add_cached(self, cache: FeatureCache | None, key: str, features: np.ndarray) -> None:
        """Cache the features of a picture; do nothing without a cache, and for a function."""
        if cache is not None and self.fingerprint:
            cache.add(f"{self.fingerprint}-{PREPARATION_VERSION}", key, features)

    def crop_square(self, data: bytes | Image, box: Box | None = None) -> UInt8[np.ndarray, "side side 3"]:
        """Return the central square of a picture, or of a box in it, upright, in colour and at the network's size."""
        if isinstance(data, np.ndarray) and data.shape[-1] == 1:
            data = np.repeat(data, 3, -1)
        return evaluation_square(data, self.side, self.margin, box, self.resample)

    def prepare(
        self, data: bytes | Image, name: object = "a picture", box: Box | None = None
    ) -> UInt8[np.ndarray, "side side 3"]:
        """Do as `crop_square`, with a message for the user if that fails.

        Raises:
            BadInput: The picture cannot be read; the message has its name.
        """
        try:
            return self.crop_square(data, box)
        except Exception as error:  # a broken picture can fail in any way
            raise BadInput(describe_failure(name, error, data)) from None

    def _squares(self, images: Images) -> UInt8[np.ndarray, "image new_height new_width colour"]:
        """Return images at the network's size; a model trained by anyshot resizes them itself."""
        if self.pixel_model is not None or images.shape[1:] == (self.side, self.side, 3):
            return images
        return np.stack([self.crop_square(image) for image in images])


def load_embedder(
    source: "str | Path | Model | Embed | Embedder",
    side: int | None = None,
    registry: Registry = BUILTIN,
    fetch: bool = True,
) -> Embedder:
    """Return the embedder of a name, a model or a function.

    Args:
        source: A name as above, a trained model, or a function of uint8 pictures "image side side 3".
        side: Side of the pictures that a function takes, in pixels; 224 by default.
        registry: Heads and backbones that trained models may use.
        fetch: Whether the weights of a timm model may be downloaded.
    """
    if isinstance(source, Embedder):
        return source
    if isinstance(source, Model):
        return _from_model(source, None, registry, fetch)
    if isinstance(source, str | Path):
        prefix, _, rest = str(source).partition(":")
        if prefix == "timm":
            from anyshot.models.timm_backbone import timm_embedder

            return timm_embedder(rest, fetch)
        if prefix == DEFAULT_EMBEDDER and not Path(source).exists():
            return _load_lite0(rest)
        if Path(source).suffix.lower() == ".onnx":
            from anyshot.models.onnx_backbone import onnx_embedder

            return onnx_embedder(Path(source))
        hint = f"; a timm model is named like timm:{Path(source).name}"
        path = find_model(Path(source), hint, DEFAULT_EMBEDDER)
        return _from_model(load_model(path, registry), path, registry, fetch)
    return Embedder(source, side or 224, about={"backbone": getattr(source, "__name__", "a function")})


def _from_model(model: Model, path: Path | None, registry: Registry, fetch: bool) -> Embedder:
    """Return the embedder of a trained model, which was loaded from `path`, if anywhere."""
    recipe = model.recipe
    folder = None if path is None else path if path.is_dir() else path.parent
    if recipe.frozen:
        return _from_frozen(model, folder, registry, fetch)
    about = {"backbone": f"{recipe.backbone}, trained on {recipe.data} with {recipe.head} at {recipe.train_shot} shots"}
    about |= {} if folder is None else _read_sensitivity(model, folder)
    mean, deviation = model.kind.moments[model.channels]
    return Embedder(
        model.reader(embedding_device()),
        recipe.size,
        model.kind.margin,
        about=about,
        model=model,
        pixel_model=model,
        pixel_network=PixelNetwork(model, 255 * np.array(mean), 255 * np.array(deviation)),
        weights_hash=hash_weights(
            model.backbone.state_dict(), recipe.backbone, recipe.size, recipe.feature_scale, model.channels
        ),
    )


def _from_frozen(model: Model, folder: Path | None, registry: Registry, fetch: bool) -> Embedder:
    """Return the embedder of a head that was trained on the features of a frozen backbone.

    The backbone lies in the head's folder, as in that of a classifier, or is loaded by its name. Without it, the
    embedder can still read features, and refuses pictures.
    """
    recipe = model.recipe
    head = f"{recipe.head} trained on {recipe.data} at {recipe.train_shot} shots"
    files = [] if folder is None else [folder / file for file in BACKBONE_FILES if (folder / file).is_file()]
    try:
        backbone = load_embedder(files[0] if files else recipe.backbone, registry=registry, fetch=fetch)
        if model.fingerprint and backbone.fingerprint != model.fingerprint:
            raise BadInput(f"its content is {backbone.fingerprint[:12]} here, and was {model.fingerprint[:12]}.")
    except BadInput as error:
        reason = str(error)

        def refuse(pictures: Pictures) -> np.ndarray:
            raise BadInput(f"{recipe.name} was trained on features of {recipe.backbone!r}, not on pictures: {reason}")

        return Embedder(refuse, SIZE, about={"backbone": f"{recipe.backbone}, frozen; {head}"}, model=model)
    pixels = backbone.pixel_network
    return replace(
        backbone,
        network=lambda pictures: model.features(backbone.network(pictures)),
        name="",
        about={"backbone": f"{backbone.about['backbone']}; {head}"},
        model=model,
        pixel_network=None if pixels is None else nn.Sequential(pixels, model),
    )


def hash_weights(tensors: Mapping[str, Tensor], *more: object) -> str:
    """Return a hash of tensors with their names, and of further values."""
    digest = hashlib.sha256(repr(more).encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.view(torch.uint8).numpy().data if value.ndim else value.numpy().tobytes())
    return digest.hexdigest()


class PixelNetwork(nn.Module):
    """A network that normalises its input itself.

    Args:
        model: Turns normalised pixels into features. A vector per image, as from timm, becomes a map of one position.
        mean: Mean of each channel.
        deviation: Standard deviation of each channel.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, model: nn.Module, mean: np.ndarray, deviation: np.ndarray) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1))
        self.register_buffer("deviation", torch.tensor(deviation, dtype=torch.float32).view(-1, 1, 1))

    def forward(self, pixels: Float[Tensor, "image colour side side"]) -> Float[Tensor, "image position channel"]:
        """Return the features; grey pixels become equal channels, if the model has several."""
        features = self.model((pixels.expand(-1, len(self.mean), -1, -1) - self.mean) / self.deviation)
        return features.unsqueeze(1) if features.ndim == 2 else features


def run_on_pictures(network: nn.Module) -> Embed:
    """Return a network of pixels from 0 to 255 as a function of uint8 pictures, on the device for embedding."""
    device = embedding_device()
    network = network.to(device)

    @torch.inference_mode()
    def run(pictures: Pictures) -> np.ndarray:
        pixels = torch.from_numpy(np.array(pictures)).to(device).permute(0, 3, 1, 2).float()
        return network(pixels).float().cpu().numpy()

    return run


@cache
def _read_lite0() -> EfficientNetLite0:
    """Return the pretrained network, which is read once."""
    return load_pretrained().eval()


def _load_lite0(size: str) -> Embedder:
    """Return the embedder of EfficientNet-Lite0 at a size in pixels, as text, or "" for the default."""
    side = int(size) if re.fullmatch("[0-9]{1,4}", size) else 0 if size else SIZE
    if not MIN_SIDE <= side <= MAX_SIDE:
        raise BadInput(
            f"{DEFAULT_EMBEDDER} takes pictures of {MIN_SIDE} to {MAX_SIDE} pixels, as in {DEFAULT_EMBEDDER}:160, "
            f"not {size!r}."
        )
    half = np.full(3, 127.5)
    about = {
        "backbone": f"{DEFAULT_EMBEDDER}, trained by Google on ImageNet (Apache-2.0), {side} px, "
        f"sha256 {LITE0_SHA256[:12]}"
    }
    return Embedder(
        run_on_pictures(PixelNetwork(FoldedLite0(_read_lite0()), half, half)),
        side,
        resample="bicubic",
        name=f"{DEFAULT_EMBEDDER}:{side}" if size else DEFAULT_EMBEDDER,
        about=about,
        pixel_network=PixelNetwork(_read_lite0(), half, half),
        weights_hash=LITE0_SHA256,
    )


def _read_sensitivity(model: Model, run: Path) -> dict[str, str]:
    """Return the sensitivity of the model's head, where the study of this run has measured it."""
    table = run.resolve().parent / "sensitivity.csv"
    if not table.is_file():
        return {}
    recipe = model.recipe
    grid = GridKey(recipe.data, recipe.backbone, recipe.label)
    for row in read_table(table):
        if tuple(row.get(name) for name in GridKey._fields) == grid:
            score, low, high = (format_decimals(row[name]) for name in ("sensitivity", "low", "high"))
            return {"sensitivity": f"{score} ({low} to {high})"}
    return {}
