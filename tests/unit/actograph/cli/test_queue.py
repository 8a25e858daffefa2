"""`actograph queue` and `jobs retry` against a real server."""

import json
from typing import Any

import pytest

from actograph.cli.main import main
from actograph.client import transport
from actograph.contract.operations import QueuePause
from actograph.contract.resources import JobStatus

DISK = QueuePause(kind="disk", reason="only 5 bytes free")


@pytest.fixture(autouse=True)
def _environment(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_DELAY_SECONDS", 0.01)
    monkeypatch.setenv("ACTOGRAPH_URL", service.url)
    monkeypatch.setenv("TERM", "dumb")


def test_info_pause_and_resume(service: Any, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = service.add_job(1, status="queued")
    assert main(["queue", "info"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "state:     running",
        "jobs:      1 queued",
        "samples:   3 pending",
        "workers:   1 ready",
        f"next:      {waiting.id[:16]}",
    ]
    assert main(["queue", "pause", "--reason", "new disk"]) == 0
    assert capsys.readouterr().out == "paused\n"
    assert main(["queue", "info"]) == 0
    state, why = capsys.readouterr().out.splitlines()[:2]
    assert state == "state:     paused"
    assert why.split()[:3] == ["manual", "by", "local,"]
    assert why.endswith("ago: new disk")
    assert main(["queue", "info", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["pauses"][0]["reason"] == "new disk"
    assert main(["queue", "resume"]) == 0
    assert capsys.readouterr().out == "running\n"


def test_resume_says_what_still_holds_the_queue(service: Any, capsys: pytest.CaptureFixture[str]) -> None:
    service.pauses = [DISK]
    assert main(["queue", "resume"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("still paused\n", "disk: only 5 bytes free\n")


def test_retry_goes_on_after_a_refusal(service: Any, capsys: pytest.CaptureFixture[str]) -> None:
    failed, done = service.add_job(1, status="failed"), service.add_job(2)
    assert main(["jobs", "retry", done.id, failed.id]) == 1
    said = capsys.readouterr()
    assert said.out == f"{failed.id}\n"
    assert "nothing to retry" in said.err
    assert service.jobs[failed.id].status == "queued"


def test_retry_and_watch_follow_the_job_to_its_second_end(
    service: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = service.add_job(1, status="failed")
    assert main(["jobs", "retry", "--watch", job.id, job.id]) == 1
    assert "one job" in capsys.readouterr().err
    ended = {"status": JobStatus.CANCELLED}

    def end(_seconds: float) -> None:
        service.jobs[job.id] = service.jobs[job.id].model_copy(update=ended)

    monkeypatch.setattr("actograph.client.jobs.sleep", end)
    assert main(["jobs", "retry", "--watch", job.id]) == 2
    told = capsys.readouterr().err
    assert "queued" in told
    assert "cancelled 0/4" in told
