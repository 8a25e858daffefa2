"""How coroutines wait: the counterpart of `blocking.runtime`, both written by hand."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def sleep(seconds: float) -> None:
    """Let other tasks run for so long."""
    await asyncio.sleep(seconds)


async def aside(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do what holds a thread up (hashing, a large read) without holding up the event loop."""
    return await asyncio.to_thread(work, *args, **kwargs)
