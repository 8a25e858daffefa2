"""/v1/jobs/{id}/matrix: rows of one hook over the sessions of a job."""

from contextlib import suppress
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.responses import Response, StreamingResponse

from actograph.contract.errors import InvalidRequest
from actograph.contract.row_selection import NamedPositions, Positions, Reduce, SegmentName
from api.auth import READ
from api.dependencies import JobId, ServicesDep, slow
from storage.jobs import jobs
from storage.results import matrix
from storage.sessions.filter import SessionFilter

router = APIRouter(prefix="/v1/jobs", tags=["sessions"], dependencies=[READ])

#: default and cap of `max_bytes`: the rows are in memory until they are sent
DEFAULT_BYTES, MOST_BYTES = 1 << 30, 4 << 30
_positions: TypeAdapter[Positions] = TypeAdapter(Positions)


@router.get(
    "/{job_id}/matrix",
    summary="Rows of one hook over all sessions, as .npz",
    response_class=Response,
    responses={
        200: {
            "description": "An .npz file (numpy, without pickle).",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
@slow
def get_job_matrix(
    services: ServicesDep,
    job_id: JobId,
    *,
    hook: Annotated[
        str,
        Query(
            min_length=1,
            max_length=256,
            description="A hook point, an alias, a savepoint or a module path.",
            examples=["resid_post.12"],
        ),
    ],
    positions: Annotated[
        str, Query(description="A name, a token number, or JSON: as in a capture spec.")
    ] = "last_prompt",
    reduce: Annotated[Reduce, Query(description="Reduce each session's rows to one.")] = "none",
    label: Annotated[
        str, Query(max_length=256, description="`correct`, or a metric key of the samples' scores.")
    ] = matrix.CORRECT,
    condition: Annotated[str | None, Query(max_length=64)] = None,
    epoch: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    sample_index: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    correct: Annotated[bool | None, Query(description="Result of the task's first scorer.")] = None,
    tag: Annotated[str | None, Query(max_length=64)] = None,
    limit: Annotated[int | None, Query(ge=1, description="Most sessions, oldest first.")] = None,
    max_bytes: Annotated[int, Query(ge=1, le=MOST_BYTES, description="Most bytes of rows.")] = DEFAULT_BYTES,
) -> Response:
    """Arrays: `features` [n, width], and for each row `labels` (NaN without one), `tokens` (-1: several),
    `sample_index`, `epoch`, `condition` and `session_id`. 16-bit floats become float32.

    `skipped` is JSON text: the sessions without such rows, and the reasons.
    """
    choice = matrix.Choice(positions=_parsed(positions), reduce=reduce, max_bytes=max_bytes)
    wanted = SessionFilter(
        job_id=job_id, condition=condition, sample_index=sample_index, correct=correct, tag=tag
    )
    with services.database.read() as session:
        job = jobs.get(session, job_id)
        names = matrix.stored_names(job, hook, services.structures.find(session, job.model))
        found = matrix.sources(session, wanted, names, epoch=epoch, limit=limit)
        labels = matrix.labels(session, job_id, found, label)
    rows = matrix.read(services.store, found, hook, choice)
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
