"""Waiting and concurrency for plain calls: the counterpart of `aio.runtime`, both written by hand."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")


def sleep(seconds: float) -> None:
    """Sleep."""
    time.sleep(seconds)


def aside(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run the work in this thread."""
    return work(*args, **kwargs)


def each_of(work: Callable[[A], T], items: Iterable[A], at_once: int) -> Iterator[T]:
    """Yield the result of `work` for each item, in order, with at most `at_once` items in progress."""
    pending: deque[Future[T]] = deque()
    with ThreadPoolExecutor(at_once, thread_name_prefix="actograph-client") as pool:
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


def whole(tensor: Any) -> Any:
    """Read all rows of a tensor."""
    return tensor.read(0, len(tensor))
