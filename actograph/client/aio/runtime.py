"""Waiting and concurrency for coroutines: the counterpart of `blocking.runtime`, both written by hand."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")


async def sleep(seconds: float) -> None:
    """Sleep."""
    await asyncio.sleep(seconds)


async def aside(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work (hashing, a large read) in a thread."""
    return await asyncio.to_thread(work, *args, **kwargs)


async def each_of(
    work: Callable[[A], Awaitable[T]], items: AsyncIterable[A] | Iterable[A], at_once: int
) -> AsyncIterator[T]:
    """Yield the result of `work` for each item, in order, with at most `at_once` items in progress."""
    pending: deque[asyncio.Future[T]] = deque()
    try:
        async for item in _awaited(items):
            pending.append(asyncio.ensure_future(work(item)))
            if len(pending) >= at_once:
                yield await pending.popleft()
        while pending:
            yield await pending.popleft()
    finally:
        for one in pending:
            one.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def _awaited(items: AsyncIterable[A] | Iterable[A]) -> AsyncIterator[A]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


def whole(tensor: Any) -> Any:
    """Refuse: numpy cannot await rows."""
    raise TypeError(f"{tensor!r} is fetched by coroutines: np.asarray(await tensor.numpy())")
