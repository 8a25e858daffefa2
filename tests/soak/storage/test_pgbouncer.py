"""The index behind pgbouncer in transaction mode: many clients share few connections of the server."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from actograph.settings import Settings
from storage import migrate
from storage.broker.hints import HintSender
from storage.index import clock, notices
from storage.index.database import Database
from storage.queue import workers
from storage.tables import models as tables
from tests.support.servers.pgbouncer import pooled
from tests.support.waiting import wait_until
from worker.process.listening import Listening
from worker.signals.hints import Hints

if TYPE_CHECKING:
    from tests.integration.conftest import RedisProcess

#: transactions of each client: psycopg would prepare a statement at its sixth execution
ROUNDS = 12
CLIENTS = 12


def _locks(url: str) -> int:
    database = Database(url)
    with database.read() as session:
        found = session.scalar(sa.text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"))
    database.close()
    return int(found or 0)


def _settings_left(url: str) -> set[str]:
    """Idle timeouts of the server's connections, as new clients of the pooler see them."""
    database = Database(url)
    found = set()
    with ThreadPoolExecutor(CLIENTS) as pool:

        def look(_: int) -> str:
            with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                return str(connection.scalar(sa.text("SHOW idle_in_transaction_session_timeout")))

        found |= set(pool.map(look, range(4 * CLIENTS)))
    database.close()
    return found


def test_clients_share_connections_and_leave_nothing_on_them(postgres_url: str) -> None:
    with pooled(postgres_url) as url:
        databases = [Database(url) for _ in range(CLIENTS)]
        migrate.require_current(databases[0])

        def work(number: int) -> None:
            database = databases[number]
            for turn in range(ROUNDS):
                name = f"wrk_{number:016d}{turn:016d}"
                with database.write() as session:
                    workers.register(
                        session, name, hostname="here", pid=number, model="demo", served=["demo"]
                    )
                with database.write() as session:
                    assert workers.heartbeat(session, name, {"rss_bytes": turn})
                with database.read() as session:
                    assert session.scalar(sa.select(sa.func.count()).select_from(tables.WorkerRow))
                with database.snapshot() as session:
                    assert clock.now(session) > 0

        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(work, range(CLIENTS)))
        with databases[0].read() as session:
            assert (
                session.scalar(sa.select(sa.func.count()).select_from(tables.WorkerRow)) == CLIENTS * ROUNDS
            )
        for database in databases:
            database.close()
        assert _locks(postgres_url) == 0
        assert _settings_left(url) == {"0"}


def test_one_process_is_alone_also_through_a_pooler(postgres_url: str) -> None:
    with pooled(postgres_url) as url, ExitStack() as stack:
        first, second = Database(url), Database(url)
        assert stack.enter_context(first.alone("a"))
        with second.alone("a") as is_alone:
            assert not is_alone
        with second.alone("b") as is_alone:
            assert is_alone
        stack.close()
        with second.alone("a") as is_alone:
            assert is_alone
        assert _locks(postgres_url) == 0
        first.close()
        second.close()


def test_a_pooler_is_no_way_to_listen_and_notices_pass_it(postgres_url: str) -> None:
    with pooled(postgres_url) as url:
        pooled_database = Database(url)
        with pytest.raises(notices.NoSession, match="pooler"), notices.listen(pooled_database.url):
            pass
        with notices.listen(make_url(postgres_url)) as wait:
            with pooled_database.write() as session:
                notices.note(session, "demo")
            assert list(wait(30)) == ["demo"]
        pooled_database.close()


def test_a_worker_behind_a_pooler_listens_to_redis_or_to_postgres_itself(
    postgres_url: str, redis_process: "Callable[[], RedisProcess]", caplog: pytest.LogCaptureFixture
) -> None:
    redis = redis_process()
    with pooled(postgres_url) as url:
        database = Database(url)
        database.announce = HintSender(redis.url)
        for direct in ("", postgres_url):
            hints = Hints()
            settings = Settings(database_url=url, listen_database_url=direct, broker_url=redis.url)
            listening = Listening(settings, hints, ["demo"])
            listening.start()
            wait_until(lambda hints=hints: hints.are_live and hints.count == 1)
            with database.write() as session:
                notices.note(session, "another")
                notices.note(session, "demo")
            wait_until(lambda hints=hints: hints.count == 2)
            listening.stop()
            assert not hints.are_live
        assert caplog.text.count("ACTOGRAPH_LISTEN_DATABASE_URL") == 1
        database.close()
