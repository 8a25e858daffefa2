"""Holding the queue, taking jobs up again, and keys that make both safe to repeat."""

from actograph.contract.errors import CaptureFailed
from actograph.settings import Settings
from storage.sessions import sessions
from tests.integration.api.conftest import EMBED, Problem, Service, Start
from tests.support import leasing


def test_a_paused_queue_takes_jobs_and_starts_none_until_it_is_resumed(
    start: Start, settings: Settings, service: Service
) -> None:
    answer = service.client.post("/v1/queue/pause", json={"reason": "a new disk"})
    assert answer.status_code == 200
    queue = answer.json()
    assert queue["paused"] is True
    assert queue["paused_reason"] == "paused by local: a new disk"
    (pause,) = queue["pauses"]
    assert (pause["kind"], pause["reason"], pause["by"]) == ("manual", "a new disk", "local")
    assert pause["since"] > 0
    job_id = service.submit()
    # it survives the process: another one on the same index sees it
    other = start(settings)
    assert other.client.get("/v1/queue").json()["pauses"] == [pause]
    assert other.next_job() is None
    resumed = service.client.post("/v1/queue/resume").json()
    assert (resumed["paused"], resumed["pauses"], resumed["paused_reason"]) == (False, [], None)
    assert other.next_job() == job_id
    assert service.client.post("/v1/queue/resume").json()["paused"] is False


def test_a_retry_answers_with_the_job_in_the_queue_and_wakes_it(service: Service, problem: Problem) -> None:
    job_id = service.submit(inputs=[{"prompt": "a"}, {"prompt": "b"}], priority=2)
    problem(service.client.post(f"/v1/jobs/{job_id}/retry"), 409, "conflict", says="queued")
    done, failed = service.claim(job_id, 2)
    session_id = service.finish(done, tensors=EMBED)
    with service.database.write() as session:
        leasing.fail(session, failed, CaptureFailed("no rows came"))
    service.forget_messages()
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
