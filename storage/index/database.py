"""The database: one engine, short read and write transactions, and every dialect difference.

SQLite runs in WAL mode with BEGIN emitted by us: `BEGIN IMMEDIATE` for writes, so that two
writers wait for each other instead of failing half-way, plain `BEGIN` for reads.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from actograph.contract.errors import ServiceUnavailable
from actograph.settings import Settings
from storage.index import counters, events, ownership, postgres_engine
from storage.index.clock import now
from storage.index.disk_reserve import DiskReserve
from storage.index.write_turns import WriteTurns

__all__ = ["Database", "changed", "is_away", "now"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_READ_ONLY = "actograph_read_only"
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
#: https://www.sqlite.org/rescode.html
_AWAY_SQLITE = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN")
#: connection, resources, operator's intervention, serialization: postgresql.org, appendix A
_AWAY_STATES = ("08", "53", "57P", "40")
_FATAL_FOR_NOW = ("starting up", "shutting down", "not yet accepting", "recovery", "too many", "terminating")
BUSY_TIMEOUT_MS = 30_000


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Connections of one process. Each thread that reads or writes holds one meanwhile."""

    #: connections that stay open
    size: int = 16
    #: further ones, closed after use; both together exceed the API's 40 threads and its background threads
    overflow: int = 48
    #: a thread that waits longer for a connection gets an error
    timeout_seconds: float = 10.0

    @classmethod
    def of(cls, settings: Settings) -> "Pool":
        return cls(
            size=settings.database_pool_size,
            overflow=settings.database_pool_overflow,
            timeout_seconds=settings.database_pool_timeout_seconds,
        )

    def options(self) -> dict[str, Any]:
        """As SQLAlchemy names them."""
        return {
            "pool_size": self.size,
            "max_overflow": self.overflow,
            "pool_timeout": self.timeout_seconds,
        }


class Database:
    """Opens transactions; repositories take the session and never commit."""

    def __init__(self, url: str, pool: Pool = Pool()) -> None:
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._turns: WriteTurns | None = None
        self._reading: sa.Engine
        self._locking: sa.Engine
        #: room for deletions on the disk of a SQLite index
        self.reserve: DiskReserve | None = None
        #: whose rows alone are seen; None: everybody's
        self.owner: str | None = None
        if self.is_sqlite:
            if not self.url.database or self.url.database == ":memory:":
                raise ValueError("an in-memory database cannot be shared between processes; name a file")
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.engine = sa.create_engine(
                self.url,
                hide_parameters=True,
                connect_args={"timeout": BUSY_TIMEOUT_MS / 1000},
                **pool.options(),
            )
            event.listen(self.engine, "connect", _configure_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
            self._reading = self.engine.execution_options(**{_READ_ONLY: True})
            self._turns = WriteTurns(Path(self.url.database))
            self.reserve = DiskReserve(Path(self.url.database))
        else:
            self.engine = postgres_engine.create(self.url, **pool.options())
            self._reading = postgres_engine.for_reading(self.engine)
            self._locking = postgres_engine.for_locks(self.url)

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that commits when the block ends and rolls back when it raises."""
        if self.reserve is not None:
            self.reserve.release_if_needed()
        turn = self._turns.turn() if self._turns is not None else nullcontext()
        opened = Session(self.engine, expire_on_commit=False)
        with turn, opened as session, session.begin(), self._restriction(session):
            yield session
            events.write(session)
            counters.write(session)

    def restricted_to(self, owner: str) -> "Database":
        """The same database with this owner's rows alone, see `storage.index.ownership`."""
        view = copy(self)
        view.owner = owner
        return view

    def _restriction(self, session: Session) -> AbstractContextManager[None]:
        return nullcontext() if self.owner is None else ownership.restricted(session, self.owner)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """For reading alone. On SQLite all statements see one moment; on Postgres, which refuses others here,
        each sees what is committed when it begins."""
        with Session(self._reading, expire_on_commit=False) as session, self._restriction(session):
            yield session

    @contextmanager
    def snapshot(self) -> Iterator[Session]:
        """For reading alone; all statements see one moment, also on Postgres."""
        with self.read() as session:
            if not self.is_sqlite:
                session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            yield session

    def insist(self, work: Callable[[Session], T], *, give_up: Callable[[], bool] = lambda: False) -> T:
        """Run `work` in a write transaction, again and again while the database is away.

        A commit may have been made although its answer was lost, so `work` must bear being run twice.

        Raises:
            DBAPIError: the statement's own fault, or the database is away and `give_up` says so.
        """
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                with self.write() as session:
                    done = work(session)
            except (DBAPIError, PoolTimeout) as error:
                if (isinstance(error, DBAPIError) and not is_away(error)) or give_up():
                    raise
                if pause == FIRST_PAUSE_SECONDS:
                    log.warning("the database is away, trying again until it is back: %s", error)
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            else:
                if pause > FIRST_PAUSE_SECONDS:
                    log.warning("the database is back")
                return done

    @contextmanager
    def alone(self, name: str) -> Iterator[bool]:
        """Whether no other process is in the block of this name; True keeps the others out until it ends.

        For work that one of several API processes does for all. Nobody waits, and a process that dies
        lets the next one in.
        """
        if self._turns is not None:
            with self._turns.alone(name) as is_alone:
                yield is_alone
            return
        # a connection of its own, whose end releases the lock: work of minutes takes none from the pool, and
        # an open transaction would hold up VACUUM and the creation of indexes
        with self._locking.connect() as connection:
            lock = sa.select(sa.func.pg_try_advisory_lock(sa.func.hashtext(f"actograph {name}")))
            yield bool(connection.execute(lock).scalar_one())

    def ping(self) -> None:
        """Raises ServiceUnavailable where the database does not answer."""
        try:
            with self.read() as session:
                session.execute(sa.text("SELECT 1"))
        except (OperationalError, PoolTimeout) as error:
            raise ServiceUnavailable("the database does not answer") from error

    def give_back_log(self) -> None:
        """Shrink SQLite's write-ahead log, which keeps the size that it once had."""
        if self.is_sqlite:
            with self.engine.connect() as connection:
                raw: Any = connection.connection.driver_connection
                raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self.engine.dispose()
        if self._turns is not None:
            self._turns.close()


def is_away(error: DBAPIError) -> bool:
    """Whether the database cannot be reached, is starting or stopping, or has no room just now.

    Nothing was wrong with the statement then, and it can be tried again.
    """
    if error.connection_invalidated:
        return True
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    name = getattr(error.orig, "sqlite_errorname", None)
    if name is not None:
        return str(name).startswith(_AWAY_SQLITE)
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return str(state).startswith(_AWAY_STATES)
    # no connection was made; a server that refuses us for good says FATAL (a wrong password, no database)
    said = str(error.orig)
    return "FATAL" not in said or any(words in said for words in _FATAL_FOR_NOW)


def is_full(error: DBAPIError) -> bool:
    """Whether the database's disk has no room left."""
    name = str(getattr(error.orig, "sqlite_errorname", ""))
    return name == "SQLITE_FULL" or getattr(error.orig, "sqlstate", None) == "53100"


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
