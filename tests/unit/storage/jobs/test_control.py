"""What stops a job early, and how an ended job is taken up again."""

from collections.abc import Callable, Sequence

import pytest
import sqlalchemy as sa

from actograph.contract.errors import (
    ActographError,
    CaptureFailed,
    Conflict,
    ContextLengthExceeded,
    ModelRefused,
    NotFound,
)
from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.resources import JobStatus, Sample, SampleStatus
from storage import samples
from storage.index.database import Database
from storage.jobs import control, jobs
from storage.queue import leases, model_loads
from storage.queue.commit import Ended
from storage.queue.leases import LeasedSample
from storage.tables.models import JobRow, SampleRow
from tests.support import leasing
from tests.support.samples import result

Submit = Callable[..., str]
BROKEN = CaptureFailed("the disk is gone")
TOO_LONG = ContextLengthExceeded("the prompt is too long")


def commit(database: Database, leases: Sequence[LeasedSample], *errors: ActographError | None) -> None:
    """End samples as a worker does, None being one that completed."""
    with database.write() as session:
        ended = [
            Ended(lease=lease, result=result())
            if error is None
            else Ended(lease=lease, error=error, prompt="the prompt")
            for lease, error in zip(leases, errors, strict=True)
        ]
        leasing.end(session, *ended)


def shown(database: Database, job_id: str) -> list[Sample]:
    with database.read() as session:
        return [samples.resource(row) for row in samples.find(session, job_id, limit=1000)[0]]


def row(database: Database, job_id: str) -> JobRow:
    with database.read() as session:
        return jobs.get(session, job_id)


def retry(database: Database, job_id: str) -> JobRow:
    with database.write() as session:
        return control.retry(session, job_id)


@pytest.mark.usefixtures("one_progress_event")
def test_a_retry_runs_what_failed_and_keeps_what_completed(database: Database, submit: Submit) -> None:
    job_id = submit(3)
    commit(database, leasing.begin(database, job_id, 3), None, BROKEN, TOO_LONG)
    assert row(database, job_id).status == JobStatus.COMPLETED
    before = shown(database, job_id)
    again = retry(database, job_id)
    assert (again.status, again.total, again.completed, again.failed) == (JobStatus.QUEUED, 3, 1, 0)
    assert (again.error, again.started_at, again.finished_at) == (None, None, None)
    kept, *opened = shown(database, job_id)
    assert kept == before[0]
    for sample in opened:
        assert (sample.status, sample.losses, sample.error) == (SampleStatus.PENDING, 0, None)
        assert (sample.prompt, sample.started_at, sample.finished_at) == (None, None, None)
    leases = leasing.begin(database, job_id, 9)
    assert [lease.sample_index for lease in leases] == [1, 2]
    commit(database, leases, None, None)
    ended = row(database, job_id)
    assert (ended.status, ended.completed, ended.failed) == (JobStatus.COMPLETED, 3, 0)
    assert leasing.log(database, job_id)[-5:] == [
        "job.completed", "job.retried", "job.started", "job.progress", "job.completed",
    ]  # fmt: skip


def test_a_retry_runs_what_a_cancel_left(database: Database, submit: Submit) -> None:
    job_id = submit(3)
    commit(database, leasing.begin(database, job_id), None)
    with database.write() as session:
        jobs.cancel(session, job_id)
    assert [s.status for s in shown(database, job_id)] == ["completed", "cancelled", "cancelled"]
    retry(database, job_id)
    assert [lease.sample_index for lease in leasing.begin(database, job_id, 9)] == [1, 2]


def test_a_job_that_has_nothing_to_retry_is_left_alone(database: Database, submit: Submit) -> None:
    done, running = submit(), submit()
    commit(database, leasing.begin(database, done), None)
    leasing.begin(database, running)
    with database.write() as session:
        load = model_loads.create(session, "demo", ModelLoadOptions())
        jobs.fail(session, load.id, ModelRefused("no"))
    for job_id, reason in ((done, "nothing to retry"), (running, "in_progress"), (load.id, "models/load")):
        before = leasing.log(database, job_id)
        with pytest.raises(Conflict, match=reason):
            retry(database, job_id)
        assert leasing.log(database, job_id) == before
    with pytest.raises(NotFound):
        retry(database, "job_" + "0" * 32)


def test_a_worker_of_before_the_retry_changes_nothing(database: Database, submit: Submit) -> None:
    job_id = submit(2)
    stale = leasing.begin(database, job_id, 2)
    with database.write() as session:
        jobs.fail(session, job_id, ModelRefused("another worker said so"))
    retry(database, job_id)
    with pytest.raises(leasing.LeaseLost):
        commit(database, stale, None, None)
    with database.write() as session:
        leases.give_back(session, stale)
    assert [(s.status, s.losses) for s in shown(database, job_id)] == [("pending", 0)] * 2


def test_failures_in_a_row_stop_the_job_over_units(database: Database, submit: Submit) -> None:
    job_id = submit(9, max_consecutive_failures=3)
    commit(database, leasing.begin(database, job_id, 2), BROKEN, BROKEN)
    commit(database, leasing.begin(database, job_id, 3), None, BROKEN, BROKEN)
    assert row(database, job_id).status == JobStatus.IN_PROGRESS
    commit(database, leasing.begin(database, job_id, 1), BROKEN)
    ended = row(database, job_id)
    assert (ended.status, ended.completed, ended.failed) == (JobStatus.FAILED, 1, 5)
    assert ended.error is not None
    assert ended.error["type"] == "too_many_failures"
    assert "3 samples failed" in ended.error["message"]
    assert "the disk is gone" in ended.error["message"]
    assert [s.status for s in shown(database, job_id)][6:] == [SampleStatus.CANCELLED] * 3
    assert leasing.log(database, job_id)[-1] == "job.failed"
    retry(database, job_id)
    assert row(database, job_id).failed_in_a_row == 0
    assert len(leasing.begin(database, job_id, 9)) == 8


def test_samples_whose_own_input_is_at_fault_stop_nothing(database: Database, submit: Submit) -> None:
    job_id = submit(8, max_consecutive_failures=2)
    commit(database, leasing.begin(database, job_id, 4), TOO_LONG, TOO_LONG, TOO_LONG, BROKEN)
    assert row(database, job_id).status == JobStatus.IN_PROGRESS
    commit(database, leasing.begin(database, job_id, 2), TOO_LONG, BROKEN)
    assert row(database, job_id).status == JobStatus.FAILED


def test_without_a_limit_failures_stop_nothing(
    database: Database, submit: Submit, subtests: pytest.Subtests
) -> None:
    for limit in [0, None]:
        with subtests.test(limit=limit):
            job_id = submit(40, max_consecutive_failures=limit)
            commit(database, leasing.begin(database, job_id, 39), *[BROKEN] * 39)
            assert row(database, job_id).status == JobStatus.IN_PROGRESS


def test_samples_that_kill_workers_count_as_failures(database: Database, submit: Submit) -> None:
    job_id = submit(5, max_consecutive_failures=2)
    leasing.begin(database, job_id, 2)
    with database.write() as session:
        session.execute(sa.update(SampleRow).values(losses=leases.FAILED_AFTER - 1))
    leasing.lose(database)
    ended = row(database, job_id)
    assert ended.error is not None
    assert (ended.status, ended.failed, ended.error["type"]) == (JobStatus.FAILED, 2, "too_many_failures")


def let_deadline_pass(database: Database, job_id: str) -> None:
    with database.write() as session:
        deadline = jobs.get(session, job_id).deadline_at
        assert deadline is not None
        jobs.get(session, job_id).deadline_at = deadline - 1000


def test_a_job_past_its_deadline_fails_and_keeps_what_finished(database: Database, submit: Submit) -> None:
    late, early = submit(3, deadline_seconds=900), submit(deadline_seconds=5000)
    submit()
    commit(database, leasing.begin(database, late), None)
    (held,) = leasing.begin(database, late)
    for job_id in (late, early):
        let_deadline_pass(database, job_id)
    with database.read() as session:
        assert leases.mine(session, "wrk_a") == {}
    with database.write() as session:
        assert control.fail_overdue(session) == [late]
        assert control.fail_overdue(session) == []
    ended = row(database, late)
    assert ended.error is not None
    assert (ended.status, ended.completed, ended.error["type"]) == (JobStatus.FAILED, 1, "deadline_exceeded")
    assert "900 s" in ended.error["message"]
    assert [s.status for s in shown(database, late)] == ["completed", "cancelled", "cancelled"]
    with pytest.raises(leasing.LeaseLost):
        commit(database, [held], None)
    again = retry(database, late)
    assert again.deadline_at is not None


def test_a_cancelled_job_has_no_deadline_left_to_pass(database: Database, submit: Submit) -> None:
    job_id = submit(deadline_seconds=900)
    leasing.begin(database, job_id)
    with database.write() as session:
        jobs.cancel(session, job_id)
    let_deadline_pass(database, job_id)
    with database.write() as session:
        assert control.fail_overdue(session) == []
    assert row(database, job_id).status == JobStatus.CANCELLED
