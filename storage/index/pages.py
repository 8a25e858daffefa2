"""Keyset pages: `limit` rows after the row `after`, in a stable order with the id as tie-break."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import ListPage

Order = Literal["asc", "desc"]
R = TypeVar("R")
T = TypeVar("T")


def fetch(
    session: Session,
    statement: sa.Select[R],
    *,
    key: sa.orm.InstrumentedAttribute[Any],
    id_column: sa.orm.InstrumentedAttribute[str],
    after: str | None,
    limit: int,
    order: Order,
    after_from: tuple[sa.orm.InstrumentedAttribute[Any], sa.orm.InstrumentedAttribute[str]] | None = None,
) -> tuple[Sequence[R], bool]:
    """Rows of one page, and whether more follow.

    Args:
        after_from: columns that `after` is looked up in, where they are not `key` and `id_column`.

    Raises:
        InvalidRequest: `after` names no row.
    """
    if after is not None:
        its_key, its_id = after_from or (key, id_column)
        start = session.execute(sa.select(its_key).where(its_id == after)).scalar_one_or_none()
        if start is None:
            raise InvalidRequest(f"after: no item {after}", param="after")
        here = sa.tuple_(key, id_column)
        last = sa.tuple_(sa.literal(start), sa.literal(after))
        statement = statement.where(here < last if order == "desc" else here > last)
    keys = (key.desc(), id_column.desc()) if order == "desc" else (key.asc(), id_column.asc())
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


def id_begins(column: sa.orm.InstrumentedAttribute[str], beginning: str) -> sa.ColumnElement[bool]:
    """Ids with this beginning, as a range that an index finds: after all hex digits comes `g`."""
    return sa.and_(column >= beginning, column < f"{beginning}g")
