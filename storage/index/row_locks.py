"""Rows that a transaction holds, so that what it has looked at stays true until it ends.

Postgres runs transactions side by side: what one has read, another may change or delete before the first
writes. So whoever writes by what it read takes a lock first, and all take theirs in one order, by which no
two wait for each other (a deadlock, of which Postgres would end one with an error):

1. files, vectors and API keys that a new job or a deletion is about
2. jobs, by their ids: whoever changes samples, sessions, webhooks or a batch of a job holds it before
3. what belongs to them
4. workers, by their ids
5. counters, which `Database.write` writes last of all

`lock` is for changing a row, `keep` for referring to it: those who keep a row do not wait for each other, nor
for who changes it, but a deletion waits for them, and they for a deletion. A foreign key keeps its row too,
as soon as a row with it is written. SQLite has one writer at a time, and passes all of this over.

https://www.postgresql.org/docs/current/explicit-locking.html#LOCKING-ROWS
"""

from collections.abc import Collection, Iterable
from typing import TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import NotFound
from storage.tables.models import Base

_LOCKED = "actograph_locked"
Row = TypeVar("Row", bound=Base)


def lock(session: Session, table: type[Row], ids: Collection[str], *, to_delete: bool = False) -> list[Row]:
    """The rows with these ids as they are now, by their ids; those that are gone are left out.

    A row that the transaction has locked before is not asked for again.
    """
    # held rows are as they were read, but for what this transaction changed, which the session follows
    held: dict[tuple[type[Base], str], Base] = session.info.setdefault(_LOCKED, {})
    known = [held.get((table, one)) for one in sorted(set(ids))]
    if not to_delete and all(row is not None and row in session for row in known):
        return [cast(Row, row) for row in known]
    # FOR NO KEY UPDATE, beside which rows that refer to this one can be written, or FOR UPDATE
    found = _held(session, table, ids, key_share=not to_delete)
    held.update({(table, key): row for row in found for key in sa.inspect(row).identity or ()})
    return found


def keep(session: Session, table: type[Row], ids: Collection[str]) -> list[Row]:
    """The same, held off from deletion alone."""
    return _held(session, table, ids, read=True, key_share=True)


def one(rows: Iterable[Row | None], name: str) -> Row:
    """The only row. Raises NotFound with its name if there is none."""
    for row in rows:
        if row is not None:
            return row
    raise NotFound(f"no {name}")


def _held(
    session: Session, table: type[Row], ids: Collection[str], *, key_share: bool, read: bool = False
) -> list[Row]:
    if not ids:
        return []
    key = sa.inspect(table).primary_key[0]
    statement = (
        sa.select(table)
        .where(key == next(iter(ids)) if len(ids) == 1 else key.in_(sorted(ids)))
        .with_for_update(read=read, key_share=key_share)
        .execution_options(populate_existing=True)
    )
    return list(session.scalars(statement if len(ids) == 1 else statement.order_by(key)))
