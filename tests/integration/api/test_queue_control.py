"""Holding the queue, taking jobs up again, and keys that make both safe to repeat."""

import threading
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from actograph.contract.errors import CaptureFailed
from actograph.contract.resources import JobStatus
from actograph.settings import Settings
from storage import samples
from storage.jobs import control, jobs
from storage.queue import pause
from storage.sessions import sessions
from storage.sessions.writer import TensorRows
from storage.tables.models import SessionRow
from storage.upkeep.sweep import sweep_sessions

if TYPE_CHECKING:
    from storage.samples import LeasedSample
    from tests.integration.api.conftest import Problem, Service, Start

pytestmark = pytest.mark.integration

TENSORS = {"embed": TensorRows("embed", "F32", (6, 8), 0, bytes(6 * 8 * 4))}


def flush(service: "Service") -> None:
    import redis

    with redis.Redis.from_url(service.services.settings.broker_url) as client:
        client.flushdb()


def fail(service: "Service", lease: "LeasedSample") -> None:
    with service.database.write() as session:
        samples.fail(session, lease, CaptureFailed("no rows came"))
        jobs.count_finished(session, lease.job_id, completed=0, failed=1)
        jobs.end_if_done(session, lease.job_id)


# Pause and resume


def test_a_paused_queue_takes_jobs_and_wakes_nobody_until_it_is_resumed(
    start: "Start", settings: Settings, service: "Service"
) -> None:
    answer = service.client.post("/v1/queue/pause", json={"reason": "a new disk"})
    assert answer.status_code == 200
    queue = answer.json()
    assert queue["paused"] is True
    assert queue["paused_reason"] == "paused by local: a new disk"
    (pause,) = queue["pauses"]
    assert (pause["kind"], pause["reason"], pause["by"]) == ("manual", "a new disk", "local")
    assert pause["since"] > 0
    service.submit()
    flush(service)
    # it survives the process: another one on the same index sees it
    other = start(settings)
    assert other.client.get("/v1/queue").json()["pauses"] == [pause]
    assert other.next_job() is None
    assert service.messages() == []
    resumed = service.client.post("/v1/queue/resume").json()
    assert (resumed["paused"], resumed["pauses"], resumed["paused_reason"]) == (False, [], None)
    assert service.woken() == ["demo"]
    assert service.client.post("/v1/queue/resume").json()["paused"] is False


def test_a_pause_needs_no_reason_and_a_second_one_gives_it(service: "Service", problem: "Problem") -> None:
    first = service.client.post("/v1/queue/pause").json()
    assert first["paused_reason"] == "paused by local"
    second = service.client.post("/v1/queue/pause", json={"reason": "x" * 500}).json()
    assert second["pauses"][0]["since"] == first["pauses"][0]["since"]
    assert second["pauses"][0]["reason"] == "x" * 500
    problem(service.client.post("/v1/queue/pause", json={"reason": "x" * 501}), 422, pointer="/reason")
    problem(service.client.post("/v1/queue/pause", json={"why": "x"}), 422, pointer="/why")
    assert service.client.get("/v1/queue").json()["pauses"] == second["pauses"]


def test_resuming_by_hand_does_not_end_the_pause_of_a_full_disk(start: "Start", settings: Settings) -> None:
    service = start(settings.model_copy(update={"disk_floor_bytes": 1 << 60}))
    service.submit()
    flush(service)
    both = service.client.post("/v1/queue/pause").json()
    assert [pause["kind"] for pause in both["pauses"]] == ["manual", "disk"]
    left = service.client.post("/v1/queue/resume").json()
    assert left["paused"] is True
    assert [pause["kind"] for pause in left["pauses"]] == ["disk"]
    assert service.messages() == []


def test_who_paused_is_told_by_the_key_that_they_bear(start: "Start", settings: Settings) -> None:
    service = start(settings.model_copy(update={"api_keys": ("first-key", "second-key")}))
    callers = []
    for key in ("first-key", "second-key", "first-key"):
        answer = service.client.post("/v1/queue/pause", headers={"Authorization": f"Bearer {key}"})
        callers.append(answer.json()["pauses"][0]["by"])
        assert key not in answer.text
    assert callers[0] == callers[2] != callers[1]
    assert all(caller.startswith("key:") for caller in callers)


def test_resuming_without_a_broker_leaves_the_rest_to_idle_workers(
    start: "Start", settings: Settings
) -> None:
    service = start(settings.model_copy(update={"broker_url": "redis://127.0.0.1:1/0"}))
    service.submit()
    service.client.post("/v1/queue/pause")
    assert service.client.post("/v1/queue/resume").json()["paused"] is False
    with service.database.read() as session:
        assert not pause.holds(session)
    assert service.next_job() is not None


# Retry


def test_a_retry_answers_with_the_job_in_the_queue_and_wakes_it(
    service: "Service", problem: "Problem"
) -> None:
    job_id = service.submit(inputs=[{"prompt": "a"}, {"prompt": "b"}], priority=2)
    problem(service.client.post(f"/v1/jobs/{job_id}/retry"), 409, "conflict", says="queued")
    done, failed = service.claim(job_id, 2)
    session_id = service.finish(done, tensors=TENSORS)
    fail(service, failed)
    flush(service)
    answer = service.client.post(f"/v1/jobs/{job_id}/retry")
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/jobs/{job_id}"
    assert answer.json()["status"] == "queued"
    assert answer.json()["progress"] == {"total": 2, "completed": 1, "failed": 0}
    assert service.woken() == ["demo"]
    with service.database.read() as session:
        assert list(sessions.ids(session, sessions.SessionFilter())) == [session_id]
    problem(service.client.post("/v1/jobs/job_" + "0" * 32 + "/retry"), 404, "not_found")
    problem(service.client.post("/v1/jobs/nonsense/retry"), 404, "not_found")
    (again,) = service.claim(job_id, 9)
    service.finish(again)
    problem(service.client.post(f"/v1/jobs/{job_id}/retry"), 409, "conflict", says="nothing to retry")


def test_what_a_killed_worker_left_of_a_retried_sample_is_swept(service: "Service") -> None:
    job_id = service.submit()
    (killed,) = service.claim(job_id)
    orphan = service.finish(killed, tensors=TENSORS)
    with service.database.write() as session:  # as if the worker had died before its commit
        row = samples.get(session, killed.id)
        session.execute(sa.delete(SessionRow).where(SessionRow.id == orphan))
        row.status, row.session_id, row.error = "failed", None, {"type": "worker_lost", "message": "gone"}
        job = jobs.get(session, job_id)
        job.status, job.completed, job.failed = "failed", 0, 1

    def sweep() -> tuple[list[str], list[str]]:
        found = sweep_sessions(service.database, service.services.store, delete=True, older_than_seconds=-60)
        return [p.prefix for p in found.orphans], [p.prefix for p in found.unknown]

    assert sweep() == ([], [f"sessions/{orphan}"])
    assert service.client.post(f"/v1/jobs/{job_id}/retry").status_code == 202
    (again,) = service.claim(job_id)
    kept = service.finish(again, tensors=TENSORS)
    assert sweep() == ([f"sessions/{orphan}"], [])
    assert [p.prefix for p in service.services.store.list_prefixes("sessions")] == [f"sessions/{kept}"]


def test_a_stream_of_events_goes_on_over_a_retry(service: "Service") -> None:
    job_id = service.submit(inputs=[{"prompt": "a"}, {"prompt": "b"}])
    for lease in service.claim(job_id, 2):
        fail(service, lease)
    service.client.post(f"/v1/jobs/{job_id}/retry")
    threading.Timer(0.5, lambda: [service.finish(lease) for lease in service.claim(job_id, 2)]).start()
    answer = service.client.get(f"/v1/jobs/{job_id}/events")
    names = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
    first_end = names.index("job.failed")
    assert names[first_end + 1] == "job.retried"
    assert names[-1] == "job.completed"


# Limits of a job


def test_the_default_of_failures_in_a_row_is_written_into_the_job(start: "Start", settings: Settings) -> None:
    service = start(settings.model_copy(update={"max_consecutive_failures": 7}))
    limits = [
        service.client.get(f"/v1/jobs/{job_id}").json()["spec"]["max_consecutive_failures"]
        for job_id in (service.submit(), service.submit(max_consecutive_failures=0))
    ]
    assert limits == [7, 0]


def test_the_reconciler_fails_a_job_whose_deadline_passed_while_it_waited(service: "Service") -> None:
    job_id = service.submit(deadline_seconds=1000)
    shown = service.client.get(f"/v1/jobs/{job_id}").json()
    assert shown["deadline_at"] - shown["created_at"] in (999, 1000, 1001)
    with service.database.write() as session:
        jobs.get(session, job_id).deadline_at = 1.0
    service.reconcile()
    ended = service.client.get(f"/v1/jobs/{job_id}").json()
    assert (ended["status"], ended["error"]["type"]) == ("failed", "deadline_exceeded")
    with service.database.read() as session:
        assert control.states(session, [job_id]) == {job_id: (JobStatus.FAILED, False)}


@pytest.mark.parametrize(
    "field", [{"deadline_seconds": 0}, {"deadline_seconds": -1}, {"max_consecutive_failures": -1}]
)
def test_limits_that_mean_nothing_are_refused(
    service: "Service", problem: "Problem", field: dict[str, Any]
) -> None:
    body = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "x"}]} | field
    problem(service.client.post("/v1/jobs", json=body), 422, pointer=f"/{next(iter(field))}")
