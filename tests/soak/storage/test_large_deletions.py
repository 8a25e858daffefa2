"""Deletions of many sessions hide them at once; the rows of a job go slice by slice."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from actograph.contract.errors import NotFound
from storage.accounts import quotas
from storage.artifacts.local import LocalStore
from storage.index import ids, visible
from storage.index.database import Database
from storage.jobs import control, jobs
from storage.sessions import sessions
from storage.sessions.sessions import SessionFilter
from storage.tables.models import EventRow, JobRow, SampleRow, SessionRow, SessionTagRow
from storage.upkeep import reaper

pytestmark = pytest.mark.integration

COUNT = 20_000
#: that one statement changes: a slice of 500 sessions has two files each
MOST_ROWS = 1000
KEPT = 10


#: rows of one job, made by the database itself; {n} numbers them
ROWS = """
INSERT INTO samples (id, job_id, position, sample_index, condition, epoch, status, lease_token,
                     losses, input, session_id)
    SELECT {smp}, :job, n, n, '', 0, 'completed', 1, 0, '{{}}', {ses} FROM {numbers};
INSERT INTO sessions (id, job_id, sample_id, sample_index, condition, epoch, model, created_at, prompt_tokens,
                      generated_tokens, rows, bytes, dtype, hooks, files, owner, pinned)
    SELECT {ses}, :job, {smp}, n, '', 0, 'demo', n, 2, 2, 4, 1000, 'F32', '{{}}', '{{}}', :owner, {false}
    FROM {numbers};
INSERT INTO session_tags (session_id, tag, created_at) SELECT {ses}, 't', n FROM {numbers};
INSERT INTO events (job_id, event, created_at, data)
    SELECT :job, 'job.progress', n, '{{}}' FROM {numbers} WHERE n % 10 = 0;
"""


def add_job(database: Database, count: int, owner: str = "alice") -> str:
    """An ended job with so many sessions; nothing of them is stored."""
    job_id = ids.new_job_id()
    row = {"id": job_id, "kind": "capture", "status": "completed", "model": "demo", "spec": {}, "priority": 5}
    row |= {"total": count, "completed": count, "failed": 0, "created_at": 1.0, "owner": owner}
    row |= {"bytes": count * 1000}
    own = job_id[4:26]
    numbers = f"(WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n < {count - 1}) "
    text = ROWS.format(
        smp=f"'smp_{own}' || (1000000000 + n)",
        ses=f"'ses_{own}' || (1000000000 + n)",
        numbers=f"{numbers}SELECT n FROM c) AS numbers",
        false="false",
    )
    with database.engine.begin() as connection:
        connection.execute(sa.insert(cast(sa.Table, JobRow.__table__)), row)
        for statement in text.strip().split(";\n"):
            found = {"job": job_id, "owner": owner}
            used = {name: value for name, value in found.items() if f":{name}" in statement}
            connection.execute(sa.text(statement.rstrip(";")), used)
        if not database.is_sqlite:
            connection.execute(sa.text("ANALYZE"))
    return job_id


def counts(database: Database) -> dict[str, int]:
    tables = (JobRow, SampleRow, SessionRow, SessionTagRow, EventRow)
    with database.read() as session, visible.hidden_too(session):
        return {
            table.__tablename__: session.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in tables
        }


def test_a_job_of_many_sessions(database: Database, tmp_path: Path) -> None:
    job_id, kept = add_job(database, COUNT), add_job(database, KEPT, owner="bob")
    most = most_rows(database)
    with database.write() as session:
        control.delete(session, job_id)
    with database.read() as session:
        with pytest.raises(NotFound):
            jobs.get(session, job_id)
        assert [row.id for row in jobs.find(session)[0]] == [kept]
        assert sessions.totals(session, SessionFilter()).sessions == KEPT
        assert len(sessions.find(session, SessionFilter(), limit=100)[0]) == KEPT
        usage = quotas.usage(session)["alice"]
        assert (usage.deleting, usage.deleting_bytes, usage.sessions) == (COUNT, COUNT * 1000, 0)
    before = counts(database)
    drain_some(database, tmp_path)
    left_over = counts(database)
    assert 0 < before["sessions"] - left_over["sessions"] < COUNT / 10
    assert 0 < most[0] <= MOST_ROWS
    with database.read() as session:
        usage = quotas.usage(session)["alice"]
        assert (usage.deleting, usage.deleting_bytes) == (left_over["sessions"] - KEPT, 1000 * usage.deleting)
        assert quotas.used(session)["alice"] == usage.deleting_bytes
        assert len(sessions.find(session, SessionFilter(tag="t"), limit=100)[0]) == KEPT


def drain_some(database: Database, folder: Path) -> None:
    """A few slices, after which the process is stopped."""
    stop = threading.Event()
    store = LocalStore(folder)
    batches: list[int] = []

    class Stopping(LocalStore):
        def delete_many(self, prefixes: Mapping[str, Sequence[str] | None]) -> dict[str, str]:
            batches.append(len(prefixes))
            if len(batches) == 3:
                stop.set()
            return store.delete_many(prefixes)

    reaper.reap(database, Stopping(folder), stop)
    assert len(batches) == 3


def most_rows(database: Database) -> list[int]:
    """The most rows that one statement changes from now on."""
    most = [0]

    def count(_: Any, cursor: Any, statement: str, parameters: Any, __: Any, executemany: bool) -> None:
        if statement.startswith(("INSERT", "UPDATE", "DELETE")):
            most[0] = max(most[0], len(parameters) if executemany else cursor.rowcount)

    sa.event.listen(database.engine, "after_cursor_execute", count)
    return most
