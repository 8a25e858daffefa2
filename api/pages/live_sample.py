"""A sample while it runs: a stream of its text and of the values of its readouts."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
from fastapi import APIRouter
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from actograph.contract.errors import NotFound
from actograph.contract.resources import Sample, SampleStatus
from api.auth import READ
from api.dependencies import JobId, SampleId, Services, ServicesDep
from api.reading import sse
from api.routes.jobs import get_job_sample
from storage import samples
from storage.broker.live_readouts import LiveReadouts, readouts_id
from storage.broker.live_text import LiveTextReader

router = APIRouter(include_in_schema=False, dependencies=[READ])

RUNNING = (SampleStatus.PENDING, SampleStatus.SUSPECT, SampleStatus.LEASED)
#: pause between two reads, and seconds between two looks whether the sample has ended
PERIOD_SECONDS, LOOK_SECONDS = 0.1, 1.0


def is_followed(sample: Sample) -> bool:
    """Whether a sample runs or waits, and its text is sent while it is generated: that of a streamed chat."""
    return sample.status in RUNNING and bool(sample.input.get("live"))


@router.get("/jobs/{job_id}/samples/{sample_id}/live", response_class=StreamingResponse)
def follow_sample(services: ServicesDep, job_id: JobId, sample_id: SampleId) -> StreamingResponse:
    """Follow a sample from its first token to its end.

    Events: `begin`; `text`, a JSON text; `readouts`, a list of `TokenReadouts`; `end`.
    """
    get_job_sample(services, job_id, sample_id)  # the caller's own
    stream = _messages(services, sample_id)
    return StreamingResponse(stream, headers=sse.HEADERS, media_type="text/event-stream")


async def _messages(services: Services, sample_id: str) -> AsyncIterator[str]:
    reader, readouts = LiveTextReader(services.settings.broker_url), LiveReadouts()
    offsets = {sample_id: 0, readouts_id(sample_id): 0}
    has_ended, looked, sent = False, float("-inf"), time.monotonic()
    try:
        yield f"retry: {sse.RETRY_MILLISECONDS}\n\n{_event('begin', None)}"
        while not services.stopping.is_set():
            if time.monotonic() - looked > LOOK_SECONDS:
                has_ended, looked = await run_in_threadpool(_has_ended, services, sample_id), time.monotonic()
            for name, piece in (await reader.read(offsets)).items():
                if b"\0" in piece:  # in place of lost text, which is sent again
                    continue
                offsets[name] += len(piece)
                text, sent = piece.decode(errors="replace"), time.monotonic()
                if name == sample_id:
                    yield _event("text", text)
                elif values := readouts.read(text):
                    yield _event("readouts", [one.model_dump() for one in values])
            if has_ended:
                yield _event("end", None)
                return
            if time.monotonic() - sent > sse.PING_SECONDS:
                sent = time.monotonic()
                yield ": ping\n\n"
            await anyio.sleep(PERIOD_SECONDS)
    except SQLAlchemyError:
        return  # the page connects again
    finally:
        with anyio.CancelScope(shield=True):
            await reader.close()


def _has_ended(services: Services, sample_id: str) -> bool:
    """Whether a sample runs no more; a deleted one does not."""
    try:
        with services.database.read() as session:
            return samples.get(session, sample_id).status not in RUNNING
    except NotFound:
        return True


def _event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
