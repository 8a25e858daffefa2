"""The wait of `actograph drain`, on a stand-in for the client."""

from types import SimpleNamespace as Of
from typing import Any

import pytest

from actograph.contract.errors import ServiceUnavailable
from actograph.contract.openai_answers import BatchStatus
from actograph.stack import drain


class Service:
    """Each look at the queue shows the next of its states."""

    def __init__(self, *states: dict[str, Any]) -> None:
        self._states = list(states)
        self._state: dict[str, Any] = {}
        self.queue = self.jobs = self.batches = self

    def get(self) -> Of:
        self._state = {"jobs": 1, "leased": 0, "paused": None} | self._states.pop(0)
        counts, samples = {"queued": self._state["jobs"]}, {"leased": self._state["leased"]}
        return Of(jobs=counts, samples=samples, paused_reason=self._state["paused"])

    def list(self, status: str | None = None) -> list[Of]:
        """Jobs of a status, or all batches."""
        if status is None:
            return [Of(status=one) for one in self._state.get("batches", ())]
        return [Of(paused_reason=None, waiting_reason=reason) for reason in self._state.get(status, ())]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(drain, "_LOOK_SECONDS", 0.0)


def wait(*states: dict[str, Any]) -> list[str]:
    said: list[str] = []
    service: Any = Service(*states)
    drain.wait_for_jobs(service, said.append)
    return said


def test_it_waits_for_jobs_and_then_for_the_output_of_batches() -> None:
    states = (
        {"jobs": 2, "leased": 1},
        {"jobs": 2, "queued": ["no live worker holds m"], "in_progress": [None]},
        {"jobs": 0, "batches": [BatchStatus.COMPLETED, BatchStatus.FINALIZING]},
        {"jobs": 0, "batches": [BatchStatus.COMPLETED]},
    )
    assert wait(*states) == ["2 jobs waiting or running", "1 jobs waiting or running"]


def test_jobs_that_cannot_run_end_it_with_the_reason() -> None:
    for state in ({"paused": "the disk is full"}, {"queued": ["the disk is full"]}):
        with pytest.raises(ServiceUnavailable, match="1 jobs wait, and none can run: the disk is full"):
            wait(state)
