"""Finished samples of a batch are kept when its worker is stopped."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from actograph.contract.resources import SampleStatus
from storage.jobs import jobs
from storage.sessions.writer import SessionReader
from worker.signals.stop_signal import StopSignal

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

CAPTURE = {"points": ["resid_post"], "layers": "all"}
DRAWN = {"temperature": 1.0, "seed": 3}


@pytest.fixture
def job_id(bench: "Bench", slow: list[float]) -> str:
    """A job of two samples that run together: the first ends at a stop string, the second goes on."""
    plain = bench.submit(inputs=[{"prompt": "one two"}], capture=None, sampling={"max_tokens": 12, **DRAWN})
    bench.drain().look()
    slow.clear()
    return bench.submit(
        inputs=[{"prompt": "one two"}, {"prompt": "three four"}],
        capture=CAPTURE,
        sampling={"max_tokens": 1900, "stop": [bench.samples(plain)[0].completion], **DRAWN},
    )


def interrupt(bench: "Bench", job_id: str, steps: list[float], act: Callable[[], None]) -> None:
    """Run a slice, and act once the first sample must have ended."""

    def wait_and_act() -> None:
        pause = threading.Event()
        while len(steps) < 40:
            pause.wait(0.01)
        act()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    bench.drain().look()
    thread.join()


def check_first(bench: "Bench", job_id: str) -> None:
    """The first sample is complete, and its session is whole."""
    first = bench.samples(job_id)[0]
    assert first.status is SampleStatus.COMPLETED
    assert first.session_id is not None and first.prompt_tokens and first.generated_tokens
    reader = SessionReader(bench.store, first.session_id)
    reader.verify()
    assert len(reader.token_ids()) == first.prompt_tokens + first.generated_tokens
    assert bench.stored_sessions() == bench.indexed_sessions()


def test_a_stopped_worker_keeps_the_finished_samples_of_its_last_batch(
    bench: "Bench", slow: list[float], job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.drain.leases.STOP_GRACE_SECONDS", 0.2)
    interrupt(bench, job_id, slow, bench.stop.set)
    check_first(bench, job_id)
    second = bench.samples(job_id)[1]
    assert (second.status, second.losses) == (SampleStatus.PENDING, 0)
    bench.stop = StopSignal.create(bench.settings.home)
    with bench.database.write() as session:
        jobs.cancel(session, job_id)
