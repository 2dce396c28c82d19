"""What our own processes ask of the machine they run on."""

import ctypes


def keep_memory() -> None:
    """Let the allocator keep freed memory: it else returns each large activation to the system, and takes it back a
    moment later, for up to 40 % of a Conv-4 step. It concerns the whole process, so only our own processes call it."""
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)  # M_MMAP_MAX
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    except (OSError, AttributeError, TypeError):
        pass  # another C library: slower, not wrong
