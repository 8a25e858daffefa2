"""Queries that are asked often find their rows by an index, in its order, however full the database is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from actograph.contract.resources import JobStatus
from storage import samples
from storage.accounts import quotas
from storage.files import files
from storage.index import events
from storage.index.database import Database
from storage.jobs import batches, control, jobs
from storage.queue import claim, view, workers
from storage.sessions import sessions, vectors
from storage.sessions.sessions import SessionFilter
from storage.upkeep import reaper
from tests.support import leasing

Query = Callable[[Session, str], object]

#: read whole by design: they hold a few rows for each worker, model or key
SMALL = ("workers", "models", "api_keys", "state", "counters")

LISTS: dict[str, Query] = {
    "jobs": lambda session, job: jobs.find(session),
    "jobs of a status": lambda session, job: jobs.find(session, {"status": JobStatus.COMPLETED}),
    "jobs of a kind": lambda session, job: jobs.find(session, {"kind": "chat"}),
    "sessions": lambda session, job: sessions.find(session, SessionFilter()),
    "sessions of a job": lambda session, job: sessions.find(session, SessionFilter(job_id=job)),
    "sessions of a tag": lambda session, job: sessions.find(session, SessionFilter(tag="night")),
    "sessions of a model": lambda session, job: sessions.find(session, SessionFilter(model="demo")),
    "replays of a session": lambda session, job: sessions.find(session, SessionFilter(source_session=job)),
    "correct sessions": lambda session, job: sessions.find(session, SessionFilter(correct=True)),
    "files": lambda session, job: files.find(session),
    "batches": lambda session, job: batches.find(session),
    "vectors": lambda session, job: vectors.find(session),
    "log of a job": lambda session, job: events.after(session, job, 0),
}
ASKING = claim.Asking(worker_id="wrk_1", held=claim.HeldModel("demo"), may_load=["demo", "other"])
OTHERS: dict[str, Query] = {
    "samples of a job": samples.find,
    "batches to move on": lambda session, job: batches.unended(session),
    "jobs of a tag": lambda session, job: jobs.find(session, {"tag": "night"}),
    "next job": lambda session, job: claim.choose(session, ASKING),
    "place": lambda session, job: claim.positions(session, jobs.get(session, job)),
    "unserved jobs": lambda session, job: workers.unserved_jobs(session, 0.0),
    "overdue jobs": lambda session, job: control.fail_overdue(session),
    "open samples": lambda session, job: view.open_samples(session),
    "rate": events.last_progress,
    "dead workers": lambda session, job: workers.declare_lost(session, "host", lambda pid, started: True),
    "upload in use": lambda session, job: files.reader_of(session, "file-1"),
    "claim": lambda session, job: leasing.claim(session, job, worker_id="wrk_1", count=4),
    "end": jobs.end_if_done,
    "deletion": control.delete,
    "what to reap": lambda session, job: reaper.is_any_due(session),
    "used bytes of jobs": lambda session, job: quotas.used(session),
}


class _UndoneError(Exception):
    pass


@contextmanager
def undone(database: Database) -> Iterator[Session]:
    """A transaction that is rolled back in the end."""
    with suppress(_UndoneError), database.write() as session:
        yield session
        raise _UndoneError


@contextmanager
def explained(session: Session) -> Iterator[list[tuple[str, str]]]:
    """Every statement of the block that reads or changes rows, with its plan."""
    engine = session.get_bind()
    statements: list[tuple[str, Any]] = []
    plans: list[tuple[str, str]] = []

    def note(_conn: Any, _cursor: Any, statement: str, values: Any, _context: Any, many: bool) -> None:
        if (
            statement.split(maxsplit=1)[0] in ("SELECT", "UPDATE", "DELETE")
            and " FROM " in f"{statement} FROM "
        ):
            statements.append((statement, values[0] if many else values))

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield plans
    finally:
        event.remove(engine, "before_cursor_execute", note)
    connection = session.connection()
    is_sqlite = connection.dialect.name == "sqlite"
    if not is_sqlite:  # a few rows are read whole and sorted, unless that is forbidden
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        connection.exec_driver_sql("SET LOCAL enable_sort = off")
    for statement, values in statements:
        explain = "EXPLAIN QUERY PLAN" if is_sqlite else "EXPLAIN"
        rows = connection.exec_driver_sql(f"{explain} {statement}", values).all()
        plans.append((statement, "\n".join(str(row[-1]) for row in rows)))


def scans(plan: str) -> list[str]:
    """Steps that read a whole table."""
    found = []
    for line in (line.strip() for line in plan.splitlines()):
        # a list of no ids is a subquery of no rows; "anon" is what another step has found
        whole = line.startswith("SCAN ") and not any(
            word in line for word in ("INDEX", "CONSTANT", "subquery", "anon")
        )
        if (whole or "Seq Scan on" in line) and not any(f" {table}" in line for table in SMALL):
            found.append(line)
    return found


def sorts(plan: str) -> bool:
    """Whether all rows that fit are sorted; those of equal keys may be (an incremental sort)."""
    steps = [line.strip().removeprefix("->  ") for line in plan.splitlines()]
    return any("USE TEMP B-TREE FOR ORDER BY" in step or step.startswith("Sort ") for step in steps)


@pytest.fixture
def job_id(database: Database, submit: Callable[..., str]) -> str:
    """A queued job in an index that knows a worker."""
    with database.write() as session:
        workers.register(
            session, "wrk_1", hostname="host", pid=1, pid_namespace="host", process_started=1, model="demo"
        )
    return submit(3, tags=["night"])


def test_no_table_is_read_whole(database: Database, job_id: str, subtests: pytest.Subtests) -> None:
    for name in [*LISTS, *OTHERS]:
        with subtests.test(name=name):
            query = (LISTS | OTHERS)[name]
            with undone(database) as session:
                with explained(session) as plans:
                    query(session, job_id)
                assert plans
                assert {statement: found for statement, plan in plans if (found := scans(plan))} == {}


def test_a_page_of_a_list_is_not_sorted(database: Database, job_id: str, subtests: pytest.Subtests) -> None:
    for name, query in LISTS.items():
        with subtests.test(name=name), undone(database) as session:
            with explained(session) as plans:
                query(session, job_id)
            assert {statement: plan for statement, plan in plans if sorts(plan)} == {}


def test_a_page_of_an_owners_list_is_not_sorted(
    database: Database, job_id: str, subtests: pytest.Subtests
) -> None:
    for name in ["jobs", "files", "batches", "vectors", "sessions"]:
        with subtests.test(name=name), undone(database.restricted_to("key:1")) as session:
            with explained(session) as plans:
                LISTS[name](session, job_id)
            assert {statement: plan for statement, plan in plans if sorts(plan) or scans(plan)} == {}


def test_a_claim_reads_samples_in_their_order(database: Database, job_id: str) -> None:
    with undone(database) as session:
        with explained(session) as plans:
            assert leasing.claim(session, job_id, worker_id="wrk_1", count=2)
        assert {statement: plan for statement, plan in plans if sorts(plan)} == {}
