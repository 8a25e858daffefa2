"""/v1/jobs/{job_id}/events: a job's log as it is written."""

from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import Response, StreamingResponse

from api.dependencies import ServicesDep, known_id
from api.problems.errors import documented
from api.reading import sse
from storage.jobs import jobs

router = APIRouter(prefix="/v1/jobs/{job_id}/events", tags=["jobs"])

MAX_EVENT_ID = 2**63 - 1
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@router.get(
    "",
    operation_id="follow_job",
    summary="Follow a job (Server-Sent Events)",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Messages with `id`, `event` and `data` (an Event); the last is the job's end.",
            "content": sse.DOCUMENTED,
        },
        204: {"description": "The job has ended and its last event was received: do not ask again."},
        **documented(404, 422),
    },
)
def follow_job(
    services: ServicesDep,
    job_id: str,
    after: Annotated[
        int, Query(ge=0, le=MAX_EVENT_ID, description="Id of the last event received; 0 for all.")
    ] = 0,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=MAX_EVENT_ID, description="The same, as browsers send it.")
    ] = None,
) -> Response:
    """The log from its start, or after an event that was received, to the job's end."""
    known_id(job_id, "job", "job")
    start = after if last_event_id is None else last_event_id
    with services.database.read() as session:
        jobs.get(session, job_id)
    first = sse.look(services, job_id, start)
    if first.is_over:
        return Response(status_code=204)
    stream = sse.follow(services, job_id, start, first)
    return StreamingResponse(stream, headers=HEADERS, media_type="text/event-stream")
