"""Whose turn it is: the loaded model's jobs go first, for a bounded time."""

from storage.queue.waiting import WaitingJob
from worker.drain.grouping import Held, ModelGrouping

OWN, OTHER = WaitingJob("job_a", 5, "a"), WaitingJob("job_b", 5, "b")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_work_of_the_loaded_model_goes_first_but_not_for_ever() -> None:
    clock = Clock()
    grouping = ModelGrouping(60, clock)
    assert grouping.choose(OTHER, Held("a"), [OWN, OTHER]) == "job_a"
    clock.now = 59
    assert grouping.choose(OTHER, Held("a"), [OWN, OTHER]) == "job_a"
    assert grouping.choose(OWN, Held("a"), [OWN, OTHER]) == "job_a"
    clock.now = 60
    assert grouping.choose(OTHER, Held("a"), [OWN, OTHER]) == "job_b"
    # now that b is loaded, a's jobs wait in their turn
    assert grouping.choose(OWN, Held("b"), [OWN, OTHER]) == "job_b"


def test_nothing_waits_for_what_is_less_urgent_or_done() -> None:
    grouping = ModelGrouping(60, Clock())
    late = OWN._replace(priority=6)
    assert grouping.choose(OTHER, Held("a"), [OTHER, late]) == "job_b"
    assert grouping.choose(OTHER, Held("a"), [OTHER]) == "job_b"
    assert grouping.choose(OTHER, None, [OWN, OTHER]) == "job_b"


def test_a_job_that_ended_meanwhile_leaves_no_trace() -> None:
    clock = Clock()
    grouping = ModelGrouping(60, clock)
    grouping.choose(OTHER, Held("a"), [OWN, OTHER])
    clock.now = 100
    grouping.choose(OWN, Held("a"), [OWN])
    assert grouping.choose(OTHER, Held("a"), [OWN, OTHER]) == "job_a"
