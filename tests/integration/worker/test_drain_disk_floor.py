"""A drain on a disk that fills up: nothing starts any more, and later it takes up all that was left."""

from typing import TYPE_CHECKING, Any

import pytest

from actograph.contract.resources import JobStatus, SampleStatus
from storage.queue import workers
from tests.support import leasing

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

FLOOR = 1000


class DiskThatFills:
    """The real store, on a disk that sinks below the floor once so many sessions are stored."""

    def __init__(self, store: Any, room: int) -> None:
        self._store = store
        self.room = room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def free_bytes(self) -> int:
        stored = len(list(self._store.list_prefixes("sessions")))
        return FLOOR if stored < self.room else FLOOR - 1


def test_a_full_disk_stops_the_drain(bench: "Bench") -> None:
    bench.store = disk = DiskThatFills(bench.store, room=3)
    inputs = [{"prompt": f"{n} and {n}"} for n in range(30)]
    job_id = bench.submit(inputs=inputs, capture={"layers": [0]}, sampling={"max_tokens": 4})
    drain = bench.drain(disk_floor_bytes=FLOOR, slots=2)

    def state() -> tuple[JobStatus | None, list[int]]:
        found = bench.samples(job_id)
        assert not [s for s in found if s.status in (SampleStatus.LEASED, SampleStatus.FAILED)]
        done = [s.losses for s in found if s.status == SampleStatus.COMPLETED]
        return bench.status(job_id), done

    drain.look()
    stopped = state()
    assert stopped[0] is JobStatus.IN_PROGRESS and 3 <= len(stopped[1]) < 30, "what ran has ended"
    drain.look()
    assert state() == stopped
    with bench.database.read() as session:
        assert leasing.with_work(session) == [job_id], "the reconciler finds it"
        assert [row.job_id for row in workers.find(session) if row.job_id] == []
    disk.room = 100
    drain.look()
    assert state() == (JobStatus.COMPLETED, [0] * 30)
