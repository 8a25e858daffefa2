"""The signal on which all threads of a worker end."""

from worker.signals.stop_signal import StopSignal


def test_the_first_failure_stays_and_an_orderly_stop_has_none() -> None:
    stop = StopSignal()
    assert not stop.is_set() and stop.seconds_since_set() == 0.0
    stop.set()
    assert stop.is_set() and stop.failure() == ""
    stop.set(failure="no such model")
    stop.set(failure="another")
    assert stop.failure() == "no such model" and stop.seconds_since_set() > 0
