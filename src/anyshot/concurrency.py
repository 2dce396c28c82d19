"""Work in several threads, with results in order; locks that survive a fork; a connection to Ray."""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any, TypeVar

from anyshot.errors import as_bad_input

FORK_WAIT_SECONDS = 0.05  # for one lock before a fork lets the others go and tries again: two threads never block
T = TypeVar("T")
R = TypeVar("R")
_locks: "weakref.WeakSet[Any]" = weakref.WeakSet()
_locks_of_fork: list[Any] = []
_fork_lock = threading.RLock()  # guards both collections


def make_lock() -> Any:
    """Return a re-entrant lock for which a fork waits.

    A forked process has one thread, so that a lock which another thread held would never be released there, and what it
    guards might be half changed.
    """
    lock = threading.RLock()
    with _fork_lock:
        _locks.add(lock)
    return lock


def _acquire_all() -> None:
    """Take all locks; where one is held for long, let the others go, for which its holder may be waiting."""
    while True:
        _fork_lock.acquire()
        for lock in list(_locks):
            if not lock.acquire(timeout=FORK_WAIT_SECONDS):
                break
            _locks_of_fork.append(lock)
        else:
            return
        _release_all()


def _release_all() -> None:
    while _locks_of_fork:
        _locks_of_fork.pop().release()
    _fork_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_acquire_all, after_in_parent=_release_all, after_in_child=_release_all)


def map_in_order(pool: Executor, work: Callable[[T], R], tasks: Iterable[T], ahead: int) -> Iterator[R]:
    """Yield the results of tasks in their order.

    Args:
        pool: Where the tasks run; it is shut down at the end.
        work: Called with each task.
        tasks: Read as they are needed, so that memory stays bounded.
        ahead: How many tasks may run ahead of the caller.
    """
    pending: deque[Future[R]] = deque()
    try:
        for task in tasks:
            pending.append(pool.submit(work, task))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def connect_ray(on: str) -> Iterator[Any]:
    """Yield the module ray, connected to a cluster; a connection that was there before stays open.

    Args:
        on: ray for a cluster of this machine, or ray://ADDRESS.
    """
    with as_bad_input(ImportError, "`--on ray` needs the extra: pip install 'anyshot[ray]'."):
        import ray
    is_new = not ray.is_initialized()
    if is_new:
        ray.init(None if on == "ray" else on, log_to_driver=False, logging_level="warning")
    try:
        yield ray
    finally:
        if is_new:
            ray.shutdown()
