"""Where networks run: the device that `--device` named, or the usual one."""

import torch

from anyshot.errors import BadInput

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
