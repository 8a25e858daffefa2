"""Engines for Postgres.

Reads run without BEGIN and ROLLBACK: under READ COMMITTED each statement sees the commits before it, in a
transaction or not.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

IDLE_TRANSACTION_SECONDS = 15


def create(url: sa.URL, **options: Any) -> sa.Engine:
    """The engine of write transactions. A connection that the server has closed is replaced unnoticed."""
    # a transaction that waited for a lock must see the changes made meanwhile, whatever the server's default
    engine = sa.create_engine(url, isolation_level="READ COMMITTED", pool_pre_ping=True, **options)
    event.listen(engine, "connect", _end_idle_transactions)
    return engine


def for_locks(url: sa.URL) -> sa.Engine:
    """The engine of advisory locks: each connection holds a lock while it is open."""
    return sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")


def for_reading(engine: sa.Engine) -> sa.Engine:
    """The same pool for single statements that read. Writes are refused."""
    reading = engine.execution_options(isolation_level="AUTOCOMMIT")
    event.listen(reading, "before_cursor_execute", _refuse_writes)
    return reading


def _end_idle_transactions(connection: Any, _record: Any) -> None:
    """A process that is suspended in a transaction, or whose host is gone, holds its locks no longer."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET idle_in_transaction_session_timeout = {IDLE_TRANSACTION_SECONDS * 1000}")
    connection.commit()


def _refuse_writes(
    _connection: Any, _cursor: Any, statement: str, _values: Any, context: Any, _many: Any
) -> None:
    if context is not None and (context.isinsert or context.isupdate or context.isdelete):
        raise RuntimeError(f"a write in a read-only transaction: {statement[:200]}")
