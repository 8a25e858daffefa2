"""Ownership: one rule for every statement, in place of one in every query.

A session of a restricted `Database` carries its owner. Each SELECT, UPDATE and DELETE that names one of
the tables below then gets the owner's condition, joins, totals and `Session.get` included. So the rows of
others are not there: an unknown id and another owner's give the same answer after the same statement.
INSERT is not narrowed: read the parent row first. Queries of the whole queue or store, whose results
show nobody's rows, are marked `of_everyone`.

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
    JobSumsRow,
    JobTagRow,
    SampleRow,
    SessionRow,
    SessionTagRow,
    VectorRow,
    WebhookRow,
)

P = ParamSpec("P")
T = TypeVar("T")

_OWNER = "actograph_owner"
_EVERYONE = "actograph_everyone"


def owner_of(session: Session) -> str | None:
    """Owner of the visible rows; None for all owners."""
    found: str | None = session.info.get(_OWNER)
    return found


@contextmanager
def restricted(session: Session, owner: str) -> Iterator[None]:
    """In the block, the session touches this owner's rows alone."""
    # rows that were read without the restriction would be found without a statement; others may have left
    # in this session what is still to be written
    session.flush()
    session.expunge_all()
    session.info[_OWNER] = owner
    try:
        yield
    finally:
        del session.info[_OWNER]


def of_everyone(query: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[Session, P], T]:
    """A query that counts or orders the rows of every owner, also in a restricted session.

    For results that show nobody's rows: places in the queue, sums, measured rates.
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
#: tables whose rows belong to the owner of the job, or of the session, that they refer to
OF_JOB = (SampleRow, EventRow, JobSumsRow, JobTagRow, WebhookRow)
OF_SESSION = (ArtifactRow, SessionTagRow)


@lru_cache(maxsize=1024)
def _criteria(owner: str) -> tuple[ExecutableOption, ...]:
    """The owner's condition for every table that is an owner's or hangs on one that is."""
    own = [with_loader_criteria(row, row.owner == owner) for row in OWNED]
    of_job = [with_loader_criteria(row, _parent(JobRow, row.job_id, owner)) for row in OF_JOB]
    of_session = [with_loader_criteria(row, _parent(SessionRow, row.session_id, owner)) for row in OF_SESSION]
    return (*own, *of_job, *of_session)


def _parent(
    table: type[JobRow | SessionRow], key: InstrumentedAttribute[Any], owner: str
) -> sa.ColumnElement[bool]:
    """A look at the one parent row; a list of all that the owner has would grow with what they have."""
    # the statement may name the parent's table too
    return sa.exists(sa.text("1")).where(table.id == key, table.owner == owner).correlate_except(table)
