"""Workers of two versions on one index: a migration is announced, and waits until the older ones ended."""

import threading
from collections.abc import Callable

import pytest

from storage import migrate
from storage.index import rollout
from storage.index.database import Database
from storage.queue import view, workers
from worker.process.rollout import SchemaWatch

pytestmark = pytest.mark.integration

NEWEST = str(migrate.head())
#: the schema before the newest one
BEFORE = f"{int(NEWEST) - 1:04d}"


@pytest.fixture
def older(new_postgres: Callable[[], str]) -> Database:
    """An index of the version before, on which a worker lives."""
    database = Database(new_postgres())
    migrate.upgrade(database, BEFORE)
    with database.write() as session:
        workers.register(session, "wrk_old", hostname="here", pid=1, model="m")
    return database


def test_a_migration_waits_for_the_worker_that_it_ends(older: Database) -> None:
    database, ends = older, list[str]()
    watch = SchemaWatch(ends.append)
    watch._own = BEFORE
    beat = threading.Event()
    upgrading = threading.Thread(target=migrate.upgrade, args=(database, NEWEST), daemon=True)
    upgrading.start()
    while not ends:  # as its heartbeat does
        with database.read() as session:
            watch.check(session)
        beat.wait(0.01)
    assert f"is to be migrated to schema {NEWEST}, and this version has {BEFORE}" in ends[0]
    with database.read() as session:
        watch.check(session)
        assert view.waiting_reason(session, []) == (
            f"the index is to be migrated to schema {NEWEST}: 1 workers end what they run"
        )
    assert len(ends) == 1
    assert upgrading.is_alive()
    assert migrate.current(database) == BEFORE, "nothing changes under a running worker"
    with database.write() as session:
        workers.set_offline(session, "wrk_old")
    upgrading.join(60)
    assert migrate.current(database) == NEWEST
    with database.read() as session:
        assert rollout.announced(session) == (NEWEST, True)
        assert view.waiting_reason(session, []) is None
    database.close()


def test_a_worker_that_was_away_ends_when_it_wakes(older: Database) -> None:
    database, ends, own = older, list[str](), list[str]()
    migrate.upgrade(database, NEWEST, patience_seconds=0)
    late, fresh = SchemaWatch(ends.append), SchemaWatch(own.append)
    late._own = BEFORE
    with database.read() as session:
        late.check(session)
        fresh.check(session)
    assert [f"was migrated to schema {NEWEST}" in one for one in ends] == [True]
    assert own == []
    database.close()
