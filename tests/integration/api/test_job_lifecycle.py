"""Jobs after their submission: lists, samples, results, cancel and delete."""

import time
from typing import Any

import numpy as np
import pytest

from actograph.contract.errors import CaptureFailed
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import Problem, Service
from tests.support import leasing


def rows() -> dict[str, TensorRows]:
    data = np.arange(48, dtype="<f4").reshape(6, 8)
    return {
        "resid_post.1": TensorRows(name="resid_post.1", dtype="F32", shape=(6, 8), first_row=0, data=data)
    }


def test_jobs_are_listed_newest_first_page_by_page(service: Service) -> None:
    made = [service.submit() for _ in range(5)]
    first = service.client.get("/v1/jobs", params={"limit": 2}).json()
    assert first["object"] == "list"
    assert [j["id"] for j in first["data"]] == made[:2:-1]
    assert (first["first_id"], first["last_id"], first["has_more"]) == (made[4], made[3], True)
    seen = [j["id"] for j in first["data"]]
    while first["has_more"]:
        first = service.client.get("/v1/jobs", params={"limit": 2, "after": first["last_id"]}).json()
        seen += [j["id"] for j in first["data"]]
    assert seen == made[::-1]
    ascending = service.client.get("/v1/jobs", params={"order": "asc"}).json()
    assert [j["id"] for j in ascending["data"]] == made


def test_jobs_are_filtered_by_status_kind_and_tag(service: Service) -> None:
    plain, tagged = service.submit(), service.submit(tags=["night", "b"])
    cancelled = service.submit(tags=["night"])
    service.client.post(f"/v1/jobs/{cancelled}/cancel")

    def listed(**params: Any) -> set[str]:
        return {j["id"] for j in service.client.get("/v1/jobs", params=params).json()["data"]}

    assert listed(status="queued") == {plain, tagged}
    assert listed(tag="night") == {tagged, cancelled}
    assert listed(tag="night", status="cancelled") == {cancelled}
    assert listed(id_prefix=plain[:16]) == listed(id_prefix=plain) == {plain}
    assert listed(kind="evaluation") == set()
    assert listed(kind="capture") == {plain, tagged, cancelled}


def test_samples_are_listed_filtered_and_found(service: Service, problem: Problem) -> None:
    job_id = service.submit(inputs=[{"prompt": str(i)} for i in range(5)])
    done, failed = service.claim(job_id, 2)
    service.finish(done)
    with service.database.write() as session:
        leasing.fail(session, failed, CaptureFailed("no rows came"))
    base = f"/v1/jobs/{job_id}/samples"
    everything = service.client.get(base).json()
    assert [s["sample_index"] for s in everything["data"]] == [0, 1, 2, 3, 4]
    page = service.client.get(base, params={"limit": 2, "after": everything["data"][1]["id"]}).json()
    assert ([s["sample_index"] for s in page["data"]], page["has_more"]) == ([2, 3], True)
    pending = service.client.get(base, params={"status": "pending"}).json()
    assert [s["sample_index"] for s in pending["data"]] == [2, 3, 4]
    one = service.client.get(f"{base}/{failed.id}").json()
    assert one["status"] == "failed"
    assert one["error"] == {
        "type": "capture_failed",
        "message": "no rows came",
        "param": None,
        "details": None,
    }
    assert service.client.get(f"{base}/{done.id}").json()["completion"] == "a completion"
    assert service.client.get(base, params={"limit": 1000}).status_code == 200
    problem(service.client.get(base, params={"limit": 1001}), 422, pointer="/limit")
    other = service.submit()
    problem(service.client.get(f"/v1/jobs/{other}/samples/{done.id}"), 404, "not_found")


def test_a_running_job_is_cancelled_and_can_be_deleted_at_once(service: Service, problem: Problem) -> None:
    job_id = service.submit(inputs=[{"prompt": "a"}, {"prompt": "b"}])
    service.claim(job_id, 1)
    problem(service.client.delete(f"/v1/jobs/{job_id}"), 409, "conflict", says="cancel it")
    assert service.client.post(f"/v1/jobs/{job_id}/cancel").json()["status"] == "cancelled"
    assert service.client.delete(f"/v1/jobs/{job_id}").status_code == 200


def test_deleting_a_job_removes_its_samples_sessions_and_their_files(
    service: Service, problem: Problem
) -> None:
    kept, gone = service.submit(), service.submit(inputs=[{"prompt": "a"}, {"prompt": "b"}])
    kept_session = service.finish(*service.claim(kept), tensors=rows())
    ids = [service.finish(lease, tensors=rows()) for lease in service.claim(gone, 2)]
    store = service.services.store
    assert all(store.exists(f"sessions/{i}") for i in [*ids, kept_session])
    answer = service.client.delete(f"/v1/jobs/{gone}")
    assert answer.json() == {"id": gone, "object": "job", "deleted": True}
    assert [store.exists(f"sessions/{i}") for i in ids] == [True, True]
    service.drain()
    assert [store.exists(f"sessions/{i}") for i in ids] == [False, False]
    for path in (f"/v1/jobs/{gone}", f"/v1/jobs/{gone}/samples", f"/v1/jobs/{gone}/events",
                 f"/v1/activations/sessions/{ids[0]}"):  # fmt: skip
        problem(service.client.get(path), 404, "not_found")
    problem(service.client.delete(f"/v1/jobs/{gone}"), 404, "not_found")
    assert service.client.get(f"/v1/activations/sessions/{kept_session}").status_code == 200
    assert store.exists(f"sessions/{kept_session}")


def test_progress_rate_and_eta_of_a_running_job(service: Service) -> None:
    job_id = service.submit(inputs=[{"prompt": str(i)} for i in range(4)])
    service.submit(priority=9)
    for lease in service.claim(job_id, 2):
        time.sleep(0.05)
        service.finish(lease)
    assert service.client.get(f"/v1/jobs/{job_id}").json()["eta_seconds"] is None, "nobody holds the model"
    service.load_model()
    job = service.client.get(f"/v1/jobs/{job_id}").json()
    assert job["progress"] == {"total": 4, "completed": 2, "failed": 0}
    assert 0 < job["samples_per_second"] < 20.5
    assert job["eta_seconds"] == pytest.approx(2 / job["samples_per_second"])
    listed = [one["eta_seconds"] for one in service.client.get("/v1/jobs").json()["data"]]
    assert listed == [None, job["eta_seconds"]]
    service.client.post("/v1/queue/pause")
    assert service.client.get(f"/v1/jobs/{job_id}").json()["eta_seconds"] is None
