"""The file through which the worker's two processes stop each other."""

from pathlib import Path

from worker.signals.stop_signal import StopSignal


def test_parent_and_child_see_what_the_other_set_and_why(tmp_path: Path) -> None:
    parent = StopSignal.create(tmp_path)
    child = StopSignal.inherited()
    assert not child.is_set()
    assert child.seconds_since_set() == 0.0
    parent.set()
    assert child.is_set() and child.failure() == ""
    parent = StopSignal.create(tmp_path)
    assert not parent.is_set(), "a new parent starts unset"
    StopSignal.inherited().set(failure="no such model")
    assert parent.is_set() and parent.failure() == "no such model"
