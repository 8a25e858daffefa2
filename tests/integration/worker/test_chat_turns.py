"""Chats go first, in the order in which they came, and leave something to other jobs."""

import time
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
        row = jobs.create(session, spec, hooks=[], total=1)
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


def run_with_endless_chats(bench: "Bench", night: str, batches: int, slots: int) -> list[bool]:
    """Batches of which none begins without a chat that waits. Returns which were the other job's."""
    drain = bench.drain(slots=slots)
    for _ in range(batches):
        ask(bench)
        assert drain.look(1)
    return [job_id == night for job_id in served(bench)]


def test_clients_that_never_stop_asking_leave_every_other_single_slot_to_another_job(bench: "Bench") -> None:
    night = bench.submit(inputs=[{"prompt": f"{n} and {n}"} for n in range(4)], sampling={"max_tokens": 2})
    assert run_with_endless_chats(bench, night, 6, 1) == [False, True] * 3


def test_clients_that_never_stop_asking_leave_one_batch_in_eight_to_another_job(bench: "Bench") -> None:
    night = bench.submit(inputs=[{"prompt": f"{n} and {n}"} for n in range(4)], sampling={"max_tokens": 2})
    assert run_with_endless_chats(bench, night, 8, 4) == [False] * 7 + [True] * 4
    assert bench.status(night) == JobStatus.COMPLETED


def test_a_chat_that_is_sampled_otherwise_has_its_turn_by_its_age(bench: "Bench") -> None:
    asked = [ask(bench, temperature=temperature) for temperature in (1.0, 1.0, 0.0, 1.0, 0.0)]
    assert bench.drain(slots=1).look()
    assert served(bench) == asked
