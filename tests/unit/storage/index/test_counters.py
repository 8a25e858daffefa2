"""Counts that only grow: added by many, shown as one."""

from contextlib import suppress

from storage.index import counters, tallies
from storage.index.counters import Counter
from storage.index.database import Database

DONE, ROWS = Counter("samples", "capture", "completed"), Counter("session_rows_written", "capture")


def totals(database: Database) -> dict[Counter, float]:
    with database.read() as session:
        return tallies.totals(session)


def test_what_several_transactions_add_is_one_count_and_what_fails_adds_nothing(database: Database) -> None:
    assert totals(database) == {}
    for counts in ({DONE: 3, ROWS: 10}, {DONE: 4}, {DONE: 1, ROWS: 0}):
        with database.write() as session:
            counters.add(session, counts)
    with suppress(LookupError), database.write() as session:
        counters.add(session, {DONE: 3})
        raise LookupError
    assert totals(database) == {DONE: 8, ROWS: 10}
