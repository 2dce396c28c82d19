"""What the engine is compared with: easyfsl, and plain loops as papers' code has them, one episode at a time.

easyfsl comes by `pip install --no-deps easyfsl tqdm` (with its dependencies it would bring a torchvision that does not
load beside a CPU build of torch). What it imports but evaluation does not use is given a stand-in, and its sampler's
base class is allowed the argument that current torch has dropped.
"""

import importlib
import sys
import time
import types
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

STAND_INS = ("torchvision", "torchvision.models", "torchvision.models.resnet", "torchvision.datasets",
             "torchvision.transforms", "torchvision.utils", "pandas", "matplotlib", "matplotlib.pyplot")  # fmt: skip


class _StandIn(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def easyfsl(part: str = "methods") -> Any:
    """A module of easyfsl; ImportError where it is not installed."""
    for name in STAND_INS:
        if name not in sys.modules:
            try:
                importlib.import_module(name)
            except Exception:
                sys.modules[name] = _StandIn(name)
    if getattr(Sampler.__init__, "__name__", "") != "_takes_data_source":

        def _takes_data_source(self: Sampler[Any], data_source: Any = None) -> None: ...

        Sampler.__init__ = _takes_data_source  # type: ignore[method-assign]
    return importlib.import_module(f"easyfsl.{part}")


class Labelled(torch.utils.data.Dataset[Any]):
    """Items and labels as easyfsl's sampler and loader want them."""

    def __init__(self, items: Tensor, labels: np.ndarray) -> None:
        self.items, self.labels = items, labels.tolist()

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.items[index], self.labels[index]

    def get_labels(self) -> list[int]:
        return self.labels


def easyfsl_row(
    items: Tensor, labels: np.ndarray, methods: list[str], shots: tuple[int, ...], trials: int, backbone: Any = None
) -> None:
    """easyfsl's own evaluate(): each method at each shot, `trials` tasks of 5 ways and 16 queries each."""
    samplers, kinds, utils = easyfsl("samplers"), easyfsl("methods"), easyfsl("utils")
    data = Labelled(items, labels)
    for method in methods:
        for shot in shots:
            sampler = samplers.TaskSampler(data, n_way=5, n_shot=shot, n_query=16, n_tasks=trials)
            loader = DataLoader(data, batch_sampler=sampler, collate_fn=sampler.episodic_collate_fn)
            utils.evaluate(getattr(kinds, method)(backbone), loader, device="cpu", use_tqdm=False)


def plain_conv4() -> torch.nn.Module:
    """Conv-4 as a user of easyfsl would write it: convolution, batch norm, ReLU, pool, flatten."""
    layers: list[torch.nn.Module] = []
    for channels in (3, 64, 64, 64):
        conv = torch.nn.Conv2d(channels, 64, 3, padding=1)
        layers += [conv, torch.nn.BatchNorm2d(64), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    return torch.nn.Sequential(*layers, torch.nn.Flatten())


def our_conv4() -> torch.nn.Module:
    """Our own backbone, and the allocator's settings of our own workers, for easyfsl to use."""
    from anyshot.machine import keep_freed_memory
    from anyshot.models.backbones import Conv4

    keep_freed_memory()
    return torch.nn.Sequential(Conv4(), torch.nn.Flatten())


def time_from_images(shots: tuple[int, ...], backbone: torch.nn.Module) -> float:
    """Seconds of easyfsl evaluating one trial at each shot on 84x84 images in memory; it embeds in every trial."""
    images = torch.randn(1200, 3, 84, 84, generator=torch.Generator().manual_seed(0))
    labels = np.repeat(np.arange(20), 60)
    easyfsl_row(images, labels, ["PrototypicalNetworks"], (1,), 1, backbone)
    start = time.perf_counter()
    easyfsl_row(images, labels, ["PrototypicalNetworks"], shots, 1, backbone)
    return time.perf_counter() - start


def frn(support: Tensor, query: Tensor, ridge: float = 1e-3) -> Tensor:
    """FRN as its authors compute it: every position of every query is reconstructed from every class, as a row."""
    gram = support.mT @ support
    size = ridge * gram.flatten(1).norm(dim=1)
    inverse = torch.linalg.inv(gram + size[:, None, None] * torch.eye(gram.shape[-1]))
    rows = query.flatten(0, 1)
    back = rows @ (inverse @ gram)
    return (back - rows).square().sum(-1).unflatten(1, query.shape[:2]).mean(-1).neg().mT


def frn_by_class(support: Tensor, query: Tensor, ridge: float = 1e-3) -> Tensor:
    """FRN in its new form (Eq. 5), class after class."""
    logits = []
    for pool in support:
        gram = pool.mT @ pool
        hat = torch.linalg.inv(gram + ridge * gram.norm() * torch.eye(gram.shape[0])) @ gram
        logits.append(((query @ hat) * query).sum((1, 2)))
    return torch.stack(logits, 1)


def cosine_frn_by_class(support: Tensor, query: Tensor) -> Tensor:
    """Cosine FRN (Eq. 6) as the formula reads, class after class: the queries' Grams anew for each."""
    logits = []
    for pool in support:
        gram, grams = pool.mT @ pool, query.mT @ query
        logits.append((grams * gram).sum((1, 2)) / (grams.flatten(1).norm(dim=1) * gram.norm()))
    return torch.stack(logits, 1)


def cosine_frn_tight(support: Tensor, query: Tensor) -> Tensor:
    """Cosine FRN with the queries' Grams made once per call and one product for all classes: as good as an episode at a
    time gets without sharing anything between shots or episodes."""
    grams, prototypes = (query.mT @ query).flatten(1), (support.mT @ support).flatten(1)
    return F.normalize(grams, dim=1) @ F.normalize(prototypes, dim=1).mT


LOOPS = {
    "FRN's own form": frn,
    "frn, a class at a time": frn_by_class,
    "cosine-frn, a class at a time": cosine_frn_by_class,
    "cosine-frn, tight": cosine_frn_tight,
}


@torch.no_grad()
def loop_row(maps: Tensor, draw: Any, shots: tuple[int, ...], loop: str) -> list[float]:
    """One of LOOPS on cached features, an episode and a shot at a time; accuracies by shot."""
    right = np.zeros(len(shots))
    for support, query in zip(draw.support, draw.query, strict=True):
        true = np.arange(len(query)).repeat(query.shape[1])
        for number, shot in enumerate(shots):
            logits = LOOPS[loop](maps[support[:, :shot]].flatten(1, 2), maps[query.ravel()])
            right[number] += (logits.argmax(1).numpy() == true).mean()
    return list(right / len(draw.support))
