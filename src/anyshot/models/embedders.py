"""What turns pictures into features: a pretrained network that comes with us, a trained model, a timm model by name, or
any function. One name means the same in every verb (`--model`):

    efficientnet-lite0        pretrained on ImageNet; comes with the package; the default
    efficientnet-lite0:160    the same on smaller pictures: almost twice as fast, a little less accurate
    FOLDER or NAME            a model that anyshot trained, or one of those that come with a study
    timm:NAME                 a model of timm, with its weights
"""

import hashlib
import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor, nn

from anyshot.data.pictures import Resample, picture
from anyshot.errors import BadInput
from anyshot.models.efficientnet import SIZE, EfficientNetLite0, folded
from anyshot.models.model import Model, find_model, load_model, read_tensors
from anyshot.models.registry import PACKAGE, Registry
from anyshot.rows import read_table

DEFAULT = "efficientnet-lite0"
LITE0_SHA256 = "44c98e916089065ecba4da2984f0b7b3831c3d04bc9c21ca0302efcf60db77d4"
LEAST_SIDE = 32
Images = UInt8[np.ndarray, "image height width channel"]
Pictures = UInt8[np.ndarray, "image side side 3"]
Embed = Callable[[Pictures], np.ndarray]
BATCH = 64
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Embedder:
    """Pictures in, features out.

    Args:
        network: Pictures of `side` pixels to features "image d" or "image position channel".
        side: Pixels of the square that it sees.
        margin: Larger pictures are resized to so much more than `side` before the centre is cut.
        resample: How pictures are resized.
        name: What `embedder` makes it from anywhere; empty for a trained model, which travels with a classifier, and
            for a function, which has to be given again.
        about: What a model card should say of it.
        model: The trained model, where it is one of ours.
        pixels: Makes the same as a torch module, of pixels from 0 to 255 "image channel side side", for export.
    """

    network: Callable[[Any], Float[np.ndarray, "image ..."]]
    side: int
    margin: float = 1.0
    resample: Resample = "bilinear"
    name: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    model: Model | None = None
    pixels: Callable[[], nn.Module] | None = None

    def features(self, images: Images, done: Callable[[int], None] = lambda images: None) -> np.ndarray:
        """Features of images of any size, batch by batch; `done` is called with the number of each. Batches run side by
        side, one per core, but for a trained model: its features do not depend on the number of cores."""
        starts = range(0, len(images), BATCH)

        def embed(start: int) -> np.ndarray:
            return np.asarray(self.network(self._squares(np.asarray(images[start : start + BATCH]))))

        parts = []
        for part in map(embed, starts) if self.model is not None else side_by_side(embed, starts):
            parts.append(part)
            done(len(part))
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
        middle = slice(start, start + self.side)
        return picture(data, larger, "crop", resample=self.resample)[middle, middle]

    def _squares(self, images: Images) -> UInt8[np.ndarray, "image new_height new_width colour"]:
        if self.model is not None or images.shape[1:] == (self.side, self.side, 3):
            return images  # a model of ours prepares images of any size itself
        return np.stack([self.square(image if image.shape[2] == 3 else image.repeat(3, 2)) for image in images])


def side_by_side(work: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
    """The results of tasks in their order, one thread per core and each on one core of torch; few are ahead of the
    caller, so that memory stays bounded."""
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=partial(torch.set_num_threads, 1)) as pool:
            ahead: deque[Future[R]] = deque()
            try:
                for task in tasks:
                    ahead.append(pool.submit(work, task))
                    if len(ahead) > 2 * threads:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)
    finally:
        torch.set_num_threads(threads)


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
        kind, _, more = str(source).partition(":")
        if kind == "timm":
            return _timm(more)
        if kind == DEFAULT and not Path(source).exists():
            return _lite0(more)
        path = find_model(Path(source), f"; a timm model is named like timm:{Path(source).name}")
        return _own(load_model(path, registry), path)
    return Embedder(source, side or 224, about={"backbone": getattr(source, "__name__", "a function")})


def _own(model: Model, path: Path | None) -> Embedder:
    recipe = model.recipe
    about = {"backbone": f"{recipe.backbone}, trained on {recipe.data} with {recipe.head} at {recipe.train_shot} shots"}
    about |= {} if path is None else _sensitivity(model, path if path.is_dir() else path.parent)
    mean, deviation = model.kind.moments[model.channels]
    return Embedder(
        model.reader(),
        recipe.size,
        model.kind.margin,
        about=about,
        model=model,
        pixels=lambda: _Pixels(model, [255 * value for value in mean], [255 * value for value in deviation]),
    )


class _Pixels(nn.Module):
    """A network on pixels from 0 to 255."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, network: nn.Module, mean: list[float], deviation: list[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("deviation", torch.tensor(deviation).view(-1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.network((pixels - self.mean) / self.deviation)


def lite0_weights() -> dict[str, Tensor]:
    """EfficientNet-Lite0's weights as they come with the package, their bytes checked."""
    with as_file(files("anyshot.models") / "weights" / "efficientnet-lite0.safetensors") as path:
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != LITE0_SHA256:
            raise BadInput(f"the weights of {DEFAULT} are missing or damaged: install anyshot again.")
        return {name: value.float() for name, value in read_tensors(path)[0].items()}


@cache
def _lite0_network() -> EfficientNetLite0:
    network = EfficientNetLite0()
    missing, unexpected = network.load_state_dict(lite0_weights(), strict=False)
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)
    return network.eval()


def _lite0(size: str) -> Embedder:
    side = int(size) if size.isdigit() else SIZE
    if (size and not size.isdigit()) or side < LEAST_SIDE:
        raise BadInput(f"{DEFAULT} takes pictures of {LEAST_SIDE} pixels or more, as in {DEFAULT}:160, not {size!r}.")
    network = folded(_lite0_network())

    @torch.inference_mode()
    def embed(pictures: Pictures) -> np.ndarray:
        pixels = torch.from_numpy(np.array(pictures)).permute(0, 3, 1, 2).float()
        return network(pixels.sub_(127.5).div_(127.5)).numpy()

    about = {
        "backbone": f"{DEFAULT}, trained by Google on ImageNet (Apache-2.0), {side} px, sha256 {LITE0_SHA256[:12]}"
    }
    return Embedder(
        embed,
        side,
        resample="bicubic",
        name=f"{DEFAULT}:{side}" if size else DEFAULT,
        about=about,
        pixels=lambda: _Pixels(_lite0_network(), [127.5] * 3, [127.5] * 3),
    )


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
    except RuntimeError as error:  # as beside a torch and a torchvision that do not fit
        raise BadInput(f"timm cannot be imported ({error}): install a torchvision that fits this torch.") from None
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

    side, resample = config["input_size"][-1], config.get("interpolation", "bicubic")
    return Embedder(
        network,
        side,
        resample="bilinear" if resample == "bilinear" else "bicubic",
        name=f"timm:{name}",
        about={"backbone": f"timm:{name}"},
        pixels=lambda: _Pixels(model, [255 * v for v in config["mean"]], [255 * v for v in config["std"]]),
    )
