"""Workers of one job side by side: few statements, no lock of the job, and counts that are exact anyway."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session

from actograph.contract.errors import CaptureFailed
from actograph.contract.resources import JobStatus, SessionFile
from actograph.settings import Settings
from storage.accounts import quotas
from storage.artifacts.local import LocalStore
from storage.index import tallies
from storage.index.counters import Counter
from storage.index.database import Database
from storage.jobs import control, jobs
from storage.queue import claim, commit, leases, view, workers
from storage.queue.claim import Asking, HeldModel
from storage.queue.commit import Ended
from storage.queue.leases import LeasedSample
from storage.sessions import changes, sessions
from storage.sessions.filter import SessionFilter
from storage.tables.models import JobRow, TallyRow
from storage.upkeep import reaper
from storage.upkeep.reconcile import Reconciler
from tests.support import leasing
from tests.support.samples import result, session_of
from tests.support.submitting import insert

Submit = Callable[..., str]
ME, OTHER = "wrk_" + "a" * 32, "wrk_" + "b" * 32
SIZE = 100
#: a transaction that waits for a lock fails
NO_WAIT = sa.text("SET LOCAL lock_timeout = '50ms'")


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Database]:
    opened = Database(postgres_url)
    yield opened
    opened.close()


@pytest.fixture
def make_job(capture_spec: Callable[..., Any]) -> Submit:
    """Inserts a job of so many samples into an index; returns its id."""

    def make(database: Database, count: int, *, owner: str = "", **changes: Any) -> str:
        spec = capture_spec(inputs=[{"prompt": f"prompt {i}"} for i in range(count)], **changes)
        return insert(database, spec, owner=owner)

    return make


def ask(session: Session, worker_id: str = ME, count: int = 4, **asking: Any) -> list[LeasedSample]:
    asked = Asking(worker_id=worker_id, held=HeldModel("demo"), **asking)
    found = claim.attempt(session, asked, lambda _job: count)
    return list(found.samples) if isinstance(found, claim.Claim) else []


def completed(held: list[LeasedSample]) -> list[Ended]:
    """Each with a session, if it has one."""
    file = SessionFile(name="activations.safetensors", bytes=SIZE, sha256="0" * 64)
    return [
        Ended(
            lease=lease,
            result=result(session_id=lease.session_id),
            session=session_of(lease, files=[file], tags=["own"]) if lease.session_id else None,
        )
        for lease in held
    ]


def sent(database: Database, work: Callable[[], object]) -> list[str]:
    """The statements of some work, apart from BEGIN and COMMIT."""
    statements: list[str] = []

    def note(*given: Any) -> None:
        statements.append(given[2])

    event.listen(database.engine, "before_cursor_execute", note)
    work()
    event.remove(database.engine, "before_cursor_execute", note)
    return statements


def test_claims_and_commits_take_few_statements_whatever_their_size(
    postgres: Database, make_job: Submit, subtests: pytest.Subtests
) -> None:
    job_id = make_job(postgres, 40, tags=["night"])
    with postgres.write() as session:
        workers.register(session, ME, hostname="here", pid=1, model="demo")
        ask(session, count=2)
        # no progress is due
        session.execute(sa.update(JobRow).values(logged_at=1e12))
    for count in (1, 16):
        with subtests.test(count=count):
            held: list[LeasedSample] = []

            def take(count: int = count, held: list[LeasedSample] = held) -> None:
                with postgres.write() as session:
                    held += ask(session, count=count, busy_with=job_id)

            # the clock, the next job, the leases, their sessions
            assert len(sent(postgres, take)) == 4
            assert len(held) == count
            # the clock, the locks, sessions, tags, results, the tally, which tells that the job goes on
            assert len(sent(postgres, lambda held=held: commit.store(postgres, completed(held)))) == 6
    with postgres.read() as session:
        assert view.job(session, jobs.get(session, job_id)).progress.completed == 17


def test_a_locked_job_delays_no_sample(postgres: Database, make_job: Submit) -> None:
    make_job(postgres, 8)
    with postgres.write() as session:
        first = ask(session, count=2)
    with postgres.write() as holder:
        jobs.lock(holder, first[0].job_id)
        with postgres.write() as session:
            session.execute(NO_WAIT)
            second = ask(session, OTHER, count=2)
        with postgres.write() as session:
            session.execute(NO_WAIT)
            assert len(commit.commit(session, completed(first + second)).kept) == 4


def test_claims_at_once_get_different_samples_and_wait_for_none(postgres: Database, make_job: Submit) -> None:
    make_job(postgres, 10)
    with postgres.write() as session:
        ask(session, count=1)
    with postgres.write() as one, postgres.write() as other:
        other.execute(NO_WAIT)
        mine, theirs = ask(one, count=4), ask(other, OTHER, count=9)
        assert [lease.sample_index for lease in mine + theirs] == list(range(1, 10))
        with postgres.write() as third:
            third.execute(NO_WAIT)
            assert ask(third, "wrk_c") == []
            assert jobs.get(third, mine[0].job_id).pending, "the claims may yet fail"
    with postgres.write() as session:
        assert ask(session) == []
    with postgres.write() as session:
        assert not jobs.get(session, mine[0].job_id).pending
        leases.give_back(session, mine[:1])
    with postgres.write() as session:
        assert [lease.sample_index for lease in ask(session)] == [1]


def test_workers_that_come_at_once_start_a_new_job_once(database: Database, make_job: Submit) -> None:
    job_id = make_job(database, 40)
    together = Barrier(6)

    def come(number: int) -> list[int]:
        together.wait()
        with database.write() as session:
            return [lease.sample_index for lease in ask(session, f"wrk_{number}", count=3)]

    with ThreadPoolExecutor(6) as pool:
        found = [index for indexes in pool.map(come, range(6)) for index in indexes]
    assert sorted(found) == sorted(set(found))
    assert len(found) == 18, "nobody went away with nothing"
    assert leasing.log(database, job_id).count("job.started") == 1


def test_a_claim_of_a_new_job_waits_for_the_one_that_starts_it(
    database: Database, make_job: Submit, at_once: Callable[..., None]
) -> None:
    make_job(database, 4)
    second: list[LeasedSample] = []
    at_once(lambda session: ask(session, count=1), lambda session: second.extend(ask(session, OTHER)))
    assert [lease.sample_index for lease in second] == [1, 2, 3]


def test_jobs_of_one_priority_take_turns_although_a_claim_waits_for_none(
    postgres: Database, make_job: Submit
) -> None:
    first, second = make_job(postgres, 9), make_job(postgres, 9)

    def served() -> str:
        with postgres.write() as session:
            session.execute(NO_WAIT)
            return ask(session, count=1)[0].job_id

    assert [served() for _ in range(5)] == [first, second, first, second, first]
    with postgres.write() as holder:
        jobs.lock(holder, second)  # a claim that goes on at the same time
        assert [served(), served()] == [second, second], "it has had its turn when that one ends"
    assert [served(), served(), served()] == [second, first, second]


def test_counts_are_exact_before_they_are_summed(
    database: Database, make_job: Submit, subtests: pytest.Subtests
) -> None:
    job_id = make_job(database, 9, owner="alice")
    seen = []
    for settled in (False, True, False, True):
        with database.write() as session:
            held = ask(session, count=2)
            ended = [*completed(held[:1]), Ended(lease=held[1], error=CaptureFailed("no"))]
            commit.commit(session, ended, seconds=0.5)
        if settled:
            with database.write() as session:
                control.settle(session, [job_id])
        with subtests.test(commits=len(seen) + 1), database.read() as session:
            done = len(seen) + 1
            row = jobs.get(session, job_id)
            assert row.completed == (done if settled else done - 1)
            assert bool(session.scalars(sa.select(TallyRow.id)).all()) is not settled
            shown = view.job(session, row).progress
            assert (shown.total, shown.completed, shown.failed) == (9, done, done)
            assert view.open_samples(session) == {"pending": 9 - 2 * done, "leased": 0}
            assert quotas.used(session) == {"alice": SIZE * done}
            found = tallies.totals(session)
            assert found[Counter("samples", "capture", "completed")] == done
            assert found[Counter("samples", "capture", "failed")] == done
            assert found[Counter("session_bytes_written", "capture")] == SIZE * done
            assert found[Counter("busy_seconds")] == 0.5 * done
        seen.append(settled)


def test_bytes_of_a_session_that_is_removed_before_they_are_summed(
    database: Database, make_job: Submit, tmp_path: Path
) -> None:
    job_id = make_job(database, 9, owner="alice")
    with database.write() as session:
        commit.commit(session, completed(ask(session, count=2)))
    with database.write() as session:
        (first, _) = sessions.ids(session, SessionFilter())
        changes.delete(session, first)
    assert reaper.reap(database, LocalStore(tmp_path)).count == 1
    with database.read() as session:
        assert quotas.used(session) == {"alice": SIZE}
    with database.write() as session:
        assert jobs.cancel(session, job_id).bytes == SIZE


def test_the_last_commits_at_once_end_a_job_once(database: Database, make_job: Submit) -> None:
    job_id = make_job(database, 4)
    with database.write() as session:
        held = ask(session, count=4)
    together = Barrier(4)

    def end(lease: LeasedSample) -> None:
        together.wait()
        commit.store(database, completed([lease]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(end, held))
    with database.read() as session:
        row = jobs.get(session, job_id)
        assert (row.status, row.completed) == (JobStatus.COMPLETED, 4)
        assert tallies.jobs_with_any(session) == []
    assert leasing.log(database, job_id).count("job.completed") == 1


def test_upkeep_ends_the_job_of_a_worker_that_died_after_its_last_commit(
    database: Database, make_job: Submit, tmp_path: Path
) -> None:
    job_id = make_job(database, 2)
    with database.write() as session:
        commit.commit(session, completed(ask(session)))
    with database.read() as session:
        assert jobs.get(session, job_id).status == JobStatus.IN_PROGRESS
    settings = Settings(home=tmp_path)
    Reconciler(settings, database, LocalStore(tmp_path)).round()
    assert leasing.log(database, job_id)[-1] == "job.completed"


def test_a_last_commit_whose_answer_was_lost_ends_the_job(database: Database, make_job: Submit) -> None:
    job_id = make_job(database, 2)
    with database.write() as session:
        held = ask(session)
        commit.commit(session, completed(held))
    again = commit.store(database, completed(held))
    assert (again.kept, again.lost) == ([], set())
    assert leasing.log(database, job_id)[-1] == "job.completed"


def test_a_job_of_one_sample_ends_with_its_commit(database: Database, make_job: Submit) -> None:
    job_id = make_job(database, 1)
    with database.write() as session:
        commit.commit(session, completed(ask(session)))
    with database.read() as session:
        assert jobs.get(session, job_id).status == JobStatus.COMPLETED


def test_a_commit_and_what_ends_its_job_wait_for_each_other(
    database: Database, make_job: Submit, at_once: Callable[..., None], subtests: pytest.Subtests
) -> None:
    """Whichever comes first, no sample that was committed is lost or counted twice."""
    ends: dict[str, Callable[[Session, str], object]] = {
        "cancelled": jobs.cancel,
        "taken back": lambda session, job_id: leases.take_back(session, [ME]),
    }
    for name, end in ends.items():
        for commit_first in (True, False):
            with subtests.test(end=name, commit_first=commit_first):
                job_id = make_job(database, 9)
                with database.write() as session:
                    held = ask(session, count=8)
                kept: list[Ended] = []

                def store(session: Session, held: Any = held, kept: Any = kept) -> None:
                    kept += commit.commit(session, completed(held[::-1])).kept

                def stop(session: Session, job_id: str = job_id, end: Any = end) -> None:
                    end(session, job_id)

                at_once(*((store, stop) if commit_first else (stop, store)))
                with database.write() as session:
                    control.settle(session, [job_id])
                    row = jobs.get(session, job_id)
                    assert len(kept) == row.completed == (8 if commit_first else 0)
                    jobs.cancel(session, job_id)
