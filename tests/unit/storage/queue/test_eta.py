"""The rate of a running job, and the time it still takes."""

from collections.abc import Callable

import pytest

from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import view
from storage.queue.commit import Ended
from tests.support import leasing
from tests.support.samples import result

Submit = Callable[..., str]


class Clock:
    """The database's time, which the test sets."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self, _session: object) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    modules = "jobs.jobs jobs.control index.events queue.claim queue.leases queue.commit"
    for module in modules.split():
        monkeypatch.setattr(f"storage.{module}.now", clock)
    return clock


def run(database: Database, clock: Clock, job_id: str, *units: tuple[int, float]) -> None:
    """Units of so many samples that took so long, one after the other."""
    for count, seconds in units:
        leases = leasing.begin(database, job_id, count)
        assert len(leases) == count
        clock.now += seconds
        with database.write() as session:
            leasing.end(session, *(Ended(lease=lease, result=result()) for lease in leases))


def test_rate_and_remaining_time_are_those_of_the_last_minute(
    database: Database, submit: Submit, clock: Clock
) -> None:
    job_id = submit(1000)

    def shown() -> tuple[float | None, float | None]:
        with database.read() as session:
            job = view.job(session, jobs.get(session, job_id), served={"demo": None})
            return job.samples_per_second, job.eta_seconds

    assert shown() == (None, None)
    run(database, clock, job_id, (10, 4.0))
    assert shown() == (pytest.approx(2.5), pytest.approx(990 / 2.5))
    run(database, clock, job_id, *[(10, 100.0)] * 3)
    assert shown() == (pytest.approx(0.1), pytest.approx(9600))
    run(database, clock, job_id, *[(10, 5.0)] * 20)
    assert shown() == (pytest.approx(2.0), pytest.approx(380))
