"""Claims and leases: a sample has one holder, whose heartbeat keeps it, and only that one's result counts."""

import threading
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from actograph.contract.errors import CaptureFailed, WorkerStalled
from actograph.contract.resources import JobStatus, SampleStatus, Score
from actograph.contract.specs import sample_seed
from storage import samples
from storage.index import events
from storage.index.database import Database
from storage.jobs import control, jobs
from storage.queue import commit, leases, workers
from storage.queue.commit import Ended
from storage.queue.leases import LeasedSample
from storage.tables.models import SampleRow, WorkerRow
from tests.support import leasing
from tests.support.samples import result

Submit = Callable[..., str]

RESULT = result(
    finish_reason="stop",
    generated_tokens=3,
    scores={"exact_match,strict-match": Score(value=1.0, answer="5")},
)


def claim(database: Database, job_id: str, count: int = 1, worker: str = "wrk_a") -> list[LeasedSample]:
    with database.write() as session:
        return leasing.claim(session, job_id, worker_id=worker, count=count)


def rows(database: Database, job_id: str) -> list[SampleRow]:
    with database.read() as session:
        return list(samples.find(session, job_id, limit=1000)[0])


def upkeep(database: Database) -> int:
    with database.write() as session:
        return leases.reclaim(session, lease_seconds=30, pass_seconds=5)


def silence(database: Database, *worker_ids: str) -> None:
    with database.write() as session:
        session.execute(sa.update(WorkerRow).where(WorkerRow.id.in_(worker_ids)).values(heartbeat_at=1.0))


@pytest.fixture
def two_workers(database: Database) -> None:
    with database.write() as session:
        for worker_id in ("wrk_a", "wrk_b"):
            workers.register(session, worker_id, hostname="here", pid=1, model="demo")
    leasing.end_grace(database)


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


@pytest.mark.usefixtures("two_workers")
def test_a_heartbeat_or_a_claim_renews_all_that_a_worker_holds(database: Database, submit: Submit) -> None:
    job_id = submit(3)
    claim(database, job_id)
    silence(database, "wrk_a")
    with database.write() as session:
        workers.heartbeat(session, "wrk_a", None)
    assert upkeep(database) == 0
    silence(database, "wrk_a")
    claim(database, job_id)
    assert upkeep(database) == 0
    silence(database, "wrk_a")
    assert upkeep(database) == 2
    assert [r.losses for r in rows(database, job_id)] == [1, 1, 0]


@pytest.mark.usefixtures("two_workers")
def test_upkeep_takes_back_what_a_silent_worker_held_and_fences_it(
    database: Database, submit: Submit
) -> None:
    job_id, other = submit(), submit()
    (stale,) = claim(database, job_id)
    claim(database, other, worker="wrk_b")
    silence(database, "wrk_a")
    assert upkeep(database) == 1
    assert rows(database, other)[0].status == SampleStatus.LEASED
    (fresh,) = claim(database, job_id, worker="wrk_b")
    assert (stale.token, fresh.token) == (1, 2)
    with pytest.raises(leasing.LeaseLost), database.write() as session:
        leasing.complete(session, stale, RESULT)
    with pytest.raises(leasing.LeaseLost), database.write() as session:
        leasing.fail(session, stale, CaptureFailed("late"))
    with database.write() as session:
        leases.give_back(session, [stale])
    (row,) = rows(database, job_id)
    assert (row.status, row.worker_id, row.lease_token) == (SampleStatus.LEASED, "wrk_b", 2)
    with database.write() as session:
        leasing.complete(session, fresh, RESULT)
    with pytest.raises(leasing.LeaseLost), database.write() as session:
        leasing.complete(session, fresh, RESULT)


@pytest.mark.usefixtures("two_workers")
def test_upkeep_that_was_away_gives_workers_one_lease_to_beat(database: Database, submit: Submit) -> None:
    job_id = submit()
    claim(database, job_id)
    silence(database, "wrk_a")
    with database.write() as session:
        session.execute(sa.text("UPDATE state SET at = at - 100"))
    assert upkeep(database) == 0
    leasing.end_grace(database)
    assert upkeep(database) == 1


def test_what_nobody_known_holds_is_taken_back(database: Database, submit: Submit) -> None:
    leasing.end_grace(database)
    claim(database, submit(), worker="wrk_forgotten")
    assert upkeep(database) == 1


@pytest.fixture
def held(database: Database, submit: Submit) -> Iterator[dict[str, LeasedSample]]:
    """One sample of each of some jobs."""
    yield {
        name: claim(database, submit(2, deadline_seconds=900))[0]
        for name in ("kept", "cancelled", "deleted", "late", "lost", "done")
    }


def test_a_worker_learns_in_one_look_what_is_still_its_own(
    database: Database, held: dict[str, LeasedSample]
) -> None:
    with database.read() as session:
        assert leases.mine(session, "wrk_a") == {lease.id: 1 for lease in held.values()}
    with database.write() as session:
        jobs.cancel(session, held["cancelled"].job_id)
        jobs.cancel(session, held["deleted"].job_id)
        jobs.get(session, held["late"].job_id).deadline_at = 1.0
        leases.give_back(session, [held["lost"]])
        leasing.complete(session, held["done"], RESULT)
    with database.write() as session:
        control.delete(session, held["deleted"].job_id)
    (again,) = claim(database, held["lost"].job_id)
    with database.read() as session:
        assert leases.mine(session, "wrk_a") == {held["kept"].id: 1, again.id: 2}
        assert leases.mine(session, "wrk_b") == {}


def test_a_result_is_stored_whole(database: Database, submit: Submit) -> None:
    (lease,) = claim(database, submit())
    with database.write() as session:
        leasing.complete(session, lease, RESULT)
    with database.read() as session:
        shown = samples.resource(samples.get(session, lease.id))
    expected = ("completed", "p", "c", "stop")
    assert (shown.status, shown.prompt, shown.completion, shown.finish_reason) == expected
    assert (shown.prompt_tokens, shown.generated_tokens, shown.losses) == (2, 3, 0)
    assert shown.scores["exact_match,strict-match"] == Score(value=1.0, answer="5")
    assert shown.started_at is not None
    assert shown.finished_at is not None
    assert shown.condition is None


def test_samples_that_are_given_back_are_pending_again_without_a_loss(
    database: Database, submit: Submit
) -> None:
    job_id = submit(2)
    held = claim(database, job_id, 2)
    with database.write() as session:
        leases.give_back(session, held)
    assert [(r.status, r.losses, r.worker_id) for r in rows(database, job_id)] == [("pending", 0, None)] * 2
    assert [s.token for s in claim(database, job_id, 2)] == [2, 2]


def test_a_sample_that_keeps_killing_workers_is_found_and_fails_in_the_end(
    database: Database, submit: Submit
) -> None:
    """Number 5 of 64 samples ends every worker, which has 32 slots."""
    job_id = submit(64)
    with database.write() as session:
        jobs.start(session, job_id)
    lost, sizes = 0, []
    while held := claim(database, job_id, 32):
        sizes.append(len(held))
        if 5 in {lease.sample_index for lease in held}:
            lost += 1
            leasing.lose(database)
            continue
        with database.write() as session:
            for lease in held:
                leasing.complete(session, lease, RESULT)
    assert lost == leases.FAILED_AFTER
    assert sizes[:3] == [32, 32, 32], "lost twice, then the healthy half"
    assert max(sizes[3:]) == 5, "then groups of the square root"
    assert len(sizes) <= 15
    failed = rows(database, job_id)[5]
    assert (failed.status, failed.losses) == (SampleStatus.FAILED, leases.FAILED_AFTER)
    assert failed.error is not None
    assert failed.error["type"] == "worker_lost"
    with database.read() as session:
        assert jobs.get(session, job_id).failed == 1


def test_jobs_that_are_not_active_yield_nothing(
    database: Database, submit: Submit, subtests: pytest.Subtests
) -> None:
    for status in [JobStatus.CANCELLED, JobStatus.FAILED, JobStatus.COMPLETED]:
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
        while held := claim(database, job_id, 3, worker=worker):
            for lease in held:
                with database.write() as session:
                    leasing.complete(session, lease, RESULT)
                claimed.append(lease.id)

    threads = [threading.Thread(target=drain, args=(f"wrk_{i}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claimed) == len(set(claimed)) == 60
    assert {r.lease_token for r in rows(database, job_id)} == {1}


def test_a_worker_that_ends_itself_counts_a_loss_and_tells_the_reason_in_the_end(
    database: Database, submit: Submit
) -> None:
    job_id = submit()
    for _ in range(leases.FAILED_AFTER):
        assert rows(database, job_id)[0].status in (SampleStatus.PENDING, SampleStatus.SUSPECT)
        held = claim(database, job_id)
        with database.write() as session:
            leases.give_back(session, held, WorkerStalled("no step"))
    failed = rows(database, job_id)[0]
    assert failed.error is not None
    assert failed.error["type"] == "worker_stalled"
    with database.read() as session:
        assert jobs.status_of(session, job_id) == JobStatus.FAILED
    with database.write() as session:
        session.execute(sa.text("DELETE FROM jobs"))
    with database.write() as session:
        leases.give_back(session, held, WorkerStalled("its job is gone"))


@pytest.mark.parametrize("newest_first", [False, True])
def test_of_two_outcomes_of_a_sample_the_one_of_its_valid_lease_counts(
    database: Database, submit: Submit, newest_first: bool
) -> None:
    job_id = submit(1)
    (old,) = claim(database, job_id)
    leasing.lose(database)
    (new,) = claim(database, job_id)
    ended = [Ended(lease=one, result=RESULT) for one in (old, new)]
    with database.write() as session:
        done = commit.commit(session, ended[::-1] if newest_first else ended)
    assert (done.kept, done.lost) == ([ended[1]], {old.key})
    with database.read() as session:
        assert jobs.get(session, job_id).completed == 1


@pytest.mark.usefixtures("one_progress_event")
def test_an_outcome_that_the_database_refuses_fails_its_own_sample_alone(
    database: Database, submit: Submit
) -> None:
    job_id = submit(3)
    held = claim(database, job_id, 3)
    bad = result(logprobs=[{"logprob": object()}])
    ended = [Ended(lease=lease, result=bad if lease.sample_index == 1 else RESULT) for lease in held]
    done = commit.store(database, ended, seconds=1.0)
    assert [one.error is None for one in done.kept] == [True, False, True]
    assert done.lost == {held[1].key}
    again = commit.store(database, ended)  # the answer was lost
    assert (again.kept, again.lost) == ([], {held[1].key})
    assert [row.status for row in rows(database, job_id)] == ["completed", "failed", "completed"]
    with database.read() as session:
        row = jobs.get(session, job_id)
        assert (row.completed, row.failed, row.status) == (2, 1, JobStatus.COMPLETED)
        assert [event.event for event in events.after(session, job_id, 0)].count("job.progress") == 1
