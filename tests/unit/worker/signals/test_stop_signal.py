"""The file through which the worker's two processes stop each other."""

from pathlib import Path

import pytest

from worker.signals.stop_signal import StopSignal


def test_the_child_sees_what_the_parent_set(tmp_path: Path) -> None:
    parent = StopSignal.create(tmp_path)
    child = StopSignal.inherited()
    assert not child.is_set()
    assert child.seconds_since_set() == 0.0
    parent.set()
    assert child.is_set()
    assert child.failure() == ""


def test_the_parent_reads_why_the_child_gave_up(tmp_path: Path) -> None:
    parent = StopSignal.create(tmp_path)
    StopSignal.inherited().set(failure="no such model")
    assert parent.is_set()
    assert parent.failure() == "no such model"


def test_a_new_parent_starts_unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StopSignal.create(tmp_path).set(failure="old")
    fresh = StopSignal.create(tmp_path)
    assert not fresh.is_set()
    assert fresh.failure() == ""
