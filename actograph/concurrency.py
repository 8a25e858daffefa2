"""Several calls at once, with their results in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")


def each_of(work: Callable[[A], T], items: Iterable[A], at_once: int) -> Iterator[T]:
    """Yield the result of `work` for each item, in order, with at most `at_once` items in progress."""
    pending: deque[Future[T]] = deque()
    with ThreadPoolExecutor(at_once, thread_name_prefix="each-of") as pool:
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) >= at_once:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for one in pending:
                one.cancel()
