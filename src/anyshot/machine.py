"""What our own processes ask of the machine they run on."""

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator

LOOK_SECONDS = 0.1  # for what else runs here
RETURNED_BYTES = 1 << 20
KEPT_BYTES = 32 << 20  # up to which the allocator itself comes to keep what is freed


def keep_freed_memory() -> None:
    """Let the allocator keep freed memory: it else returns each large activation to the system, and takes it back a
    moment later, for up to 40 % of a Conv-4 step. It concerns the whole process, so only our own processes call it."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)  # M_MMAP_MAX
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    except (OSError, AttributeError, TypeError):
        pass  # another C library: slower, not wrong


@contextlib.contextmanager
def release_large_blocks() -> Iterator[None]:
    """While it lasts, the allocator returns what is large as soon as it is freed. It else keeps it for what is as large
    or smaller, in several heaps for each thread, which for matrices of many sizes is a multiple of what lives. Fetching
    it anew costs little beside factorising it. It concerns the whole process, so only our own processes call it."""
    _set_mmap_threshold(RETURNED_BYTES)
    try:
        yield
    finally:
        _set_mmap_threshold(KEPT_BYTES)


def _set_mmap_threshold(size: int) -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library: more is held, nothing is wrong
        ctypes.CDLL(None).mallopt(-3, size)  # M_MMAP_THRESHOLD


def release_memory() -> None:
    """Let the allocator return what it holds but nobody uses: after large work, where it would else hold as much as
    lives."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library: more is held, nothing is wrong
        ctypes.CDLL(None).malloc_trim(0)


def count_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_free_cores() -> int:
    """Those of them that nobody else is using, at least one: more threads than that would wait for each other."""
    return max(1, min(count_cores(), round((os.cpu_count() or 1) - _count_busy_cores())))


def _count_busy_cores() -> float:
    """Cores that are in use just now; where the system does not say, in the last minute; else none."""
    try:
        before = _read_ticks()
        time.sleep(LOOK_SECONDS)
        (all_ticks, idle), (all_before, idle_before) = _read_ticks(), before
        return (os.cpu_count() or 1) * (1 - (idle - idle_before) / max(1, all_ticks - all_before))
    except (OSError, ValueError):
        return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _read_ticks() -> tuple[int, int]:
    """Of all cores since the start, and those of them in which nothing ran (Linux: proc(5), user nice system idle
    iowait irq softirq steal)."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]


def limit_threads_to_free_cores() -> None:
    """Let torch, which looks once when it is loaded, have as many threads as cores are free, where nobody has chosen.
    Answers do not depend on it; training, whose rounding does, keeps all cores."""
    os.environ.setdefault("OMP_NUM_THREADS", str(count_free_cores()))
