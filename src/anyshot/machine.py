"""What our own processes ask of the machine they run on."""

import ctypes
import os


def keep_memory() -> None:
    """Let the allocator keep freed memory: it else returns each large activation to the system, and takes it back a
    moment later, for up to 40 % of a Conv-4 step. It concerns the whole process, so only our own processes call it."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)  # M_MMAP_MAX
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    except (OSError, AttributeError, TypeError):
        pass  # another C library: slower, not wrong


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_cores() -> int:
    """Those of them that nobody else was using in the last minute, at least one: more threads than that would wait
    for each other. Where the system does not tell, all."""
    try:
        others = os.getloadavg()[0]
    except (OSError, AttributeError):
        return cores()
    everyone = os.cpu_count() or 1
    return max(1, min(cores(), round(everyone - others)))


def leave_busy_cores() -> None:
    """Let torch, which looks once when it is loaded, have as many threads as cores are free, where nobody has chosen.
    Answers do not depend on it; training, whose rounding does, keeps all cores."""
    os.environ.setdefault("OMP_NUM_THREADS", str(free_cores()))
