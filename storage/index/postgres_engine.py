"""Connections to Postgres, used so that no round trip is made for nothing: each one costs a submit its time.

* A connection of the pool is asked whether it lives only when there is a reason to. A server that ends, or
  ends a connection, says so, and that can be read off the socket at no cost; a network that drops idle
  connections says nothing, so one that was idle for long is asked.
* What only reads runs without BEGIN and ROLLBACK: under READ COMMITTED each statement sees what is committed
  when it begins, in a transaction or not.

https://docs.sqlalchemy.org/en/20/core/pooling.html#custom-legacy-pessimistic-ping
"""

import select
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import InvalidatePoolError

#: firewalls that forget idle connections wait for minutes
IDLE_SECONDS = 30.0
_RETURNED_AT = "actograph_returned_at"


def create(url: sa.URL, **options: Any) -> sa.Engine:
    """For transactions that write."""
    # whatever the server's default is: who has waited for a lock sees what was written meanwhile
    engine = sa.create_engine(url, isolation_level="READ COMMITTED", hide_parameters=True, **options)

    def look(connection: Any, record: Any, _proxy: Any) -> None:
        idle = time.monotonic() - record.info.get(_RETURNED_AT, time.monotonic())
        if idle < IDLE_SECONDS and not _has_news(connection):
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            # the others of the pool have lost their server too
            raise InvalidatePoolError("the server has ended this connection") from error

    def note(_connection: Any, record: Any) -> None:
        record.info[_RETURNED_AT] = time.monotonic()

    event.listen(engine, "checkout", look)
    event.listen(engine, "checkin", note)
    return engine


def for_locks(url: sa.URL) -> sa.Engine:
    """Connections outside the pool and any transaction, which hold an advisory lock while they are open."""
    return sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")


def for_reading(engine: sa.Engine) -> sa.Engine:
    """The same connections for statements that only read, each by itself; others are refused."""
    reading = engine.execution_options(isolation_level="AUTOCOMMIT")
    event.listen(reading, "before_cursor_execute", _refuse_writes)
    return reading


def _has_news(connection: Any) -> bool:
    """Whether the server has said something that nobody asked for: most likely farewell."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _refuse_writes(
    _connection: Any, _cursor: Any, statement: str, _values: Any, context: Any, _many: Any
) -> None:
    if context is not None and (context.isinsert or context.isupdate or context.isdelete):
        raise RuntimeError(f"a transaction for reading was to write: {statement[:200]}")
