"""Turns of several waiting jobs: urgent ones go before what waits, equal ones in turn."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from actograph.contract.resources import JobStatus
from storage.artifacts.store import ArtifactStore
from storage.jobs import jobs

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
            (row.started_at or 0.0, place)
            for place, job_id in enumerate(job_ids)
            for row in _rows(session, job_id)
        ]
    return [place for _, place in sorted(began)]


def _rows(session: Any, job_id: str) -> Any:
    from storage import samples

    return samples.find(session, job_id, limit=1000)[0]


def test_jobs_of_one_priority_take_turns(bench: "Bench") -> None:
    inputs = [{"prompt": f"{n} and {n}"} for n in range(3)]
    first, second, third = (bench.submit(inputs=inputs, sampling={"max_tokens": 2}) for _ in range(3))
    assert bench.drain(slots=1).look()
    assert served(bench, first, second, third) == [0, 1, 2] * 3
    assert {bench.status(job_id) for job_id in (first, second, third)} == {JobStatus.COMPLETED}


def test_an_urgent_job_goes_before_what_waits(bench: "Bench") -> None:
    night = bench.submit(capture=CAPTURE, priority=5, epochs=4)
    urgent: list[str] = []

    def ask() -> None:
        urgent.append(bench.submit(inputs=[{"prompt": "hello"}], priority=0))

    bench.store = Watched(bench.store, ask)
    assert bench.drain(slots=1).look()
    order = served(bench, night, urgent[0])
    assert len(order) == 21 and order.index(1) < 8, "a few were running, or ready to run"
    with bench.database.read() as session:
        assert jobs.get(session, urgent[0]).status == JobStatus.COMPLETED
