"""Backbones: images in, features "image position channel" out.

To add a backbone, write its module here or in a file of its own, and add it to `BACKBONES`.

Pooling comes before the activation: the result is equal for a monotone activation, at a quarter of its cost.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from anyshot.data.augmentation import MARGIN, MOMENTS, Moments
from anyshot.errors import BadInput
from anyshot.models.efficientnet import EfficientNetLite0, load_pretrained
from anyshot.recipe import Recipe

Images = Float[Tensor, "image colour height width"]
Maps = Float[Tensor, "image position channel"]
Grid = Float[Tensor, "image channel height width"]
CHUNK = 16  # images whose gradient `convolve_block` scatters at once: few enough to stay in a cache
DROP_GROWTH = 40_000  # batches over which FEAT's authors raise the share that is dropped
# By which FEAT's authors normalise the pictures of ResNet-12, in grey levels over 255.
FEAT_MOMENTS: dict[int, Moments] = {
    1: MOMENTS[1],
    3: (
        (120.39586422 / 255, 115.59361427 / 255, 104.54012653 / 255),
        (70.68188272 / 255, 68.27635443 / 255, 72.54505529 / 255),
    ),
}
HALVES: dict[int, Moments] = {1: ((0.5,), (0.5,)), 3: ((0.5,) * 3, (0.5,) * 3)}  # pixels from -1 to 1


class Conv4(nn.Module):
    """Conv-4 (Vinyals et al. 2016): four blocks of 3x3 convolution, batch norm, max pool and ReLU.

    It has 113,088 parameters at width 64 for colour images.
    """

    def __init__(self, channels: int = 3, width: int = 64, fused: bool = False) -> None:
        super().__init__()
        sizes = (channels, width, width, width, width)
        self.fused = fused
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in self.convs)

    def forward(self, images: Images) -> Maps:
        """Return features "image position channel"."""
        if min(images.shape[-2:]) < 16:
            raise BadInput(
                f"Conv-4 halves an image four times: it needs at least 16x16, not {tuple(images.shape[-2:])}."
            )
        x = images.contiguous(memory_format=torch.channels_last)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            if self.fused and is_fusable(x, norm):
                x = convolve_block(x, conv, norm)
            else:
                x = F.relu(F.max_pool2d(norm(conv(x)), 2))
        return _maps(x)


def is_fusable(x: Tensor, norm: nn.Module) -> bool:
    """Return whether `convolve_block` can stand in for convolution, batch norm, max pooling and ReLU."""
    # A shared batch norm is another class; an identity is what is left of a batch norm at test time.
    is_plain = type(norm) is nn.BatchNorm2d and norm.training
    return is_plain and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def convolve_block(x: Float[Tensor, "image input height width"], conv: Any, norm: Any) -> Tensor:
    """Return relu(max_pool(norm(conv(x)))) in training mode, and update the running statistics of `norm`.

    A batch norm with a positive weight does not change which of four values is the largest. So the pooling comes first,
    and a quarter of the values is normalised. The gradient of the convolution's output is written over that output,
    which has no other use by then. This halves the memory of a training step; results are equal to those of the three
    modules up to rounding.

    Args:
        x: What the block reads.
        conv: A 3x3 convolution (`nn.Conv2d`) with padding 1 and a bias.
        norm: Its `nn.BatchNorm2d`, with torch's defaults. Where its weight is negative, both are negated.
    """
    sign = torch.where(norm.weight.detach() < 0, -1.0, 1.0).to(x.dtype)
    maps = F.conv2d(x, conv.weight * sign.view(-1, 1, 1, 1), conv.bias * sign, padding=1)
    pooled, mean, variance = _NormPoolRelu.apply(maps, norm.weight * sign, norm.bias, norm.eps)
    with torch.no_grad():
        count = maps.numel() // maps.shape[1]
        norm.running_mean.lerp_(mean * sign, norm.momentum)
        norm.running_var.lerp_(variance * (count / (count - 1)), norm.momentum)
        norm.num_batches_tracked.add_(1)
    return pooled


class _NormPoolRelu(torch.autograd.Function):
    """Batch norm with weights that are not negative, 2x2 max pooling and ReLU."""

    @staticmethod
    def forward(ctx: Any, x: Grid, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance = torch.batch_norm_update_stats(x, None, None, 0.0)
        largest, places = F.max_pool2d(x, 2, return_indices=True)
        deviation = (variance + eps).rsqrt()
        factor = weight * deviation
        pooled = torch.addcmul(_per_channel(bias - mean * factor), largest, _per_channel(factor)).relu_()
        ctx.save_for_backward(x, largest, places, pooled, mean, deviation, weight)
        ctx.mark_non_differentiable(mean, variance)
        return pooled, mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, largest, places, pooled, mean, deviation, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        gradient = torch.ops.aten.threshold_backward(gradient, pooled, 0)
        normalised = (largest - _per_channel(mean)).mul_(_per_channel(deviation))
        of_bias, of_weight = gradient.sum((0, 2, 3)), normalised.mul_(gradient).sum((0, 2, 3))
        # d x = factor * (d y - mean of d y - normalised x * mean of (d y * normalised x)), where d y is zero but at the
        # largest of four values: a linear function of x, and the gradient of the pooling.
        count = x.numel() // x.shape[1]
        factor = weight * deviation
        slope = -factor * deviation * of_weight / count
        level = -factor * of_bias / count - slope * mean
        gradient *= _per_channel(factor)
        for part, some, where in zip(x.split(CHUNK), gradient.split(CHUNK), places.split(CHUNK), strict=True):
            scattered = torch.ops.aten.max_pool2d_with_indices_backward(
                some, part, [2, 2], [2, 2], [0, 0], [1, 1], False, where
            )
            part.mul_(_per_channel(slope)).add_(_per_channel(level)).add_(scattered)
        return x, of_weight, of_bias, None


def _per_channel(values: Float[Tensor, " channel"]) -> Float[Tensor, "channel 1 1"]:
    return values.view(-1, 1, 1)


class ResNet12(nn.Module):
    """ResNet-12 (Oreshkin et al. 2018, with the widths of Lee et al. 2019): four residual blocks of three convolutions.

    It has 64, 160, 320 and 640 channels and 12,424,320 parameters for colour images. Another width of the first block
    scales all others.

    Args:
        channels: Channels of the images.
        width: Channels of the first block.
        drop: Share of the features that training drops, as in the code of FEAT's authors: single features after the
            first two blocks, squares of 5x5 positions after the others (DropBlock, Ghiasi et al. 2018).

    Attributes:
        recompute: Whether training computes a block again for its gradient instead of keeping all of it in memory.
    """

    recompute = False

    def __init__(self, channels: int = 3, width: int = 64, drop: float = 0.0) -> None:
        super().__init__()
        sizes = (channels, width, width * 5 // 2, width * 5, width * 10)
        sides = (1, 1, 5, 5) if drop else (0, 0, 0, 0)
        self.blocks = nn.Sequential(
            *(_Block(a, b, drop, side) for (a, b), side in zip(itertools.pairwise(sizes), sides, strict=True))
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="leaky_relu")

    def forward(self, images: Images) -> Maps:
        """Return features "image position channel"."""
        for block in self.blocks:
            is_recomputed = self.recompute and self.training and torch.is_grad_enabled()
            images = _compute_twice(cast(_Block, block), images) if is_recomputed else block(images)
        return _maps(images)


def _compute_twice(block: "_Block", x: Tensor) -> Tensor:
    """Return what a block gives, and keep only its input for the gradient; batch norm counts the batch once."""
    return checkpoint(block, x, use_reentrant=False, context_fn=lambda: (nullcontext(), _frozen_statistics(block)))


@contextmanager
def _frozen_statistics(block: nn.Module) -> Iterator[None]:
    """Let batch norms see the last batch once more, and leave their running statistics as they are."""
    norms: list[Any] = [module for module in block.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [(norm, norm.momentum, norm.num_batches_tracked.clone()) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
        norm.num_batches_tracked.sub_(1)
    try:
        yield
    finally:
        for norm, momentum, batches in before:
            norm.momentum = momentum
            norm.num_batches_tracked.copy_(batches)


class _Block(nn.Module):
    """Three convolutions and a shortcut; in training it drops squares of `side` positions where there is a side."""

    def __init__(self, channels: int, width: int, drop: float, side: int) -> None:
        super().__init__()
        self.drop, self.side = drop, side
        sizes = (channels, width, width, width)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in self.convs)
        self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        short = self.shortcut(x)
        for conv, norm in zip(self.convs[:2], self.norms[:2], strict=True):
            x = F.leaky_relu(norm(conv(x)), 0.1)
        x = F.leaky_relu(F.max_pool2d(self.norms[2](self.convs[2](x)) + short, 2), 0.1)
        if self.training and self.side == 1:
            return F.dropout(x, self.drop)
        if self.training and self.side:
            # The share grows over the first 40,000 batches; batch norm counts them, and a resumed run goes on counting.
            batches = cast(Tensor, self.norms[0].num_batches_tracked)
            return drop_blocks(x, self.drop * (batches / DROP_GROWTH).clamp(max=1), self.side)
        return x


def drop_blocks(x: Grid, share: Tensor, side: int) -> Grid:
    """Set squares of positions to zero, channel by channel, and scale up the others (DropBlock, Ghiasi et al. 2018).

    Args:
        x: The features.
        share: About what share of the positions is dropped.
        side: Side of a square; that of the features where these are smaller.
    """
    height, width = x.shape[2:]
    side = min(side, height, width)
    corners = (height - side + 1, width - side + 1)
    chance = share / side**2 * (height * width) / (corners[0] * corners[1])
    starts = torch.rand(*x.shape[:2], *corners, device=x.device) < chance
    stays = 1 - F.max_pool2d(F.pad(starts.to(x.dtype), [side - 1] * 4), side, stride=1)
    return x * stays * (stays.numel() / stays.sum().clamp(min=1))


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
    # ResNet-12 as the authors of FEAT train it: other moments, dropout and DropBlock (Ye et al. 2020).
    "resnet12-feat": Backbone(lambda channels, recipe: ResNet12(channels, recipe.width, 0.1), moments=FEAT_MOMENTS),
    # Pretrained: training goes on from the weights that come with the package.
    "efficientnet-lite0": Backbone(
        lambda channels, recipe: load_pretrained(), 1.0, HALVES, lambda channels, recipe: EfficientNetLite0()
    ),
}
