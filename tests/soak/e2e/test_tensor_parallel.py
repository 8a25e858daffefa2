"""A drain on two ranks, of which one is killed in the middle."""

from collections.abc import Callable
from typing import Any

import psutil
import pytest

from actograph.client import Client
from actograph.client.jobs import JobHandle
from tests.support.processes import words_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

NUMBER = 120
SPEC = {
    "kind": "capture",
    "model": "demo",
    "inputs": [{"prompt": f"{number} + {3 * number} ="} for number in range(NUMBER)],
    "sampling": {"max_tokens": 64, "temperature": 0.8, "seed": 5},
    "capture": {"hooks": ["resid_post.0", "mlp_out.1"]},
}


def completions(job: JobHandle) -> dict[int, str | None]:
    """Completions of a completed job by sample; each sample has a session."""
    done = job.wait()
    assert (done.status, done.progress.completed) == ("completed", NUMBER)
    samples = list(done.samples())
    assert len({sample.session_id for sample in samples} - {None}) == NUMBER
    return {sample.sample_index: sample.completion for sample in samples}


def ranks_of(service: Any) -> list[psutil.Process]:
    return [one for one in service.children() if "worker.engine.ranks" in words_of(one)]


def test_a_drain_survives_the_end_of_a_rank(up: Callable[..., Any], wait: Callable[..., None]) -> None:
    service = up("--tensor-parallel=2")
    service.await_ready()
    with Client(service.url) as client:
        undisturbed = completions(client.submit(SPEC))
        job = client.submit(SPEC)
        wait(lambda: job.refresh().progress.completed >= 10)
        (rank,) = ranks_of(service)
        rank.kill()
        assert completions(job) == undisturbed
        (other,) = ranks_of(service)
        assert other.pid != rank.pid
    assert service.stop() == 0
