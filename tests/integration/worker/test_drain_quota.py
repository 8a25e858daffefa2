"""A drain that reaches a quota: nothing starts any more, it says why, and goes on once there is room."""

from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from actograph.contract.resources import JobStatus
from storage.accounts import quotas
from storage.sessions import changes
from storage.sessions.filter import SessionFilter
from storage.tables.models import JobRow
from storage.upkeep import reaper

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

CAPTURE = {"points": ["resid_post"], "layers": "all"}


def submit(bench: "Bench", owner: str, **changes: Any) -> str:
    job_id = bench.submit(capture=CAPTURE, **changes)
    with bench.database.write() as session:
        session.execute(sa.update(JobRow).where(JobRow.id == job_id).values(owner=owner))
    return job_id


def completed(bench: "Bench", job_id: str) -> int:
    found = [str(sample.status) for sample in bench.samples(job_id)]
    assert set(found) <= {"completed", "pending"}, "nothing fails, and nothing stays claimed"
    return found.count("completed")


@pytest.mark.parametrize("quota", ["store_quota_bytes", "owner_quota_bytes"])
def test_a_drain_stops_at_the_quota_and_goes_on_once_sessions_are_deleted(
    bench: "Bench", quota: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    job_id = submit(bench, "key:00000001", epochs=6)
    limits: dict[str, Any] = {"slots": 2, quota: 1}
    bench.drain(**limits).look()
    first = completed(bench, job_id)
    assert 2 <= first < 20, "what ran has ended"
    assert f"ACTOGRAPH_{quota.upper()}" in caplog.text
    bench.drain(**limits).look()
    assert completed(bench, job_id) == first
    changes.delete_matching(bench.database, SessionFilter(job_id=job_id))
    # deleted sessions count until their bytes are gone
    reaper.reap(bench.database, bench.store)
    bench.drain(**limits).look()
    assert first < completed(bench, job_id) < 30
    bench.drain().look()
    assert bench.status(job_id) is JobStatus.COMPLETED
    assert completed(bench, job_id) == 30
    assert bench.stored_sessions() == bench.indexed_sessions()


def test_an_owner_at_the_quota_does_not_slow_others(bench: "Bench") -> None:
    full = submit(bench, "key:00000001", priority=0, epochs=6)
    bench.drain(owner_quota_bytes=1).look()
    before = completed(bench, full)
    assert before < 30
    with bench.database.read() as session:
        stored = quotas.usage(session)["key:00000001"].total_bytes
    other = submit(bench, "key:00000002")
    # the urgent job of the full owner cannot run, so it is no reason to give way
    bench.drain(slots=1, owner_quota_bytes=stored).look()
    assert completed(bench, other) >= 3
    assert completed(bench, full) == before
    bench.drain().look()
    assert bench.status(full) is JobStatus.COMPLETED
