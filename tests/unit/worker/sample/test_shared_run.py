"""A shared run: requests of many threads, ended by the engine, or by the end of the run."""

import threading
from collections.abc import Iterator

import pytest

from actograph.contract.specs import SamplingSpec
from worker.engine.requests import Generation, GenerationRequest
from worker.engine.runs import RunPlan
from worker.sample.shared_run import SharedRun

PLAN = RunPlan(sampling=SamplingSpec(max_tokens=4))


class Leases:
    """Nothing ends and nobody stops."""

    ended: str | None = None

    def progress(self, _step: int = 0) -> None:
        pass

    def should_stop(self) -> bool:
        return False

    def has_ended(self, job_id: str) -> bool:
        return job_id == self.ended


class Samples:
    """Threads that each ask for one generation."""

    def __init__(self, shared: SharedRun) -> None:
        self.shared = shared
        self.got: dict[str, Generation] = {}
        self.threads: list[threading.Thread] = []

    def ask(self, *keys: str) -> None:
        for key in keys:
            self.shared.begin(key)
            self.threads.append(threading.Thread(target=self._run, args=(key,)))
            self.threads[-1].start()

    def _run(self, key: str) -> None:
        request = GenerationRequest(key=key, prompt_ids=(1, 2), seed=0)
        self.got[key] = self.shared.generate(request, PLAN, job_id="job of " + key)
        self.shared.ended(key)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(30)


@pytest.fixture
def leases() -> Leases:
    return Leases()


@pytest.fixture
def samples(leases: Leases) -> Iterator[Samples]:
    samples = Samples(SharedRun(leases))
    yield samples
    samples.shared.end()
    samples.join()


def made(key: str, *ids: int) -> Generation:
    return Generation(key=key, prompt_ids=(1, 2), generated_ids=ids, finish_reason="stop")


def pulled(samples: Samples, room: int, count: int) -> list[GenerationRequest]:
    found: list[GenerationRequest] = []
    while len(found) < count:
        found += [item.request for item in samples.shared.pull(room, idle=True)]
    return found


def test_each_thread_gets_its_own_generation(samples: Samples) -> None:
    samples.ask("a", "b", "c")
    for request in pulled(samples, 3, 3):
        samples.shared.done(request, made(request.key, ord(request.key)))
    samples.join()
    assert {key: got.generated_ids for key, got in samples.got.items()} == {key: (ord(key),) for key in "abc"}


def test_room_counts_samples_that_have_no_request_yet(samples: Samples) -> None:
    shared = samples.shared
    assert shared.wait_for_room(0) == 0, "the engine has not asked"
    shared.pull(3, idle=False)
    assert shared.wait_for_room(0) == 3
    shared.begin("prepared")
    assert shared.wait_for_room(0) == 2
    shared.ended("prepared")
    samples.ask("a")
    assert [request.key for request in pulled(samples, 3, 1)] == ["a"]
    assert shared.wait_for_room(0) == 2


def test_the_run_ends_with_its_last_sample(samples: Samples) -> None:
    samples.ask("a")
    (request,) = pulled(samples, 2, 1)
    samples.shared.close()
    assert not samples.shared.exhausted, "it may have a further turn"
    samples.shared.done(request, made("a", 5))
    samples.join()
    assert samples.shared.exhausted


@pytest.mark.parametrize("error", [None, ValueError("lost")])
def test_the_end_of_the_run_ends_what_waits_and_what_runs(
    samples: Samples, error: BaseException | None
) -> None:
    samples.ask("runs")
    pulled(samples, 1, 1)
    samples.ask("waits")
    samples.shared.end(error)
    samples.join()
    reason = "cancelled" if error is None else "error"
    assert {samples.got[key].finish_reason for key in samples.got} <= {reason, "cancelled"}
    assert samples.got["runs"].error is error
    samples.ask("late")
    samples.join()
    assert samples.got["late"].finish_reason == "cancelled"


def test_samples_of_an_ended_job_are_dropped(samples: Samples, leases: Leases) -> None:
    samples.ask("a", "b")
    requests = pulled(samples, 2, 2)
    leases.ended = "job of a"
    assert {r.key: samples.shared.should_drop(r.key) for r in requests} == {"a": True, "b": False}
