"""Expiry, pins, tags and deletion of many through the API, on real session folders."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from actograph.contract.specs import SessionUpdate
from storage.index import events
from storage.sessions import changes
from tests.integration.api.conftest import EMBED, Problem, Service

BASE = "/v1/activations/sessions"
Make = Callable[..., list[str]]


@pytest.fixture
def make(service: Service) -> Make:
    """Finishes a job of `verdicts` samples; the ids of their sessions."""

    def finish(*verdicts: bool | None, **spec: Any) -> list[str]:
        job_id = service.submit(inputs=[{"prompt": str(i)} for i in range(len(verdicts))], **spec)
        leases = service.claim(job_id, len(verdicts))
        made = [service.finish(x, tensors=EMBED, correct=v) for x, v in zip(leases, verdicts, strict=True)]
        return [session_id for session_id in made if session_id is not None]

    return finish


def show(service: Service, session_id: str) -> dict[str, Any]:
    answer = service.client.get(f"{BASE}/{session_id}")
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


def expire(service: Service) -> int:
    return changes.expire(service.database).sessions


def test_a_job_says_when_its_sessions_expire(service: Service, make: Make) -> None:
    (kept,) = make(None)
    (timed,) = make(None, expires_after={"anchor": "created_at", "seconds": 3600})
    assert show(service, kept)["expires_at"] is None
    shown = show(service, timed)
    assert shown["expires_at"] - shown["created_at"] in (3600, 3601)
    job = service.client.get(f"/v1/jobs/{shown['job_id']}").json()
    assert job["spec"]["expires_after"] == {"anchor": "created_at", "seconds": 3600}
    assert expire(service) == 0


def test_what_has_expired_goes_and_the_jobs_log_says_so(service: Service, make: Make) -> None:
    gone, pinned, prolonged = make(None, None, None, expires_after={"seconds": 1000})
    (other,) = make(None)
    assert service.client.patch(f"{BASE}/{pinned}", json={"pinned": True}).json()["pinned"] is True
    later = int(time.time()) + 5000
    changed = service.client.patch(f"/v1/activations/session/{prolonged}", json={"expires_at": later}).json()
    assert (changed["expires_at"], changed["pinned"]) == (later, False)
    with service.database.write() as session:  # the time of the first two passes
        changes.update(session, [gone, pinned], SessionUpdate(expires_at=1))
    assert (expire(service), expire(service)) == (1, 0)
    assert service.client.get(f"{BASE}/{gone}").status_code == 404
    store = service.services.store
    service.drain()
    assert not store.exists(f"sessions/{gone}")
    assert all(store.exists(f"sessions/{i}") for i in (pinned, prolonged, other))
    job_id = show(service, pinned)["job_id"]
    with service.database.read() as session:
        (event,) = [e for e in events.after(session, job_id, 0) if e.event == "sessions.expired"]
    assert event.data["sessions"] == 1
    assert event.data["bytes"] > 6 * 8 * 4
    kept = service.client.patch(f"{BASE}/{prolonged}", json={"expires_at": None}).json()
    assert kept["expires_at"] is None


def test_pinned_sessions_outlive_deletions(service: Service, make: Make, problem: Problem) -> None:
    pinned, plain = make(True, True)
    job_id = show(service, pinned)["job_id"]
    service.client.patch(f"{BASE}/{pinned}", json={"pinned": True})
    problem(service.client.delete(f"{BASE}/{pinned}"), 409, "conflict", says="pinned")
    problem(service.client.delete(f"/v1/jobs/{job_id}"), 409, "conflict", says="1 sessions")
    for dry_run in (True, False):
        done = service.client.delete(BASE, params={"job_id": job_id, "dry_run": dry_run}).json()
        assert (done["sessions"], done["pinned"]) == (1, 1)
    assert service.client.get(f"{BASE}/{plain}").status_code == 404
    assert show(service, pinned)["pinned"] is True
    done = service.client.delete(BASE, params={"job_id": job_id, "include_pinned": True}).json()
    assert (done["sessions"], done["pinned"]) == (1, 0)
    (pinned,) = make(None)
    service.client.patch(f"{BASE}/{pinned}", json={"pinned": True})
    job_id = show(service, pinned)["job_id"]
    assert service.client.delete(f"/v1/jobs/{job_id}", params={"include_pinned": True}).status_code == 200
    service.drain()
    assert not service.services.store.exists(f"sessions/{pinned}")


def test_a_dry_run_tells_what_the_deletion_does(
    service: Service, make: Make, subtests: pytest.Subtests
) -> None:
    for params in [
        {"correct": "true"},
        {"tag": "night"},
        {"pinned": "true", "include_pinned": "true"},
        {"expires_before": 2.0**40},
        {"job_id": "JOB", "correct": "true", "tag": "night"},
    ]:
        with subtests.test(params=params):
            some = make(True, False, True, False, tags=["night"], expires_after={"seconds": 500})
            job_id = show(service, some[0])["job_id"]
            other, _ = make(True, False)
            service.client.patch(f"{BASE}/{other}", json={"pinned": True})
            wanted = {k: job_id if v == "JOB" else v for k, v in params.items()}
            before = service.client.get(f"{BASE}/stats").json()
            filters = {k: v for k, v in wanted.items() if k != "include_pinned"}
            fitting = service.client.get(f"{BASE}/stats", params=filters).json()
            dry = service.client.delete(BASE, params=wanted | {"dry_run": True}).json()
            done = service.client.delete(BASE, params=wanted).json()
            after = service.client.get(f"{BASE}/stats").json()
            assert done == dry | {"dry_run": False}
            assert done["sessions"] > 0
            assert done["sessions"] + done["pinned"] == fitting["sessions"]
            assert before["sessions"] - after["sessions"] == done["sessions"]
            assert before["bytes"] - after["bytes"] == done["bytes"]
            service.drain()
            assert len(list(service.services.store.list_prefixes("sessions"))) == after["sessions"]
