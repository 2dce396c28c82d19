"""Training one model in several processes, through torch's DistributedDataParallel (start with torchrun).

Each process passes its share of a batch through the backbone. The vectors are gathered, with their gradients, before
the fold, and batch norm uses the statistics of the whole batch. A run therefore equals that of one process up to the
order of float additions. Every process computes the loss of the whole batch, so the mean over processes that
DistributedDataParallel takes of the gradients is right.
"""

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn


def count_processes() -> int:
    """Return how many processes train the model together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_first() -> bool:
    """Return whether this process is the one that writes files."""
    return not dist.is_initialized() or dist.get_rank() == 0


def wait_for_all() -> None:
    """Wait until all processes have come this far."""
    if dist.is_initialized():
        dist.barrier()


def local_share(images: int) -> slice:
    """Return which images of a batch belong to this process."""
    if not dist.is_initialized():
        return slice(images)
    rank, world = dist.get_rank(), dist.get_world_size()
    return slice(images * rank // world, images * (rank + 1) // world)


def gather_batch(x: Float[Tensor, "local d"], images: int) -> Float[Tensor, "image d"]:
    """Return the vectors of the whole batch, in order."""
    if not dist.is_initialized():
        return x
    local = local_share(images)
    return _Sum.apply(nn.functional.pad(x, (0, 0, local.start, images - local.stop)))


class _Sum(torch.autograd.Function):
    """A sum over processes, in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Sum.apply(gradient)


class SharedBatchNorm(nn.BatchNorm2d):
    """Batch norm over the images of all processes; torch's SyncBatchNorm runs on GPUs only."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the mean and variance of the whole batch, and update the running ones."""
        if not self.training:
            return super().forward(x)
        norm: Any = self  # torch declares its statistics and its momentum as optional
        shifted = x - norm.running_mean.view(-1, 1, 1)  # near zero, so that squares lose no digits
        count = torch.full_like(norm.running_mean, x.numel() / x.shape[1])
        sums = torch.stack([shifted.sum((0, 2, 3)), shifted.square().sum((0, 2, 3)), count])
        first, second, count = _Sum.apply(sums).unbind()
        offset = first / count
        variance = second / count - offset.square()
        with torch.no_grad():
            norm.running_mean.add_(offset, alpha=norm.momentum)
            norm.running_var.lerp_(variance * count / (count - 1), norm.momentum)
            norm.num_batches_tracked.add_(1)
        factor = self.weight * (variance + self.eps).rsqrt()
        return (shifted - offset.view(-1, 1, 1)) * factor.view(-1, 1, 1) + self.bias.view(-1, 1, 1)


def synchronise_norms(module: nn.Module) -> None:
    """Make every batch norm of a module use the whole batch."""
    for part in module.modules():
        if type(part) is nn.BatchNorm2d:
            part.__class__ = SharedBatchNorm
