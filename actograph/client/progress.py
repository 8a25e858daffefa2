"""The bars of what takes long, a job or many sessions: the command line's, in Python."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from actograph.contract.resources import Job


@contextmanager
def follower(*, show: bool) -> Iterator[Callable[[Job], None]]:
    """A function to call with the job whenever it was looked at; it shows nothing unless `show`."""
    if not show:
        yield lambda job: None
        return
    from actograph.cli.progress import view

    with view() as shown:

        def update(job: Job) -> None:
            numbers = job.progress
            done = numbers.completed + numbers.failed
            shown.update(str(job.status), done, numbers.failed, numbers.total, job.samples_per_second)

        yield update


@contextmanager
def counter(unit: str, total: int, *, show: bool) -> Iterator[Callable[[], None]]:
    """A function to call once for each of `total` things that is done; it shows nothing unless `show`."""
    if not show:
        yield lambda: None
        return
    from actograph.cli.progress import RateMeter, view

    meter, done = RateMeter(), 0
    meter.add(time.monotonic(), 0)
    with view(unit) as shown:

        def count() -> None:
            nonlocal done
            done += 1
            meter.add(time.monotonic(), done)
            shown.update("reading", done, 0, total, meter.per_second)

        yield count
