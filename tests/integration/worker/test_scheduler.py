"""A run that goes on: what is submitted meanwhile joins it, and what has ended is committed meanwhile."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from actograph.contract.resources import JobStatus, SampleStatus
from storage import samples
from storage.jobs import jobs
from tests.support import leasing
from tests.support.engine_double import Watched
from tests.support.submitting import insert_chat

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("slow")]

CAPTURE = {"points": ["resid_post"], "layers": "all"}
#: 1,500 steps of 5 ms and more: ends only by being cancelled
LONG: dict[str, Any] = {"inputs": [{"prompt": "one two"}], "sampling": {"max_tokens": 1500}}
SHORT: dict[str, Any] = {"inputs": [{"prompt": "three"}], "sampling": {"max_tokens": 3}}
Eventually = Callable[[Callable[[], bool]], None]


@contextmanager
def running(bench: "Bench", job_id: str, eventually: Eventually, **changes: Any) -> Iterator[None]:
    """A drain runs, the job with it; at the end the job is cancelled."""
    thread = threading.Thread(target=bench.drain(**changes).look)
    thread.start()
    try:
        eventually(lambda: SampleStatus.LEASED in {one.status for one in bench.samples(job_id)})
        yield
    finally:
        with bench.database.write() as session:
            jobs.cancel(session, job_id)
        thread.join(timeout=120)
        assert not thread.is_alive()


def is_completed(bench: "Bench", *job_ids: str) -> Callable[[], bool]:
    return lambda: {bench.status(job_id) for job_id in job_ids} == {JobStatus.COMPLETED}


def test_jobs_that_come_during_a_run_join_it(bench: "Bench", eventually: Eventually) -> None:
    runs: list[bool] = []
    watched = Watched(bench.engine, lambda _requests: runs.append(True))
    bench.engine = watched  # type: ignore[assignment]
    night = bench.submit(capture=CAPTURE, **LONG)
    with running(bench, night, eventually):
        plain = bench.submit(capture=None, **SHORT)
        rows = bench.submit(capture={"points": ["mlp_in"], "layers": [1]}, **SHORT)
        eventually(is_completed(bench, plain, rows))
        assert bench.status(night) is JobStatus.IN_PROGRESS
        assert watched.most >= 2
        stored = bench.samples(rows)[0]
        assert stored.session_id in bench.stored_sessions()
    assert bench.status(night) is JobStatus.CANCELLED
    assert bench.stored_sessions() == bench.indexed_sessions() == {stored.session_id}


def test_a_chat_runs_beside_a_full_machine(bench: "Bench", eventually: Eventually) -> None:
    night = bench.submit(**LONG)
    waits = bench.submit(**SHORT)
    with running(bench, night, eventually, slots=1):
        chat = insert_chat(bench.database, "tiny-qwen3")
        eventually(is_completed(bench, chat))
        assert bench.status(waits) is not JobStatus.COMPLETED, "there was one slot"
    assert bench.status(waits) is JobStatus.COMPLETED


def test_suspects_wait_until_nothing_else_runs(bench: "Bench", eventually: Eventually) -> None:
    suspect = bench.submit(**SHORT)
    for _ in range(3):
        with bench.database.write() as session:
            leasing.claim(session, suspect)
        leasing.lose(bench.database)
    watched = Watched(bench.engine)
    bench.engine = watched  # type: ignore[assignment]
    night = bench.submit(priority=0, **LONG)
    with running(bench, night, eventually):
        pass
    assert bench.status(suspect) is JobStatus.COMPLETED
    assert watched.most == 1


def test_a_lost_sample_that_the_worker_gets_again_while_it_runs_is_stored_once(
    bench: "Bench",
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("worker.drain.held_leases.POLL_SECONDS", 60)  # it gets it before it knows of the loss
    job_id = bench.submit(**LONG | {"capture": CAPTURE, "sampling": {"max_tokens": 400}})

    def token() -> int:
        with bench.database.read() as session:
            return samples.find(session, job_id)[0][0].lease_token

    def lose() -> None:
        leasing.lose(bench.database)
        eventually(lambda: token() == 2)

    bench.run_until(job_id, lose)
    (sample,) = bench.samples(job_id)
    assert (sample.error, bench.status(job_id)) == (None, JobStatus.COMPLETED)
    assert "failed" not in caplog.text, "a failed run would end all other samples too"
    assert bench.stored_sessions() == bench.indexed_sessions() == {sample.session_id}
