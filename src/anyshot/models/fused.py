"""Batch norm, max pooling and ReLU of a training step as one operation, with a backward pass of its own.

A batch norm with a positive weight does not change which of four values is the largest. So the pooling comes first, and
a quarter of the values is normalised. The gradient of the convolution's output is written over that output, which has
no other use by then. This halves the memory of a training step; results are equal to those of the three modules up to
rounding.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Maps = Float[Tensor, "image channel height width"]
PooledMaps = Float[Tensor, "image channel half_height half_width"]
CHUNK = 16  # images whose gradient is scattered at once: few enough to stay in a cache


def is_fusable(x: Tensor, norm: nn.Module) -> bool:
    """Return whether `convolve_block` can stand in for convolution, batch norm, max pooling and ReLU."""
    # A shared batch norm is another class; an identity is what is left of a batch norm at test time.
    is_plain = type(norm) is nn.BatchNorm2d and norm.training
    return is_plain and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def convolve_block(x: Float[Tensor, "image input height width"], conv: Any, norm: Any) -> PooledMaps:
    """Return relu(max_pool(norm(conv(x)))) in training mode, and update the running statistics of `norm`.

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
    def forward(ctx: Any, x: Maps, weight: Tensor, bias: Tensor, eps: float) -> tuple[PooledMaps, Tensor, Tensor]:
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
