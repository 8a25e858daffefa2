"""A drain that a pause, a full disk or a quota holds, or failures or a deadline end, and that goes on."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from actograph.contract.errors import CaptureFailed
from actograph.contract.resources import JobStatus
from storage.accounts import quotas
from storage.artifacts.store import ArtifactStore
from storage.jobs import control, jobs
from storage.queue import pause, view, workers
from storage.sessions import changes
from storage.sessions.filter import SessionFilter
from storage.tables.models import JobRow
from storage.upkeep import reaper
from tests.support import leasing

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

CAPTURE = {"points": ["resid_post"], "layers": "all"}


OWNER = "key:00000001"
FLOOR = 1000


class Disk:
    """The real store on a disk that can fill up or refuse sessions, and that acts before it takes one."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self.is_broken = False
        self.before: Callable[[], None] = lambda: None
        #: sessions that fit above the floor; None for the real disk
        self.room: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def stage(self, prefix: str) -> Any:
        self.before()
        if self.is_broken:
            raise CaptureFailed("this sample cannot be stored")
        return self._store.stage(prefix)

    def free_bytes(self) -> int | None:
        if self.room is None:
            return self._store.free_bytes()
        stored = len(list(self._store.list_prefixes("sessions")))
        return FLOOR if stored < self.room else FLOOR - 1


@pytest.fixture
def disk(bench: "Bench") -> Disk:
    disk = Disk(bench.store)
    bench.store = disk
    return disk


def statuses(bench: "Bench", job_id: str) -> list[str]:
    return [str(sample.status) for sample in bench.samples(job_id)]


def submit(bench: "Bench", owner: str = OWNER, **spec: Any) -> str:
    job_id = bench.submit(capture=CAPTURE, **spec)
    with bench.database.write() as session:
        session.execute(sa.update(JobRow).where(JobRow.id == job_id).values(owner=owner))
    return job_id


@pytest.mark.parametrize("by", ["pause", "disk", "store_quota_bytes", "owner_quota_bytes"])
def test_what_holds_the_queue_ends_what_runs_and_it_goes_on_where_it_stood(
    bench: "Bench", disk: Disk, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    job_id = submit(bench, epochs=3)
    limits: dict[str, Any] = {"slots": 2}

    def pause_the_queue() -> None:
        with bench.database.write() as session:
            pause.start(session, by="local", reason=None)

    if by == "pause":
        disk.before = pause_the_queue
    elif by == "disk":
        disk.room, limits["disk_floor_bytes"] = 3, FLOOR
    else:
        limits[by] = 1
    bench.drain(**limits).look()
    before = statuses(bench, job_id)
    assert set(before) == {"completed", "pending"}, "nothing fails, and nothing stays claimed"
    bench.drain(**limits).look()
    assert statuses(bench, job_id) == before
    with bench.database.write() as session:
        assert leasing.with_work(session) == [job_id], "the reconciler finds it"
        assert [row.job_id for row in workers.find(session) if row.job_id] == []
        pause.end(session)
    if "quota" in by:
        assert f"ACTOGRAPH_{by.upper()}" in caplog.text
        changes.delete_matching(bench.database, SessionFilter(job_id=job_id))
        reaper.reap(bench.database, bench.store)  # deleted sessions count until their bytes are gone
    disk.before, disk.room = lambda: None, None
    bench.drain(**limits).look()
    assert statuses(bench, job_id).count("completed") > before.count("completed")
    bench.drain().look()
    assert bench.status(job_id) is JobStatus.COMPLETED
    assert [s.losses for s in bench.samples(job_id)] == [0] * 15
    assert bench.stored_sessions() == bench.indexed_sessions()


def test_an_owner_at_the_quota_does_not_slow_others(bench: "Bench") -> None:
    full = submit(bench, priority=0, epochs=3)
    bench.drain(owner_quota_bytes=1).look()
    before = statuses(bench, full)
    with bench.database.read() as session:
        stored = quotas.usage(session)[OWNER].total_bytes
    other = submit(bench, "key:00000002")
    # the urgent job of the full owner cannot run, so it is no reason to give way
    bench.drain(slots=1, owner_quota_bytes=stored).look()
    assert statuses(bench, other).count("completed") >= 3
    assert statuses(bench, full) == before
    bench.drain().look()
    assert bench.status(full) is JobStatus.COMPLETED


def test_failures_in_a_row_stop_the_job_and_a_retry_ends_it(bench: "Bench", disk: Disk) -> None:
    job_id = bench.submit(capture=CAPTURE, epochs=4, max_consecutive_failures=4)
    disk.is_broken = True
    bench.drain(slots=2).look()
    ended = statuses(bench, job_id)
    assert set(ended) == {"failed", "cancelled"}
    assert 4 <= ended.count("failed") < 15, "what ran has ended"
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
    assert statuses(bench, job_id) == ["completed"] * 20
    assert [s.losses for s in bench.samples(job_id)] == [0] * 20
    assert bench.stored_sessions() == bench.indexed_sessions()
    assert len(bench.indexed_sessions()) == 20
