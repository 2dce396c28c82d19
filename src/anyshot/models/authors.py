"""Weights that the authors of FRN and FEAT published, read as models of this package.

    FRN (Wertheimer et al. 2021)   the state of a model: feature_extractor.*, scale, r = (alpha, beta), and in
                                   pretraining cat_mat. Read as `frn-old`; without r as `proto`.
    FEAT (Ye et al. 2020)          {"params": the state of a model}: encoder.*, and in pretraining fc.* Read as `proto`.

Both have a Conv-4 and a ResNet-12. Pictures are prepared as their code does: FRN normalises by the moments of ImageNet
and divides the features of ResNet-12 by sqrt(640), FEAT's ResNet-12 has moments of its own (`resnet12-feat`).
"""

import pickle
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from anyshot.errors import BadInput, as_bad_input
from anyshot.files import check_file
from anyshot.recipe import Recipe

SUFFIXES = (".pth", ".pt", ".tar")
PREFIXES = ("feature_extractor.", "encoder.")  # of the backbone's tensors, in FRN and in FEAT
# Backbone, head, embedding and factor of the features, by the prefix and by whether it is a ResNet-12.
READ_AS: dict[tuple[str, bool], tuple[str, str, str | None, float]] = {
    (PREFIXES[0], True): ("resnet12", "proto", "mean", 640**-0.5),
    (PREFIXES[0], False): ("conv4", "proto", None, 1.0),
    (PREFIXES[1], True): ("resnet12-feat", "proto", "mean", 1.0),
    (PREFIXES[1], False): ("conv4", "proto", "max", 1.0),
}
PRETRAINING_BATCH = 128  # images, in the pretraining of both
# Where a tensor of theirs lies in ours: "layer1.0.conv2.weight" is "blocks.0.convs.1.weight".
RESNET12 = re.compile(r"layer([1-4])\.0\.(conv|bn|downsample\.)(\d)\.(\w+)")
RESNET12_PARTS = {"conv": "convs", "bn": "norms", "downsample.": "shortcut"}
# "layers.3.layers.0.weight" (FRN, which counts ReLU and pooling) and "1.0.weight" (FEAT) are "convs.1.weight".
CONV4 = re.compile(r"(layers\.|encoder\.|)(\d+)\.(?:layers\.)?([01])\.(\w+)")


def read_authors_file(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata that a model file of this package would have; no code of the file runs.

    Args:
        path: A file of FRN's or FEAT's authors, as torch wrote it.

    Raises:
        BadInput: The file is damaged, holds more than tensors, or has another layout.
    """
    check_file(path)
    damaged = (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError, KeyError)
    # The words of torch are left out: they advise to load the file with its code.
    with as_bad_input(damaged, f"{path} is damaged, or not a file of weights that torch wrote."):
        content = torch.load(path, map_location="cpu", weights_only=True)
        content = content.get("params", content) if isinstance(content, Mapping) else {}
        return _convert({str(name).removeprefix("module."): value for name, value in content.items()}, path)


def _convert(tensors: Mapping[str, Tensor], path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the weights of a model of theirs under our names, and the recipe of a model that has them."""
    prefix = next((prefix for prefix in PREFIXES if any(name.startswith(prefix) for name in tensors)), "encoder.")
    parts = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    state = {_rename(name): value for name, value in parts.items()}
    if not state or "" in state:
        unknown = next((f"{prefix}{name} is no part of these" for name in parts if not _rename(name)), "it has neither")
        raise BadInput(f"{path} does not have the Conv-4 or ResNet-12 of FRN or FEAT: {unknown}.")
    backbone, head, embed, scale = READ_AS[prefix, "backbone.blocks.0.convs.0.weight" in state]
    state["learned.scale"] = tensors.get("scale", torch.ones(1)).reshape(())
    if "r" in tensors:
        head, embed = "frn-old", None
        state["learned.alpha"], state["learned.beta"] = tensors["r"].unbind()
    recipe = Recipe(
        data="authors",
        head=head,
        train_shot=1,
        way=len(tensors.get("cat_mat", tensors.get("fc.bias", torch.empty(2)))),
        batch=PRETRAINING_BATCH,
        backbone=backbone,
        embed=embed,
        feature_scale=scale,
        epochs=1,
    )
    return state, {"recipe": recipe.to_json(), "channels": "3"}


def _rename(name: str) -> str:
    """Return our name for a tensor of their backbones; empty where we have none."""
    if match := RESNET12.fullmatch(name):
        block, part, number, rest = match.groups()
        place = int(number) if part == "downsample." else int(number) - 1
        return f"backbone.blocks.{int(block) - 1}.{RESNET12_PARTS[part]}.{place}.{rest}"
    if match := CONV4.fullmatch(name):
        kind, block, part, rest = match.groups()
        number = int(block) // 3 if kind == "layers." else int(block)
        return f"backbone.{'norms' if part == '1' else 'convs'}.{number}.{rest}"
    return ""
