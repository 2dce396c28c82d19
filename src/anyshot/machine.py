"""Memory and cores of this process. Only our own processes call these functions: they change process-wide settings."""

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator

BUSY_SECONDS = 0.1  # how long the use of the cores is watched
# glibc's mallopt parameters and values (malloc.h, mallopt(3)).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
SMALL_THRESHOLD, DEFAULT_THRESHOLD = 1 << 20, 32 << 20


def keep_freed_memory() -> None:
    """Let the allocator keep freed memory.

    By default it returns each large activation to the system and takes it back a moment later, which costs up to 40 %
    of a Conv-4 training step.
    """
    _call_allocator("mallopt", M_MMAP_MAX, 0)
    _call_allocator("mallopt", M_TRIM_THRESHOLD, 2**31 - 1)


@contextlib.contextmanager
def release_large_blocks() -> Iterator[None]:
    """Return large blocks to the system as soon as they are freed, while the context lasts.

    For matrices of many sizes the allocator would otherwise keep a multiple of the memory in use.
    """
    _call_allocator("mallopt", M_MMAP_THRESHOLD, SMALL_THRESHOLD)
    try:
        yield
    finally:
        _call_allocator("mallopt", M_MMAP_THRESHOLD, DEFAULT_THRESHOLD)


def release_memory() -> None:
    """Return unused memory of the allocator to the system, after large work."""
    _call_allocator("malloc_trim", 0)


def _call_allocator(function: str, *values: int) -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):  # Another C library: more memory or time, not wrong.
        getattr(ctypes.CDLL(None), function)(*values)


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_free_cores() -> int:
    """Return the number of our cores that no other process is using just now, at least one."""
    cores = os.cpu_count() or 1
    try:
        ticks, idle = _read_ticks()
        time.sleep(BUSY_SECONDS)
        later_ticks, later_idle = _read_ticks()
        free = cores * (later_idle - idle) / max(1, later_ticks - ticks)
    except (OSError, ValueError):  # The system does not tell: over the last minute.
        free = cores - (os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0)
    return max(1, min(count_cores(), round(free)))


def _read_ticks() -> tuple[int, int]:
    """Return all clock ticks of all cores since the start, and the idle ones (Linux, proc(5))."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]  # idle and iowait


def limit_threads_to_free_cores() -> None:
    """Give torch as many threads as there are free cores, unless the user has chosen a number.

    Must be called before torch is loaded. Answers do not depend on it; training, whose rounding does, uses all cores.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(count_free_cores()))
