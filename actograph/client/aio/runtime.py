"""How coroutines wait: the counterpart of `blocking.runtime`, both written by hand."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def sleep(seconds: float) -> None:
    """Let other tasks run for so long."""
    await asyncio.sleep(seconds)


async def aside(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do what holds a thread up (hashing, a large read) without holding up the event loop."""
    return await asyncio.to_thread(work, *args, **kwargs)


async def each(
    work: Callable[[T], Awaitable[None]], items: Iterable[T], parallel: int
) -> AsyncIterator[None]:
    """Do the work for every item, so many at a time; yields whenever one is done.

    The first error ends it, and what has begun with it.
    """
    places = asyncio.Semaphore(parallel)

    async def one(item: T) -> None:
        async with places:
            await work(item)

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        for done in asyncio.as_completed(tasks):
            await done
            yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
