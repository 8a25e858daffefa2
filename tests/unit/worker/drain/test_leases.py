"""The lease held_leases: sees what was taken from the batch, ends a stalled process."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from actograph.contract.errors import WorkerStalled
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import leases as queue_leases
from storage.queue.leases import LeasedSample
from storage.tables.models import SampleRow
from tests.support import leasing
from tests.support.submitting import insert_capture
from tests.support.waiting import wait_until
from worker.drain.held_leases import HeldLeases
from worker.signals.stop_signal import StopSignal


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.drain.held_leases.POLL_SECONDS", 0.02)


@pytest.fixture
def database(sqlite: Database) -> Database:
    return sqlite


@pytest.fixture
def leases(database: Database) -> list[LeasedSample]:
    return leasing.begin(database, insert_capture(database, "ab"), 2, worker_id="w")


def held_leases(
    database: Database,
    leases: list[LeasedSample],
    stop: StopSignal,
    *,
    stall_seconds: float = 60,
    stalled: Callable[[WorkerStalled], None] = lambda reason: None,
) -> HeldLeases:
    made = HeldLeases(database, "w", stop, stall_seconds=stall_seconds, stalled=stalled)
    made.add(leases)
    return made


def test_a_run_without_progress_is_ended_and_once(database: Database, leases: list[LeasedSample]) -> None:
    ended: list[WorkerStalled] = []
    with held_leases(database, leases, StopSignal(), stall_seconds=0.2, stalled=ended.append) as kept:
        wait_until(lambda: bool(ended))
        kept.progress()
    assert "ACTOGRAPH_STALL_SECONDS" in ended[0].message


def test_a_process_that_was_stopped_and_goes_on_was_not_silent(
    database: Database, leases: list[LeasedSample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP stops every thread, and the monotonic clock goes on."""
    ended: list[WorkerStalled] = []
    ahead, looks = [0.0], [0]
    real, mine = time.monotonic, queue_leases.mine

    def look(session: Session, worker_id: str) -> Mapping[str, int]:
        looks[0] += 1
        return mine(session, worker_id)

    monkeypatch.setattr("worker.drain.held_leases.time.monotonic", lambda: real() + ahead[0])
    monkeypatch.setattr(queue_leases, "mine", look)
    with held_leases(database, leases, StopSignal(), stall_seconds=60, stalled=ended.append):
        for ahead[0] in (0.0, 1000.0):
            before = looks[0]
            wait_until(lambda: looks[0] >= before + 2)  # noqa: B023
    assert ended == []


def test_what_is_taken_from_a_worker_is_dropped_alone(
    database: Database, leases: list[LeasedSample], tmp_path: Path
) -> None:
    first, second = leases
    with held_leases(database, leases, StopSignal()) as held:
        with database.write() as session:
            session.get_one(SampleRow, first.id).lease_token += 1
        wait_until(lambda: held.has_lost(first))
        assert not held.has_lost(second)
        with database.write() as session:
            jobs.cancel(session, second.job_id)
        wait_until(lambda: held.has_lost(second))
        held.release([second])
        assert held.held == [first] and not held.has_lost(second)


def test_a_lost_sample_that_the_worker_got_again_is_dropped_once(
    database: Database, leases: list[LeasedSample], tmp_path: Path
) -> None:
    leasing.lose(database)
    again = leasing.begin(database, leases[0].job_id, 2, worker_id="w")
    with held_leases(database, leases, StopSignal()) as held:
        held.add(again)
        wait_until(lambda: all(held.has_lost(one) for one in leases))
        assert not any(held.has_lost(one) for one in again)
        held.release(leases)
        assert held.held == again


def test_a_claim_between_the_question_and_its_answer_is_not_lost(
    database: Database, leases: list[LeasedSample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    judged = threading.Event()

    def late(*_: object) -> dict[str, int]:
        asked.append(True)
        if len(asked) == 1:
            held.add(leases)
        elif len(asked) == 2:
            judged.wait(60)
        return {}

    monkeypatch.setattr(queue_leases, "mine", late)
    held = held_leases(database, [], StopSignal())
    with held:
        wait_until(lambda: len(asked) == 2)
        assert not held.has_lost(leases[0])
        judged.set()
        wait_until(lambda: held.has_lost(leases[0]))  # the next answer counts
