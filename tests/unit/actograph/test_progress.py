import sys

import pytest

from actograph import progress
from actograph.contract.resources import Job
from actograph.progress import progress_text


def test_text(subtests: pytest.Subtests) -> None:
    for text, numbers in {
        "queued": ("queued", 0, 0, 0, None),
        "in_progress 312/1319 (2 failed), 4.20 samples/s, ETA 4m0s": ("in_progress", 312, 2, 1319, 4.2),
        "reading 5/10, 5.00 samples/s, ETA 1s": ("reading", 5, 0, 10, 5.0),
        "completed 10/10, 5.00 samples/s": ("completed", 10, 0, 10, 5.0),
        "cancelled 5/10, 5.00 samples/s": ("cancelled", 5, 0, 10, 5.0),
    }.items():
        with subtests.test(text):
            assert progress_text(*numbers) == text


def test_lines_are_spared_but_the_last_is_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 3600)
    with progress.meter() as update:
        update("queued", 0, 5)
        for done in range(5):
            update("in_progress", done, 5)
    said = [line.partition(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert said == ["queued 0/5", "in_progress 0/5", "in_progress 4/5"]


def test_a_bar_in_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    with progress.meter() as update:
        update("in_progress", 5, 10, 2)
        update("done", 10, 10)
    said = capsys.readouterr().err
    assert said.endswith("\n")
    first, second = said.strip("\r\n").split("\r")
    assert first == "━" * 10 + " " * 11 + "in_progress 5/10 (2 failed)"
    assert second.rstrip() == "━" * 20 + " done 10/10"
    assert len(second) == len(first)


def test_a_follower_tells_when_workers_go_and_come_back(
    capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "id": "job_1", "kind": "capture", "status": "in_progress", "model": "demo", "created_at": 0,
        "progress": {"total": 4, "completed": 1, "failed": 0}, "priority": 5, "spec": {}, "results_url": "",
    }  # fmt: skip
    running = Job.model_validate(values)
    waiting = running.model_copy(update={"waiting_reason": "no worker is alive"})
    for in_terminal in (False, True):
        with subtests.test(in_terminal=in_terminal):
            for stream in (sys.stdout, sys.stderr):
                monkeypatch.setattr(stream, "isatty", lambda value=in_terminal: value)
            with progress.follower(show=True) as show:
                for job in (running, waiting, waiting, running):
                    show(job)
            said = capsys.readouterr().err.replace("\r", "\n")
            told = [line.strip() for line in said.splitlines() if "worker" in line]
            assert told == ["waiting: no worker is alive", "a worker is back"]
