"""Work in several threads, with results in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def map_in_order(pool: Executor, work: Callable[[T], R], tasks: Iterable[T], ahead: int) -> Iterator[R]:
    """The results of tasks in their order; so many are ahead of the caller, so that memory stays bounded."""
    waiting: deque[Future[R]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(work, task))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
