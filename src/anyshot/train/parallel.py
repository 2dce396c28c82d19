"""One model over several processes, through torch's own DistributedDataParallel (start with torchrun).

Each process takes its share of a batch's images through the backbone. The vectors are gathered, with their gradients,
before the fold, so that the episode stays whole; batch norm uses the statistics of the whole batch. A run is therefore
equal to one process up to the order of float additions. Every process computes the same loss of the whole batch, so
each local gradient counts it once a process, and the mean over processes that DistributedDataParallel takes is right.
"""

from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn


def count_processes() -> int:
    """How many processes train the model together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return not dist.is_initialized() or dist.get_rank() == 0


def wait_for_all() -> None:
    """Go on when all processes have come this far."""
    if dist.is_initialized():
        dist.barrier()


def local_share(images: int) -> slice:
    """Which images of a batch are this process's."""
    if not dist.is_initialized():
        return slice(images)
    rank, world = dist.get_rank(), dist.get_world_size()
    return slice(images * rank // world, images * (rank + 1) // world)


def gather_batch(x: Float[Tensor, "mine d"], images: int) -> Float[Tensor, "image d"]:
    """The vectors of the whole batch, in order."""
    if not dist.is_initialized():
        return x
    mine = local_share(images)
    return _Sum.apply(nn.functional.pad(x, (0, 0, mine.start, images - mine.stop)))


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
    """Batch norm over the images of all processes. (torch's SyncBatchNorm does the same on GPUs only.)"""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        assert self.running_mean is not None
        shifted = x - self.running_mean.view(-1, 1, 1)  # near zero on average, so that squares lose no digits
        sums = torch.stack(
            [shifted.sum((0, 2, 3)), shifted.square().sum((0, 2, 3)), torch.ones_like(self.running_mean)]
        )
        sums[2] *= x.numel() / x.shape[1]
        first, second, counts = _Sum.apply(sums)
        count = counts[0].detach()
        offset = first / count
        variance = second / count - offset.square()
        with torch.no_grad():
            assert self.running_var is not None
            assert self.momentum is not None
            self.running_mean.add_(offset, alpha=self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
        factor = self.weight * (variance + self.eps).rsqrt()
        return (shifted - offset.view(-1, 1, 1)) * factor.view(-1, 1, 1) + self.bias.view(-1, 1, 1)


def synchronise_norms(module: nn.Module) -> None:
    """Let every batch norm of a module use the whole batch."""
    for part in module.modules():
        if type(part) is nn.BatchNorm2d:
            part.__class__ = SharedBatchNorm
