"""Waiting for a submitted chat: for the end of its job, its live text, or its client to disconnect.

All chats of a process share one reader of the index and one of live text, so waiting takes no thread.
"""

import asyncio
import codecs
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from actograph.contract.errors import Conflict, NotFound, ServiceUnavailable
from api.dependencies import Services
from storage.broker.live_text import LiveTextReader
from storage.jobs import control, jobs
from storage.tables.models import JobRow, SampleRow

log = logging.getLogger(__name__)

#: pause between two reads of the index while a chat waits
PAUSE_SECONDS = 0.05
#: pause between two reads of live text
PERIOD_SECONDS = 0.025


class JobEnds:
    """Waits for the ends of jobs, with one query for all of them."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._waiting: dict[str, asyncio.Event] = {}
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, job_id: str) -> None:
        """Wait until the job has ended or was deleted. A job has one waiter.

        Raises:
            ServiceUnavailable: this process is stopping.
        """
        ended = self._waiting[job_id] = asyncio.Event()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            await ended.wait()
        finally:
            self._waiting.pop(job_id, None)
        if self._services.stopping.is_set():
            raise ServiceUnavailable("the service is stopping; send the request again")

    async def _look(self) -> None:
        while self._waiting:
            wanted = list(self._waiting)
            states: dict[str, bool] = dict.fromkeys(wanted, False)
            try:
                states = await run_in_threadpool(self._states, wanted)
            except SQLAlchemyError as error:
                log.warning("the database does not answer; chats wait on: %s", error)
            for job_id in wanted:
                # a deleted job has ended too
                if self._services.stopping.is_set() or states.get(job_id, True):
                    with suppress(KeyError):
                        self._waiting[job_id].set()
            await asyncio.sleep(PAUSE_SECONDS)

    def _states(self, job_ids: list[str]) -> dict[str, bool]:
        """Map each job to True if it has ended."""
        with self._services.database.read() as session:
            states = control.states(session, job_ids)
        return {job_id: status.is_terminal() for job_id, (status, _) in states.items()}


class _Followed:
    def __init__(self, place: int, feed: "asyncio.Queue[tuple[int, str]]") -> None:
        self.place = place
        self.feed = feed
        self.offset = 0
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")


class LiveTexts:
    """Reads the live text of all followed samples at once."""

    def __init__(self, reader: LiveTextReader) -> None:
        self._reader = reader
        self._followed: dict[str, _Followed] = {}
        self._reading: asyncio.Task[None] | None = None

    @contextmanager
    def follow(self, sample_ids: Sequence[str]) -> Iterator["asyncio.Queue[tuple[int, str]]"]:
        """A queue of pieces: the position in `sample_ids`, and the next text of that sample."""
        feed: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        for place, sample_id in enumerate(sample_ids):
            self._followed[sample_id] = _Followed(place, feed)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        try:
            yield feed
        finally:
            for sample_id in sample_ids:
                self._followed.pop(sample_id, None)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        await self._reader.close()

    async def _read(self) -> None:
        while self._followed:
            offsets = {sample_id: one.offset for sample_id, one in self._followed.items()}
            for sample_id, piece in (await self._reader.read(offsets)).items():
                one = self._followed.get(sample_id)
                # Redis puts NUL in place of lost text
                if one is None or b"\0" in piece:
                    continue
                one.offset += len(piece)
                text = one.decoder.decode(piece)
                if text:
                    one.feed.put_nowait((one.place, text))
            await asyncio.sleep(PERIOD_SECONDS)


@dataclass(frozen=True, kw_only=True)
class Running:
    """A submitted chat."""

    services: Services
    ends: JobEnds
    texts: LiveTexts
    job: JobRow
    samples: Sequence[SampleRow]


async def disconnected(http: Request) -> None:
    """Wait until the client closes the connection. The body was read before."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def first_of(work: "asyncio.Task[object]", http: Request) -> bool:
    """True if `work` is done; False if the client disconnected first, and `work` is cancelled."""
    gone = asyncio.create_task(disconnected(http))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        return work.done()
    finally:
        tasks = [task for task in (work, gone) if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def cancel(services: Services, job_id: str) -> None:
    """Cancel a job without a client."""
    with suppress(NotFound, Conflict), services.database.write() as session:
        jobs.cancel(session, job_id)
