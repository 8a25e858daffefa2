"""A drain that is held, stopped by failures or a deadline, and taken up again."""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from actograph.contract.errors import CaptureFailed
from actograph.contract.resources import JobStatus, SampleStatus
from storage.artifacts.store import ArtifactStore
from storage.jobs import control, jobs
from storage.queue import pause, view

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

CAPTURE = {"points": ["resid_post"], "layers": "all"}


class Disk:
    """The real store, which can be made to refuse sessions, and which acts before it takes one."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self.is_broken = False
        self.before: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def stage(self, prefix: str) -> Any:
        self.before()
        if self.is_broken:
            raise CaptureFailed("this sample cannot be stored")
        return self._store.stage(prefix)


@pytest.fixture
def disk(bench: "Bench") -> Disk:
    disk = Disk(bench.store)
    bench.store = disk
    return disk


def upkeep(bench: "Bench") -> None:
    with bench.database.write() as session:
        control.fail_overdue(session)


def statuses(bench: "Bench", job_id: str) -> list[str]:
    return [str(sample.status) for sample in bench.samples(job_id)]


def test_a_paused_queue_ends_what_runs_and_goes_on_where_it_stood(bench: "Bench", disk: Disk) -> None:
    job_id = bench.submit(capture=CAPTURE, epochs=4)

    def pause_the_queue() -> None:
        with bench.database.write() as session:
            pause.start(session, by="local", reason=None)

    disk.before = pause_the_queue
    bench.drain(slots=2).look()
    before = statuses(bench, job_id)
    assert set(before) == {"completed", "pending"}
    bench.drain().look()
    assert statuses(bench, job_id) == before
    disk.before = lambda: None
    with bench.database.write() as session:
        pause.end(session)
    bench.drain().look()
    assert bench.status(job_id) is JobStatus.COMPLETED
    assert [s.losses for s in bench.samples(job_id)] == [0] * 20


def test_failures_in_a_row_stop_the_job_and_a_retry_ends_it(bench: "Bench", disk: Disk) -> None:
    job_id = bench.submit(capture=CAPTURE, epochs=9, max_consecutive_failures=4)
    disk.is_broken = True
    bench.drain(slots=2).look()
    ended = statuses(bench, job_id)
    assert set(ended) == {"failed", "cancelled"}
    assert 4 <= ended.count("failed") < 30, "what ran has ended"
    with bench.database.read() as session:
        job = view.job(session, jobs.get(session, job_id))
    assert job.status is JobStatus.FAILED
    assert job.error is not None and job.error.type == "too_many_failures"
    assert "cannot be stored" in job.error.message
    disk.is_broken = False
    with bench.database.write() as session:
        control.retry(session, job_id)
    bench.drain().look()
    assert bench.status(job_id) is JobStatus.COMPLETED
    assert statuses(bench, job_id) == ["completed"] * 45
    assert [s.losses for s in bench.samples(job_id)] == [0] * 45
    assert bench.stored_sessions() == bench.indexed_sessions()
    assert len(bench.indexed_sessions()) == 45


def test_a_retry_leaves_completed_samples_and_their_sessions_as_they_are(bench: "Bench") -> None:
    rows = [*bench.problems[:2], {"question": "word " * 3000, "answer": "#### 1"}]
    job_id = bench.submit(rows, capture=CAPTURE)
    bench.drain().look()
    before = bench.samples(job_id)
    assert [str(s.status) for s in before] == ["completed", "completed", "failed"]
    with bench.database.write() as session:
        control.retry(session, job_id)
    bench.drain().look()
    after = bench.samples(job_id)
    assert after[:2] == before[:2]
    assert after[2].status is SampleStatus.FAILED
    assert after[2].losses == 0
    assert len(bench.indexed_sessions()) == 2


@pytest.mark.usefixtures("slow")
def test_a_deadline_ends_the_job_between_decode_steps(bench: "Bench") -> None:
    job_id = bench.submit(
        inputs=[{"prompt": "one two"}] * 4,
        capture=CAPTURE,
        sampling={"max_tokens": 1500},
        deadline_seconds=900,
    )

    def pass_deadline() -> None:
        deadline = time.monotonic() + 120
        while bench.samples(job_id)[0].status is not SampleStatus.LEASED:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with bench.database.write() as session:
            jobs.get(session, job_id).deadline_at = 1.0

    thread = threading.Thread(target=pass_deadline)
    thread.start()
    bench.drain().look()
    thread.join()
    upkeep(bench)
    with bench.database.read() as session:
        job = view.job(session, jobs.get(session, job_id))
    assert job.status is JobStatus.FAILED
    assert job.error is not None and job.error.type == "deadline_exceeded"
    assert statuses(bench, job_id) == ["cancelled"] * 4
    assert bench.stored_sessions() == set()


def test_a_deadline_that_passed_while_the_job_waited_begins_nothing(bench: "Bench") -> None:
    job_id = bench.submit(capture=CAPTURE, deadline_seconds=900)
    with bench.database.write() as session:
        jobs.get(session, job_id).deadline_at = 1.0
    bench.drain().look()
    upkeep(bench)
    assert bench.status(job_id) is JobStatus.FAILED
    assert {(s.status, s.losses) for s in bench.samples(job_id)} == {(SampleStatus.CANCELLED, 0)}
