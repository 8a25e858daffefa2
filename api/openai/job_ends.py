"""Waiting for jobs to end, without a thread or a query for each of those who wait."""

import asyncio
import logging
from contextlib import suppress

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from actograph.contract.errors import ServiceUnavailable
from api.dependencies import Services
from storage.jobs import job_control

log = logging.getLogger(__name__)

#: pauses between two looks at the index: short for what has just been asked for, longer after a while
FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.1
GROWTH = 1.25


class JobEnds:
    """One look at the index for all jobs that are waited for in this process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._waiting: dict[str, asyncio.Event] = {}
        self._looking: asyncio.Task[None] | None = None
        self._nudged = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many wait just now."""
        return len(self._waiting)

    async def wait(self, job_id: str) -> None:
        """Returns when the job has ended or was deleted; one waiter for each job.

        Raises:
            ServiceUnavailable: this process is stopping.
        """
        ended = self._waiting[job_id] = asyncio.Event()
        self.nudge()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            await ended.wait()
        finally:
            self._waiting.pop(job_id, None)
        if self._services.stopping.is_set():
            raise ServiceUnavailable("the service is stopping; send the request again")

    def nudge(self) -> None:
        """Something may have ended: look now."""
        self._nudged.set()

    async def _look(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while self._waiting:
            if self._services.stopping.is_set():
                for event in self._waiting.values():
                    event.set()
                return
            wanted = list(self._waiting)
            try:
                found = await run_in_threadpool(self._states, wanted)
            except SQLAlchemyError as error:
                log.warning("the database does not answer those who wait for chats: %s", error)
            else:
                for job_id in wanted:
                    if (job_id not in found or found[job_id]) and job_id in self._waiting:
                        self._waiting[job_id].set()
            if self._nudged.is_set():
                self._nudged.clear()
                pause = FIRST_PAUSE_SECONDS
            with suppress(TimeoutError):
                await asyncio.wait_for(self._nudged.wait(), pause)
            pause = min(pause * GROWTH, LONGEST_PAUSE_SECONDS)

    def _states(self, job_ids: list[str]) -> dict[str, bool]:
        """Job -> whether it has ended."""
        with self._services.database.read() as session:
            states = job_control.states(session, job_ids)
        return {job_id: status.is_terminal() for job_id, (status, _) in states.items()}
