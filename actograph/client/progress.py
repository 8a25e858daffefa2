"""The bars of what takes long, a job or many sessions: the command line's, in Python."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from actograph.contract.resources import Job


@contextmanager
def follower(*, show: bool) -> Iterator[Callable[[Job], None]]:
    """A function to call with the job whenever it was looked at; it shows nothing unless `show`."""
    if not show:
        yield lambda job: None
        return
    from actograph.cli.output.progress import view

    with view() as shown:

        def update(job: Job) -> None:
            numbers = job.progress
            done = numbers.completed + numbers.failed
            shown.update(str(job.status), done, numbers.failed, numbers.total, job.samples_per_second)

        yield update


@contextmanager
def meter(status: str, unit: str, total: int, *, show: bool) -> Iterator[Callable[[int], None]]:
    """A function to call with how many of `total` things are done; it shows nothing unless `show`."""
    if not show:
        yield lambda done: None
        return
    from actograph.cli.output.progress import RateMeter, view

    rate = RateMeter()
    rate.add(time.monotonic(), 0)
    with view(unit) as shown:

        def reached(done: int) -> None:
            rate.add(time.monotonic(), done)
            shown.update(status, done, 0, total, rate.per_second)

        yield reached


class Sent:
    """A file that tells how much of it was read, which is how much was sent."""

    def __init__(self, stream: BinaryIO, reached: Callable[[int], None]) -> None:
        self._stream = stream
        self._reached = reached

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.read(1 << 16), b"")

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._reached(self._stream.tell())
        return data
