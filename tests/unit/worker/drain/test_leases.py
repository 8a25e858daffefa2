"""The lease keeper: sees what was taken from the batch, ends a stalled process."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actograph.contract.job_specs import CaptureJobSpec, job_spec_adapter
from storage import samples
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue.leases import LeasedSample
from storage.samples.expansion import capture_samples
from storage.tables.models import SampleRow
from tests.support import leasing
from tests.support.indexes import create_index
from worker.drain.leases import LeaseKeeper
from worker.signals.process_end import STALLED
from worker.signals.stop_signal import StopSignal


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'index.db'}")
    create_index(database)
    yield database
    database.close()


@pytest.fixture
def leases(database: Database) -> list[LeasedSample]:
    spec = job_spec_adapter.validate_python(
        {"kind": "capture", "model": "m", "inputs": [{"prompt": "a"}, {"prompt": "b"}]}
    )
    assert isinstance(spec, CaptureJobSpec)
    with database.write() as session:
        row = jobs.create(session, spec, total=2)
        samples.insert(session, row.id, capture_samples(spec))
        jobs.start(session, row.id)
        return leasing.claim(session, row.id, worker_id="w", count=2)


def keeper(
    database: Database,
    leases: list[LeasedSample],
    stop: StopSignal,
    *,
    stall_seconds: float = 60,
    end_process: Callable[[int], None] = lambda status: None,
) -> LeaseKeeper:
    made = LeaseKeeper(database, "w", stop, stall_seconds=stall_seconds, end_process=end_process)
    made.add(leases)
    return made


def eventually(condition: Callable[[], bool], seconds: float = 120) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_a_unit_without_progress_ends_the_process(
    database: Database, leases: list[LeasedSample], tmp_path: Path
) -> None:
    ended: list[int] = []
    stop = StopSignal(tmp_path / "stop")
    with keeper(database, leases, stop, stall_seconds=0.2, end_process=ended.append):
        assert eventually(lambda: ended == [STALLED])
    with database.read() as session:
        returned = [(row.status, row.losses) for row in samples.find(session, leases[0].job_id)[0]]
    assert returned == [("pending", 1)] * 2


def test_a_stall_that_cannot_be_written_down_ends_the_process_all_the_same(
    database: Database, leases: list[LeasedSample], tmp_path: Path
) -> None:
    ended: list[int] = []
    with database.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE samples RENAME TO samples_away")
    stop = StopSignal(tmp_path / "stop")
    with keeper(database, leases, stop, stall_seconds=0.2, end_process=ended.append):
        assert eventually(lambda: ended == [STALLED])


def test_a_process_that_was_stopped_and_goes_on_was_not_silent(
    database: Database, leases: list[LeasedSample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP stops every thread, and the monotonic clock goes on."""
    ended: list[int] = []
    ahead = [0.0]
    real = time.monotonic
    monkeypatch.setattr("worker.drain.leases.time.monotonic", lambda: real() + ahead[0])
    stop = StopSignal(tmp_path / "stop")
    with keeper(database, leases, stop, stall_seconds=5, end_process=ended.append):
        time.sleep(0.3)
        ahead[0] = 1000.0
        time.sleep(0.3)
    assert ended == []


def test_what_is_taken_from_a_worker_is_dropped_alone(
    database: Database, leases: list[LeasedSample], tmp_path: Path
) -> None:
    first, second = leases
    with keeper(database, leases, StopSignal(tmp_path / "stop")) as held:
        with database.write() as session:
            session.get_one(SampleRow, first.id).lease_token += 1
        assert eventually(lambda: held.has_lost(first))
        assert not held.has_lost(second)
        with database.write() as session:
            jobs.cancel(session, second.job_id)
        assert eventually(lambda: held.has_lost(second))
        held.release([second])
        assert held.held == [first] and not held.has_lost(second)


def test_a_claim_between_the_question_and_its_answer_is_not_lost(
    database: Database, leases: list[LeasedSample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def late(*_: object) -> dict[str, int]:
        if not asked:
            held.add(leases)
        asked.append(True)
        return {}

    monkeypatch.setattr("storage.queue.leases.mine", late)
    held = keeper(database, [], StopSignal(tmp_path / "stop"))
    with held:
        assert eventually(lambda: len(asked) == 1)
        assert not held.has_lost(leases[0])
        assert eventually(lambda: held.has_lost(leases[0])), "the next answer counts"
