"""/v1/jobs/{job_id}/events: the log of a job as a stream."""

from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import Response, StreamingResponse

from api.auth import READ
from api.bodies import JsonRoute
from api.dependencies import JobId, ServicesDep
from api.reading import sse
from storage.jobs import jobs

router = APIRouter(
    prefix="/v1/jobs/{job_id}/events", tags=["jobs"], dependencies=[READ], route_class=JsonRoute
)

MAX_EVENT_ID = 2**63 - 1
EXAMPLE = 'retry: 2000\n\nid: 1\nevent: job.queued\ndata: {"id":1,"event":"job.queued","data":{}}\n\n'


@router.get(
    "",
    summary="Follow a job (Server-Sent Events)",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Messages with `id`, `event` and `data` (an Event); the last is the job's end.",
            "content": sse.documented(EXAMPLE),
        },
        204: {"description": "The job has ended and the client has its last event: do not ask again."},
    },
)
def follow_job(
    services: ServicesDep,
    job_id: JobId,
    after: Annotated[
        int, Query(ge=0, le=MAX_EVENT_ID, description="Id of the last event received; 0 for all.")
    ] = 0,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=MAX_EVENT_ID, description="The same; sent by browsers.")
    ] = None,
) -> Response:
    """The log from its start, or after an event, to the end of the job."""
    start = after if last_event_id is None else last_event_id
    with services.database.read() as session:
        jobs.get(session, job_id)
    first = sse.look(services, job_id, start)
    if first.is_over:
        return Response(status_code=204)
    stream = sse.follow(services, job_id, start, first)
    return StreamingResponse(stream, headers=sse.HEADERS, media_type="text/event-stream")
