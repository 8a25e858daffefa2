"""/v1/jobs/{id}/matrix and /v1/activations/matrix: rows of one hook over many sessions."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from starlette.responses import Response, StreamingResponse

from actograph.contract.analyses import ABOUT_GROUPS, ABOUT_LABELS, CORRECT, SAMPLE, Groups, Label
from actograph.contract.errors import InvalidRequest
from actograph.contract.field_wording import in_words
from actograph.contract.row_selection import Positions, Reduce
from api.auth import READ
from api.dependencies import JobId, Services, ServicesDep, resolved, slow
from api.reading.downloads import binary
from storage.jobs import jobs
from storage.results import labels, matrix
from storage.sessions.filter import SampleFilter, SessionFilter

router = APIRouter(prefix="/v1", tags=["sessions"], dependencies=[READ])

_positions: TypeAdapter[Positions] = TypeAdapter(Positions)


class RowsQuery(BaseModel):
    """Rows to read of each session."""

    hook: str = Field(
        min_length=1,
        max_length=256,
        description="A hook point, an alias, a savepoint or a module path.",
        examples=["resid_post.12"],
    )
    positions: str = Field("last_prompt", description="As in a capture spec; lists are 0,-1 or JSON.")
    reduce: Reduce = Field("none", description="Reduce each session's rows to one.")
    label: Label = Field(CORRECT, description=ABOUT_LABELS)
    groups: Groups = Field(SAMPLE, description=f"Value of `groups`: {ABOUT_GROUPS}.")
    epoch: int | None = Field(None, ge=0, le=2**31 - 1)
    limit: int | None = Field(None, ge=1, description="Most sessions, by their order in the matrix.")
    max_bytes: int = Field(1 << 30, ge=1, le=4 << 30, description="Most bytes of rows.")


class MatrixQuery(RowsQuery, SampleFilter):
    """Rows to read, and sessions of a job to read them from."""


class SessionsMatrixQuery(RowsQuery, SessionFilter):
    """Rows to read, and sessions to read them from."""


@router.get(
    "/jobs/{job_id}/matrix",
    summary="Rows of one hook over all sessions, as .npz",
    response_class=Response,
    responses=binary("An .npz file (numpy, without pickle)."),
)
@slow
def get_job_matrix(services: ServicesDep, job_id: JobId, wanted: Annotated[MatrixQuery, Query()]) -> Response:
    """Arrays: `features` [n, width], and for each row `labels`, `groups`, `tokens` (-1: several),
    `sample_index`, `epoch`, `condition` and `session_id`. 16-bit floats become float32. Labels are numbers
    (NaN without one) or texts ("" without one).

    `skipped` is JSON text: the sessions without such rows, and the reasons.
    """
    samples = SessionFilter(job_id=job_id, **wanted.model_dump(include=set(SampleFilter.model_fields)))
    with services.database.read() as session:
        job = jobs.get(session, job_id)
        names = matrix.stored_names(job, wanted.hook, services.structures.find(session, job.model))
        found = matrix.sources(session, samples, names, epoch=wanted.epoch, limit=wanted.limit)
    return _answer(services, found, wanted, job_id)


@router.get(
    "/activations/matrix",
    summary="Rows of one hook over the sessions of many jobs, as .npz",
    response_class=Response,
    responses=binary("An .npz file (numpy, without pickle)."),
)
@slow
def get_sessions_matrix(services: ServicesDep, wanted: Annotated[SessionsMatrixQuery, Query()]) -> Response:
    """Rows of all matching sessions, such as those of a tag, in the form of a job's matrix."""
    samples = resolved(services, SessionFilter(**wanted.model_dump(include=set(SessionFilter.model_fields))))
    with services.database.read() as session:
        structures = [services.structures.find(session, name) for name in matrix.models(session, samples)]
        names = matrix.hook_names(wanted.hook, *structures)
        found = matrix.sources(session, samples, names, epoch=wanted.epoch, limit=wanted.limit)
    return _answer(services, found, wanted, "matrix")


def _answer(services: Services, found: list[matrix.SessionSource], wanted: RowsQuery, name: str) -> Response:
    choice = matrix.RowChoice(
        positions=_parsed(wanted.positions), reduce=wanted.reduce, max_bytes=wanted.max_bytes
    )
    with services.database.read() as session:
        label_of = labels.labels(session, found, wanted.label)
        group_of = labels.groups(session, found, wanted.groups)
    rows = matrix.plan(services.store, found, wanted.hook, choice)
    headers = {"Content-Disposition": f'attachment; filename="{name}.npz"'}
    return StreamingResponse(rows.npz(label_of, group_of), 200, headers, "application/octet-stream")


def _parsed(text: str) -> Positions:
    """Raises InvalidRequest."""
    try:
        return _positions.validate_python(text)
    except ValidationError as error:
        reason = in_words(error.errors(include_url=False))
        raise InvalidRequest(f"positions: {reason}", param="positions") from None
