"""Models of timm with their weights: `timm:NAME`, where timm knows the NAME (also hf-hub:OWNER/NAME, local-dir:PATH).

Weights that are on this machine are taken from there, without a network. Others come from the hub, which is asked once
whether it is there: who cannot reach it should not have to wait to be told.
"""

import contextlib
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from anyshot.errors import BadInput, as_bad_input, first_line
from anyshot.models.backbones import HALVES, Backbone, Images, Maps
from anyshot.models.devices import embedding_device
from anyshot.models.embedders import Embedder, PixelNetwork, hash_weights
from anyshot.recipe import Recipe

PATIENCE = 5.0  # seconds for the hub to answer at all


def timm_embedder(name: str, fetch: bool = True) -> Embedder:
    """The embedder of a timm model; without `fetch`, as where a classifier from anyone names it, only one whose weights
    are on this machine: those that the hub's client has kept, or safetensors in a folder."""
    kind, _, folder = name.partition(":")
    if not fetch and kind == "local-dir" and not any(Path(folder).glob("*.safetensors")):
        raise BadInput(f"the classifier names {folder}, which holds no safetensors: name it yourself, as backbone=...")
    model, device = _made(_timm(), name, fetch).eval(), embedding_device()
    model = model.to(device)
    config = model.pretrained_cfg
    mean, deviation = (torch.tensor(config[key], device=device).view(3, 1, 1) for key in ("mean", "std"))

    @torch.inference_mode()
    def network(pictures: UInt8[np.ndarray, "image side side 3"]) -> Float[np.ndarray, "image ..."]:
        pixels = torch.from_numpy(np.array(pictures)).to(device).permute(0, 3, 1, 2).float() / 255
        return model((pixels - mean) / deviation).float().cpu().numpy()

    side, resample = config["input_size"][-1], config.get("interpolation", "bicubic")
    return Embedder(
        network,
        side,
        resample="bilinear" if resample == "bilinear" else "bicubic",
        name=f"timm:{name}",
        about={"backbone": f"timm:{name}"},
        pixels=lambda: PixelNetwork(model, [255 * v for v in config["mean"]], [255 * v for v in config["std"]]),
        weights=lambda: hash_weights(model.state_dict(), config["mean"], config["std"]),
    )


class _Trainable(nn.Module):
    """A timm model on pixels from -1 to 1, which it normalises as it was trained."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        for name, key in (("mean", "mean"), ("deviation", "std")):
            self.register_buffer(name, 2 * torch.tensor(model.pretrained_cfg[key]).view(-1, 1, 1))  # type: ignore[index]
        self.mean -= 1

    def forward(self, images: Images) -> Maps:
        pixels = images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images  # grey
        return self.model((pixels - self.mean) / self.deviation).unsqueeze(1)


def trainable_timm(name: str) -> Backbone:
    """A timm model that a recipe can name: it brings its weights, and is trained further."""

    def blank(channels: int, recipe: Recipe) -> nn.Module:
        with as_bad_input(Exception, f"timm could not make {name!r}", "."), _offline():  # whatever timm raises
            return _Trainable(_timm().create_model(name, pretrained=False, num_classes=0))

    return Backbone(lambda channels, recipe: _Trainable(_made(_timm(), name, fetch=True)), 1.0, HALVES, blank)


def _timm() -> Any:
    missing = as_bad_input(ImportError, "timm models need the packages of an extra: pip install 'anyshot[timm]'.")
    # A RuntimeError, as beside a torch and a torchvision that do not fit.
    with (
        as_bad_input(RuntimeError, "timm cannot be imported", ": install a torchvision that fits this torch."),
        missing,
    ):
        import timm
    return timm


def _made(timm: Any, name: str, fetch: bool) -> Any:
    """The model with its weights: those of this machine, else those of the hub."""
    is_on_a_hub = not name.startswith("local-dir:")
    if is_on_a_hub and ":" not in name and not timm.is_model(name):
        raise BadInput(f"timm has no model named {name!r}.")
    try:
        with _offline():
            return timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # whatever timm, its hub or a file of weights raises
        if not is_on_a_hub:
            raise BadInput(f"timm could not make {name!r} with its weights ({first_line(error)}).") from None
        if not fetch:
            raise BadInput(
                f"the weights of timm:{name} are not on this machine; if you trust it, fetch them once: "
                f"anyshot serve timm:{name}."
            ) from None
    hub = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if why := _unreachable(hub):
        raise BadInput(f"the weights of timm:{name} are not on this machine, and {hub} cannot be reached ({why}).")
    with as_bad_input(Exception, f"timm could not make {name!r} with its weights", "."):
        return timm.create_model(name, pretrained=True, num_classes=0)


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """While it lasts, the hub's client looks only at what it has on this machine, and so does torch's."""
    switches: list[tuple[Any, str, Any]] = [(torch.hub, "urlopen", _no_download)]
    with contextlib.suppress(ImportError):
        from huggingface_hub import constants

        switches.append((constants, "HF_HUB_OFFLINE", True))
    before = [getattr(module, name) for module, name, _ in switches]
    for module, name, value in switches:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(switches, before, strict=True):
            setattr(module, name, value)


def _no_download(*_: object, **__: object) -> NoReturn:
    raise OSError("its weights are not on this machine")


def _unreachable(hub: str) -> str:
    """Why an address does not answer; empty where it does, with whatever answer."""
    try:
        urllib.request.urlopen(urllib.request.Request(hub, method="HEAD"), timeout=PATIENCE).close()
    except urllib.error.HTTPError:
        return ""
    except (OSError, ValueError) as error:
        return first_line(getattr(error, "reason", error))
    return ""
