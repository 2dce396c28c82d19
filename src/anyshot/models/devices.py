"""Where networks run: the device that `--device` named, or the usual one; and on how many threads."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from typing import TypeVar

import torch

from anyshot.concurrency import map_in_order
from anyshot.errors import BadInput

T = TypeVar("T")
R = TypeVar("R")

_device = ""  # what `--device` named; one choice for a whole process, like its number of threads


def use_device(name: str) -> None:
    """Run networks on this device (cpu, cuda, cuda:1, mps) from now on; a sentence where torch does not have it."""
    global _device
    if name:
        try:
            torch.zeros(1, device=name).cpu()
        except (RuntimeError, AssertionError, NotImplementedError, ValueError):
            there = ["cpu"]
            there += [f"cuda:{number}" for number in range(torch.cuda.device_count())]
            there += ["mps"] if torch.backends.mps.is_available() else []
            raise BadInput(f"there is no device {name!r} here: torch has {', '.join(there)}.") from None
    _device = name


def embedding_device() -> str:
    """Where pictures are embedded: on the device that was named, else on the CPU."""
    return _device or "cpu"


def training_device() -> str:
    """Where models are trained: on the device that was named, else CUDA or MPS where there is one, else the CPU."""
    best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    return _device or best


@cache
def has_bfloat16() -> bool:
    """Return whether this CPU multiplies matrices in bfloat16.

    On some processors torch dies of an illegal instruction there, so that another process has to try it.
    """
    trial = "import torch; a = torch.ones(8, 8).bfloat16(); a @ a; torch.conv2d(a[None, :, None], a[:, :, None, None])"
    return subprocess.run([sys.executable, "-c", trial], capture_output=True, check=False).returncode == 0


@contextmanager
def use_threads(number: int) -> Iterator[None]:
    """While it lasts, torch uses so many threads for an operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def map_in_threads(work: Callable[[T], R], tasks: Iterable[T], ahead: int = 2) -> Iterator[R]:
    """The results of tasks in their order, in as many threads as torch may use, each on one core of torch; so many per
    thread are ahead of the caller."""
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=partial(torch.set_num_threads, 1))
    with use_threads(threads), pool:
        yield from map_in_order(pool, work, tasks, ahead * threads)
