"""Whose rows a session may touch: one rule for every statement, in place of one in every query.

A session of a restricted `Database` carries its owner. Each SELECT, UPDATE and DELETE that names one of
the tables below then gets the owner's condition, joins, totals and `Session.get` included, so that what
belongs to others is not there: an unknown id and another owner's give the same answer after the same
statement. Queries of the whole queue or store, whose results show nobody's rows, are marked `of_everyone`.

https://docs.sqlalchemy.org/en/20/orm/session_events.html#adding-global-where-on-criteria
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria
from sqlalchemy.sql.base import ExecutableOption

from storage.models import ArtifactRow, BatchRow, EventRow, FileRow, JobRow, SampleRow, SessionRow, VectorRow

P = ParamSpec("P")
T = TypeVar("T")

_OWNER = "actograph_owner"
_EVERYONE = "actograph_everyone"


def owner_of(session: Session) -> str | None:
    """Whose rows alone this session touches; None: everybody's."""
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


@lru_cache(maxsize=1024)
def _criteria(owner: str) -> tuple[ExecutableOption, ...]:
    """Tags are not among them: they are only ever read beside the job or session that they are of."""
    owned = (JobRow, SessionRow, FileRow, VectorRow, BatchRow)
    own = [with_loader_criteria(row, row.owner == owner) for row in owned]
    # a look at the one parent; a list of all that the owner has would grow with what they have
    of_job = [
        with_loader_criteria(
            row, sa.exists(sa.text("1")).where(JobRow.id == row.job_id, JobRow.owner == owner)
        )
        for row in (SampleRow, EventRow)
    ]
    parent = sa.exists().where(SessionRow.id == ArtifactRow.session_id, SessionRow.owner == owner)
    return (*own, *of_job, with_loader_criteria(ArtifactRow, parent))
