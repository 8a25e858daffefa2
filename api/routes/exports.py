"""/v1/jobs/{id}/export: the results folder of a job."""

from collections.abc import AsyncIterator, Iterator
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Query
from starlette.responses import Response, StreamingResponse

from actograph.contract.errors import ExportChanged
from api.auth import READ
from api.bodies import JsonRoute, slow, slow_threads
from api.dependencies import JobId, MixedIdentitiesQuery, ServicesDep
from storage.results.export import folder, plan
from storage.results.export.activations import Detail

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], dependencies=[READ], route_class=JsonRoute)

MEDIA_TYPE = "application/gzip"


@router.get(
    "/{job_id}/export",
    summary="The results folder as tar.gz, also while the job runs",
    response_class=Response,
    responses={
        200: {
            "description": "A tar.gz with one folder, named by the job's id. The ETag changes with it.",
            "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        }
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
    mixed_identities: MixedIdentitiesQuery = False,
    skip: Annotated[int, Query(ge=0, le=2**31 - 1, description="Samples to leave out; with If-Match.")] = 0,
    if_match: Annotated[str | None, Header(max_length=256, description="ETag of an export.")] = None,
) -> Response:
    """Results of finished samples; `complete` in `summary.json` is true if all have finished.

    To resume a broken download, send the number of files received under `samples/` as `skip`, and the ETag
    as `If-Match`. The answer is 412 if the export has changed.
    """
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
    return StreamingResponse(_in_threads(pieces), headers=headers, media_type=MEDIA_TYPE)


async def _in_threads(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Make each piece in a thread of long requests; a client that reads nothing holds no thread."""
    while (piece := await to_thread.run_sync(next, pieces, None, limiter=slow_threads())) is not None:
        yield piece
