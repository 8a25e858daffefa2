"""Small writes that share a transaction: all are kept, each fault is its own caller's."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from storage import queue_pause
from storage.database import Database
from storage.group_commit import MOST, GroupCommit
from storage.models import QueuePauseRow


class Gate:
    """Opens write transactions, and holds those who want one back until it is opened."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.opened = threading.Event()
        self.transactions = 0

    @contextmanager
    def write(self) -> Iterator[Session]:
        self.opened.wait()
        with self._database.write() as session:
            self.transactions += 1
            yield session


def add(session: Session, kind: str) -> str:
    session.add(QueuePauseRow(kind=kind, reason=None, paused_by="test", paused_at=0.0))
    session.flush()
    return kind


def run_together(gate: Gate, kinds: list[str]) -> dict[int, str | Exception]:
    """Each kind by a thread of its own, all of them there before the first transaction begins."""
    group, found = GroupCommit(gate.write), dict[int, str | Exception]()

    def one(place: int) -> None:
        try:
            found[place] = group.run(lambda session: add(session, kinds[place]))
        except DBAPIError as error:
            found[place] = error

    threads = [threading.Thread(target=one, args=(place,)) for place in range(len(kinds))]
    for thread in threads:
        thread.start()
    while len(group._waiting) < len(kinds):
        pass
    gate.opened.set()
    for thread in threads:
        thread.join()
    return found


def stored(database: Database) -> set[str]:
    with database.read() as session:
        return {row.kind for row in session.query(QueuePauseRow)}


def test_works_that_wait_together_are_committed_together(database: Database) -> None:
    gate, kinds = Gate(database), [f"k{n}" for n in range(MOST + 3)]
    assert run_together(gate, kinds) == dict(enumerate(kinds))
    assert stored(database) == set(kinds)
    assert gate.transactions == 2


def test_a_work_that_fails_takes_no_other_with_it(database: Database) -> None:
    gate = Gate(database)
    found = run_together(gate, ["a", "b", "a" * 17 if database.is_sqlite else "b" * 17, "b", "c"])
    faults = [result for result in found.values() if isinstance(result, Exception)]
    # the second "b" meets a row that is there; Postgres has no room for the long name either
    assert len(faults) == (1 if database.is_sqlite else 2)
    assert {"a", "b", "c"} <= stored(database)


def test_one_alone_gets_its_own_error(database: Database) -> None:
    def fail(session: Session) -> None:
        queue_pause.pause(session, by="somebody", reason=None)
        raise LookupError("no")

    with pytest.raises(LookupError):
        database.write_small(fail)
    assert stored(database) == set()
    assert database.write_small(lambda session: add(session, "after")) == "after"
    assert stored(database) == {"after"}
