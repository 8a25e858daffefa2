"""A job's way from queued to its end, and what cancel, fail and delete do on that way."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import get_args

import pytest
import sqlalchemy as sa

from actograph.contract.errors import CaptureFailed, Conflict, ModelRefused, NotFound
from actograph.contract.job_specs import JobSpec, ListedKind, job_spec_adapter
from actograph.contract.resources import JobStatus, SessionFile
from storage import samples
from storage.artifacts.local import LocalStore
from storage.files import files
from storage.index.database import Database
from storage.jobs import control, jobs
from storage.queue import view
from storage.queue.leases import LeasedSample
from storage.sessions import sessions
from storage.tables.models import Base, EventRow, JobRow, JobTagRow, SampleRow, SessionRow
from storage.upkeep import reaper
from tests.support import leasing
from tests.support.samples import add_file, result, session_of

Submit = Callable[..., str]


def complete(database: Database, lease: LeasedSample) -> None:
    with database.write() as session:
        leasing.complete(session, lease, result())


def fail(database: Database, lease: LeasedSample) -> None:
    with database.write() as session:
        leasing.fail(session, lease, CaptureFailed(f"reason {lease.sample_index}"))


def status(database: Database, job_id: str) -> JobStatus | None:
    with database.read() as session:
        return jobs.status_of(session, job_id)


def test_the_inputs_of_a_capture_job_are_its_samples_alone(database: Database, submit: Submit) -> None:
    job_id = submit(2)
    with database.read() as session:
        shown = view.job(session, jobs.get(session, job_id))
    assert "inputs" not in shown.spec
    assert shown.spec["sampling"]["max_tokens"] == 512


@pytest.mark.usefixtures("one_progress_event")
def test_it_completes_when_its_last_sample_has(database: Database, submit: Submit) -> None:
    job_id = submit(2)
    first, second = leasing.begin(database, job_id, 2)
    assert status(database, job_id) == JobStatus.IN_PROGRESS
    complete(database, first)
    assert status(database, job_id) == JobStatus.IN_PROGRESS
    fail(database, second)
    assert status(database, job_id) == JobStatus.COMPLETED
    assert leasing.log(database, job_id) == [
        "job.queued", "job.started", "job.progress", "job.completed",
    ]  # fmt: skip
    with database.read() as session:
        shown = view.job(session, jobs.get(session, job_id))
    assert (shown.progress.total, shown.progress.completed, shown.progress.failed) == (2, 1, 1)
    assert shown.started_at is not None
    assert shown.finished_at is not None


def test_it_fails_when_every_sample_failed_and_says_why(database: Database, submit: Submit) -> None:
    job_id = submit(2)
    for lease in reversed(leasing.begin(database, job_id, 2)):
        fail(database, lease)
    with database.read() as session:
        shown = view.job(session, jobs.get(session, job_id))
    assert shown.status == JobStatus.FAILED
    assert shown.error is not None
    assert shown.error.type == "capture_failed"
    assert shown.error.message == "every sample failed; the first: reason 0"
    assert leasing.log(database, job_id)[-1] == "job.failed"


def test_a_queued_job_is_cancelled_at_once(database: Database, submit: Submit) -> None:
    job_id = submit()
    with database.write() as session:
        assert jobs.cancel(session, job_id).status == JobStatus.CANCELLED
    with database.write() as session:
        assert jobs.cancel(session, job_id).status == JobStatus.CANCELLED
    assert leasing.log(database, job_id) == ["job.queued", "job.cancelled"]


def test_a_running_job_is_cancelled_at_once_and_keeps_what_finished(
    database: Database, submit: Submit
) -> None:
    job_id = submit(3)
    first, second = leasing.begin(database, job_id, 2)
    complete(database, first)
    with database.write() as session:
        assert jobs.cancel(session, job_id).status == JobStatus.CANCELLED
        jobs.fail(session, job_id, ModelRefused("a cancelled job does not fail"))
    assert leasing.begin(database, job_id) == []
    with pytest.raises(leasing.LeaseLost):
        complete(database, second)
    assert status(database, job_id) == JobStatus.CANCELLED
    with database.read() as session:
        row = jobs.get(session, job_id)
        assert (row.completed, row.failed) == (1, 0)
        found, _ = samples.find(session, job_id)
        assert [s.status for s in found] == ["completed", "cancelled", "cancelled"]


def test_cancel_and_end_at_once_leave_one_end(database: Database, submit: Submit) -> None:
    """Whoever comes first, the job has one last event, and its status fits it."""
    for _ in range(10):
        job_id = submit()
        (lease,) = leasing.begin(database, job_id)
        barrier = threading.Barrier(2)

        def cancel(target: str = job_id, gate: threading.Barrier = barrier) -> None:
            gate.wait()
            try:
                with database.write() as session:
                    jobs.cancel(session, target)
            except Conflict:
                pass

        thread = threading.Thread(target=cancel)
        thread.start()
        barrier.wait()
        with suppress(leasing.LeaseLost):
            complete(database, lease)
        thread.join()
        ends = [e for e in leasing.log(database, job_id) if e in ("job.completed", "job.cancelled")]
        assert len(ends) == 1
        assert ends[0] == f"job.{status(database, job_id)}"


def count(database: Database, table: type[Base]) -> int:
    with database.read() as session:
        return session.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def test_deleting_a_job_takes_everything_that_hangs_on_it(
    database: Database, submit: Submit, tmp_path: Path
) -> None:
    gone, kept = submit(tags=["a", "b"]), submit(tags=["a"])
    for job_id in (gone, kept):
        (lease,) = leasing.begin(database, job_id)
        with database.write() as session:
            files = [SessionFile(name="x", bytes=1, sha256="0" * 64)]
            jobs.lock(session, job_id)
            sessions.publish(session, session_of(lease, files=files))
        complete(database, lease)
    tables = (JobRow, JobTagRow, SampleRow, SessionRow, EventRow)
    before = [count(database, table) for table in tables]
    with database.write() as session:
        control.delete(session, gone)
    reaper.reap(database, LocalStore(tmp_path))
    assert [count(database, table) for table in tables] == [1, 1, 1, 1, before[4] // 2]
    with database.read() as session:
        assert jobs.status_of(session, gone) is None
        assert jobs.get(session, kept).id == kept
        with pytest.raises(NotFound):
            jobs.get(session, gone)


def test_the_files_that_active_jobs_read_are_known(database: Database) -> None:
    ids = [add_file(database) for _ in range(3)]
    spec = job_spec_adapter.validate_python(
        {
            "kind": "evaluation",
            "model": "demo",
            "dataset": {"file_id": ids[0]},
            "fewshot_dataset": {"file_id": ids[1]},
        }
    )
    with database.write() as session:
        row = jobs.create(session, spec)
        assert [files.reader_of(session, i) for i in ids] == [f"job {row.id}"] * 2 + [None]
        jobs.cancel(session, row.id)
        assert [files.reader_of(session, i) for i in ids] == [None, None, None]


def test_lists_can_be_filtered_by_the_kind_of_every_job() -> None:
    specs = (*get_args(jobs.Spec), *get_args(get_args(JobSpec)[0]))
    kinds = {kind for spec in specs for kind in get_args(spec.model_fields["kind"].annotation)}
    assert kinds | {"load"} == set(get_args(ListedKind)), "and loads of models, which have no spec"
