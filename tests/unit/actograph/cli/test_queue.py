"""`actograph queue` and `jobs retry` against a real server."""

from typing import Any

from actograph.contract.operations import QueuePause
from tests.support.command_line import Run

DISK = QueuePause(kind="disk", reason="only 5 bytes free")


def test_info_pause_and_resume(service: Any, run: Run) -> None:
    waiting = service.add_job(1, status="queued")
    assert run("queue", "info")[1].splitlines() == [
        "state:     running",
        "jobs:      1 queued",
        "samples:   3 pending",
        "workers:   1 ready",
        f"next:      {waiting.id[:16]}",
    ]
    assert run("queue", "pause", "--reason", "new disk")[:2] == (0, "paused\n")
    state, why = run("queue", "info")[1].splitlines()[:2]
    assert state == "state:     paused"
    assert why.split()[:3] == ["manual", "by", "local,"]
    assert why.endswith("ago: new disk")
    assert run("queue", "resume")[:2] == (0, "running\n")
    service.pauses = [DISK]
    assert run("queue", "resume") == (0, "still paused\n", "disk: only 5 bytes free\n")
