"""A chat request that is in the queue, and who waits for it."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from starlette.requests import Request

from actograph.contract.errors import Conflict, NotFound
from api.dependencies import Services
from api.openai.job_ends import JobEnds
from api.openai.live_texts import LiveTexts
from storage.jobs import jobs
from storage.tables.models import JobRow, SampleRow


@dataclass(frozen=True, kw_only=True)
class Running:
    """A submitted request."""

    services: Services
    ends: JobEnds
    texts: LiveTexts
    job: JobRow
    samples: Sequence[SampleRow]


async def disconnected(http: Request) -> None:
    """Returns when the client has closed the connection; its body was read before."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def first_of(work: "asyncio.Task[object]", http: Request) -> bool:
    """Whether `work` is done; False where the client went away first, and then it is cancelled."""
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
    """Nobody waits for the answer any more."""
    with suppress(NotFound, Conflict), services.database.write() as session:
        jobs.cancel(session, job_id)
