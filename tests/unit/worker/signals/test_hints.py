"""When a worker looks at the index: after a hint, and once a heartbeat otherwise."""

import threading

import pytest

from worker.signals.hints import HEARTBEAT_SECONDS, Hints, Looks


def looks_in(hints: Hints, seconds: float, *, poll_seconds: float = 0.25) -> list[float]:
    """The moments of vain looks by a loop of twenty turns a second."""
    looks, found = Looks(hints, poll_seconds), []
    for turn in range(int(20 * seconds)):
        moment = turn / 20
        if looks.is_due(moment):
            looks.begin()
            found.append(moment)
            looks.found_nothing(moment)
    return found


@pytest.mark.parametrize(("are_live", "expected"), [(True, 3), (False, 60)])
def test_without_events_a_worker_looks_once_a_heartbeat_or_polls(are_live: bool, expected: int) -> None:
    hints = Hints()
    hints.are_live = are_live
    assert len(looks_in(hints, 3 * HEARTBEAT_SECONDS)) == pytest.approx(expected, abs=1)


def test_a_hint_makes_a_look_due_also_if_it_comes_during_the_last_one() -> None:
    hints = Hints()
    hints.are_live = True
    looks = Looks(hints, 0.25)
    assert looks.is_due(0.0)
    looks.begin()
    assert looks.is_due(0.0), "what was found may not be all"
    hints.give()
    looks.found_nothing(0.0)
    assert looks.is_due(0.0)
    looks.begin()
    looks.found_nothing(0.0)
    assert not looks.is_due(HEARTBEAT_SECONDS - 0.1)
    hints.give()
    assert looks.is_due(0.1)


def test_a_hint_calls_those_who_listen() -> None:
    hints, heard = Hints(), threading.Event()
    hints.tell(heard.set)
    hints.give()
    assert heard.is_set()
    assert hints.count == 1
