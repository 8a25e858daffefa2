"""Chats go first, in the order in which they came, and leave something to other jobs."""

import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from actograph.contract.chat_job import ChatJobSpec
from actograph.contract.resources import JobStatus
from storage import samples
from storage.jobs import jobs
from storage.samples.expansion import chat_samples

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

MODEL = "tiny-qwen3"


def ask(bench: "Bench", **sampling: Any) -> str:
    """A chat that waits."""
    spec = ChatJobSpec.model_validate(
        {
            "model": MODEL,
            "inputs": [{"prompt": "one and two", "max_tokens": 2}],
            "sampling": {"max_tokens": 2} | sampling,
            "sample_timeout_seconds": 0,
        }
    )
    with bench.database.write() as session:
        row = jobs.create(session, kind="chat", model=MODEL, spec=spec, hooks=[], total=1)
        samples.insert(session, row.id, chat_samples(spec))
    # SQLite's clock counts milliseconds, and no two chats of a test are of one moment by chance
    time.sleep(0.002)
    return row.id


def served(bench: "Bench") -> list[str]:
    """Jobs, once for each batch of one sample, in the order in which they began."""
    with bench.database.read() as session:
        rows = [row for job in jobs.find(session, limit=1000)[0] for row in of(session, job.id)]
    began = sorted((row.started_at, row.job_id) for row in rows if row.started_at is not None)
    return [job_id for _, job_id in began]


def of(session: Any, job_id: str) -> Any:
    return samples.find(session, job_id, limit=1000)[0]


def run_with_endless_chats(bench: "Bench", night: str, slices: int, **changes: Any) -> None:
    """Slices of which none begins without a chat that waits; up to the end of the job, or so many."""
    drain = bench.drain(batch_size=1, **changes)
    for _ in range(slices):
        if bench.status(night) == JobStatus.COMPLETED:
            return
        ask(bench)
        assert bench.next_slice(drain)


def test_clients_that_never_stop_asking_leave_a_unit_in_each_turn_to_another_job(bench: "Bench") -> None:
    night = bench.submit(inputs=[{"prompt": f"{n} and {n}"} for n in range(4)], sampling={"max_tokens": 2})
    run_with_endless_chats(bench, night, slices=40, turn_seconds=1e-6)
    assert bench.status(night) == JobStatus.COMPLETED
    is_night = [job_id == night for job_id in served(bench)]
    # chats begin, and wait for one batch at most
    assert not is_night[0]
    assert not any(first and second for first, second in pairwise(is_night))


def test_before_their_turn_is_over_chats_go_first(bench: "Bench") -> None:
    night = bench.submit(inputs=[{"prompt": "3 and 4"}], sampling={"max_tokens": 2})
    run_with_endless_chats(bench, night, slices=8, turn_seconds=1000)
    assert night not in served(bench) and len(served(bench)) >= 8


def test_a_chat_that_is_sampled_otherwise_has_its_turn_by_its_age(bench: "Bench") -> None:
    asked = [ask(bench, temperature=temperature) for temperature in (1.0, 1.0, 0.0, 1.0, 0.0)]
    assert bench.drain(batch_size=1, turn_seconds=1000).look()
    assert served(bench) == asked
