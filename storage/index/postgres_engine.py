"""Connections to Postgres without needless round trips, each of which delays a request.

* A pooled connection is pinged only for a reason. A server that closes a connection writes to its socket,
  which costs nothing to read. A network may drop an idle connection silently, so a long idle one is pinged.
* Reads run without BEGIN and ROLLBACK: under READ COMMITTED each statement sees the commits before it, in a
  transaction or not.

https://docs.sqlalchemy.org/en/20/core/pooling.html#custom-legacy-pessimistic-ping
"""

import select
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import InvalidatePoolError

#: firewalls drop idle connections after minutes
IDLE_SECONDS = 30.0
_RETURNED_AT = "actograph_returned_at"


def create(url: sa.URL, **options: Any) -> sa.Engine:
    """The engine of write transactions."""
    # a transaction that waited for a lock must see the changes made meanwhile, whatever the server's default
    engine = sa.create_engine(url, isolation_level="READ COMMITTED", hide_parameters=True, **options)

    def look(connection: Any, record: Any, _proxy: Any) -> None:
        idle = time.monotonic() - record.info.get(_RETURNED_AT, time.monotonic())
        if idle < IDLE_SECONDS and not _has_news(connection):
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            # the other connections of the pool have lost their server too
            raise InvalidatePoolError("the server has ended this connection") from error

    def note(_connection: Any, record: Any) -> None:
        record.info[_RETURNED_AT] = time.monotonic()

    event.listen(engine, "checkout", look)
    event.listen(engine, "checkin", note)
    return engine


def for_locks(url: sa.URL) -> sa.Engine:
    """The engine of advisory locks: each connection holds a lock while it is open."""
    return sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")


def for_reading(engine: sa.Engine) -> sa.Engine:
    """The same pool for single statements that read. Writes are refused."""
    reading = engine.execution_options(isolation_level="AUTOCOMMIT")
    event.listen(reading, "before_cursor_execute", _refuse_writes)
    return reading


def _has_news(connection: Any) -> bool:
    """True if the server has written to the idle connection, most likely to close it."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _refuse_writes(
    _connection: Any, _cursor: Any, statement: str, _values: Any, context: Any, _many: Any
) -> None:
    if context is not None and (context.isinsert or context.isupdate or context.isdelete):
        raise RuntimeError(f"a write in a read-only transaction: {statement[:200]}")
