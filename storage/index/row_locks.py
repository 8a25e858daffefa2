"""Row locks, and the order in which transactions take them.

Postgres runs transactions side by side: another transaction may change or delete a row that this one has
read. So a transaction locks the rows on which its writes depend. All take their locks in one order, which
prevents deadlocks:

1. files, vectors, SAEs and API keys to which a new job refers, or which are deleted
2. jobs, by id, before a change of their samples, sessions or batch
3. samples by id, then sessions by id
4. workers, by id
5. counters, which `Database.write` writes last

A claim and a commit of samples lock no job, so that the workers of a large job do not wait for each other: a
claim takes samples that nobody has locked (`SKIP LOCKED`), and a commit locks those whose leases are valid.
Whoever changes the status of a job's samples in another way locks the job first, and then the samples.

`lock` is for changing a row, `keep` for referring to it. Transactions that keep a row wait only for its
deletion, and a deletion waits for them. A foreign key keeps its row too. SQLite has one writer at a time and
ignores locks.

https://www.postgresql.org/docs/current/explicit-locking.html#LOCKING-ROWS
"""

from collections.abc import Collection, Iterable
from typing import TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import NotFound
from storage.index.ids import among
from storage.index.visible import of_everyone
from storage.tables.models import Base

_LOCKED, _UNREAD = "actograph_locked", "actograph_unread"
Row = TypeVar("Row", bound=Base)


def lock(session: Session, table: type[Row], ids: Collection[str], *, to_delete: bool = False) -> list[Row]:
    """Lock rows and return their current state, in the order of their ids, without missing rows.

    Rows that the transaction has locked before are not read again.
    """
    # only this transaction can have changed them, and the session knows its changes
    held: dict[tuple[type[Base], str], Base] = session.info.setdefault(_LOCKED, {})
    known = [held.get((table, one)) for one in sorted(set(ids))]
    if not to_delete and all(row is not None and row in session for row in known):
        return [cast(Row, row) for row in known]
    # FOR NO KEY UPDATE, beside which rows that refer to this one can be written, or FOR UPDATE
    found = _held(session, table, ids, key_share=not to_delete)
    held.update({(table, key): row for row in found for key in sa.inspect(row).identity or ()})
    return found


def forget(session: Session, table: type[Base], key: str) -> None:
    """Note that the lock of a row ended with its savepoint."""
    session.info.get(_LOCKED, {}).pop((table, key), None)


def lock_free(session: Session, chosen: sa.Select[Row]) -> list[Row]:
    """Lock the selected rows that no other transaction has locked. Returns their current state, in order."""
    statement = chosen.with_for_update(key_share=True, skip_locked=True)
    found = list(session.scalars(statement.execution_options(populate_existing=True)))
    held: dict[tuple[type[Base], str], Base] = session.info.setdefault(_LOCKED, {})
    held.update({(type(row), key): row for row in found for key in sa.inspect(row).identity or ()})
    return found


def wait_for(session: Session, table: type[Base], key: str) -> None:
    """Wait for the transaction that changes a row, and read the row again.

    All who wait go on at once, with a lock that others can share: end it with a savepoint.
    """
    column = sa.inspect(table).primary_key[0]
    statement = sa.select(table).where(column == key).with_for_update(read=True)
    session.scalars(statement.execution_options(populate_existing=True)).all()


@of_everyone
def lock_matching(session: Session, table: type[Base], *where: sa.ColumnElement[bool]) -> None:
    """Lock all rows that meet conditions, in the order of their ids, without reading them.

    Of every owner: name the rows by a job that the caller has locked.
    """
    if session.get_bind().dialect.name != "sqlite":
        key = sa.inspect(table).primary_key[0]
        locked = sa.select(key).where(*where).order_by(key).with_for_update(of=table, key_share=True)
        session.execute(sa.select(sa.func.count()).select_from(locked.subquery()))


def note_held(session: Session, table: type[Base], *keys: str) -> None:
    """Note rows that this transaction has locked unread, or inserted: no other one can lock them."""
    session.info.setdefault(_UNREAD, set()).update((table, key) for key in keys)


def is_locked(session: Session, table: type[Base], key: str) -> bool:
    """Whether this transaction has locked or inserted the row."""
    return any((table, key) in session.info.get(known, ()) for known in (_LOCKED, _UNREAD))


def keep(session: Session, table: type[Row], ids: Collection[str]) -> list[Row]:
    """Protect rows from deletion until the transaction ends. Returns the existing ones."""
    return _held(session, table, ids, read=True, key_share=True)


def one(rows: Iterable[Row | None], name: str) -> Row:
    """The only row. Raises NotFound with its name if there is none."""
    for row in rows:
        if row is not None:
            return row
    raise NotFound(f"no {name}")


def _held(
    session: Session,
    table: type[Row],
    ids: Collection[str],
    *,
    key_share: bool,
    read: bool = False,
) -> list[Row]:
    if not ids:
        return []
    key = sa.inspect(table).primary_key[0]
    statement = (
        sa.select(table)
        .where(key == next(iter(ids)) if len(ids) == 1 else among(session, key, ids))
        .with_for_update(read=read, key_share=key_share)
        .execution_options(populate_existing=True)
    )
    return list(session.scalars(statement if len(ids) == 1 else statement.order_by(key)))
