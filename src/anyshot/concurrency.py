"""Work in several threads, with results in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


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
