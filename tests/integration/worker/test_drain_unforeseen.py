"""Errors that nobody foresaw fail their own sample or job, with the trace in the log."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from actograph.contract.errors import DeviceLost, WorkerStalled
from actograph.contract.resources import JobStatus
from storage.jobs import control
from storage.sessions import sessions
from storage.sessions.writer import SessionWriter
from tests.support.engine_double import Watched
from tests.support.local_engine import LocalEngine
from worker.drain.open_jobs import OpenJobs
from worker.drain.scheduler import Scheduler
from worker.engine.capture.pool import Pool
from worker.engine.pass_hooks import PassHooks
from worker.engine.stream.delivery import Delivery
from worker.engine.stream.slots import Slots
from worker.runners.evaluation import EvaluationRunner

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

CAPTURE = {"points": ["resid_post"], "layers": [0]}


#: steps of the engine outside the forward pass, and beside any one request
ENGINE: list[tuple[Any, str]] = [
    (PassHooks, "note"),
    (Slots, "pull"),
    (Slots, "leave"),
    (Delivery, "take_back"),
    (Pool, "give"),
]


class Bug(Exception):
    """No error of ours."""


def failing_on_second(real: Callable[..., Any], place: Callable[..., Any]) -> Callable[..., Any]:
    """`real`, but raises for the second sample of the job, which `place` finds in the arguments."""

    def faulty(*args: Any, **more: Any) -> Any:
        if getattr(place(*args), "sample_index", 0) == 1:
            raise Bug("nobody foresaw this")
        return real(*args, **more)

    return faulty


@pytest.mark.parametrize(
    ("of", "method", "place", "doing"),
    [
        (EvaluationRunner, "prompt", lambda _runner, lease, *_: lease, "prompted"),
        (EvaluationRunner, "score", lambda _runner, lease, *_: lease, "scored"),
        # the manifest names the sample
        (SessionWriter, "finish", lambda _writer, manifest, *_: manifest, "stored"),
        (
            sessions,
            "publish",
            lambda _session, *new: max(new, key=lambda one: one.sample_index == 1, default=None),
            "stored",
        ),
    ],
    ids=["prompt", "score", "session", "index"],
)
def test_a_bug_fails_its_sample_alone(
    bench: "Bench",
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    of: Any,
    method: str,
    place: Callable[..., Any],
    doing: str,
) -> None:
    monkeypatch.setattr(of, method, failing_on_second(getattr(of, method), place))
    job_id = bench.submit(capture=CAPTURE)
    bench.drain(slots=5).look()
    assert bench.status(job_id) is JobStatus.COMPLETED
    done = bench.samples(job_id)
    assert [str(sample.status) for sample in done] == ["completed", "failed"] + ["completed"] * 3
    assert [sample.losses for sample in done] == [0] * 5
    error = done[1].error
    assert error is not None
    assert error.type == "internal_error"
    assert "Bug" in error.message and "nobody foresaw this" in error.message and doing in error.message
    assert "Traceback" in caplog.text and "in faulty" in caplog.text
    assert bench.stored_sessions() == bench.indexed_sessions()
    assert len(bench.indexed_sessions()) == 4


@pytest.mark.parametrize("of", ENGINE, ids=lambda of: f"{of[0].__name__}.{of[1]}")
def test_a_failure_of_the_engine_gives_its_samples_back(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, of: tuple[Any, str]
) -> None:
    """Once it costs the samples that ran one loss; for ever, they fail in the end and say why."""
    owner, method = of
    real, started, fails = getattr(owner, method), [0], [True]

    def failing(self: Any, *args: Any, **more: Any) -> Any:
        if fails[0] and started[0] > 1:
            raise Bug
        return real(self, *args, **more)

    def count(self: Scheduler, *args: Any) -> None:
        started[0] += 1

    monkeypatch.setattr(owner, method, failing)
    monkeypatch.setattr(Scheduler, "started", count)
    job_id = bench.submit(capture=CAPTURE)
    with pytest.raises(Bug):
        bench.drain(slots=3).look(1)
    given_back = {one.sample_index for one in bench.samples(job_id) if one.losses == 1}
    assert given_back and {str(one.status) for one in bench.samples(job_id)} <= {"pending", "completed"}
    assert "Traceback" in caplog.text and "Bug" in caplog.text
    fails[0] = False
    bench.drain(slots=3).look()
    done = bench.samples(job_id)
    assert {str(one.status) for one in done} == {"completed"}
    assert {one.sample_index for one in done if one.losses} == given_back
    assert bench.stored_sessions() == bench.indexed_sessions()
    assert len(bench.indexed_sessions()) == 5


def test_samples_for_which_the_engine_always_fails_end_with_the_reason(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise StopIteration  # which has no message

    monkeypatch.setattr(PassHooks, "note", failing)
    job_id = bench.submit(capture=CAPTURE)
    for _ in range(40):
        if bench.status(job_id) not in (JobStatus.QUEUED, JobStatus.IN_PROGRESS):
            break
        with suppress(StopIteration):
            bench.drain(slots=3).look()
    for sample in bench.samples(job_id):
        assert (str(sample.status), sample.losses) == ("failed", 4), sample.error
        assert sample.error is not None
        assert "StopIteration while the engine ran this sample" in sample.error.message
    assert bench.stored_sessions() == set()


def test_a_job_that_cannot_be_made_ready_fails_at_the_third_attempt_of_any_process(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = bench.submit()
    with monkeypatch.context() as patch:
        patch.setattr(OpenJobs, "_runner", failing_on_second(lambda: None, lambda *_: _Second()))
        for number in range(3):
            assert bench.status(job_id) in (JobStatus.QUEUED, JobStatus.IN_PROGRESS)
            bench.drain(f"wrk_{number:032x}").look()
    assert bench.status(job_id) is JobStatus.FAILED
    assert caplog.text.count("in faulty") == 3
    with bench.database.write() as session:
        row = control.retry(session, job_id)
        assert row.error is None
    bench.drain().look()
    assert bench.status(job_id) is JobStatus.COMPLETED


class _Second:
    sample_index = 1


@pytest.mark.soak
def test_scoring_and_prompting_that_take_longer_than_the_stall_limit_in_all_are_no_stall(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Exception] = []
    monkeypatch.setattr(LocalEngine, "kill", lambda _, reason: ended.append(reason))
    for method in ("prompt", "score"):
        real = getattr(EvaluationRunner, method)

        def slowly(*args: Any, real: Callable[..., Any] = real) -> Any:
            time.sleep(0.8)
            return real(*args)

        monkeypatch.setattr(EvaluationRunner, method, slowly)
    job_id = bench.submit()
    bench.drain(slots=5, stall_seconds=2.5).look()
    assert ended == []
    assert bench.status(job_id) is JobStatus.COMPLETED


@pytest.mark.parametrize(
    "error", [DeviceLost("it failed"), WorkerStalled("it hangs")], ids=["lost", "stalled"]
)
def test_samples_of_an_ended_engine_are_given_back_and_run_again_on_the_next_one(
    bench: "Bench", error: Exception
) -> None:
    ends = iter((True, True, False))

    def fail(_requests: object) -> None:
        if next(ends, False):
            raise error

    bench.engine = Watched(bench.engine, fail)  # type: ignore[assignment]
    job_id = bench.submit(capture=CAPTURE)
    bench.drain(slots=3).look()
    done = bench.samples(job_id)
    assert {str(one.status) for one in done} == {"completed"}
    assert max(one.losses for one in done) == 2
    assert bench.stored_sessions() == bench.indexed_sessions()
    assert len(bench.indexed_sessions()) == 5
