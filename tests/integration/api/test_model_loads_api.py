"""POST /v1/models/load: what is taken and refused, and how its progress is seen."""

from typing import Any

import pytest

from actograph.contract.model_loads import ModelLoadOptions
from storage.jobs import jobs
from storage.queue import model_loads, workers
from tests.integration.api.conftest import Problem, Service, structure


@pytest.mark.parametrize("path", ["/v1/models/load", "/models/load"])
def test_a_request_is_queued_before_all_else_and_seen_to_its_end(service: Service, path: str) -> None:
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
        jobs.start(session, row.id)
        assert model_loads.begin(session, row, worker_id)
        workers.set_busy(session, worker_id, row.id)
    url = f"/v1/models/load/{load['id']}"
    shown = service.client.get(url).json()
    assert (shown["status"], shown["worker_id"]) == ("in_progress", worker_id)
    with service.database.write() as session:
        model_loads.complete(session, load["id"])
    assert service.client.get(url).json()["status"] == "completed"
    with service.database.read() as session:
        found = model_loads.options_in_force(session, "other")
        assert (found.dtype, found.max_memory) == ("bfloat16", {0: 1 << 30, "cpu": 5})
        assert model_loads.options_in_force(session, "demo") == ModelLoadOptions()


def test_a_savepoint_is_a_hook_name_in_jobs_of_its_model(service: Service, problem: Problem) -> None:
    service.load_model(savepoints={"mine": "resid_post.2"})
    job_id = service.submit(capture={"hooks": ["mine"]})
    with service.database.read() as session:
        assert jobs.get(session, job_id).hooks == ["resid_post.2"]
    body = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "a"}], "capture": {"hooks": ["yours"]}}
    problem(service.client.post("/v1/jobs", json=body), 422, "unknown_hook", "/capture/hooks")


def test_the_structure_is_that_of_the_loaded_model(service: Service, problem: Problem) -> None:
    def shown(**query: str) -> Any:
        return service.client.get("/v1/model/structure", params=query).json()

    problem(service.client.get("/v1/model/structure"), 404, "not_found", says="no worker has loaded demo")
    worker_id = service.load_model()
    assert (shown()["model"], shown()["num_layers"]) == ("demo", 4)
    assert shown(model="example/demo-model") == shown()
    for name in ("other", "none"):
        problem(service.client.get("/v1/model/structure", params={"model": name}), 404, "not_found")
    # as when a load of `other` completes: the same worker holds it in place of the former model
    for name in ("other", "demo", "other"):
        with service.database.write() as session:
            workers.set_ready(session, worker_id, structure(name))
        assert (shown()["model"], shown(model="demo")["model"]) == (name, "demo")
    with service.database.write() as session:
        workers.set_offline(session, worker_id)
    assert shown()["model"] == "demo", "the service's own if no worker is alive"
