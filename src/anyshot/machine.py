"""What our own processes ask of the machine they run on."""

import ctypes
import os
import sys


def wait_quietly() -> None:
    """Let threads that wait for each other sleep: they else spin, and choke a machine that does other things too. Only
    where nobody has chosen, and before torch is loaded, which looks once."""
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        os.environ.setdefault("GOMP_SPINCOUNT", "0")


def keep_memory() -> None:
    """Let the allocator keep freed memory: it else returns each large activation to the system, and takes it back a
    moment later, for up to 40 % of a Conv-4 step. It concerns the whole process, so only our own processes call it."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)  # M_MMAP_MAX
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    except (OSError, AttributeError, TypeError):
        pass  # another C library: slower, not wrong
