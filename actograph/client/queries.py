"""What a call asks for: filters of sessions, rows of a tensor, the order of a list."""

from typing import Any, Literal, TypedDict, TypeGuard

from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import Job

Order = Literal["asc", "desc"]
Rows = tuple[int, int] | slice | str

PAGE_SIZE = 100
#: a request that works through many sessions is answered when it is done
LONG_SECONDS = 3600.0


class SessionChoice(TypedDict, total=False):
    """The filters of a job's sessions; what is None or not named asks nothing. Times are Unix seconds."""

    id_prefix: str | None
    model: str | None
    condition: str | None
    sample_index: int | None
    correct: bool | None
    tag: str | None
    owner: str | None
    pinned: bool | None
    created_after: float | None
    created_before: float | None
    expires_before: float | None


class SessionQuery(SessionChoice, total=False):
    """The filters of sessions. `job` is a job or its id, `job_id` the same."""

    job: Job | str | None
    job_id: str | None


def given(wanted: SessionQuery) -> dict[str, Any]:
    """The filters that ask something, as the service names them.

    Raises:
        InvalidRequest: `job` and `job_id` contradict.
    """
    found: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    job = found.pop("job", None)
    if job is not None:
        identifier = job if isinstance(job, str) else job.id
        if found.setdefault("job_id", identifier) != identifier:
            raise InvalidRequest("job and job_id name different jobs")
    return found


def from_the_end(rows: Rows | None) -> TypeGuard[tuple[int, int] | slice]:
    """Whether a bound is negative, which only who knows the number of rows can tell."""
    if rows is None or isinstance(rows, str):
        return False
    bounds = (rows.start, rows.stop) if isinstance(rows, slice) else rows
    return any(bound is not None and bound < 0 for bound in bounds)


def rows_text(rows: Rows | None) -> str | None:
    """Rows as the service writes them. Raises InvalidRequest for a step other than 1."""
    if rows is None or isinstance(rows, str):
        return rows
    if isinstance(rows, slice):
        if rows.step not in (None, 1):
            raise InvalidRequest("rows with a step cannot be asked for; take every row and step in numpy")
        start, stop = rows.start, rows.stop
    else:
        start, stop = rows
    return f"{'' if start is None else start}:{'' if stop is None else stop}"
