"""Samples that take too long or hang fail with the reason, and the drain goes on."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from actograph.contract.resources import JobStatus, SampleStatus
from storage.queue import workers
from tests.support.engine_double import Watched
from worker.engine.engine import Engine
from worker.engine.runs import RunRequest

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

CAPTURE = {"points": ["resid_post"], "layers": "all"}


class ProcessEnded(BaseException):
    """The worker's process is gone: nothing of it runs on."""


class HangingEngine:
    """A real engine that never returns from a batch with a poisonous prompt."""

    def __init__(self, engine: Engine, poison: str) -> None:
        self._engine = engine
        self._poison = tuple(engine.model.tokenizer.encode(poison, add_special_tokens=False))
        self.ended = threading.Event()
        self.deaths = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, **of_run: Any) -> Any:
        return Watched(self._engine, self._hang).run(**of_run)

    def _hang(self, requests: Sequence[RunRequest]) -> None:
        if any(request.prompt == self._poison for request in requests):
            assert self.ended.wait(60), "nobody ended the process"
            self.ended.clear()
            raise ProcessEnded

    def end_process(self, _status: int) -> None:
        self.deaths += 1
        self.ended.set()


def drain_to_its_end(bench: "Bench", job_id: str, engine: HangingEngine) -> None:
    """Run slices; a worker whose process ended is replaced, as the supervisor does."""
    bench.engine = engine  # type: ignore[assignment]
    for number in range(10):
        worker_id = f"wrk_{number:032x}"
        bench.end_process = engine.end_process
        drain = bench.drain(worker_id, stall_seconds=1.5, lease_seconds=15)
        try:
            drain.look()
        except ProcessEnded:
            with bench.database.write() as session:
                workers.bury(session, "here", lambda _pid, _started: True)
            continue
        return
    raise AssertionError("the job does not end")


def test_a_prompt_that_hangs_the_device_costs_four_workers_and_one_sample(bench: "Bench") -> None:
    inputs = [{"prompt": text} for text in ("one two", "three four", "poison", "five six", "seven")]
    job_id = bench.submit(inputs=inputs, capture=CAPTURE)
    engine = HangingEngine(bench.engine, "poison")
    drain_to_its_end(bench, job_id, engine)
    assert engine.deaths == 4
    done = bench.samples(job_id)
    assert [str(s.status) for s in done] == ["completed", "completed", "failed", "completed", "completed"]
    assert done[2].error is not None
    assert done[2].error.type == "worker_stalled"
    assert bench.status(job_id) is JobStatus.COMPLETED
    assert bench.stored_sessions() == bench.indexed_sessions()
    assert len(bench.indexed_sessions()) == 4


@pytest.mark.usefixtures("slow")
def test_a_sample_that_takes_too_long_fails_and_its_batch_keeps_what_ended(bench: "Bench") -> None:
    """The model never ends by itself here; what is short ends at a stop string."""
    drawn = {"temperature": 1.0, "seed": 3}
    plain = bench.submit(inputs=[{"prompt": "one two"}], capture=None, sampling={"max_tokens": 12, **drawn})
    bench.drain().look()
    first_words = bench.samples(plain)[0].completion
    assert first_words
    job_id = bench.submit(
        inputs=[{"prompt": "one two"}, {"prompt": "three four"}],
        capture=CAPTURE,
        sampling={"max_tokens": 2000, "stop": [first_words], **drawn},
        sample_timeout_seconds=4.0,
    )
    bench.drain().look()
    short, long = bench.samples(job_id)
    assert short.status is SampleStatus.COMPLETED
    assert short.session_id is not None
    assert long.status is SampleStatus.FAILED
    assert long.error is not None
    assert long.error.type == "sample_timeout"
    assert "4 s" in long.error.message
    assert bench.status(job_id) is JobStatus.COMPLETED
    assert bench.stored_sessions() == {short.session_id}
