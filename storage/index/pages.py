"""Keyset pages: `limit` rows after the row `after`, in a stable order with the id as tie-break."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.base import ListPage
from actograph.contract.errors import InvalidRequest
from storage.index.ids import is_beginning
from storage.tables.models import (
    ApiKeyRow,
    BatchRow,
    FileRow,
    JobRow,
    SaeRow,
    SampleRow,
    SessionRow,
    VectorRow,
)

Order = Literal["asc", "desc"]
R = TypeVar("R")
T = TypeVar("T")


class PageOptions(TypedDict, total=False):
    """A page of a list: `limit` rows behind the row with the id `after`."""

    after: str | None
    limit: int
    order: Order


Column = sa.orm.InstrumentedAttribute[Any]
#: prefix of an id -> its column
_COLUMNS: dict[str, Column] = {
    "job": JobRow.id, "smp": SampleRow.id, "ses": SessionRow.id, "file": FileRow.id, "vec": VectorRow.id,
    "sae": SaeRow.id, "batch": BatchRow.id, "key": ApiKeyRow.id,
}  # fmt: skip


def fetch(
    session: Session,
    statement: sa.Select[R],
    key: Column,
    id_column: Column,
    *,
    sorted_by: tuple[Column, Column] | None = None,
    after: str | None = None,
    limit: int = 20,
    order: Order = "desc",
) -> tuple[Sequence[R], bool]:
    """Rows of one page, and whether more follow.

    Args:
        sorted_by: columns of another table with the values of `key` and `id_column`, if an index needs them.

    Raises:
        InvalidRequest: no row has the id `after`.
    """
    columns = sorted_by or (key, id_column)
    if after is not None:
        start = session.execute(sa.select(key).where(id_column == after)).scalar_one_or_none()
        if start is None:
            raise InvalidRequest(f"after: no item {after}", param="after")
        here = sa.tuple_(*columns)
        last = sa.tuple_(sa.literal(start), sa.literal(after))
        statement = statement.where(here < last if order == "desc" else here > last)
    keys = [column.desc() if order == "desc" else column.asc() for column in columns]
    rows = session.scalars(statement.order_by(*keys).limit(limit + 1)).all()
    return rows[:limit], len(rows) > limit


def page(rows: Sequence[R], has_more: bool, to_resource: Callable[[R], T]) -> ListPage[T]:
    """A list resource of rows whose resources carry an `id`."""
    data = [to_resource(row) for row in rows]
    ids = [getattr(row, "id", None) for row in rows]
    return ListPage[Any](
        data=data,
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
        has_more=has_more,
    )


def only_id(session: Session, beginning: str) -> str | None:
    """The id with this beginning, such as `job_3fa2`; None if there is none.

    Raises:
        InvalidRequest: several ids begin like this.
    """
    column = _COLUMNS[beginning.partition("_")[0]]
    found = session.scalars(sa.select(column).where(id_begins(column, beginning)).limit(2)).all()
    if len(found) > 1:
        raise InvalidRequest(f"{beginning} is not unique: {found[0]} and {found[1]} begin with it")
    return found[0] if found else None


def full_id(session: Session, typed: str, prefix: str) -> str:
    """The id that a text begins, among those that the caller may see; the text itself if there is none.

    This is the one way from the beginning of an id to the id, for paths, bodies and filters.

    Raises:
        InvalidRequest: several ids begin like this.
    """
    return (only_id(session, typed) or typed) if is_beginning(typed, prefix) else typed


def id_begins(column: sa.orm.InstrumentedAttribute[str], beginning: str) -> sa.ColumnElement[bool]:
    """Condition on ids with this beginning, as a range of an index: `g` follows all hex digits."""
    return sa.and_(column >= beginning, column < f"{beginning}g")
