"""The store or the database goes away in mid-work: no sample fails of it, and nothing is done twice."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import ServiceUnavailable
from actograph.contract.resources import JobStatus, SampleStatus
from storage.artifacts.store import ArtifactStore
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import view, workers
from storage.tables.models import WorkerRow
from tests.support.engine_double import Watched
from tests.support.waiting import wait_until
from worker.drain.drain import Drain

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

CAPTURE = {"points": ["resid_post"], "layers": [1]}


class BadStore:
    """The real store, but for what `broken` raises when a session is begun or committed."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self.at_begin: Exception | None = None
        self.at_commit: Exception | None = None
        self.at_check: Exception | None = None
        self.begun = 0
        self.may_commit = threading.Event()
        self.may_commit.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def stage(self, prefix: str) -> Any:
        self.begun += 1
        if self.at_begin is not None:
            raise self.at_begin
        stage = self._store.stage(prefix)
        real = stage.commit

        def commit() -> None:
            self.may_commit.wait()
            if self.at_commit is not None:
                raise self.at_commit
            real()

        stage.commit = commit  # type: ignore[method-assign]
        return stage

    def mend(self) -> None:
        self.at_begin = self.at_commit = self.at_check = None

    def check(self) -> None:
        if self.at_check is not None:
            raise self.at_check


@pytest.mark.parametrize(
    ("moment", "reason"),
    [
        ("at_begin", ServiceUnavailable("S3 answers 503")),
        ("at_commit", OSError(28, "No space left on device")),
    ],
)
def test_samples_that_the_store_does_not_take_are_given_back(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch, moment: str, reason: Exception
) -> None:
    monkeypatch.setattr("worker.drain.store_outage.FIRST_PAUSE_SECONDS", 0.001)
    bad = BadStore(bench.store)
    bench.store = bad
    setattr(bad, moment, reason)
    job_id = bench.submit(capture=CAPTURE)
    drain = bench.drain(slots=2)
    drain.look()
    assert bench.status(job_id) is JobStatus.IN_PROGRESS
    assert {(s.status, s.losses) for s in bench.samples(job_id)} == {(SampleStatus.PENDING, 0)}
    assert bench.stored_sessions() == set()
    begun = bad.begun
    bad.at_check = ServiceUnavailable("still away")
    for _ in range(3):
        drain.look()
    assert bad.begun == begun, "nothing is generated for a store that is known to be away"
    assert _waiting_reason(bench, job_id) == str(drain._pauses.outage.reason)
    bad.mend()
    while bench.status(job_id) is JobStatus.IN_PROGRESS:  # until the pause is over
        drain.look()
    assert bench.status(job_id) is JobStatus.COMPLETED
    with bench.database.read() as session:
        assert [row.error for row in workers.find(session)] == [None]
    assert [s.losses for s in bench.samples(job_id)] == [0] * 5
    assert bench.stored_sessions() == bench.indexed_sessions()
    assert len(bench.stored_sessions()) == 5


def _waiting_reason(bench: "Bench", job_id: str) -> str | None:
    with bench.database.read() as session:
        return view.job(session, jobs.get(session, job_id)).waiting_reason


class BadDatabase(Database):
    """Fails with what Postgres says while it is restarted, before or after a commit is made."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        #: transactions left until the next failure; None for never
        self.fails_after: int | None = None
        self.is_committed_first = False

    @contextmanager
    def write(self) -> Iterator[Session]:
        fails = self.fails_after == 0
        if self.fails_after is not None:
            self.fails_after = self.fails_after - 1 if self.fails_after else None
        if fails and not self.is_committed_first:
            raise away()
        with super().write() as session:
            yield session
        if fails:
            raise away()


def away() -> sa.exc.OperationalError:
    return sa.exc.OperationalError("COMMIT", {}, psycopg.OperationalError("server closed the connection"))


@pytest.mark.covering(1)
@pytest.mark.parametrize("is_committed_first", [False, True])
def test_a_database_that_goes_away_costs_nothing_that_was_done(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch, is_committed_first: bool
) -> None:
    """At every single transaction of a drain, with and without the commit having been made."""
    monkeypatch.setattr("storage.index.database.FIRST_PAUSE_SECONDS", 0.001)
    for moment in range(9):
        job_id = bench.submit(capture=CAPTURE)
        real = bench.database
        bad = BadDatabase(real.url.render_as_string(hide_password=False))
        bench.database = bad
        drain = bench.drain(slots=3, idle_poll_seconds=1e-6)
        bad.fails_after, bad.is_committed_first = moment, is_committed_first
        for _ in range(100):
            drain.look()
            if bench.status(job_id) is JobStatus.COMPLETED:
                break
        with bad.read() as session:
            assert session.scalars(sa.select(WorkerRow.job_id)).all() == [None], moment
        bench.database = real
        bad.close()
        found = bench.samples(job_id)
        assert bench.status(job_id) is JobStatus.COMPLETED, moment
        assert {s.status for s in found} == {SampleStatus.COMPLETED}
        assert sum(s.losses for s in found) <= 3, "at most the current batch is run again"
        kept = {s.session_id for s in found}
        assert len(kept) == 5
        assert kept <= bench.stored_sessions()
        with real.read() as session:
            row = session.execute(
                sa.text("SELECT completed, failed FROM jobs WHERE id = :id"), {"id": job_id}
            )
            assert tuple(row.one()) == (5, 0)


def test_samples_keep_their_sessions_until_the_store_is_back(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost and nothing generated twice by an outage in the middle of a drain."""
    monkeypatch.setattr("worker.drain.store_outage.FIRST_PAUSE_SECONDS", 0.001)
    bad, asked = BadStore(bench.store), list[str]()
    bench.store = bad
    bench.engine = Watched(bench.engine, lambda some: asked.extend(one.key for one in some))  # type: ignore[assignment]
    bad.at_commit = bad.at_check = ServiceUnavailable("S3 answers 503")
    job_id = bench.submit(capture=CAPTURE)
    drain = bench.drain(slots=2)
    with looking(drain):
        wait_until(lambda: all(drain.numbers()[name] for name in ("sessions_to_store", "waits_for_store")))
        assert bench.stored_sessions() == set()
        bad.mend()
    while bench.status(job_id) is JobStatus.IN_PROGRESS:
        drain.look()
    assert {(s.status, s.losses) for s in bench.samples(job_id)} == {(SampleStatus.COMPLETED, 0)}
    assert len(asked) == len(set(asked)) == 5
    assert bench.stored_sessions() == bench.indexed_sessions()
    assert drain.numbers() == {"sessions_to_store": 0, "upload_bytes": 0, "waits_for_store": 0}


def test_a_stop_gives_back_what_the_store_does_not_take_in_time(bench: "Bench") -> None:
    bad = BadStore(bench.store)
    bench.store = bad
    bad.at_commit = bad.at_check = ServiceUnavailable("S3 answers 503")
    job_id = bench.submit(capture=CAPTURE)
    drain = bench.drain(slots=2, stop_grace_seconds=0.01)
    with looking(drain):
        wait_until(lambda: drain.numbers()["sessions_to_store"] > 0)
        bench.stop.set()
    assert {(s.status, s.losses) for s in bench.samples(job_id)} == {(SampleStatus.PENDING, 0)}
    assert bench.stored_sessions() == set()


def test_sessions_that_wait_for_the_store_count_as_running(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.drain.session_writers.MOST_WAITING", 2)
    slow, asked = BadStore(bench.store), list[str]()
    bench.store = slow
    bench.engine = Watched(bench.engine, lambda some: asked.extend(one.key for one in some))  # type: ignore[assignment]
    slow.may_commit.clear()
    rows = [{"question": f"{a}+1?", "answer": f"#### {a}"} for a in range(20)]
    job_id = bench.submit(rows, capture=CAPTURE)
    drain = bench.drain(slots=1)
    with looking(drain):
        wait_until(lambda: drain.numbers()["waits_for_store"] == 1)
        assert len(asked) <= 2 + 1 + 1 + 1, "claims go on while nothing is stored"
        slow.may_commit.set()
    assert bench.status(job_id) is JobStatus.COMPLETED
    assert len(asked) == len(set(asked)) == 20
    assert len(bench.stored_sessions()) == 20


@contextmanager
def looking(drain: Drain) -> Iterator[None]:
    """A drain runs, and ends by itself."""
    thread = threading.Thread(target=drain.look, daemon=True)
    thread.start()
    yield
    thread.join(timeout=120)
    assert not thread.is_alive()
