"""POST /v1/models/load: what is taken and refused, and how its progress is seen."""

from typing import TYPE_CHECKING

import pytest

from actograph.contract.errors import ModelRefused
from actograph.contract.model_loads import ModelLoadOptions
from storage.jobs import jobs
from storage.queue import model_loads, workers
from tests.integration.api.conftest import structure

if TYPE_CHECKING:
    from tests.integration.api.conftest import Problem, Service

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("path", ["/v1/models/load", "/models/load"])
def test_a_request_is_queued_before_all_else_and_seen_to_its_end(service: "Service", path: str) -> None:
    worker_id = service.load_model()
    service.submit(priority=1)
    body = {
        "model_id": "example/other",
        "dtype": "bfloat16",
        "max_memory": {"0": "1GiB", "cpu": 5},
        "attn_implementation": "eager",
    }
    answer = service.client.post(path, json=body)
    assert answer.status_code == 202, answer.text
    load = answer.json()
    assert (load["object"], load["model"], load["status"]) == ("model.load", "other", "queued")
    assert load["options"]["max_memory"] == {"0": 1 << 30, "cpu": 5}
    assert service.woken() == ["demo", "other"]
    assert service.client.get("/v1/queue").json()["next"][0] == load["id"]

    with service.database.write() as session:
        row = jobs.get(session, load["id"])
        assert model_loads.begin(session, row, worker_id)
        workers.set_busy(session, worker_id, row.id)
    url = f"/v1/models/load/{load['id']}"
    shown = service.client.get(url).json()
    assert (shown["status"], shown["worker_id"]) == ("in_progress", worker_id)
    with service.database.write() as session:
        assert not model_loads.begin(session, jobs.get(session, load["id"]), "wrk_other"), "one loads it"
        model_loads.complete(session, load["id"])
    assert service.client.get(url).json()["status"] == "completed"
    with service.database.read() as session:
        found = model_loads.options_in_force(session, "other")
        assert (found.dtype, found.max_memory) == ("bfloat16", {0: 1 << 30, "cpu": 5})
        assert model_loads.options_in_force(session, "demo") == ModelLoadOptions()


def test_a_refusal_keeps_its_reason_and_changes_nothing(service: "Service") -> None:
    load = service.client.post("/v1/models/load", json={"model_id": "other", "dtype": "float16"}).json()
    with service.database.write() as session:
        model_loads.begin(session, jobs.get(session, load["id"]), "wrk_a")
        jobs.fail(session, load["id"], ModelRefused("it does not fit"))
    shown = service.client.get(f"/v1/models/load/{load['id']}").json()
    assert shown["status"] == "failed"
    assert (shown["error"]["type"], shown["error"]["message"]) == ("model_refused", "it does not fit")
    with service.database.read() as session:
        assert model_loads.options_in_force(session, "other") == ModelLoadOptions()


def test_a_load_that_kills_its_workers_ends(service: "Service") -> None:
    load_id = service.client.post("/v1/models/load", json={"model_id": "other"}).json()["id"]
    for attempt in range(model_loads.MAX_ATTEMPTS):
        assert service.next_job("other") == load_id
        with service.database.write() as session:
            assert model_loads.begin(session, jobs.get(session, load_id), f"wrk_{attempt}")
    with service.database.write() as session:
        assert not model_loads.begin(session, jobs.get(session, load_id), "wrk_last")
    shown = service.client.get(f"/v1/models/load/{load_id}").json()
    assert shown["status"] == "failed"
    assert "ended 2 times" in shown["error"]["message"]
    assert service.next_job("other") is None


def test_what_cannot_be_loaded_is_refused_at_once(service: "Service", problem: "Problem") -> None:
    service.load_model()
    before = service.queue_state()
    post = service.client.post
    problem(post("/v1/models/load", json={"model_id": "nobody/none"}), 422, "model_not_found", "/model_id")
    wrong = {"model_id": "demo", "device_map": {"model.layers.0": "tpu"}}
    problem(post("/v1/models/load", json=wrong), 422, "invalid_request", "/device_map")
    savepoints = [{"name": "mine", "selector": "resid_post.99"}]
    answer = post("/v1/models/load", json={"model_id": "demo", "savepoints": savepoints})
    problem(answer, 422, "unknown_hook", "/savepoints/0/selector", says="layers 0 to 3")
    problem(post("/v1/models/load", json={"model_id": "demo", "eval": "1"}), 422, "invalid_request", "/eval")
    assert service.queue_state() == before
    problem(service.client.get("/v1/models/load/none"), 404, "not_found")
    job_id = service.submit()
    problem(service.client.get(f"/v1/models/load/{job_id}"), 404, "not_found", says="/v1/jobs/")


def test_a_savepoint_is_a_hook_name_in_jobs_of_its_model(service: "Service", problem: "Problem") -> None:
    service.load_model(savepoints={"mine": "resid_post.2"})
    job_id = service.submit(capture={"hooks": ["mine"]})
    with service.database.read() as session:
        assert jobs.get(session, job_id).hooks == ["resid_post.2"]
    body = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "a"}], "capture": {"hooks": ["yours"]}}
    problem(service.client.post("/v1/jobs", json=body), 422, "unknown_hook", "/capture/hooks")


def test_the_structure_is_that_of_the_loaded_model(service: "Service") -> None:
    def shown(**query: str) -> str:
        return str(service.client.get("/v1/model/structure", params=query).json()["model"])

    worker_id = service.load_model()
    assert shown() == "demo"
    # as when a load of `other` completes: the same worker holds it in place of the former model
    with service.database.write() as session:
        workers.set_ready(session, worker_id, structure("other"))
    assert shown() == "other"
    assert shown(model="demo") == "demo"
    with service.database.write() as session:
        workers.set_ready(session, worker_id, structure("demo"))
    assert shown() == "demo"
    with service.database.write() as session:
        workers.set_ready(session, worker_id, structure("other"))
        workers.set_offline(session, worker_id)
    assert shown() == "demo", "the service's own if no worker is alive"
