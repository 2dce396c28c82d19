"""Conv-4 and ResNet-12: images in, features "image position channel" out.

Pooling comes before the activation: equal for a monotone activation, and a quarter of its cost.
"""

import itertools

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from anyshot.errors import BadInput

Images = Float[Tensor, "image colour height width"]
Maps = Float[Tensor, "image position channel"]


class Conv4(nn.Module):
    """Four blocks of 3x3 convolution, batch norm, max pool, ReLU; 113,088 parameters at width 64 for colour images."""

    def __init__(self, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        sizes = (channels, width, width, width, width)
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
            x = F.relu(F.max_pool2d(norm(conv(x)), 2))
        return _maps(x)


class ResNet12(nn.Module):
    """Four residual blocks of three convolutions, 64 to 640 channels; 12,424,320 parameters for colour images."""

    width = 640

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        sizes = (channels, 64, 160, 320, 640)
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


BACKBONES = {"conv4": Conv4, "resnet12": ResNet12}
