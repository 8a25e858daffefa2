"""Background threads go on after any error: the heartbeat shows a live worker, whatever else fails."""

import time
from pathlib import Path

import pytest
import torch

from storage.index.database import Database
from storage.queue import workers
from tests.support.indexes import create_index
from worker.process.periodic import heartbeat


def test_heartbeats_go_on_where_the_memory_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'index.db'}")
    create_index(database)
    with database.write() as session:
        workers.register(session, "wrk", hostname="here", pid=1, model="m")
        workers.heartbeat(session, "wrk", {"free": 7})
        workers.find(session)[0].heartbeat_at = 1.0
    looks: list[None] = []

    def memory() -> dict[str, int]:
        looks.append(None)
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    thread = heartbeat(database, "wrk", seconds=0.02, memory=memory, is_stalled=lambda: False)
    thread.start()
    deadline = time.monotonic() + 120
    while len(looks) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    thread.stop()
    assert len(looks) >= 5, "the thread died of the first error"
    with database.read() as session:
        (row,) = workers.find(session)
        assert row.heartbeat_at > time.time() - 60
        assert row.memory == {"free": 7}
    assert caplog.text.count("cannot be read") == 1
    database.close()


def test_heartbeats_outlive_an_error_of_any_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'index.db'}")
    tries: list[None] = []

    def fail(*_: object) -> None:
        tries.append(None)
        raise TypeError("nobody foresaw this")

    monkeypatch.setattr("storage.queue.workers.heartbeat", fail)
    thread = heartbeat(database, "wrk", seconds=0.02, memory=dict, is_stalled=lambda: len(tries) == 5)
    thread.start()
    deadline = time.monotonic() + 120
    while len(tries) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    thread.stop()
    assert len(tries) == 5, "none of a worker without progress"
    assert caplog.text.count("no heartbeat could be written") == 1
    database.close()
