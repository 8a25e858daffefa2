"""/v1/jobs/{id}/matrix: rows of one hook over the sessions of a job."""

from contextlib import suppress
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.responses import Response, StreamingResponse

from actograph.contract.errors import InvalidRequest
from actograph.contract.row_selection import NamedPositions, Positions, Reduce, SegmentName
from api.auth import READ
from api.dependencies import JobId, ServicesDep, slow
from api.reading.downloads import binary
from storage.jobs import jobs
from storage.results import matrix
from storage.sessions.filter import SampleFilter, SessionFilter

router = APIRouter(prefix="/v1/jobs", tags=["sessions"], dependencies=[READ])

_positions: TypeAdapter[Positions] = TypeAdapter(Positions)


class MatrixQuery(SampleFilter):
    """Rows to read, and sessions to read them from."""

    hook: str = Field(
        min_length=1,
        max_length=256,
        description="A hook point, an alias, a savepoint or a module path.",
        examples=["resid_post.12"],
    )
    positions: str = Field(
        "last_prompt", description="A name, a token number, or JSON: as in a capture spec."
    )
    reduce: Reduce = Field("none", description="Reduce each session's rows to one.")
    label: str = Field(
        matrix.CORRECT, max_length=256, description="`correct`, or a metric key of the samples' scores."
    )
    epoch: int | None = Field(None, ge=0, le=2**31 - 1)
    limit: int | None = Field(None, ge=1, description="Most sessions, oldest first.")
    # the rows are in memory until they are sent
    max_bytes: int = Field(1 << 30, ge=1, le=4 << 30, description="Most bytes of rows.")


@router.get(
    "/{job_id}/matrix",
    summary="Rows of one hook over all sessions, as .npz",
    response_class=Response,
    responses=binary("An .npz file (numpy, without pickle)."),
)
@slow
def get_job_matrix(services: ServicesDep, job_id: JobId, wanted: Annotated[MatrixQuery, Query()]) -> Response:
    """Arrays: `features` [n, width], and for each row `labels` (NaN without one), `tokens` (-1: several),
    `sample_index`, `epoch`, `condition` and `session_id`. 16-bit floats become float32.

    `skipped` is JSON text: the sessions without such rows, and the reasons.
    """
    choice = matrix.Choice(
        positions=_parsed(wanted.positions), reduce=wanted.reduce, max_bytes=wanted.max_bytes
    )
    samples = SessionFilter(job_id=job_id, **wanted.model_dump(include=set(SampleFilter.model_fields)))
    with services.database.read() as session:
        job = jobs.get(session, job_id)
        names = matrix.stored_names(job, wanted.hook, services.structures.find(session, job.model))
        found = matrix.sources(session, samples, names, epoch=wanted.epoch, limit=wanted.limit)
        labels = matrix.labels(session, job_id, found, wanted.label)
    rows = matrix.read(services.store, found, wanted.hook, choice)
    headers = {"Content-Disposition": f'attachment; filename="{job_id}.npz"'}
    return StreamingResponse(rows.npz(labels), 200, headers, "application/octet-stream")


def _parsed(text: str) -> Positions:
    """Raises InvalidRequest."""
    value: Any = text
    with suppress(ValueError):  # a name is no JSON
        value = from_json(text, allow_inf_nan=False)
    try:
        return _positions.validate_python([value] if type(value) is int else value)
    except ValidationError:
        names = ", ".join([*get_args(NamedPositions), *get_args(SegmentName)[1:]])
        raise InvalidRequest(
            f"positions={text[:100]} is none of {names}, a token number, or JSON such as [0, -1], "
            '{"stride": k} or {"start": a, "stop": b}',
            param="positions",
        ) from None
