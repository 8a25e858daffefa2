"""Samples that take too long or hang fail with the reason, and the drain goes on."""

from collections.abc import Sequence
from queue import Queue
from typing import TYPE_CHECKING, Any

import pytest

from actograph.contract.resources import JobStatus, SampleStatus
from tests.support.engine_double import Watched
from tests.support.local_engine import local
from worker.engine.engine import Engine
from worker.engine.messages import Request

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

CAPTURE = {"points": ["resid_post"], "layers": "all"}


class HangingEngine:
    """A real engine that hangs in a batch with a poisonous prompt until it is killed."""

    def __init__(self, engine: Engine, poison: str) -> None:
        self._engine = local(engine)
        self._poison = tuple(self._engine.tokenizer.encode(poison, add_special_tokens=False))
        self._killed: Queue[Exception] = Queue()
        self.deaths = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, **of_run: Any) -> Any:
        return Watched(self._engine, self._hang).run(**of_run)

    def _hang(self, requests: Sequence[Request]) -> None:
        if any(request.prompt_ids == self._poison for request in requests):
            raise self._killed.get(timeout=60)

    def kill(self, reason: Exception) -> None:
        self.deaths += 1
        self._killed.put(reason)


def test_a_prompt_that_hangs_the_device_costs_four_engines_and_one_sample(bench: "Bench") -> None:
    inputs = [{"prompt": text} for text in ("one two", "three four", "poison", "five six", "seven")]
    job_id = bench.submit(inputs=inputs, capture=CAPTURE)
    engine = HangingEngine(bench.engine, "poison")
    bench.engine = engine  # type: ignore[assignment]
    bench.drain(stall_seconds=1.5).look()
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
