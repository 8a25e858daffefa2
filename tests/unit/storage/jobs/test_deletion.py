"""Which ended chats and jobs are deleted after a while, which jobs a filter deletes, and which stay."""

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.openai_answers import BatchRequest, BatchStatus
from actograph.contract.resources import JobStatus
from storage.index.database import Database, now
from storage.jobs import batches, control, jobs
from storage.jobs.jobs import JobFilter
from storage.tables.models import EventRow, JobRow, SampleRow, SessionRow
from tests.support.submitting import insert_chat

Submit = Callable[..., str]


def chat(database: Database, *, ended_before: float | None, kind: str = "chat") -> str:
    job_id = insert_chat(database, "m")
    with database.write() as session:
        session.execute(sa.update(JobRow).where(JobRow.id == job_id).values(kind=kind))
        if ended_before is not None:
            kept = jobs.get(session, job_id)
            kept.status, kept.finished_at = JobStatus.COMPLETED, now(session) - ended_before
    return job_id


def add_session(session: Session, job_id: str, *, pinned: bool = False) -> None:
    sample_id = session.scalars(sa.select(SampleRow.id).where(SampleRow.job_id == job_id)).one()
    session.add(
        SessionRow(
            id="ses_1", job_id=job_id, sample_id=sample_id, sample_index=0, model="m", created_at=0.0,
            prompt_tokens=1, generated_tokens=1, rows=1, bytes=0, dtype="F32", hooks={}, pinned=pinned,
        )
    )  # fmt: skip


def test_chats_that_ended_long_ago_go_with_their_samples_unless_they_have_sessions(
    database: Database,
) -> None:
    old, fresh, running, captured = (chat(database, ended_before=s) for s in (100, 1, None, 100))
    with database.write() as session:
        add_session(session, captured)
    assert [control.delete_old(database, "chats", 50, limit=10) for _ in range(2)] == [1, 0]
    with database.read() as session:
        assert set(session.scalars(sa.select(JobRow.id))) == {fresh, running, captured}
        assert set(session.scalars(sa.select(SampleRow.job_id))) == {fresh, running, captured}
    assert old not in (fresh, running, captured)


def test_jobs_that_ended_long_ago_go_unless_something_needs_them(database: Database) -> None:
    old, fresh, running, batch, captured = (
        chat(database, ended_before=s, kind="evaluation") for s in (100, 1, None, 100, 100)
    )
    kept_chat, load = chat(database, ended_before=100), chat(database, ended_before=100, kind="load")
    with database.write() as session:
        request = BatchRequest(input_file_id="file_" + "0" * 32, endpoint="/v1/chat/completions")
        row = batches.create(session, request, "alice")
        row.job_id, row.status = batch, BatchStatus.FINALIZING
        add_session(session, captured, pinned=True)
    stay = {fresh, running, batch, captured, kept_chat, load}
    assert old not in stay
    assert [control.delete_old(database, "jobs", 50, limit=10) for _ in range(2)] == [1, 0]
    with database.read() as session:
        assert set(session.scalars(sa.select(JobRow.id))) == stay
        assert set(session.scalars(sa.select(SampleRow.job_id))) == stay
        assert set(session.scalars(sa.select(EventRow.job_id))) == stay


def test_all_matching_jobs_are_cancelled_and_deleted(
    database: Database, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "AT_ONCE", 2)
    waiting, running, pinned, other = (submit(tags=[tag]) for tag in ("a", "a", "a", "b"))
    more = [submit(tags=["a"]) for _ in range(3)]
    with database.write() as session:
        jobs.start(session, running)
        add_session(session, pinned, pinned=True)
    wanted: JobFilter = {"tag": "a"}
    with database.read() as session:
        counts = jobs.count(session, wanted)
    assert {status: count for status, count in counts.items() if count} == {"queued": 5, "in_progress": 1}
    assert control.delete_matching(database, wanted | {"status": JobStatus.COMPLETED}) == 0
    assert control.delete_matching(database, wanted | {"text": waiting[4:]}) == 1
    assert control.delete_matching(database, wanted) == len(more)
    assert control.cancel_matching(database, wanted) == 2
    with database.read() as session:
        left = dict(session.execute(sa.select(JobRow.id, JobRow.status)).all())
        assert set(session.scalars(sa.select(SampleRow.status).where(SampleRow.job_id != other))) == {
            "cancelled"
        }
    assert left == {running: "cancelled", pinned: "cancelled", other: "queued"}
    assert control.cancel_matching(database, wanted) == 0
