"""The bar of a job that is waited for: the command line's, in Python."""

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
