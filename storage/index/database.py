"""The database: engines, and short transactions for reading and writing.

SQLite runs in WAL mode. Writes begin with `BEGIN IMMEDIATE`, so that two writers wait for each other instead
of failing midway. Reads begin with `BEGIN`. On Postgres reads run without a transaction: under READ COMMITTED
each statement sees the commits before it anyway.

Nothing that is set on Postgres outlives its transaction, so pgbouncer may pool transactions
(https://www.pgbouncer.org/features.html).
"""

import json
import logging
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from pydantic_core import from_json
from sqlalchemy import event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from actograph.contract.errors import ServiceUnavailable
from actograph.settings import Settings
from storage.index import clock, counters, events, notices, poolers, visible
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
IDLE_TRANSACTION_MS = 15_000
#: executions of a statement on one connection before it is prepared
PREPARED_AFTER = 5
_IS_DIRECT = "actograph_is_direct"
#: settings of a transaction that writes
_OF_WRITES = {
    "idle_in_transaction_session_timeout": IDLE_TRANSACTION_MS,
    # nested loops along indexes alone, see `_begin_postgres`
    **dict.fromkeys(("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit"), "off"),
}
_BEGIN_POSTGRES = ", ".join(
    [
        f"SELECT {clock.SERVER}",
        *(f"set_config('{name}', '{value}', true)" for name, value in _OF_WRITES.items()),
    ]
)


class Database:
    """Opens transactions. Functions that take a session never commit."""

    def __init__(
        self, url: str, *, pool_size: int = 16, pool_overflow: int = 48, pool_timeout_seconds: float = 10.0
    ) -> None:
        """
        Args:
            pool_size: connections that stay open. A transaction holds one.
            pool_overflow: further connections, closed after use. The default sum exceeds the API's 40 threads
                and its background threads.
            pool_timeout_seconds: a thread that waits longer for a connection gets an error.
        """
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._turns: WriteTurns | None = None
        self._reading: sa.Engine
        self._locking: sa.Engine
        #: room for deletions on the disk of a SQLite index
        self.reserve: DiskReserve | None = None
        #: called after a commit with the models of its notices, see `storage.index.notices`
        self.announce: Callable[[Sequence[str]], object] = lambda _models: None
        #: owner of all visible rows; None shows all rows
        self.owner: str | None = None
        options: dict[str, Any] = {
            "hide_parameters": True,
            "json_deserializer": _read_json,
            "pool_size": pool_size,
            "max_overflow": pool_overflow,
            "pool_timeout": pool_timeout_seconds,
        }
        if self.is_sqlite:
            if not self.url.database or self.url.database == ":memory:":
                raise ValueError("an in-memory database cannot be shared between processes; name a file")
            Path(self.url.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.engine = sa.create_engine(
                self.url, connect_args={"timeout": BUSY_TIMEOUT_MS / 1000}, **options
            )
            event.listen(self.engine, "connect", _configure_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
            self._reading = self.engine.execution_options(**{_READ_ONLY: True})
            self._turns = WriteTurns(Path(self.url.database))
            self.reserve = DiskReserve(Path(self.url.database))
        else:
            # a transaction that waited for a lock must see the changes made meanwhile, whatever the server's
            # default; a connection that the server has closed is replaced unnoticed. What is prepared: see
            # `_begin_postgres`.
            unprepared = {"prepare_threshold": None}
            self.engine = sa.create_engine(
                self.url,
                isolation_level="READ COMMITTED",
                connect_args=unprepared,
                **options,
            )
            event.listen(self.engine, "connect", _note_if_direct)
            event.listen(self.engine, "begin", _begin_postgres)
            event.listen(self.engine, "checkout", _require_open)
            self._reading = self.engine.execution_options(isolation_level="AUTOCOMMIT")
            event.listen(self._reading, "before_cursor_execute", _refuse_writes)
            # each connection holds an advisory lock while its transaction is open
            self._locking = sa.create_engine(
                self.url, poolclass=sa.NullPool, isolation_level="READ COMMITTED", connect_args=unprepared
            )

    @classmethod
    def of(cls, settings: Settings) -> "Database":
        """The database of the settings."""
        return cls(settings.effective_database_url)

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
            noted = notices.write(session)
        if noted:
            self.announce(noted)

    def restricted_to(self, owner: str) -> "Database":
        """The same database, restricted to the rows of one owner; see `storage.index.visible`."""
        view = copy(self)
        view.owner = owner
        return view

    def _restriction(self, session: Session) -> AbstractContextManager[None]:
        return nullcontext() if self.owner is None else visible.restricted(session, self.owner)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A read-only transaction.

        On SQLite all statements see one moment. On Postgres each statement sees the commits before it.
        """
        with Session(self._reading, expire_on_commit=False) as session, self._restriction(session):
            yield session

    @contextmanager
    def snapshot(self) -> Iterator[Session]:
        """A read-only transaction whose statements see one moment, also on Postgres."""
        with self.read() as session:
            if not self.is_sqlite:
                session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
                # it holds no lock that others wait for, and its reader may be slow
                session.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            yield session

    def insist(self, work: Callable[[Session], T], *, give_up: Callable[[], bool] = lambda: False) -> T:
        """Run `work` in a write transaction, and retry while the database is unavailable.

        A commit may succeed although its answer is lost, so `work` may run twice.

        Raises:
            DBAPIError: the statement failed, or the database is unavailable and `give_up` returned True.
        """

        def attempt() -> T:
            with self.write() as session:
                return work(session)

        return self.retry(attempt, give_up=give_up)

    def retry(self, attempt: Callable[[], T], *, give_up: Callable[[], bool] = lambda: False) -> T:
        """Retry `attempt` while the database is unavailable. Raises as `insist` does."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                done = attempt()
            except (DBAPIError, PoolTimeout) as error:
                if (isinstance(error, DBAPIError) and not is_away(error)) or give_up():
                    raise
                if pause == FIRST_PAUSE_SECONDS:
                    log.warning("the database is unavailable, retrying until it is back: %s", error)
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            else:
                if pause > FIRST_PAUSE_SECONDS:
                    log.warning("the database is back")
                return done

    @contextmanager
    def alone(self, name: str) -> Iterator[bool]:
        """Yield True to one process at a time for each name, and False to the others.

        For work that one of several processes does for all. Nobody waits, and the death of a process ends its
        block.
        """
        if self._turns is not None:
            with self._turns.alone(name) as is_alone:
                yield is_alone
            return
        # The end of the transaction releases the lock. Work of minutes takes no connection from the pool. An
        # idle transaction without a snapshot holds up neither VACUUM nor the creation of indexes.
        with self._locking.connect() as connection:
            connection.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            lock = sa.select(sa.func.pg_try_advisory_xact_lock(sa.func.hashtext(f"actograph {name}")))
            is_alone = bool(connection.execute(lock).scalar_one())
            if not is_alone:
                connection.rollback()
            try:
                yield is_alone
            finally:
                with suppress(DBAPIError):  # the server may be gone, and the lock with it
                    connection.rollback()

    def ping(self) -> None:
        """Raises ServiceUnavailable if the database does not answer."""
        try:
            with self.read() as session:
                session.execute(sa.text("SELECT 1"))
        except (OperationalError, PoolTimeout) as error:
            raise ServiceUnavailable("the database does not answer") from error

    def give_back_log(self) -> None:
        """Shrink SQLite's write-ahead log, which otherwise keeps its largest size."""
        if self.is_sqlite:
            with self.engine.connect() as connection:
                raw: Any = connection.connection.driver_connection
                raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close all connections; those that other threads still hold are closed on their return."""
        event.listen(self.engine.pool, "checkin", lambda _connection, record: record.close())
        self.engine.dispose()
        if self._turns is not None:
            self._turns.close()


def _read_json(text: str | bytes) -> Any:
    """Decode a JSON column, five times as fast as `json`, which alone reads unpaired surrogates."""
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)


def is_away(error: DBAPIError) -> bool:
    """True if the database cannot be reached, is starting or stopping, or is full.

    The statement was valid and can be retried.
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
    # No connection was made. FATAL is a permanent refusal: a wrong password, or no such database.
    said = str(error.orig)
    return "FATAL" not in said or any(words in said for words in _FATAL_FOR_NOW)


def is_full(error: DBAPIError) -> bool:
    """True if the database's disk is full."""
    name = str(getattr(error.orig, "sqlite_errorname", ""))
    return name == "SQLITE_FULL" or getattr(error.orig, "sqlstate", None) == "53100"


def changed(result: sa.Result[Any]) -> int:
    """Number of rows that an UPDATE or DELETE changed."""
    return int(getattr(result, "rowcount", 0))


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # no implicit transactions
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    read_only = connection.get_execution_options().get(_READ_ONLY)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def _note_if_direct(connection: Any, record: Any) -> None:
    """Statements that were prepared in a process of the server are unknown to the next one of a pooler."""
    record.info[_IS_DIRECT] = poolers.is_direct(connection)
    connection.commit()


def _begin_postgres(connection: sa.Connection) -> None:
    """Read the clock, see `storage.index.clock`, and limit how long the transaction may be idle.

    A process that is suspended in a transaction, or whose host is gone, then holds its locks no longer.

    Statements that write are prepared where that is possible, since planning takes as long as running them. A
    plan that was made while a table was small is kept while it grows, and would scan it. Writes look for few
    rows by their keys, so they may not scan whole tables, nor join by them.
    """
    connection.info.pop(clock.BEGUN, None)
    writes = connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT"
    raw: Any = connection.connection.driver_connection
    raw.prepare_threshold = PREPARED_AFTER if writes and connection.info[_IS_DIRECT] else None
    if writes:
        begun = connection.exec_driver_sql(_BEGIN_POSTGRES)
        connection.info[clock.BEGUN] = (float(begun.one()[0]), time.monotonic())


def _require_open(connection: Any, _record: Any, _proxy: Any) -> None:
    """Replace a connection that the server has closed.

    The server sends nothing to an idle connection but the reason of its end, so this costs no round trip.
    """
    waiting = select.poll()
    waiting.register(connection.pgconn.socket, select.POLLIN)
    if waiting.poll(0):
        raise sa.exc.DisconnectionError


def _refuse_writes(
    _connection: Any, _cursor: Any, statement: str, _values: Any, context: Any, _many: Any
) -> None:
    if context is not None and (context.isinsert or context.isupdate or context.isdelete):
        raise RuntimeError(f"a write in a read-only transaction: {statement[:200]}")
