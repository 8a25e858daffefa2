"""Ownership of rows, enforced in every statement.

A session of a restricted `Database` carries its owner. Each SELECT, UPDATE and DELETE of a table below gets
the owner's condition, including joins, totals and `Session.get`. So rows of other owners do not exist: an
unknown id and an id of another owner give the same answer after the same statement. INSERT is not narrowed,
so read the parent row first. Queries about the whole queue or store that return no rows of others are marked
`of_everyone`.

https://docs.sqlalchemy.org/en/20/orm/session_events.html#adding-global-where-on-criteria
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import InstrumentedAttribute, ORMExecuteState, Session, with_loader_criteria
from sqlalchemy.sql.base import ExecutableOption

from storage.tables.models import (
    ArtifactRow,
    BatchRow,
    DeletionRow,
    EventRow,
    FileRow,
    JobRow,
    JobTagRow,
    SampleRow,
    SessionRow,
    SessionTagRow,
    VectorRow,
)

P = ParamSpec("P")
T = TypeVar("T")

_OWNER = "actograph_owner"
_EVERYONE = "actograph_everyone"


def owner_of(session: Session) -> str | None:
    """The owner of the rows that this session sees; None for all owners."""
    found: str | None = session.info.get(_OWNER)
    return found


@contextmanager
def restricted(session: Session, owner: str) -> Iterator[None]:
    """Restrict the session to the rows of one owner within the block."""
    # rows read before would be found without a statement, and unwritten changes may be of other owners
    session.flush()
    session.expunge_all()
    session.info[_OWNER] = owner
    try:
        yield
    finally:
        del session.info[_OWNER]


def of_everyone(query: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[Session, P], T]:
    """Let a query read the rows of every owner, also in a restricted session.

    For results that reveal no rows: places in the queue, sums, measured rates.
    """

    @wraps(query)
    def unrestricted(session: Session, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if owner_of(session) is None or session.info.get(_EVERYONE):
            return query(session, *args, **kwargs)
        session.info[_EVERYONE] = True
        try:
            return query(session, *args, **kwargs)
        finally:
            del session.info[_EVERYONE]

    return unrestricted


@event.listens_for(Session, "do_orm_execute")
def _narrow(state: ORMExecuteState) -> None:
    info = state.session.info
    owner = info.get(_OWNER)
    if owner is None or info.get(_EVERYONE) or state.is_column_load or state.is_relationship_load:
        return
    if state.is_select or state.is_update or state.is_delete:
        state.statement = state.statement.options(*_criteria(owner))


#: tables with an `owner` column
OWNED = (JobRow, SessionRow, FileRow, VectorRow, BatchRow, DeletionRow)
#: tables whose rows belong to the owner of their job or session
OF_JOB = (SampleRow, EventRow, JobTagRow)
OF_SESSION = (ArtifactRow, SessionTagRow)


@lru_cache(maxsize=1024)
def _criteria(owner: str) -> tuple[ExecutableOption, ...]:
    """The owner's condition for every owned table and its dependent tables."""
    own = [with_loader_criteria(row, row.owner == owner) for row in OWNED]
    of_job = [with_loader_criteria(row, _parent(JobRow, row.job_id, owner)) for row in OF_JOB]
    of_session = [with_loader_criteria(row, _parent(SessionRow, row.session_id, owner)) for row in OF_SESSION]
    return (*own, *of_job, *of_session)


def _parent(
    table: type[JobRow | SessionRow], key: InstrumentedAttribute[Any], owner: str
) -> sa.ColumnElement[bool]:
    """Condition that the parent row is the owner's. A list of all parents would grow with their number."""
    # the statement may contain the parent's table too
    return sa.exists(sa.text("1")).where(table.id == key, table.owner == owner).correlate_except(table)
