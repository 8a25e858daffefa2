"""Connections of a process: enough by default, bounded, and never waited for without an end."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import TimeoutError as PoolTimeout

from actograph.contract.errors import ServiceUnavailable
from storage.index.database import Database


@pytest.fixture
def small(database: Database) -> Iterator[Database]:
    """The same database with two connections and one more."""
    url = database.url.render_as_string(hide_password=False)
    opened = Database(url, pool_size=2, pool_overflow=1, pool_timeout_seconds=0.3)
    yield opened
    opened.close()


def hold(database: Database, held: ExitStack) -> None:
    session = held.enter_context(database.read())
    session.execute(sa.text("SELECT 1"))


def test_forty_threads_and_sixteen_batches_find_a_connection_each(database: Database) -> None:
    with ExitStack() as held:
        for slot in range(16):
            assert held.enter_context(database.alone(f"batch-{slot}"))
        for _ in range(40 + 8):
            hold(database, held)


def test_a_lock_that_is_held_for_long_takes_no_connection(small: Database) -> None:
    with ExitStack() as held:
        for slot in range(16):
            assert held.enter_context(small.alone(f"batch-{slot}"))
        with small.alone("batch-3") as is_alone:
            assert not is_alone
        for _ in range(3):
            hold(small, held)
    with small.alone("batch-3") as is_alone:
        assert is_alone


def test_who_finds_no_connection_is_told_soon(small: Database) -> None:
    with ExitStack() as held:
        for _ in range(3):
            hold(small, held)
        with pytest.raises(PoolTimeout):
            hold(small, held)
        with pytest.raises(ServiceUnavailable):
            small.ping()
    hold(small, held)
    held.close()


def test_a_connection_in_use_at_the_close_is_closed_on_its_return(small: Database) -> None:
    with ExitStack() as held:
        session = held.enter_context(small.read())
        connection = session.connection().connection.dbapi_connection
        small.close()
        assert connection is not None
        connection.cursor()
    with pytest.raises(Exception, match="closed"):
        connection.cursor()
