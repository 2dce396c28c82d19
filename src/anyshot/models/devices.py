"""Choose the device that networks run on, and run work in threads beside torch's own."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeVar

import torch
from torch import Tensor

from anyshot.concurrency import map_in_order
from anyshot.errors import BadInput

T = TypeVar("T")
R = TypeVar("R")

GPU_SHARE = 0.5  # of a GPU's free memory that features may take; episodes need the rest


@dataclass
class Choice:
    """What `--device`, `--amp` and `--low-memory` chose for a whole process, like its number of threads."""

    device: str = ""
    amp: bool = False
    low_memory: bool = False


CHOICE = Choice()


def use_device(name: str, amp: bool = False, low_memory: bool = False) -> None:
    """Run networks on this device from now on.

    Args:
        name: cpu, cuda, cuda:1 or mps; empty for the default device.
        amp: Whether models train in bfloat16 even where their recipe does not say so.
        low_memory: Whether ResNet-12 trains in less memory and more time (`ResNet12.recompute`).

    Raises:
        BadInput: Where torch does not have this device.
    """
    if name:
        try:
            torch.zeros(1, device=name).cpu()
        except (RuntimeError, AssertionError, NotImplementedError, ValueError):
            available = ["cpu"]
            available += [f"cuda:{number}" for number in range(torch.cuda.device_count())]
            available += ["mps"] if torch.backends.mps.is_available() else []
            raise BadInput(f"there is no device {name!r} here: torch has {', '.join(available)}.") from None
    CHOICE.device, CHOICE.amp, CHOICE.low_memory = name, amp, low_memory


def embedding_device() -> str:
    """Return the device that pictures are embedded on: the chosen one, else the CPU."""
    return CHOICE.device or "cpu"


def training_device() -> str:
    """Return the device that models train on: the chosen one, else CUDA or MPS where there is one, else the CPU."""
    best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    return CHOICE.device or best


def to_gpu(x: Tensor, device: torch.device | str) -> Tensor:
    """Return a tensor on this device where that is a GPU with room for it; else as it is.

    Episodes then run on the GPU. They need double precision, which only CUDA has.
    """
    place = torch.device(device)
    # By its number, or None for the current GPU: older versions of torch do not take "cuda", the default device.
    is_small = place.type == "cuda" and x.nbytes < GPU_SHARE * torch.cuda.mem_get_info(place.index)[0]
    return x.to(device) if is_small else x


@cache
def has_bfloat16() -> bool:
    """Return whether torch can multiply matrices in bfloat16 on this CPU.

    On some processors torch dies of an illegal instruction, so another process tries it.
    """
    trial = "import torch; a = torch.ones(8, 8).bfloat16(); a @ a; torch.conv2d(a[None, :, None], a[:, :, None, None])"
    return subprocess.run([sys.executable, "-c", trial], capture_output=True, check=False).returncode == 0


@contextmanager
def use_threads(number: int) -> Iterator[None]:
    """Set the number of threads that torch uses per operation, inside this context."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def map_in_threads(work: Callable[[T], R], tasks: Iterable[T], ahead: int = 2) -> Iterator[R]:
    """Yield the results of tasks in their order, computed in as many threads as torch may use.

    Args:
        work: Called with each task; torch uses one thread inside it.
        tasks: The tasks.
        ahead: How many tasks per thread run ahead of the caller.
    """
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=partial(torch.set_num_threads, 1))
    with use_threads(threads), pool:
        yield from map_in_order(pool, work, tasks, ahead * threads)
