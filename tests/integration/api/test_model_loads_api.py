"""POST /v1/models/load: what is taken and refused, and how its progress is seen."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from actograph.contract.errors import ModelRefused
from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.openai import ChatCompletionRequest
from api.submit import submit
from storage.jobs import jobs
from storage.queue import claim, model_loads, workers
from tests.integration.api.conftest import Problem, Service, structure


def test_a_request_is_queued_before_all_else_and_seen_to_its_end(service: Service) -> None:
    worker_id = service.load_model()
    service.submit(priority=1)
    body = {
        "model_id": "example/other",
        "dtype": "bfloat16",
        "max_memory": {"0": "1GiB", "cpu": 5},
        "attn_implementation": "eager",
        "savepoints": [{"name": "mine", "selector": "resid_post.2"}],
    }
    answer = service.client.post("/v1/models/load", json=body)
    assert answer.status_code == 202, answer.text
    load = answer.json()
    assert (load["object"], load["model"], load["status"]) == ("model.load", "other", "queued")
    assert (load["ok"], load["savepoints"]) == (False, ["mine"])
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
        model_loads.complete(session, load["id"], structure("other"))
    ended = service.client.get(url).json()
    assert (ended["status"], ended["ok"], ended["savepoints"]) == ("completed", True, ["mine"])
    without = service.client.post("/models/load", json={"model_id": "example/other", "savepoints": None})
    assert (without.status_code, without.json()["savepoints"]) == (202, [])
    with service.database.read() as session:
        found = model_loads.options_in_force(session, "other")
        assert (found.dtype, found.max_memory) == ("bfloat16", {0: 1 << 30, "cpu": 5})
        assert model_loads.options_in_force(session, "demo") == ModelLoadOptions()


def test_a_client_may_wait_until_the_model_is_loaded_or_refused(service: Service, problem: Problem) -> None:
    worker_id = service.load_model()
    health = service.client.get("/health").json()
    assert health["models"] == health["loaded_models"] == ["demo"]

    def ask() -> Any:
        return service.client.post("/models/load", json={"model_id": "example/other", "wait": True})

    def take() -> str:
        """Begin the newest load once it is there."""
        asking = claim.Asking(worker_id=worker_id, held=None, may_load=["other"])
        while not asked.done():
            with service.database.write() as session:
                found = claim.choose(session, asking)
                if found is not None:
                    jobs.start(session, found.id)
                    assert model_loads.begin(session, found, worker_id)
                    return found.id
        raise AssertionError(asked.result().text)

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        load_id = take()
        assert not asked.done()
        with service.database.write() as session:
            model_loads.complete(session, load_id, structure("other"))
        answer = asked.result(60)
        assert answer.status_code == 200
        assert (answer.json()["id"], answer.json()["status"]) == (load_id, "completed")
        asked = pool.submit(ask)
        load_id = take()
        with service.database.write() as session:
            jobs.fail(session, load_id, ModelRefused("its weights are not numbers"))
        problem(asked.result(60), 422, "model_refused", says="its weights are not numbers")


def test_a_savepoint_is_a_hook_name_in_jobs_of_its_model(service: Service, problem: Problem) -> None:
    service.load_model(savepoints={"mine": "resid_post.2"})
    job_id = service.submit(capture={"hooks": ["mine"]})
    with service.database.read() as session:
        assert jobs.get(session, job_id).hooks == ["resid_post.2"]
    for asked, kept in (
        ({"store_activations": True}, ["resid_post.2"]),
        ({"store_activations": True, "capture": {"hooks": ["mlp_out.0"]}}, ["mlp_out.0"]),
        ({"store_activations": False, "capture": {"hooks": ["mlp_out.0"]}}, []),
        ({}, []),
    ):
        chat = {"model": "demo", "messages": [{"role": "user", "content": "a"}]} | asked
        row = submit(service.services, ChatCompletionRequest.model_validate(chat), "", starts_now=True)
        assert row.hooks == kept
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
