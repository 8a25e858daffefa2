"""Counts that only grow: added by many, shown as one, kept when a worker is forgotten."""

import sqlalchemy as sa

from storage.index import counters
from storage.index.counters import NOBODY, Counter
from storage.index.database import Database
from storage.queue import workers
from storage.tables.models import CounterRow, WorkerRow

DONE, ROWS = Counter("samples", "capture", "completed"), Counter("session_rows_written", "capture")


def totals(database: Database) -> dict[Counter, float]:
    with database.read() as session:
        return counters.totals(session)


def test_what_several_sources_add_is_one_count(database: Database) -> None:
    assert totals(database) == {}
    for source, counts in (("w1", {DONE: 3, ROWS: 10}), ("w2", {DONE: 4}), ("w1", {DONE: 1, ROWS: 0})):
        with database.write() as session:
            counters.add(session, source, counts)
    assert totals(database) == {DONE: 8, ROWS: 10}


def test_a_transaction_that_fails_counts_nothing(database: Database) -> None:
    try:
        with database.write() as session:
            counters.add(session, "w1", {DONE: 3})
            raise LookupError
    except LookupError:
        pass
    assert totals(database) == {}


def test_the_counts_of_a_worker_outlive_its_row(database: Database) -> None:
    for worker_id in ("old", "older", "alive"):
        with database.write() as session:
            workers.register(session, worker_id, hostname="h", pid=1, model="m")
            counters.add(session, worker_id, {DONE: 2, ROWS: 7})
    with database.write() as session:
        counters.add(session, NOBODY, {DONE: 1})
        workers.set_offline(session, "old")
        workers.set_offline(session, "older")
        session.execute(sa.update(WorkerRow).values(heartbeat_at=0.0))
    with database.write() as session:
        workers.forget(session, 3600)
    assert totals(database) == {DONE: 7, ROWS: 21}
    with database.read() as session:
        assert set(session.scalars(sa.select(CounterRow.source))) == {NOBODY, "alive"}
