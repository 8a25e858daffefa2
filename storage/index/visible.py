"""Visible rows: the owner's, and none that is hidden. Enforced in every statement.

A session of a restricted `Database` carries its owner. Each SELECT, UPDATE and DELETE of a table below gets
the owner's condition, including joins, aliases, totals and `Session.get`. So rows of other owners do not
exist: an unknown id and an id of another owner give the same answer after the same statement. A statement
that cannot be narrowed is refused. INSERT is not narrowed, so read the parent row first. Queries about the
whole queue or store that return no rows of others are marked `of_everyone`.

Jobs, sessions and uploads have a `Visibility`. Every session leaves out those that are not visible, and the
rows of such jobs, unless it asks for them (`hidden_too`). A hidden row has the time from which
`storage.upkeep.reaper` removes its stored files and then the row. A deleted one is due at once. One in the
making is due in a day, unless its maker publishes it before. So a deletion writes one row, and the index
knows every file that may be stored.

https://docs.sqlalchemy.org/en/20/orm/session_events.html#adding-global-where-on-criteria
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria
from sqlalchemy.sql import visitors
from sqlalchemy.sql.base import ExecutableOption

from storage.tables.models import (
    Base,
    BatchRow,
    EventRow,
    FileRow,
    JobRow,
    JobTagRow,
    SaeRow,
    SampleRow,
    SessionRow,
    SessionTagRow,
    VectorRow,
    Visibility,
)

P = ParamSpec("P")
T = TypeVar("T")

#: until then an announced session or upload must be published
UNPUBLISHED_SECONDS = 24 * 3600.0

_OWNER = "actograph_owner"
_EVERYONE = "actograph_everyone"
_HIDDEN_TOO = "actograph_hidden_too"
_NARROWED = "actograph_narrowed"
#: execution options of a statement that is built once, so that it is narrowed and given its cache key once
BUILT_ONCE = {"actograph_built_once": True}

Values = dict[str, Any]
#: values of a row that readers see
PUBLISHED: Values = {"visibility": Visibility.VISIBLE, "removal_due_at": None}


def unpublished(moment: float, seconds: float = UNPUBLISHED_SECONDS) -> Values:
    """Values of a row in the making, which must be published within so many seconds."""
    return {"visibility": Visibility.UNPUBLISHED, "removal_due_at": moment + seconds}


def deleted(moment: float) -> Values:
    """Values of a row that is deleted now."""
    return {"visibility": Visibility.DELETED, "removal_due_at": moment}


def removing(next_attempt: float) -> Values:
    """Values of a row whose files are being removed: nobody can publish it any more."""
    return {"visibility": Visibility.REMOVING, "removal_due_at": next_attempt}


def may_be_published(row: Any, moment: Any) -> sa.ColumnElement[bool]:
    """Condition of rows in the making whose time has not passed.

    Args:
        row: a class of rows, or the columns of its table.
    """
    return sa.and_(row.visibility == Visibility.UNPUBLISHED, row.removal_due_at > moment)


class Unnarrowable(RuntimeError):
    """A statement of a restricted session to which the owner's condition cannot be added."""


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
        if owner_of(session) is None:
            return query(session, *args, **kwargs)
        with _widened(session, _EVERYONE):
            return query(session, *args, **kwargs)

    return unrestricted


@contextmanager
def hidden_too(session: Session) -> Iterator[None]:
    """See rows that are not visible too within the block."""
    with _widened(session, _HIDDEN_TOO):
        yield


@contextmanager
def _widened(session: Session, scope: str) -> Iterator[None]:
    if session.info.get(scope):
        yield
        return
    known = set(session.identity_map.values())
    session.info[scope] = True
    try:
        yield
        session.flush()
    finally:
        del session.info[scope]
        # `Session.get` would find these rows later without a statement
        for row in list(session.identity_map.values()):
            if row not in known:
                session.expunge(row)


@event.listens_for(Session, "do_orm_execute")
def _narrow(state: ORMExecuteState) -> None:
    info = state.session.info
    if state.is_insert or state.is_column_load or state.is_relationship_load:
        return
    if state.execution_options.get(_NARROWED):
        return  # the SELECT by which SQLAlchemy finds the objects of an UPDATE or DELETE
    owner = None if info.get(_EVERYONE) else info.get(_OWNER)
    if owner is not None and not _is_narrowable(state):
        raise Unnarrowable(f"no owner can be added to: {state.statement!s:.200}")
    if state.is_select or state.is_update or state.is_delete:
        narrow = _narrowed_once if state.execution_options.get("actograph_built_once") else _narrowed
        state.statement = narrow(state.statement, owner, bool(info.get(_HIDDEN_TOO)))
    if state.is_update or state.is_delete:
        state.update_execution_options(**{_NARROWED: True})


#: tables with an `owner` column
OWNED = (JobRow, SessionRow, FileRow, VectorRow, SaeRow, BatchRow)
#: tables whose rows belong to the owner of their job or session
OF_JOB = (SampleRow, EventRow, JobTagRow)
OF_SESSION = (SessionTagRow,)
_GUARDED = {row.__tablename__ for row in (*OWNED, *OF_JOB, *OF_SESSION)}
# aliases of the tables, since criteria of `JobRow` would be added to subqueries of criteria too
_JOB = cast(sa.Table, JobRow.__table__).alias("its_job")
_SESSION = cast(sa.Table, SessionRow.__table__).alias("its_session")
_HIDDEN_JOB = cast(sa.Table, JobRow.__table__).alias("hidden_job")


def _is_narrowable(state: ORMExecuteState) -> bool:
    """Whether the criteria reach every guarded table of the statement, since it is named by its class."""
    if not (state.is_select or state.is_update or state.is_delete) or state.is_from_statement:
        return False
    by_class, plain = set[str](), set[str]()
    columns, selects = set[str](), 0
    for part in visitors.iterate(cast(sa.ClauseElement, state.statement)):
        found = by_class if "parententity" in getattr(part, "_annotations", ()) else plain
        if isinstance(part, sa.Table):
            found.add(part.name)
        elif isinstance(part, sa.Column):
            name = _table_of(part)
            found.add(name)
            if found is plain:
                columns.add(name)
        selects += isinstance(part, sa.Select)
    # `Session.get` compares a plain column; within a subquery this may be of a table of its own
    return not ((plain - by_class) & _GUARDED or (columns & _GUARDED and selects > 1))


def _table_of(column: sa.Column[Any]) -> str:
    table: Any = column.table
    while isinstance(table, sa.Alias):
        table = table.element
    return str(getattr(table, "name", ""))


def _narrowed(statement: Any, owner: str | None, sees_hidden: bool) -> Any:
    return statement.options(*_criteria(owner, sees_hidden))


_narrowed_once = lru_cache(maxsize=1024)(_narrowed)


@lru_cache(maxsize=1024)
def _criteria(owner: str | None, sees_hidden: bool) -> tuple[ExecutableOption, ...]:
    """The conditions for every table: of the owner, and without hidden rows."""
    found: list[tuple[type[Base], Callable[[Any], sa.ColumnElement[bool]]]] = []
    if owner is not None:
        found += [(row, lambda row: row.owner == owner) for row in OWNED]
        found += [(row, lambda row: _is_of(_JOB, row.job_id, owner)) for row in OF_JOB]
        found += [(row, lambda row: _is_of(_SESSION, row.session_id, owner)) for row in OF_SESSION]
    if not sees_hidden:
        found += [
            (row, lambda row: row.visibility == Visibility.VISIBLE) for row in (JobRow, SessionRow, FileRow)
        ]
        # The few hidden jobs are read once. A lookup of its job for each row would slow down long lists.
        of_hidden = sa.select(_HIDDEN_JOB.c.id).where(_HIDDEN_JOB.c.removal_due_at.is_not(None))
        found += [(row, lambda row: row.job_id.not_in(of_hidden)) for row in (SessionRow, *OF_JOB)]
    # functions of the class, since only these reach an alias in a join
    return tuple(with_loader_criteria(row, condition, include_aliases=True) for row, condition in found)


def _is_of(parent: sa.FromClause, key: Any, owner: str) -> sa.ColumnElement[bool]:
    """Condition that the parent row is the owner's. A list of all parents would grow with their number."""
    found = sa.exists(sa.text("1")).select_from(parent)
    return found.where(parent.c.id == key, parent.c.owner == owner).correlate_except(parent)
