"""/v1/jobs/{id}/export: the results folder of a job."""

from collections.abc import AsyncIterator, Iterator
from typing import Annotated

from anyio import CapacityLimiter, to_thread
from fastapi import Header, Query, Request
from starlette.responses import Response, StreamingResponse

from actograph.contract.errors import ExportChanged
from api.dependencies import JobId, ServicesDep
from api.routing import READ, Routes
from storage.results.export import folder, plan
from storage.results.export.sample import Detail

router = Routes(prefix="/v1/jobs", tags=["jobs"])

MEDIA_TYPE = "application/gzip"


@router.add(
    "GET",
    "/{job_id}/export",
    READ,
    "The results folder as tar.gz, also while the job runs",
    errors=[412],
    lane="exports",
    response_class=Response,
    responses={
        200: {
            "description": "A tar.gz with one folder, named by the job's id. The ETag changes with it.",
            "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        },
    },
)
def export_job(
    request: Request,
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
    sent = _in_threads(pieces, request.app.state.export_threads)
    return StreamingResponse(sent, headers=headers, media_type=MEDIA_TYPE)


async def _in_threads(pieces: Iterator[bytes], threads: CapacityLimiter) -> AsyncIterator[bytes]:
    """Make each piece in a thread of exports; a client that reads nothing holds no thread."""
    while (piece := await to_thread.run_sync(next, pieces, None, limiter=threads)) is not None:
        yield piece
