"""The order of jobs of several models or variants: loading a model costs more than waiting a while."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from storage.queue.job_queue import WaitingJob


class Held(NamedTuple):
    """The model in a worker's memory."""

    model: str
    identity_sha256: str | None = None

    def fits(self, job: WaitingJob) -> bool:
        """Whether the job can be run without a load. A job without a pin takes any variant of its model."""
        return job.model == self.model and job.identity_sha256 in (None, self.identity_sha256)


class ModelGrouping:
    """Lets a worker go on with the model that it holds, for a bounded time.

    Messages of equal priority come in turn, so two jobs of different models (or of one model in
    two variants) would have their models loaded once per slice. Such a job is therefore put off while
    there is work of no less urgency for the loaded one, but never for longer than `hold_seconds`.
    """

    def __init__(self, hold_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._hold_seconds = hold_seconds
        self._clock = clock
        self._put_off_since: dict[str, float] = {}

    def choose(self, job: WaitingJob, held: Held | None, claimable: Sequence[WaitingJob]) -> str:
        """The id of the job that this turn goes to: `job`, whose turn it is, or one of the loaded model.

        Args:
            claimable: every job with work that somebody could begin, the most urgent first.
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
