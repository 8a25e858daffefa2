"""/v1/jobs/{id}/export: the results folder of a job."""

from collections.abc import AsyncIterator, Iterator
from typing import Annotated

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse

from actograph.contract.errors import ExportChanged
from api.dependencies import MixedIdentitiesQuery, ServicesDep, known_id
from api.problems.errors import documented
from storage.results.export import folder, plan
from storage.results.export.activations import Detail

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

MEDIA_TYPE = "application/gzip"


@router.get(
    "/{job_id}/export",
    operation_id="export_job",
    summary="The results folder as tar.gz, also while the job runs",
    response_class=Response,
    responses={
        200: {
            "description": "A tar.gz with one folder, which has the job's id as its name. The ETag changes "
            "with the content.",
            "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        },
        **documented(404, 412, 422),
    },
)
def export_job(
    request: Request,
    services: ServicesDep,
    job_id: str,
    *,
    activations: Annotated[
        Detail,
        Query(description="meta: shapes and sizes; sampled: the first 50 features of every row."),
    ] = "meta",
    mixed_identities: MixedIdentitiesQuery = False,
    skip: Annotated[
        int, Query(ge=0, le=2**31 - 1, description="Samples whose own files are left out; with If-Match.")
    ] = 0,
    if_match: Annotated[str | None, Header(max_length=256, description="ETag of an export.")] = None,
) -> Response:
    """What has ended so far; `complete` in `summary.json` says whether that is all.

    It is made while it is sent. A download that broke off goes on with `skip`, the number of files
    under `samples/` that arrived, and its ETag as `If-Match`; 412 where the export has changed since.
    """
    known_id(job_id, "job", "job")
    wanted = plan.prepare(services.database, job_id, activations, mixed_identities=mixed_identities)
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
    """The pieces, each made in a thread of exports; a client that reads nothing holds none."""
    while (piece := await to_thread.run_sync(next, pieces, None, limiter=threads)) is not None:
        yield piece
