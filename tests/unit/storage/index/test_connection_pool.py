"""Connections of a process: enough by default, bounded, and never waited for without an end."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import TimeoutError as PoolTimeout

from actograph.contract.errors import ServiceUnavailable
from actograph.statistics import paired
from storage.index.database import Database
from storage.results import comparisons
from storage.results.comparisons import Bootstrap, Conditions, Finished


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


def test_intervals_are_made_without_a_connection(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison is plain data, so that a bootstrap of seconds holds nothing."""
    finished = Finished(scores={"acc,none": 1.0}, prompt_tokens=1, generated_tokens=1, session_id=None)
    sides = {name: {(i, 0): finished for i in range(5)} for name in ("a", "b")}
    conditions = Conditions(job_id="job_1", status="completed", baseline="a", finished=sides)  # type: ignore[arg-type]
    assert not hasattr(comparisons, "of_job")
    seen = []
    interval = paired.bootstrap_interval

    def watched(*args: object, **options: object) -> object:
        seen.append(database.engine.pool.checkedout())  # type: ignore[attr-defined]
        return interval(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(paired, "bootstrap_interval", watched)
    assert conditions.compare(Bootstrap()).conditions["b"].metrics["acc,none"].pairs == 5
    assert set(seen) == {0}


def test_a_connection_in_use_at_the_close_is_closed_on_its_return(small: Database) -> None:
    with ExitStack() as held:
        session = held.enter_context(small.read())
        connection = session.connection().connection.dbapi_connection
        small.close()
        assert connection is not None
        connection.cursor()
    with pytest.raises(Exception, match="closed"):
        connection.cursor()
