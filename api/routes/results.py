"""/v1/jobs/{job_id}: samples, events and results folder of a job."""

from collections.abc import AsyncIterator, Iterator
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Query
from starlette.responses import Response, StreamingResponse

from actograph.contract.errors import ExportChanged, NotFound
from actograph.contract.resources import ListPage, Sample, SampleStatus
from api.auth import READ
from api.bodies import slow
from api.dependencies import After, JobId, SampleId, Services, ServicesDep
from api.reading import sse
from storage import samples
from storage.index import pages
from storage.jobs import jobs
from storage.results.export import folder, plan
from storage.results.export.sample import Detail

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["jobs"], dependencies=[READ])

MAX_EVENT_ID = 2**63 - 1


@router.get("/samples", summary="Samples of a job, in running order")
def list_job_samples(
    *,
    services: ServicesDep,
    job_id: JobId,
    status: Annotated[SampleStatus | None, Query()] = None,
    condition: Annotated[str | None, Query(max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Most items to return.")] = 20,
    after: After = None,
    order: Annotated[pages.Order, Query()] = "asc",
) -> ListPage[Sample]:
    with services.database.read() as session:
        jobs.get(session, job_id)
        rows, has_more = samples.find(
            session, job_id, status=status, condition=condition, after=after, limit=limit, order=order
        )
        return pages.page(rows, has_more, samples.resource)


@router.get("/samples/{sample_id}", summary="One sample")
def get_job_sample(services: ServicesDep, job_id: JobId, sample_id: SampleId) -> Sample:
    with services.database.read() as session:
        row = samples.get(session, sample_id)
        if row.job_id != job_id:
            raise NotFound(f"job {job_id} has no sample {sample_id}")
        return samples.resource(row)


@router.get(
    "/events",
    summary="Follow a job (Server-Sent Events)",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Messages with `id`, `event` and `data` (an Event); the last is the job's end.",
            "content": sse.DOCUMENTED,
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
    if first.is_over and not first.events:
        return Response(status_code=204)
    stream = sse.follow(services, job_id, start, first)
    return StreamingResponse(stream, headers=sse.HEADERS, media_type="text/event-stream")


@router.get(
    "/export",
    summary="The results folder as tar.gz, also while the job runs",
    response_class=Response,
    responses={
        200: {
            "description": "A tar.gz with one folder, named by the job's id. The ETag changes with it.",
            "content": {"application/gzip": {"schema": {"type": "string", "format": "binary"}}},
        },
    },
)
@slow
def export_job(
    services: ServicesDep,
    job_id: JobId,
    *,
    activations: Annotated[
        Detail,
        Query(description="meta: shapes and sizes; sampled: the first 50 features of every row."),
    ] = "meta",
    skip: Annotated[int, Query(ge=0, le=2**31 - 1, description="Samples to leave out; with If-Match.")] = 0,
    if_match: Annotated[str | None, Header(max_length=256, description="ETag of an export.")] = None,
) -> Response:
    """Results of finished samples; `complete` in `summary.json` is true if all have finished.

    To resume a broken download, send the number of files received under `samples/` as `skip`, and the ETag
    as `If-Match`. The answer is 412 if the export has changed.
    """
    wanted = plan.prepare(services.database, job_id, activations)
    etag = f'"{wanted.etag}"'
    if if_match is not None and if_match.strip() not in ("*", etag):
        raise ExportChanged
    headers = {
        "ETag": etag,
        "Content-Disposition": f"attachment; filename={job_id}.tar.gz",
        "X-Content-Type-Options": "nosniff",
    }
    pieces = folder.stream(wanted, services.database, services.store, skip=skip)
    return StreamingResponse(_in_threads(services, pieces), headers=headers, media_type="application/gzip")


async def _in_threads(services: Services, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Make each piece in a thread of long requests; a client that reads nothing holds no thread."""
    while (piece := await to_thread.run_sync(next, pieces, None, limiter=services.slow_threads)) is not None:
        yield piece
