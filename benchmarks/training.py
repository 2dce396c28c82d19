"""How fast training is: python benchmarks/training.py [--size 32] [--rounds 5]

First table: CPU time of the bare Conv-4 forward and backward pass, ours (channels last, pooling before the
activation, an allocator that keeps memory) against a naive eager one (channels first, activation before pooling) in a
process with the allocator's defaults. Then a full update with the plain blocks and with the fused ones (a recipe's
`fused`), and the convolutions alone, in images per second. Then how many operations of its convolutions each backbone
does in a second, in the layout it has and with channels last, beside a product of two large matrices. Last: a full
update (augment, forward, fold, backward, step) of every head and train shot as a share of the bare backbone's speed.
Contenders alternate in one run, and the best of all rounds counts, so that other programs on the machine matter little.
One thread; batches of 256 images.
"""

import argparse
import os
import subprocess
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from anyshot.machine import keep_freed_memory
from anyshot.models.backbones import Conv4, ResNet12
from anyshot.models.heads import HEADS
from anyshot.models.registry import BUILTIN
from anyshot.recipe import Recipe
from anyshot.train.training import Learner

IMAGES = 256
AUGMENT = ("crop", "flip", "jitter")


def naive() -> nn.Module:
    layers: list[nn.Module] = []
    for channels in (3, 64, 64, 64):
        layers += [nn.Conv2d(channels, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers)


def once(step) -> float:
    began = time.process_time()
    step()
    return time.process_time() - began


def bare(backbone: nn.Module, images: torch.Tensor):
    backbone.train()

    def step() -> None:
        features = backbone(images)
        features.backward(torch.full_like(features, 1e-6))

    return step


def _images(size: int) -> torch.Tensor:
    return torch.randn(IMAGES, 3, size, size)


def naive_time(size: int, rounds: int) -> float:
    """In a process of its own: the allocator is set for all of a process."""
    words = [sys.executable, __file__, "--size", str(size), "--rounds", str(rounds), "--naive"]
    return float(subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ).stdout)


def best(step, rounds: int) -> float:
    step()
    return min(once(step) for _ in range(rounds))


def backbones(size: int, rounds: int) -> None:
    ours, theirs = bare(Conv4(), _images(size)), []
    ours()
    times = []
    for _ in range(rounds):
        theirs.append(naive_time(size, 1))
        times.append(once(ours))
    per_image = [1e3 * min(each) / IMAGES for each in (times, theirs)]
    print(f"{size:3}  {per_image[0]:6.2f}  {per_image[1]:6.2f}  {per_image[1] / per_image[0]:5.2f} x", flush=True)


def blocks(size: int, rounds: int) -> None:
    """Images per second of a full update with plain and with fused blocks, and of the convolutions alone."""
    images = np.random.default_rng(0).integers(0, 256, (IMAGES, size, size, 3), dtype=np.uint8)
    target = torch.arange(IMAGES // 8).repeat_interleave(8)
    steps = {}
    for name, fused in (("plain", False), ("fused", True)):
        recipe = Recipe(
            data="none", head="proto", train_shot=8, way=IMAGES // 8, size=size, augment=AUGMENT, fused=fused
        )
        learner = Learner(recipe, BUILTIN, 3, "cpu")
        learner.model.train()
        steps[name] = partial(learner.update, images, target, 8, 0, 1e-6)
    network: Any = nn.Sequential(*(part for conv in Conv4().convs for part in (conv, nn.AvgPool2d(2))))
    network.to(memory_format=torch.channels_last)
    steps["convolutions"] = bare(network, _images(size))
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(once(step))
    print("  ".join(f"{name} {IMAGES / min(taken):.0f}" for name, taken in times.items()), flush=True)


def operations(size: int, rounds: int) -> None:
    """GFLOP per training image (a backward pass counts twice), and per second; also as a share of a matrix product."""
    square = torch.randn(1024, 1024)
    most = 2 * 1024**3 / best(lambda: square @ square, 5 * rounds) / 1e9
    print(f"a product of matrices: {most:.0f} GFLOP/s")
    images = torch.randn(64, 3, size, size)
    for name, network in (("Conv-4", Conv4()), ("ResNet-12", ResNet12()), ("ResNet-12, half", ResNet12(3, 32))):
        cost = 3 * _flops(network, images[:2]) / 1e9
        steps = [bare(network, images), bare(network, images.contiguous(memory_format=torch.channels_last))]
        speeds = [cost * len(images) / best(step, rounds) for step in steps]
        shares = "  ".join(f"{speed:6.0f} ({speed / most:.0%})" for speed in speeds)
        print(f"{name:16} {cost:6.2f}  {shares}", flush=True)


def _flops(network: nn.Module, images: torch.Tensor) -> float:
    """Multiplications and additions of the convolutions for one image."""
    counted = []

    def count(conv: nn.Module, _: object, output: torch.Tensor) -> None:
        counted.append(2 * conv.weight.numel() * output.shape[2] * output.shape[3])

    hooks = [module.register_forward_hook(count) for module in network.modules() if isinstance(module, nn.Conv2d)]
    network(images)
    for hook in hooks:
        hook.remove()
    return float(sum(counted))


def updates(size: int, rounds: int) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (IMAGES, size, size, 3), dtype=np.uint8)
    print(f"{'head':14} " + " ".join(f"{shot:>6}-shot" for shot in (4, 8, 16, 32)))
    for head in HEADS:
        cells = []
        for shot in (4, 8, 16, 32):
            way = IMAGES // shot
            recipe = Recipe(data="none", head=head, train_shot=shot, way=way, size=size, augment=AUGMENT)
            learner = Learner(recipe, BUILTIN, 3, "cpu")
            learner.model.train()
            target = torch.arange(way).repeat_interleave(shot)
            reference = bare(learner.model.backbone, _images(size))

            def full(learner=learner, target=target, shot=shot) -> None:
                learner.update(images, target, shot, 0, 1e-6)

            reference(), full()
            pairs = [(once(reference), once(full)) for _ in range(rounds)]
            cells.append(min(pair[0] for pair in pairs) / min(pair[1] for pair in pairs))
        print(f"{head:14} " + " ".join(f"{cell:11.0%}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--naive", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.naive:
        print(best(bare(naive(), _images(args.size)), args.rounds))
        return
    keep_freed_memory()
    print("bare Conv-4, ms per image, forward and backward\nsize    ours   naive")
    for size in sorted({32, 84, args.size}):
        backbones(size, max(1, args.rounds * 32 // size))
    print("\nimages per second of a full update at 84x84, and of its convolutions and pooling alone")
    blocks(84, args.rounds)
    print(f"\nGFLOP per training image at {args.size}x{args.size}, and per second: as it is, with channels last")
    operations(args.size, args.rounds)
    print(f"\na full update at {args.size}x{args.size}, as a share of the bare backbone's speed")
    updates(args.size, args.rounds)


if __name__ == "__main__":
    main()
