"""Turns of waiting jobs: urgent ones go before what waits, and chats that never end leave room for others."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from actograph.contract.resources import JobStatus
from storage import samples
from storage.artifacts.store import ArtifactStore
from storage.queue import workers
from tests.integration.worker.conftest import MODEL
from tests.support.submitting import insert_chat

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

CAPTURE = {"points": ["resid_post"], "layers": [0]}


class Watched:
    """The real store, which acts when the first session is stored."""

    def __init__(self, store: ArtifactStore, act: Callable[[], None]) -> None:
        self._store = store
        self._act: Callable[[], None] | None = act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def stage(self, prefix: str) -> Any:
        act, self._act = self._act, None
        if act is not None:
            act()
        return self._store.stage(prefix)


def served(bench: "Bench", *job_ids: str) -> list[int]:
    """Which of the jobs each sample belonged to, in the order in which they were claimed."""
    with bench.database.read() as session:
        began = [
            (row.started_at, place)
            for place, job_id in enumerate(job_ids)
            for row in samples.find(session, job_id, limit=1000)[0]
            if row.started_at is not None
        ]
    return [place for _, place in sorted(began)]


def test_an_urgent_job_goes_before_what_waits(bench: "Bench") -> None:
    night = bench.submit(capture=CAPTURE, priority=5, epochs=4)
    urgent: list[str] = []

    def ask() -> None:
        urgent.append(bench.submit(inputs=[{"prompt": "hello"}], priority=0))

    bench.store = Watched(bench.store, ask)
    assert bench.drain(slots=1).look()
    order = served(bench, night, urgent[0])
    assert len(order) == 21 and order.index(1) < 8, "a few were running, or ready to run"
    assert bench.status(urgent[0]) is JobStatus.COMPLETED


@pytest.mark.parametrize(
    ("batches", "slots", "other"), [(6, 1, [False, True] * 3), (8, 4, [False] * 7 + [True] * 4)]
)
def test_clients_that_never_stop_asking_leave_turns_to_another_job(
    bench: "Bench", batches: int, slots: int, other: list[bool]
) -> None:
    """With one slot every second batch, else one in eight; none begins without a chat that waits."""
    inputs = [{"prompt": f"{n} and {n}"} for n in range(4)]
    drain, jobs = bench.drain(slots=slots), [bench.submit(inputs=inputs, sampling={"max_tokens": 2})]
    for _ in range(batches):
        jobs.append(insert_chat(bench.database, "tiny-qwen3"))
        assert drain.look(1)
    assert [place == 0 for place in served(bench, *jobs)] == other


def test_a_worker_takes_samples_of_a_job_that_another_one_runs(bench: "Bench") -> None:
    night, another = bench.submit(capture=CAPTURE), "wrk_" + "1" * 32
    bench.drain(another)
    with bench.database.write() as session:
        workers.set_busy(session, another, night, MODEL)
    assert bench.drain(slots=2).look()
    assert bench.status(night) is JobStatus.COMPLETED
