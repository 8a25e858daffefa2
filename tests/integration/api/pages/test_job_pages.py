"""The overview, the list of jobs and one job, as HTML."""

from typing import TYPE_CHECKING

import pytest

from actograph.contract.resources import Score
from api.pages import live
from storage.jobs import jobs

if TYPE_CHECKING:
    from tests.integration.api.conftest import Keyed, Service

pytestmark = pytest.mark.integration

HTML = {"Accept": "text/html", "Origin": "http://127.0.0.1:8420"}
HOSTILE = "<script>alert(1)</script>\"'>\u202e\u05d0\U0001f600"


def test_empty_states(service: "Service") -> None:
    overview = service.client.get("/", headers=HTML).text
    assert "No job is running." in overview
    assert "No job has been submitted yet." in overview
    assert "No worker has started." in overview
    assert "No job matches these filters." in service.client.get("/jobs?tag=nothing", headers=HTML).text


def test_a_job_is_on_its_pages(service: "Service") -> None:
    service.load_model()
    job_id = service.submit(tags=["night"], inputs=[{"prompt": "a"}, {"prompt": "b"}])
    lease = service.claim(job_id)[0]
    service.finish(lease, scores={"exact_match,none": Score(value=1.0, answer="4")})
    for path in ("/", "/jobs", "/jobs?status=in_progress&kind=capture&tag=night"):
        assert f"/jobs/{job_id}" in service.client.get(path, headers=HTML).text
    assert f"/jobs/{job_id}" not in service.client.get("/jobs?status=completed", headers=HTML).text
    page = service.client.get(f"/jobs/{job_id}", headers=HTML).text
    assert "1 / 2" in page
    assert 'class="cell right-one"' in page
    assert 'class="cell pending"' in page
    assert "job.started" in page
    assert f'data-live="/live?job={job_id}"' in page


def test_a_job_whose_samples_have_different_scorers_has_its_page(service: "Service") -> None:
    job_id = service.submit(inputs=[{"prompt": "a"}, {"prompt": "b"}])
    for lease, key in zip(service.claim(job_id, 2), ("exact_match,none", "includes,none"), strict=True):
        service.finish(lease, scores={key: Score(value=1.0, answer="4")})
    page = service.client.get(f"/jobs/{job_id}", headers=HTML)
    assert page.status_code == 200
    assert "<h2>exact_match,none</h2>" in page.text
    assert "<h2>includes,none</h2>" in page.text
    scored = service.client.get(f"/v1/jobs/{job_id}/results").json()["conditions"]["capture"]["scored"]
    assert scored == {"exact_match,none": 1, "includes,none": 1}


def test_the_list_has_pages_that_keep_the_filters(service: "Service") -> None:
    made = [service.submit(tags=["a b"]) for _ in range(52)]
    first = service.client.get("/jobs?tag=a+b", headers=HTML).text
    assert "Next page" in first
    assert "tag=a+b" in first
    second = service.client.get(f"/jobs?tag=a+b&after={made[2]}", headers=HTML).text
    assert f"/jobs/{made[0]}" in second
    assert "First page" in second


def test_a_job_is_cancelled_retried_and_deleted_by_forms(service: "Service") -> None:
    job_id = service.submit()
    for action, status in (("cancel", "cancelled"), ("retry", "queued"), ("cancel", "cancelled")):
        answer = service.client.post(f"/jobs/{job_id}/{action}", headers=HTML)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{job_id}")
        assert service.client.get(f"/v1/jobs/{job_id}").json()["status"] == status
    again = service.client.post(f"/jobs/{service.submit()}/retry", headers=HTML)
    assert again.status_code == 409
    assert "text/html" in again.headers["content-type"]
    assert service.client.post(f"/jobs/{job_id}/delete", headers=HTML).headers["location"] == "/jobs"
    assert service.client.get(f"/jobs/{job_id}", headers=HTML).status_code == 404


def test_a_role_sees_only_its_own_forms_and_jobs(keyed: "Keyed") -> None:
    reader = {**HTML, **keyed.headers(keyed.make_key("read", owner="alice"))}
    writer = {**HTML, **keyed.headers(keyed.make_key("submit", owner="alice"))}
    other = {**HTML, **keyed.headers(keyed.make_key("submit", owner="bob"))}
    spec = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "Hello"}]}
    job_id = keyed.client.post("/v1/jobs", json=spec, headers=writer).json()["id"]
    assert "/cancel" not in keyed.client.get(f"/jobs/{job_id}", headers=reader).text
    assert "/cancel" in keyed.client.get(f"/jobs/{job_id}", headers=writer).text
    assert "Workers</h2>" not in keyed.client.get("/", headers=writer).text
    assert keyed.client.post(f"/jobs/{job_id}/cancel", headers=reader).status_code == 403
    assert keyed.client.get(f"/jobs/{job_id}", headers=other).status_code == 404
    assert "no job" in keyed.client.get(f"/jobs/{job_id}/comparison", headers=other).text
    for action in ("cancel", "retry", "delete"):
        assert keyed.client.post(f"/jobs/{job_id}/{action}", headers=other).status_code == 404
    assert job_id not in keyed.client.get("/jobs", headers=other).text
    assert job_id not in keyed.client.get("/", headers=other).text


def test_hostile_texts_stay_texts(service: "Service") -> None:
    job_id = service.submit(tags=["<b>"], metadata={"a": HOSTILE}, inputs=[{"prompt": HOSTILE}])
    with service.database.write() as session:
        jobs.get(session, job_id).error = {"type": "x", "message": HOSTILE}
    for path in ("/", "/jobs", f"/jobs/{job_id}", "/jobs?tag=%3Cscript%3Ealert(1)%3C/script%3E"):
        page = service.client.get(path, headers=HTML).text
        assert "<script>alert" not in page
        assert "<b>" not in page


def test_the_digest_of_the_state_changes_with_the_state(service: "Service") -> None:
    empty = live.digest(service.services, None)
    assert live.digest(service.services, None) == empty
    job_id = service.submit()
    queued, of_job = live.digest(service.services, None), live.digest(service.services, job_id)
    assert queued != empty
    service.client.post(f"/v1/jobs/{job_id}/cancel")
    assert live.digest(service.services, None) != queued
    assert live.digest(service.services, job_id) != of_job
