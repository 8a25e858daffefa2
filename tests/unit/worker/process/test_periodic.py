"""Background threads go on after any error: the heartbeat shows a live worker, whatever else fails."""

import time
from collections.abc import Callable
from queue import Queue

import pytest
import torch

from storage.index.database import Database
from storage.queue import workers
from tests.support.waiting import wait_until
from worker.process.periodic import Periodic, heartbeat


@pytest.fixture
def beat(sqlite: Database) -> Callable[..., None]:
    """Lets the heart of a worker beat until something has been tried five times."""

    def run(
        tries: list[None],
        memory: Callable[[], dict[str, int]],
        forgotten: Callable[[], object] = lambda: None,
    ) -> None:
        thread = heartbeat(sqlite, "wrk", seconds=0.02, memory=memory, forgotten=forgotten)
        thread.start()
        try:
            wait_until(lambda: len(tries) >= 5)  # it would not be, had the thread died of the first error
        finally:
            thread.stop()

    return run


def test_heartbeats_go_on_where_the_memory_cannot_be_read(
    sqlite: Database, beat: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    with sqlite.write() as session:
        workers.register(session, "wrk", hostname="here", pid=1, model="m")
        workers.heartbeat(session, "wrk", {"free": 7})
        workers.find(session)[0].heartbeat_at = 1.0
    looks: list[None] = []

    def memory() -> dict[str, int]:
        looks.append(None)
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    beat(looks, memory)
    with sqlite.read() as session:
        (row,) = workers.find(session)
        assert row.heartbeat_at > time.time() - 60
        assert row.memory == {"free": 7}
    assert caplog.text.count("cannot be read") == 1


def test_heartbeats_outlive_an_error_of_any_kind(
    beat: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[None] = []

    def fail(*_: object) -> None:
        tries.append(None)
        raise TypeError("nobody foresaw this")

    monkeypatch.setattr("storage.queue.workers.heartbeat", fail)
    beat(tries, dict)
    assert caplog.text.count("no heartbeat could be written") == 1


def test_a_worker_that_the_index_forgot_is_told(beat: Callable[..., None]) -> None:
    told: list[None] = []
    beat(told, dict, lambda: told.append(None))
    assert len(told) >= 5


def test_a_wake_up_is_served_at_once_and_a_stop_waits_for_no_pause() -> None:
    rounds: Queue[None] = Queue()
    thread = Periodic(lambda: rounds.put(None), name="look", seconds=100_000, failure="no look")
    thread.start()
    rounds.get(timeout=60)
    thread.wake()
    rounds.get(timeout=60)
    thread.stop()
    assert rounds.empty()
