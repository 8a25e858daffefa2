"""The database: one engine, short read and write transactions, and every dialect difference.

SQLite runs in WAL mode with BEGIN emitted by us: `BEGIN IMMEDIATE` for writes, so that two
writers wait for each other instead of failing half-way, plain `BEGIN` for reads.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from actograph.contract.errors import ServiceUnavailable
from storage.write_turns import WriteTurns

_READ_ONLY = "actograph_read_only"
BUSY_TIMEOUT_MS = 30_000


class Database:
    """Opens transactions; repositories take the session and never commit."""

    def __init__(self, url: str) -> None:
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._turns: WriteTurns | None = None
        if self.is_sqlite:
            if not self.url.database or self.url.database == ":memory:":
                raise ValueError("an in-memory database cannot be shared between processes; name a file")
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
            self.engine = sa.create_engine(self.url, connect_args={"timeout": BUSY_TIMEOUT_MS / 1000})
            event.listen(self.engine, "connect", _configure_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
            self._turns = WriteTurns(Path(self.url.database))
        else:
            self.engine = sa.create_engine(self.url, pool_pre_ping=True)

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that commits when the block ends and rolls back when it raises."""
        turn = self._turns.turn() if self._turns is not None else nullcontext()
        with turn, Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A short transaction for reading; nothing written in it is kept."""
        engine = self.engine.execution_options(**{_READ_ONLY: True})
        with Session(engine, expire_on_commit=False) as session:
            yield session

    def ping(self) -> None:
        """Raises ServiceUnavailable where the database does not answer."""
        try:
            with self.read() as session:
                session.execute(sa.text("SELECT 1"))
        except OperationalError as error:
            raise ServiceUnavailable("the database does not answer") from error

    def close(self) -> None:
        self.engine.dispose()
        if self._turns is not None:
            self._turns.close()


def now(session: Session) -> float:
    """The time that leases are compared with, in Unix seconds.

    On a server it is the server's clock, so that workers with wrong clocks agree.
    """
    if session.get_bind().dialect.name == "sqlite":
        return time.time()
    return float(session.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())


def changed(result: sa.Result[Any]) -> int:
    """How many rows an UPDATE or DELETE touched; guarded writes tell success by it."""
    return int(getattr(result, "rowcount", 0))


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver must not open transactions by itself
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    read_only = connection.get_execution_options().get(_READ_ONLY)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
