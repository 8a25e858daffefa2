"""Statements about more ids than a statement has room for parameters."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import Session

from storage import samples
from storage.index import row_locks
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import leases, workers
from storage.samples import announced
from storage.tables.models import JobRow, SampleRow

#: Postgres takes 65,535 parameters
MANY = 70_000

STATEMENTS: dict[str, Callable[[Session, list[str]], Any]] = {
    "lock": lambda session, ids: row_locks.lock(session, JobRow, ids),
    "keep": lambda session, ids: row_locks.keep(session, JobRow, ids),
    "lock unread": jobs.lock_unread,
    "active": jobs.active,
    "take back": leases.take_back,
    "update samples": lambda session, ids: leases._update(session, ids, losses=1),
    "end workers": workers._end,
    "abandon": announced.abandon,
}


def test_any_number_of_ids_fits_into_a_statement(
    database: Database, submit: Callable[..., str], subtests: pytest.Subtests
) -> None:
    job_id = submit()
    others = [f"job_{number:032x}" for number in range(MANY)]
    for name, statement in STATEMENTS.items():
        with subtests.test(statement=name), database.write() as session:
            found = statement(session, [*others, job_id, 'it\'s "a" {quoted} one', job_id])
            if name in ("lock", "keep"):
                assert [row.id for row in found] == [job_id]
            elif name in ("lock unread", "active"):
                assert list(found) == [job_id]
    with database.write() as session:
        ids = [row.id for row in samples.find(session, job_id)[0]]
        leases._update(session, ids, losses=2)
        assert {session.get_one(SampleRow, one).losses for one in ids} == {2}
