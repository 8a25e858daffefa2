"""What a call asks for: filters of sessions, rows of a tensor, the order of a list."""

from typing import Any, Literal, TypedDict

from actograph.contract.errors import InvalidRequest

Order = Literal["asc", "desc"]
Rows = tuple[int, int] | slice | str

PAGE_SIZE = 100
#: a request that works through many sessions is answered when it is done
LONG_SECONDS = 3600.0


class SessionQuery(TypedDict, total=False):
    """The filters of sessions; what is None or not named asks nothing. Times are Unix seconds."""

    job_id: str | None
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


def given(wanted: SessionQuery) -> dict[str, Any]:
    """The filters that ask something."""
    return {name: value for name, value in wanted.items() if value is not None}


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
