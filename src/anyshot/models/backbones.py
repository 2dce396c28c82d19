"""Backbones: images in, features "image position channel" out. Conv-4 and ResNet-12, and what any other has to bring.

Pooling comes before the activation: equal for a monotone activation, and a quarter of its cost.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from anyshot.data.augmentation import MARGIN, MOMENTS, Moments
from anyshot.errors import BadInput
from anyshot.models.efficientnet import EfficientNetLite0, load_pretrained
from anyshot.models.fused import convolve_block, is_fusable
from anyshot.recipe import Recipe

Images = Float[Tensor, "image colour height width"]
Maps = Float[Tensor, "image position channel"]
HALVES: dict[int, Moments] = {1: ((0.5,), (0.5,)), 3: ((0.5,) * 3, (0.5,) * 3)}  # pixels from -1 to 1


class Conv4(nn.Module):
    """Four blocks of 3x3 convolution, batch norm, max pool, ReLU; 113,088 parameters at width 64 for colour images."""

    def __init__(self, channels: int = 3, width: int = 64, fused: bool = False) -> None:
        super().__init__()
        sizes = (channels, width, width, width, width)
        self.fused = fused
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in self.convs)
        self.width = width

    def forward(self, images: Images) -> Maps:
        if min(images.shape[-2:]) < 16:
            raise BadInput(
                f"Conv-4 halves an image four times: it needs at least 16x16, not {tuple(images.shape[-2:])}."
            )
        x = images.contiguous(memory_format=torch.channels_last)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            if self.fused and is_fusable(x, norm):
                x = convolve_block(x, cast(nn.Conv2d, conv), cast(nn.BatchNorm2d, norm))
            else:
                x = F.relu(F.max_pool2d(norm(conv(x)), 2))
        return _maps(x)


class ResNet12(nn.Module):
    """Four residual blocks of three convolutions, 64 to 640 channels; 12,424,320 parameters for colour images. Another
    width of the first block makes all narrower or wider alike."""

    def __init__(self, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        sizes = (channels, width, width * 5 // 2, width * 5, width * 10)
        self.width = sizes[-1]
        self.blocks = nn.Sequential(*(_Block(a, b) for a, b in itertools.pairwise(sizes)))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="leaky_relu")

    def forward(self, images: Images) -> Maps:
        return _maps(self.blocks(images))


class _Block(nn.Module):
    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        sizes = (channels, width, width, width)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in self.convs)
        self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        short = self.shortcut(x)
        for conv, norm in zip(self.convs[:2], self.norms[:2], strict=True):
            x = F.leaky_relu(norm(conv(x)), 0.1)
        return F.leaky_relu(F.max_pool2d(self.norms[2](self.convs[2](x)) + short, 2), 0.1)


def _maps(x: Tensor) -> Maps:
    return x.flatten(2).mT


@dataclass(frozen=True)
class Backbone:
    """A network that a recipe can name, and what its images are made into first.

    Args:
        make: `make(channels, recipe)`, the network for images of so many channels (1 or 3): normalised images "image
            channel side side" to features "image position channel". It is trained; at test time every batch norm that
            lies in a list `norms` beside a list `convs` of as many convolutions is folded into them.
        margin: At test time larger images are resized to so much more than the recipe's size, and cut to the centre.
        moments: Mean and standard deviation that pixels from 0 to 1 are normalised by, by the number of channels.
        blank: The same network without the weights that `make` gives it, to load others into; `make` where None.
    """

    make: Callable[[int, Recipe], nn.Module]
    margin: float = MARGIN
    moments: Mapping[int, Moments] = field(default_factory=lambda: MOMENTS)
    blank: Callable[[int, Recipe], nn.Module] | None = None


BACKBONES: dict[str, Backbone] = {
    "conv4": Backbone(lambda channels, recipe: Conv4(channels, recipe.width, recipe.fused)),
    "resnet12": Backbone(lambda channels, recipe: ResNet12(channels, recipe.width)),
    # Pretrained: training goes on from the weights that come with the package.
    "efficientnet-lite0": Backbone(
        lambda channels, recipe: load_pretrained(), 1.0, HALVES, lambda channels, recipe: EfficientNetLite0()
    ),
}
