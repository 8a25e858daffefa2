"""A job's way from queued to its end, and what cancel, fail and delete do on that way."""

import threading
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from actograph.contract.errors import CaptureFailed, Conflict, ModelRefused, NotFound
from actograph.contract.job_specs import CaptureJobSpec, job_spec_adapter
from actograph.contract.resources import JobStatus, SampleStatus, Score
from storage import samples
from storage.files import files
from storage.index import events
from storage.index.database import Database
from storage.jobs import job_deletion, jobs
from storage.queue import job_view, waiting
from storage.results import summary
from storage.samples import LeasedSample, NewSample, SampleResult
from storage.sessions import sessions
from storage.sessions.sessions import NewSession
from storage.tables.models import ArtifactRow, Base, EventRow, JobRow, JobTagRow, SampleRow, SessionRow

Submit = Callable[..., str]
UNKNOWN = "job_" + "0" * 32


def claim(database: Database, job_id: str, count: int = 1, seconds: float = 60) -> list[LeasedSample]:
    with database.write() as session:
        jobs.start(session, job_id)
        return samples.claim(session, job_id, worker_id="wrk_a", count=count, lease_seconds=seconds)


def complete(database: Database, lease: LeasedSample, value: float | None = None) -> None:
    scores = {} if value is None else {"exact_match,strict-match": Score(value=value)}
    result = SampleResult(
        prompt="p",
        completion="c",
        finish_reason="length",
        prompt_tokens=1,
        generated_tokens=1,
        scores=scores,
        session_id=None,
    )
    with database.write() as session:
        samples.complete(session, lease, result)
        jobs.count_finished(session, lease.job_id, completed=1, failed=0)
        jobs.end_if_done(session, lease.job_id)


def fail(database: Database, lease: LeasedSample) -> None:
    with database.write() as session:
        samples.fail(session, lease, CaptureFailed(f"reason {lease.sample_index}"))
        jobs.count_finished(session, lease.job_id, completed=0, failed=1)
        jobs.end_if_done(session, lease.job_id)


def status(database: Database, job_id: str) -> JobStatus | None:
    with database.read() as session:
        return jobs.status_of(session, job_id)


def log(database: Database, job_id: str) -> list[str]:
    with database.read() as session:
        return [e.event for e in events.after(session, job_id, 0)]


def test_the_inputs_of_a_capture_job_are_its_samples_alone(database: Database, submit: Submit) -> None:
    job_id = submit(2)
    with database.read() as session:
        shown = job_view.resource(session, jobs.get(session, job_id))
    assert "inputs" not in shown.spec
    assert shown.spec["sampling"]["max_tokens"] == 512


def test_it_completes_when_its_last_sample_has(database: Database, submit: Submit) -> None:
    job_id = submit(2)
    first, second = claim(database, job_id, 2)
    assert status(database, job_id) == JobStatus.IN_PROGRESS
    complete(database, first)
    assert status(database, job_id) == JobStatus.IN_PROGRESS
    fail(database, second)
    assert status(database, job_id) == JobStatus.COMPLETED
    assert log(database, job_id) == [
        "job.queued", "job.started", "job.progress", "job.progress", "job.completed",
    ]  # fmt: skip
    with database.read() as session:
        shown = job_view.resource(session, jobs.get(session, job_id))
    assert (shown.progress.total, shown.progress.completed, shown.progress.failed) == (2, 1, 1)
    assert shown.started_at is not None
    assert shown.finished_at is not None


def test_it_fails_when_every_sample_failed_and_says_why(database: Database, submit: Submit) -> None:
    job_id = submit(2)
    for lease in reversed(claim(database, job_id, 2)):
        fail(database, lease)
    with database.read() as session:
        shown = job_view.resource(session, jobs.get(session, job_id))
    assert shown.status == JobStatus.FAILED
    assert shown.error is not None
    assert shown.error.type == "capture_failed"
    assert shown.error.message == "every sample failed; the first: reason 0"
    assert log(database, job_id)[-1] == "job.failed"


def test_ending_twice_changes_nothing(database: Database, submit: Submit) -> None:
    job_id = submit()
    complete(database, claim(database, job_id)[0])
    before = log(database, job_id)
    with database.write() as session:
        assert jobs.end_if_done(session, job_id) == JobStatus.COMPLETED
        assert not jobs.start(session, job_id)
        jobs.fail(session, job_id, ModelRefused("late"))
    assert log(database, job_id) == before
    assert status(database, job_id) == JobStatus.COMPLETED


def test_a_job_without_total_does_not_end(
    database: Database, capture_spec: Callable[..., CaptureJobSpec]
) -> None:
    spec = capture_spec()
    with database.write() as session:
        row = jobs.create(session, kind="capture", model="demo", spec=spec, hooks=None, total=None)
        assert jobs.end_if_done(session, row.id) == JobStatus.QUEUED
        jobs.set_total(session, row.id, 1)
        samples.insert(session, row.id, [NewSample(sample_index=0, condition="", epoch=0, input={}, seed=0)])
        assert jobs.end_if_done(session, row.id) == JobStatus.QUEUED
    complete(database, claim(database, row.id)[0])
    assert status(database, row.id) == JobStatus.COMPLETED


def test_a_queued_job_is_cancelled_at_once(database: Database, submit: Submit) -> None:
    job_id = submit()
    with database.write() as session:
        assert jobs.cancel(session, job_id).status == JobStatus.CANCELLED
    with database.write() as session:
        assert jobs.cancel(session, job_id).status == JobStatus.CANCELLED
    assert log(database, job_id) == ["job.queued", "job.cancelling", "job.cancelled"]


def test_a_running_job_is_cancelled_when_its_leases_are_gone_and_keeps_what_finished(
    database: Database, submit: Submit
) -> None:
    job_id = submit(3)
    first, second = claim(database, job_id, 2)
    complete(database, first)
    with database.write() as session:
        assert jobs.cancel(session, job_id).status == JobStatus.CANCELLING
        jobs.fail(session, job_id, ModelRefused("a cancelling job does not fail"))
    assert claim(database, job_id) == []
    # the worker had finished this one when it saw the cancel
    complete(database, second)
    assert status(database, job_id) == JobStatus.CANCELLED
    with database.read() as session:
        row = jobs.get(session, job_id)
        assert (row.completed, row.failed) == (2, 0)
        found, _ = samples.find(session, job_id)
        assert [s.status for s in found] == ["completed", "completed", "cancelled"]


def test_a_cancelling_job_ends_when_the_lease_of_a_dead_worker_ran_out(
    database: Database, submit: Submit
) -> None:
    job_id = submit()
    claim(database, job_id)
    with database.write() as session:
        jobs.cancel(session, job_id)
        assert jobs.end_if_done(session, job_id) == JobStatus.CANCELLING
        assert list(waiting.unended(session)) == [job_id]
        session.execute(sa.update(SampleRow).values(lease_until=1.0))
        assert jobs.end_if_done(session, job_id) == JobStatus.CANCELLED
        assert list(waiting.unended(session)) == []


def test_an_ended_job_is_not_cancelled(database: Database, submit: Submit) -> None:
    job_id = submit()
    complete(database, claim(database, job_id)[0])
    with pytest.raises(Conflict, match="completed already"), database.write() as session:
        jobs.cancel(session, job_id)


def test_cancel_and_end_at_once_leave_one_end(database: Database, submit: Submit) -> None:
    """Whoever comes first, the job has one last event, and its status fits it."""
    for _ in range(10):
        job_id = submit()
        (lease,) = claim(database, job_id)
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
        complete(database, lease)
        thread.join()
        ends = [e for e in log(database, job_id) if e in ("job.completed", "job.cancelled")]
        assert len(ends) == 1
        assert ends[0] == f"job.{status(database, job_id)}"


def test_a_job_that_cannot_run_fails_with_the_reason(database: Database, submit: Submit) -> None:
    job_id = submit()
    with database.write() as session:
        jobs.fail(session, job_id, ModelRefused("it does not fit"))
        row = jobs.get(session, job_id)
        assert row.error == {"type": "model_refused", "message": "it does not fit"}
    assert status(database, job_id) == JobStatus.FAILED


def count(database: Database, table: type[Base]) -> int:
    with database.read() as session:
        return session.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def test_deleting_a_job_takes_everything_that_hangs_on_it(database: Database, submit: Submit) -> None:
    gone, kept = submit(tags=["a", "b"]), submit(tags=["a"])
    for job_id in (gone, kept):
        (lease,) = claim(database, job_id)
        with database.write() as session:
            sessions.insert(
                session,
                NewSession(
                    id="ses_" + job_id[4:],
                    job_id=job_id,
                    sample_id=lease.id,
                    sample_index=0,
                    condition="",
                    epoch=0,
                    model="demo",
                    prompt_tokens=1,
                    generated_tokens=1,
                    rows=1,
                    dtype="F32",
                    hooks={},
                    files=[],
                    correct=None,
                ),
            )
            session.add(ArtifactRow(session_id="ses_" + job_id[4:], name="x", bytes=1, sha256="0" * 64))
        complete(database, lease)
    tables = (JobRow, JobTagRow, SampleRow, SessionRow, ArtifactRow, EventRow)
    before = [count(database, table) for table in tables]
    with database.write() as session:
        job_deletion.delete(session, gone)
    assert [count(database, table) for table in tables] == [1, 1, 1, 1, 1, before[5] // 2]
    with database.read() as session:
        assert jobs.status_of(session, gone) is None
        assert jobs.get(session, kept).id == kept
        with pytest.raises(NotFound):
            jobs.get(session, gone)


def test_a_job_that_is_being_run_is_not_deleted(
    database: Database, submit: Submit, subtests: pytest.Subtests
) -> None:
    for state in [JobStatus.IN_PROGRESS, JobStatus.CANCELLING]:
        with subtests.test(state=state):
            job_id = submit()
            with database.write() as session:
                jobs.get(session, job_id).status = state
            with pytest.raises(Conflict, match="cancel it"), database.write() as session:
                job_deletion.delete(session, job_id)
            assert status(database, job_id) == state


def test_an_unknown_job_is_not_found(database: Database, subtests: pytest.Subtests) -> None:
    for call in [jobs.get, jobs.cancel, job_deletion.delete, jobs.end_if_done]:
        with subtests.test(call=call), pytest.raises(NotFound), database.write() as session:
            call(session, UNKNOWN)


def test_claimable_jobs_come_the_most_urgent_first(database: Database, submit: Submit) -> None:
    late, urgent, leased, done = submit(priority=9), submit(priority=0), submit(), submit()
    claim(database, leased)
    complete(database, claim(database, done)[0])
    with database.read() as session:
        assert [tuple(j)[:3] for j in waiting.claimable(session)] == [
            (urgent, 0, "demo"),
            (late, 9, "demo"),
        ]
        assert list(waiting.unended(session)) == []
    with database.write() as session:
        session.execute(
            sa.update(SampleRow).where(SampleRow.status == SampleStatus.LEASED).values(lease_until=1.0)
        )
        assert [j.id for j in waiting.claimable(session)] == [urgent, leased, late]


def test_more_urgent_work_is_seen_only_where_somebody_could_take_it(
    database: Database, submit: Submit
) -> None:
    urgent = submit(priority=1)
    submit(priority=5)
    with database.read() as session:
        assert waiting.more_urgent_waits(session, 5, ["demo"])
        assert not waiting.more_urgent_waits(session, 1, ["demo"])
    claim(database, urgent)
    with database.read() as session:
        assert not waiting.more_urgent_waits(session, 5, ["demo"])


def test_counts_and_positions(database: Database, submit: Submit) -> None:
    first, running, urgent = submit(2), submit(3), submit(priority=0)
    claim(database, running, 2)
    with database.read() as session:
        assert waiting.counts(session) == {
            JobStatus.QUEUED: 2, JobStatus.IN_PROGRESS: 1, JobStatus.CANCELLING: 0,
        }  # fmt: skip
        assert waiting.open_samples(session) == {SampleStatus.PENDING: 4, SampleStatus.LEASED: 2}
        assert waiting.queued(session, 10) == [urgent, first]
        places = [waiting.place(session, jobs.get(session, i)) for i in (urgent, first, running)]
        assert places == [1, 2, None]


def test_results_are_grouped_by_condition_and_count_what_was_cut(database: Database) -> None:
    spec = job_spec_adapter.validate_python(
        {
            "kind": "evaluation",
            "model": "demo",
            "dataset": {"hub": "openai/gsm8k"},
            "conditions": [{"name": "a"}, {"name": "b"}, {"name": "empty"}],
        }
    )
    new = [
        NewSample(sample_index=i, condition=c, epoch=0, input={}, seed=0)
        for i in range(2)
        for c in ("a", "b")
    ]
    with database.write() as session:
        row = jobs.create(session, kind="evaluation", model="demo", spec=spec, hooks=None, total=4)
        samples.insert(session, row.id, new)
    leases = claim(database, row.id, 4)
    for lease, value in zip(leases[:3], (1.0, 0.0, 0.0), strict=True):
        complete(database, lease, value)
    fail(database, leases[3])
    with database.snapshot() as session:
        results = summary.of_job(session, jobs.get(session, row.id))
    key = "exact_match,strict-match"
    assert list(results.conditions) == ["a", "b", "empty"]
    a, b = results.conditions["a"], results.conditions["b"]
    assert (a.metrics[key], a.samples, a.failed, a.truncated) == (0.5, 2, 0, 2)
    assert (b.metrics[key], b.samples, b.failed) == (0.0, 1, 1)
    assert b.metrics["exact_match_stderr,strict-match"] is None
    assert results.conditions["empty"].metrics == {}


def test_the_files_that_active_jobs_read_are_known(database: Database) -> None:
    ids = ["file_" + c * 32 for c in "abc"]
    spec = job_spec_adapter.validate_python(
        {
            "kind": "evaluation",
            "model": "demo",
            "dataset": {"file_id": ids[0]},
            "fewshot_dataset": {"file_id": ids[1]},
        }
    )
    with database.write() as session:
        for file_id in ids:
            files.insert(session, file_id=file_id, filename="x", purpose="dataset", size=1, sha256="0" * 64)
        row = jobs.create(session, kind="evaluation", model="demo", spec=spec, hooks=None, total=None)
        assert [jobs.refers_to_file(session, i) for i in ids] == [row.id, row.id, None]
        jobs.cancel(session, row.id)
        assert [jobs.refers_to_file(session, i) for i in ids] == [None, None, None]
