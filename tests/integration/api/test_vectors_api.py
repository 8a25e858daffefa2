"""/v1/vectors, and jobs whose interventions are checked before they are queued."""

from typing import Any

import pytest

from actograph.contract.interventions import vector_sha256
from tests.integration.api.conftest import Problem, Service

WIDTH = 8  # of the model in conftest
VECTOR = [float(i) for i in range(WIDTH)]


def new(**changes: Any) -> dict[str, Any]:
    return {"name": "happy", "hook": "resid_post.1", "vector": VECTOR} | changes


def store(service: Service, **changes: Any) -> Any:
    answer = service.client.post("/v1/vectors", json=new(**changes))
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_a_vector_is_stored_listed_read_and_deleted(service: Service, problem: Problem) -> None:
    service.load_model()
    made = store(service, model="demo", hook="blocks.1.hook_resid_post", metadata={"layer": "1"})
    assert made["object"] == "vector"
    assert (made["hook"], made["width"], made["model"]) == ("resid_post.1", WIDTH, "demo")
    assert made["sha256"] == vector_sha256(VECTOR)
    assert "vector" not in made
    other = store(service, name="sad")
    assert other["model"] is None
    listed = service.client.get("/v1/vectors").json()
    assert [v["id"] for v in listed["data"]] == [other["id"], made["id"]]
    assert (listed["object"], listed["first_id"], listed["has_more"]) == ("list", other["id"], False)
    assert all("vector" not in v for v in listed["data"])
    named = service.client.get("/v1/vectors", params={"name": "sad"}).json()
    assert [v["id"] for v in named["data"]] == [other["id"]]
    read = service.client.get(f"/v1/vectors/{made['id']}").json()
    assert read == made | {"vector": VECTOR}
    assert service.client.get(f"/v1/interventions/{made['id']}").json() == read, "the name of older scripts"
    gone = service.client.delete(f"/v1/vectors/{made['id']}").json()
    assert gone == {"id": made["id"], "object": "vector", "deleted": True}
    problem(service.client.get(f"/v1/vectors/{made['id']}"), 404, "not_found")
    problem(service.client.delete(f"/v1/vectors/{made['id']}"), 404, "not_found")
    problem(service.client.get("/v1/vectors/..%2F..%2Fetc"), 404)
    problem(service.client.get("/v1/vectors/job_1"), 404, says="no vector job_1")
    problem(service.client.get("/v1/vectors/vec%00"), 422, says="NUL")


def test_a_wrong_vector_is_refused_by_field(
    service: Service, problem: Problem, subtests: pytest.Subtests
) -> None:
    for change, pointer, says in [
        ({"name": "no spaces"}, "/name", "Write a name of up to 64 letters"),
        ({"vector": VECTOR[:3]}, "/vector", "3 numbers, resid_post.1 is 8 wide"),
        ({"vector": ["x"]}, "/vector/0", "number"),
        ({"vector": [1e300]}, "/vector/0", "less than"),
        ({"hook": "resid_post.9"}, "/hook", "layers 0 to 3"),
        ({"hook": "router_logits.0"}, "/hook", "no experts"),
        ({"model": "elsewhere"}, "/model", "elsewhere"),
        ({"sha256": "x"}, "/sha256", "unknown field"),
    ]:
        with subtests.test(change=change, pointer=pointer, says=says):
            service.load_model()
            answer = service.client.post("/v1/vectors", json=new(model="demo") | change)
            problem(answer, 422, pointer=pointer, says=says)
            assert service.client.get("/v1/vectors").json()["data"] == []


def test_a_job_holds_its_vectors_and_has_a_sample_per_condition(service: Service, problem: Problem) -> None:
    service.load_model()
    vector_id = store(service)["id"]
    steered = {"hook": "resid_post.1", "op": "add", "vector_id": vector_id, "positions": "generated"}
    conditions = [{"name": "plain"}, {"name": "steered", "interventions": [steered]}]
    job_id = service.submit(inputs=[{"prompt": "a"}, {"prompt": "b"}], conditions=conditions, epochs=2)
    shown = service.client.get(f"/v1/jobs/{job_id}").json()
    assert shown["progress"]["total"] == 8
    assert shown["spec"]["conditions"][1]["interventions"][0]["vector_id"] == vector_id
    samples = service.client.get(f"/v1/jobs/{job_id}/samples", params={"limit": 100}).json()["data"]
    seeds: dict[tuple[int, int], set[int]] = {}
    for sample in samples:
        seeds.setdefault((sample["sample_index"], sample["epoch"]), set()).add(sample["seed"])
    assert {s["condition"] for s in samples} == {"plain", "steered"}
    assert len(seeds) == 4 and all(len(found) == 1 for found in seeds.values())
    answer = service.client.delete(f"/v1/vectors/{vector_id}")
    problem(answer, 409, "conflict", says=job_id)
    service.client.post(f"/v1/jobs/{job_id}/cancel")
    assert service.client.delete(f"/v1/vectors/{vector_id}").json()["deleted"]
