"""How plain calls wait: the counterpart of `aio.runtime`, both written by hand."""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def sleep(seconds: float) -> None:
    """Wait so long."""
    time.sleep(seconds)


def aside(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do it here: there is no event loop that it could hold up."""
    return work(*args, **kwargs)


def each(work: Callable[[T], None], items: Iterable[T], parallel: int) -> Iterator[None]:
    """Do the work for every item, in so many threads; yields whenever one is done.

    The first error ends it, once what has begun is done.
    """
    with ThreadPoolExecutor(parallel) as pool:
        running = [pool.submit(work, item) for item in items]
        try:
            for done in as_completed(running):
                done.result()
                yield
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
