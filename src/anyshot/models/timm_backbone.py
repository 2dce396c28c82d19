"""Pretrained models of timm: `timm:NAME` with any NAME that timm knows (also hf-hub:OWNER/NAME, local-dir:PATH).

Weights on this machine are used without a network connection. Others are downloaded from the Hugging Face hub, after a
short request that tells whether it can be reached.
"""

import contextlib
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import nn

from anyshot.errors import BadInput, as_bad_input, first_line
from anyshot.models.backbones import HALVES, Backbone
from anyshot.models.embedders import Embedder, PixelNetwork, hash_weights, run_on_pictures
from anyshot.recipe import Recipe

HUB_TIMEOUT = 5.0  # seconds to wait for the first answer of the hub; its client would try for minutes


def timm_embedder(name: str, fetch: bool = True) -> Embedder:
    """Return the embedder of a timm model.

    Args:
        name: The name of the model in timm.
        fetch: Whether weights may be downloaded. If not, as for a classifier of unknown origin, they must be on this
            machine: in the cache of the hub's client, or as safetensors in a folder.
    """
    kind, _, folder = name.partition(":")
    if not fetch and kind == "local-dir" and not any(Path(folder).glob("*.safetensors")):
        raise BadInput(f"the classifier names {folder}, which holds no safetensors: name it yourself, as backbone=...")
    model = _create_model(name, fetch).eval()
    config = model.pretrained_cfg
    mean, deviation = np.array(config["mean"]), np.array(config["std"])
    pixel_network = PixelNetwork(model, 255 * mean, 255 * deviation)
    run = run_on_pictures(pixel_network)

    def network(pictures: UInt8[np.ndarray, "image side side 3"]) -> Float[np.ndarray, "image ..."]:
        features = run(pictures)
        return features[:, 0] if features.shape[1] == 1 else features  # a vector per picture, as timm gives it

    side, resample = config["input_size"][-1], config.get("interpolation", "bicubic")
    return Embedder(
        network,
        side,
        resample="bilinear" if resample == "bilinear" else "bicubic",
        name=f"timm:{name}",
        about={"backbone": f"timm:{name}"},
        pixel_network=pixel_network,
        weights_hash=hash_weights(model.state_dict(), config["mean"], config["std"]),
    )


def trainable_timm(name: str) -> Backbone:
    """Return a timm model as a backbone that a recipe can name: its pretrained weights are trained further."""

    def with_weights(channels: int, recipe: Recipe) -> nn.Module:
        return _add_normalisation(_create_model(name, fetch=True))

    def without_weights(channels: int, recipe: Recipe) -> nn.Module:
        timm = _import_timm()
        with as_bad_input(Exception, f"timm could not make {name!r}", "."), _offline():  # timm raises many kinds
            return _add_normalisation(timm.create_model(name, pretrained=False, num_classes=0))

    return Backbone(with_weights, 1.0, HALVES, without_weights)


def _add_normalisation(model: Any) -> PixelNetwork:
    """Return a timm model that takes pixels from -1 to 1, as backbones do, and normalises them as it was trained."""
    config = model.pretrained_cfg
    return PixelNetwork(model, 2 * np.array(config["mean"]) - 1, 2 * np.array(config["std"]))


def _import_timm() -> Any:
    """Import timm; torchvision, which it imports, raises a RuntimeError beside a torch of another version."""
    mismatch = as_bad_input(RuntimeError, "timm cannot be imported", ": install a torchvision that fits this torch.")
    missing = as_bad_input(ImportError, "timm models need the packages of an extra: pip install 'anyshot[timm]'.")
    with mismatch, missing:
        import timm
    return timm


def _create_model(name: str, fetch: bool) -> Any:
    """Return the model with weights from this machine, else from the hub."""
    timm = _import_timm()
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
    if why := _explain_unreachable(hub):
        raise BadInput(f"the weights of timm:{name} are not on this machine, and {hub} cannot be reached ({why}).")
    with as_bad_input(Exception, f"timm could not make {name!r} with its weights", "."):
        return timm.create_model(name, pretrained=True, num_classes=0)


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Forbid torch.hub and the client of the Hugging Face hub, which timm needs, to download inside this context."""
    refusal = OSError("its weights are not on this machine")
    with (
        mock.patch.object(torch.hub, "urlopen", side_effect=refusal),
        mock.patch("huggingface_hub.constants.HF_HUB_OFFLINE", True),
    ):
        yield


def _explain_unreachable(hub: str) -> str:
    """Return why an address cannot be reached; empty where it answers, whatever the answer."""
    try:
        urllib.request.urlopen(urllib.request.Request(hub, method="HEAD"), timeout=HUB_TIMEOUT).close()
    except urllib.error.HTTPError:
        return ""
    except (OSError, ValueError) as error:
        return first_line(getattr(error, "reason", error))
    return ""
