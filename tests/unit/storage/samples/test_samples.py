"""Claims, leases and commits: a sample has one holder, and only that one's result counts."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from actograph.contract.errors import CaptureFailed, LeaseLost, WorkerStalled
from actograph.contract.resources import JobStatus, SampleStatus, Score
from actograph.contract.specs import sample_seed
from storage import samples
from storage.index.database import Database, now
from storage.jobs import jobs
from storage.samples import LeasedSample
from storage.tables.models import SampleRow
from tests.support.samples import result

Submit = Callable[..., str]

RESULT = result(
    finish_reason="stop",
    generated_tokens=3,
    scores={"exact_match,strict-match": Score(value=1.0, answer="5")},
)


def claim(
    database: Database, job_id: str, count: int = 1, worker: str = "wrk_a", seconds: float = 60
) -> list[LeasedSample]:
    with database.write() as session:
        return samples.claim(session, job_id, worker_id=worker, count=count, lease_seconds=seconds)


def expire_leases(database: Database) -> None:
    with database.write() as session:
        session.execute(sa.update(SampleRow).values(lease_until=1.0))


def rows(database: Database, job_id: str) -> list[SampleRow]:
    with database.read() as session:
        return list(samples.find(session, job_id, limit=1000)[0])


def test_samples_are_claimed_in_their_order_and_never_twice(database: Database, submit: Submit) -> None:
    job_id = submit(5)
    first, second = claim(database, job_id, 2), claim(database, job_id, 2, worker="wrk_b")
    assert [s.sample_index for s in first + second] == [0, 1, 2, 3]
    assert [s.sample_index for s in claim(database, job_id, 9)] == [4]
    assert claim(database, job_id, 9) == []
    assert first[0].input == {"prompt": "prompt 0"}
    assert first[0].seed == sample_seed(0, 0, 0)
    leased = rows(database, job_id)
    assert {r.status for r in leased} == {SampleStatus.LEASED}
    assert [r.worker_id for r in leased] == ["wrk_a", "wrk_a", "wrk_b", "wrk_b", "wrk_a"]


@pytest.mark.parametrize("shift", [60.0, -60.0])
def test_a_worker_whose_clock_is_wrong_neither_takes_nor_loses_leases(
    database: Database, submit: Submit, monkeypatch: pytest.MonkeyPatch, shift: float
) -> None:
    job_id, real = submit(2), time.time
    (held,) = claim(database, job_id, seconds=30)
    monkeypatch.setattr(time, "time", lambda: real() + shift)
    (other,) = claim(database, job_id, count=2, worker="wrk_b", seconds=30)
    assert other.sample_index == 1, "the first is still held"
    with database.write() as session:
        assert samples.renew(session, [other], lease_seconds=30) == {other.id}
    monkeypatch.setattr(time, "time", real)
    assert claim(database, job_id, count=2) == []
    with database.read() as session:
        assert abs(now(session) - real()) < 5
        for row in rows(database, job_id):
            assert 0 < row.lease_until - now(session) <= 31
    assert held.sample_index == 0


def test_a_lease_that_ran_out_is_claimed_by_another_and_fences_the_first(
    database: Database, submit: Submit
) -> None:
    job_id = submit()
    (stale,) = claim(database, job_id, seconds=60)
    assert claim(database, job_id) == []
    expire_leases(database)
    (fresh,) = claim(database, job_id, worker="wrk_b")
    assert (stale.token, fresh.token) == (1, 2)
    with database.write() as session:
        assert samples.renew(session, [stale, fresh], lease_seconds=60) == {fresh.id}
    error = CaptureFailed("late")
    calls: list[Callable[[Any], None]] = [
        lambda session: samples.complete(session, stale, RESULT),
        lambda session: samples.fail(session, stale, error),
    ]
    for call in calls:
        with pytest.raises(LeaseLost), database.write() as session:
            call(session)
    with database.write() as session:
        samples.release(session, [stale])
    (row,) = rows(database, job_id)
    assert (row.status, row.worker_id, row.lease_token) == (SampleStatus.LEASED, "wrk_b", 2)
    with database.write() as session:
        samples.complete(session, fresh, RESULT)
    with pytest.raises(LeaseLost), database.write() as session:
        samples.complete(session, fresh, RESULT)


def test_a_lease_that_ran_out_but_was_not_taken_still_counts(database: Database, submit: Submit) -> None:
    (lease,) = claim(database, submit())
    expire_leases(database)
    with database.write() as session:
        samples.complete(session, lease, RESULT)
    (row,) = rows(database, lease.job_id)
    assert row.status == SampleStatus.COMPLETED


def test_a_renewed_lease_is_not_given_away(database: Database, submit: Submit) -> None:
    job_id = submit()
    leases = claim(database, job_id, seconds=0.0)
    with database.write() as session:
        assert samples.renew(session, leases, lease_seconds=60) == {leases[0].id}
    assert claim(database, job_id) == []


def test_a_result_is_stored_whole(database: Database, submit: Submit) -> None:
    (lease,) = claim(database, submit())
    with database.write() as session:
        samples.complete(session, lease, RESULT)
    with database.read() as session:
        shown = samples.resource(samples.get(session, lease.id))
    assert (shown.status, shown.prompt, shown.completion, shown.finish_reason) == (
        "completed",
        "p",
        "c",
        "stop",
    )
    assert (shown.prompt_tokens, shown.generated_tokens, shown.attempts) == (2, 3, 1)
    assert shown.scores["exact_match,strict-match"] == Score(value=1.0, answer="5")
    assert shown.started_at is not None
    assert shown.finished_at is not None
    assert shown.condition is None


def test_released_samples_are_pending_again_and_lost_no_attempt(database: Database, submit: Submit) -> None:
    job_id = submit(2)
    leases = claim(database, job_id, 2)
    with database.write() as session:
        samples.release(session, leases)
    assert [(r.status, r.attempts, r.worker_id) for r in rows(database, job_id)] == [("pending", 0, None)] * 2
    assert [s.token for s in claim(database, job_id, 2)] == [2, 2]


def test_a_sample_that_keeps_killing_workers_runs_alone_and_fails_in_the_end(
    database: Database, submit: Submit
) -> None:
    job_id = submit(3)
    with database.write() as session:
        jobs.start(session, job_id)
    for _ in range(samples.ALONE_AFTER_ATTEMPTS):
        assert len(claim(database, job_id, 3)) == 3
        expire_leases(database)
    for _ in range(samples.ALONE_AFTER_ATTEMPTS, samples.MAX_ATTEMPTS):
        (alone,) = claim(database, job_id, 3)
        assert alone.sample_index == 0
        expire_leases(database)
    (following,) = claim(database, job_id, 3)
    assert following.sample_index == 1
    first = rows(database, job_id)[0]
    assert first.status == SampleStatus.FAILED
    assert first.error is not None
    assert first.error["type"] == "worker_lost"
    with database.read() as session:
        assert jobs.get(session, job_id).failed == 1


def test_a_fresh_sample_is_not_held_back_by_a_suspicious_one(database: Database, submit: Submit) -> None:
    job_id = submit(2)
    with database.write() as session:
        session.execute(sa.update(SampleRow).where(SampleRow.position == 1).values(attempts=3))
    assert [s.sample_index for s in claim(database, job_id, 2)] == [0]
    assert [s.sample_index for s in claim(database, job_id, 2)] == [1]


def test_jobs_that_are_not_active_yield_nothing(
    database: Database, submit: Submit, subtests: pytest.Subtests
) -> None:
    for status in [JobStatus.CANCELLING, JobStatus.CANCELLED, JobStatus.FAILED, JobStatus.COMPLETED]:
        with subtests.test(status=status):
            job_id = submit()
            with database.write() as session:
                jobs.get(session, job_id).status = status
            assert claim(database, job_id) == []
            assert claim(database, "job_" + "0" * 32) == []


def test_many_threads_claim_every_sample_once(database: Database, submit: Submit) -> None:
    job_id = submit(60)
    claimed: list[str] = []

    def drain(worker: str) -> None:
        while leases := claim(database, job_id, 3, worker=worker):
            for lease in leases:
                with database.write() as session:
                    samples.complete(session, lease, RESULT)
                claimed.append(lease.id)

    threads = [threading.Thread(target=drain, args=(f"wrk_{i}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claimed) == len(set(claimed)) == 60
    assert {r.lease_token for r in rows(database, job_id)} == {1}


def test_a_worker_that_was_only_stopped_gives_its_attempt_back(database: Database, submit: Submit) -> None:
    """Stopped and continued again and again, workers never bring a healthy sample to its end."""
    job_id = submit()
    for _ in range(3 * samples.MAX_ATTEMPTS):
        (stopped,) = claim(database, job_id, worker="wrk_a")
        expire_leases(database)
        (taken,) = claim(database, job_id, worker="wrk_b")
        with database.write() as session:
            assert samples.renew(session, [stopped], lease_seconds=60) == set()
            samples.release(session, [stopped])
            samples.give_back(session, [stopped])
        assert rows(database, job_id)[0].attempts == 1
        expire_leases(database)
        (stopped,) = claim(database, job_id, worker="wrk_a")
        with database.write() as session:
            samples.give_back(session, [taken])
            samples.release(session, [stopped])
    (row,) = rows(database, job_id)
    assert (row.status, row.attempts) == (SampleStatus.PENDING, 0)


def stall(database: Database, leases: list[LeasedSample]) -> None:
    with database.write() as session:
        samples.give_up(session, leases, WorkerStalled("no step"))


def test_samples_of_a_unit_that_hung_are_run_alone_and_the_one_that_hangs_again_fails(
    database: Database, submit: Submit
) -> None:
    job_id = submit(3)
    stall(database, claim(database, job_id, 3))
    for row in rows(database, job_id):
        assert (row.status, row.worker_id, row.started_at) == (SampleStatus.PENDING, None, None)
    (first,) = claim(database, job_id, 3)
    with database.write() as session:
        samples.complete(session, first, RESULT)
    (second,) = claim(database, job_id, 3)
    assert second.sample_index == 1
    stall(database, [second])
    failed = rows(database, job_id)[1]
    assert failed.status == SampleStatus.FAILED
    assert failed.error is not None
    assert failed.error["type"] == "worker_stalled"
    with database.read() as session:
        assert jobs.get(session, job_id).failed == 1
    assert [s.sample_index for s in claim(database, job_id, 3)] == [2]


def test_a_sample_that_hangs_alone_gets_one_more_chance(database: Database, submit: Submit) -> None:
    job_id = submit()
    stall(database, claim(database, job_id))
    assert rows(database, job_id)[0].status == SampleStatus.PENDING
    stall(database, claim(database, job_id))
    with database.read() as session:
        assert jobs.status_of(session, job_id) == JobStatus.FAILED


def test_who_lost_the_lease_writes_down_no_hang(database: Database, submit: Submit) -> None:
    job_id = submit()
    stale = claim(database, job_id)
    expire_leases(database)
    claim(database, job_id, worker="wrk_b")
    stall(database, stale)
    assert rows(database, job_id)[0].status == SampleStatus.LEASED
    with database.write() as session:
        session.execute(sa.text("DELETE FROM jobs"))
    stall(database, stale)
