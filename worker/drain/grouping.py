"""Order of jobs of several models, so that a worker loads few of them."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from storage.queue.waiting import WaitingJob


class Held(NamedTuple):
    """The model in a worker's memory."""

    model: str
    identity_sha256: str | None = None

    def fits(self, job: WaitingJob) -> bool:
        """Whether the job runs without a load. A job without a pin takes any variant of its model."""
        return job.model == self.model and job.identity_sha256 in (None, self.identity_sha256)


class ModelGrouping:
    """Lets a worker go on with the model that it holds, for a bounded time.

    Jobs of equal priority have slices in turn. Two jobs of different models, or of one model in two variants,
    would load a model per slice. So a job of another model waits while the held model has equally urgent
    work, but never longer than `hold_seconds`.
    """

    def __init__(self, hold_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._hold_seconds = hold_seconds
        self._clock = clock
        self._put_off_since: dict[str, float] = {}

    def choose(self, job: WaitingJob, held: Held | None, claimable: Sequence[WaitingJob]) -> str:
        """The id of the job to run: `job`, whose turn it is, or one of the held model.

        Args:
            claimable: all jobs with work, the most urgent first.
        """
        known = {other.id for other in claimable}
        self._put_off_since = {i: since for i, since in self._put_off_since.items() if i in known}
        if held is None or held.fits(job):
            return job.id
        own = [other for other in claimable if held.fits(other) and other.priority <= job.priority]
        since = self._put_off_since.setdefault(job.id, self._clock())
        if not own or self._clock() - since >= self._hold_seconds:
            del self._put_off_since[job.id]
            return job.id
        return own[0].id
