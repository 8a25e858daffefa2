"""`actograph queue` and `jobs retry` against a real server."""

import re
from typing import Any

from actograph.contract.operations import QueuePause
from tests.support.command_line import Run

DISK = QueuePause(kind="disk", reason="only 5 bytes free")


def test_info_pause_and_resume(service: Any, run: Run) -> None:
    waiting = service.add_job(1, status="queued")
    lines = [line.split(maxsplit=1) for line in run("queue", "info")[1].splitlines()]
    shown = (["paused:", "no"], ["jobs:", "1 queued"], ["samples:", "3 pending"], ["workers:", "1 ready"])
    assert all(line in lines for line in (*shown, ["next:", waiting.id]))
    assert run("queue", "pause", "--reason", "new disk")[:2] == (0, "paused\n")
    out = run("queue", "info")[1]
    assert re.match(r"paused: +yes\n", out)
    assert re.search(r"KIND +REASON +BY +SINCE\nmanual +new disk +local +\d+[smhd]$", out)
    assert run("queue", "resume")[:2] == (0, "running\n")
    service.pauses = [DISK]
    assert run("queue", "resume")[1] == "still paused: only 5 bytes free\n"
