"""What belongs to others is not there: every route, every list, every reference, with another's key."""

import json
from itertools import product
from typing import Any

import pytest

from actograph.contract.roles import Role
from storage.index import ids
from tests.integration.api.conftest import Keyed, Problem, capture_spec
from tests.integration.api.ownership.conftest import Things
from tests.support.routes import operations, role_of

#: parameters that name things of one owner, with how to make an id that nothing has
NEW_IDS = {
    "job_id": ids.new_job_id,
    "sample_id": ids.new_sample_id,
    "session_id": ids.new_session_id,
    "file_id": ids.new_file_id,
    "vector_id": ids.new_vector_id,
    "sae_id": ids.new_sae_id,
    "batch_id": ids.new_batch_id,
}


def own_routes() -> list[tuple[str, str]]:
    """Routes below admin that name a thing."""
    return [
        route
        for route, operation in operations().items()
        if role_of(operation) is not Role.ADMIN and "{" in route[1] and "{model" not in route[1]
    ]


def test_every_route_answers_a_foreign_id_like_one_that_nothing_has(
    keyed: Keyed, things: Things, problem: Problem
) -> None:
    assert len(own_routes()) > 20
    things.ids["batch_id"] = things.make_batch()
    unknown = {name: make() for name, make in NEW_IDS.items()}
    for method, path in own_routes():
        answers = []
        for found in (things.ids, unknown):
            body = things.bodies.get((method, path), {}) if method in ("POST", "PATCH") else None
            address = things.place(path, found).replace("{layer}", "0")
            assert "{" not in address, f"{path}: say here what stands for its parameters"
            answer = keyed.client.request(method, address, json=body, headers=things.bob)
            text = answer.text
            for value in found.values():
                text = text.replace(value, "ID")
            answers.append((answer.status_code, text, sorted(answer.headers)))
        assert answers[0][0] == 404, (method, path, answers[0])
        assert answers[0] == answers[1], (method, path)
        if method == "GET" and not path.endswith("/events"):  # which does not end before its job
            seen = keyed.client.get(things.place(path, things.ids), headers=things.reader)
            assert seen.status_code in (200, 204, 422), (path, seen.text)


def test_lists_hold_what_the_owner_has(
    keyed: Keyed, things: Things, problem: Problem, subtests: pytest.Subtests
) -> None:
    for path, name in [
        ("/v1/jobs", "job_id"),
        ("/v1/jobs?tag=night", "job_id"),
        ("/v1/activations/sessions", "session_id"),
        ("/v1/activations/sessions?tag=night", "session_id"),
        ("/v1/activations/sessions?owner=alice", "session_id"),
        ("/v1/files?purpose=dataset", "file_id"),
        ("/v1/vectors", "vector_id"),
        ("/v1/saes", "sae_id"),
    ]:
        with subtests.test(path=path, name=name):
            for headers, count in ((things.alice, 1), (things.reader, 1), (things.root, 1), (things.bob, 0)):
                found = keyed.client.get(path, headers=headers).json()["data"]
                assert [item["id"] for item in found] == [things.ids[name]] * count
            after = {"after": things.ids[name]}
            found = problem(keyed.client.get(path, params=after, headers=things.bob), 422, "invalid_request")
            other = {"after": NEW_IDS[name]()}
            unknown = problem(keyed.client.get(path, params=other, headers=things.bob), 422)
            assert found["detail"].replace(after["after"], "") == unknown["detail"].replace(
                other["after"], ""
            )


def test_changes_of_many_sessions_reach_ones_own_alone(keyed: Keyed, things: Things) -> None:
    path = "/v1/activations/sessions"
    for chosen in ({"all": "true"}, {"job_id": things.ids["job_id"]}, {"owner": "alice"}):
        changed = keyed.client.patch(path, params=chosen, json={"pinned": True}, headers=things.bob)
        assert changed.json()["sessions"] == 0
        deleted = keyed.client.delete(path, params=chosen, headers=things.bob)
        assert deleted.json()["sessions"] == 0
        filters = {name: value for name, value in chosen.items() if name != "all"}
        counted = keyed.client.get(f"{path}/stats", params=filters, headers=things.bob)
        assert counted.json()["sessions"] == 0
    assert keyed.client.get(f"{path}/stats", headers=things.alice).json()["sessions"] == 1
    assert keyed.client.delete(path, params={"all": "true"}, headers=things.alice).json()["sessions"] == 1


def test_what_a_job_refers_to_must_be_ones_own(keyed: Keyed, things: Things, problem: Problem) -> None:
    rows = json.dumps({"question": "1 + 1?", "answer": "#### 2"}).encode() + b"\n"
    mine = {"file": ("a.jsonl", rows)}
    bobs_file = keyed.client.post("/v1/files", files=mine, headers=things.bob).json()["id"]
    evaluation = {"kind": "evaluation", "model": "demo"}
    capture = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "a"}]}

    def bodies(file_id: str, vector_id: str) -> dict[str, dict[str, Any]]:
        steer = [{"hook": "resid_post.1", "op": "add", "vector_id": vector_id, "coefficient": 1.0}]
        own, bobs = {"file_id": file_id}, {"file_id": bobs_file}
        conditions = [{"name": "a"}, {"name": "b", "interventions": steer}]
        return {
            "/dataset/file_id": evaluation | {"dataset": own},
            "/fewshot_dataset/file_id": evaluation
            | {"dataset": bobs, "fewshot_dataset": own, "num_fewshot": 1},
            "/interventions/0/vector_id": capture | {"interventions": steer},
            "/conditions/1/interventions/0/vector_id": capture | {"conditions": conditions},
            "/capture/readouts/0/vector": capture | {"capture": {"readouts": [{"vector": vector_id}]}},
        }

    foreign_bodies = bodies(things.ids["file_id"], things.ids["vector_id"])
    unknown = bodies(ids.new_file_id(), ids.new_vector_id())
    for path, (pointer, body) in product(("/v1/jobs", "/v1/estimate"), foreign_bodies.items()):

        def send(body: dict[str, Any], headers: dict[str, str], path: str = path) -> Any:
            return keyed.client.post(path, json=body, headers=headers)

        assert send(body, things.root).status_code in (200, 202)
        foreign = problem(send(body, things.bob), 422, pointer=pointer)
        missing = problem(send(unknown[pointer], things.bob), 422, pointer=pointer)
        assert foreign["error"]["code"] == missing["error"]["code"]
        assert len(foreign["detail"]) == len(missing["detail"])


def test_what_a_chat_or_a_batch_refers_to_must_be_ones_own(keyed: Keyed, things: Things) -> None:
    batch_file = {"file": ("batch.jsonl", b"{}")}
    sent = keyed.client.post("/v1/files", files=batch_file, data={"purpose": "batch"}, headers=things.alice)

    def bodies(file_id: str, vector_id: str) -> dict[str, dict[str, Any]]:
        steer = [{"hook": "resid_post.1", "op": "add", "vector_id": vector_id, "coefficient": 1.0}]
        message = {"role": "user", "content": "Hi"}
        return {
            "/v1/chat/completions": {"model": "demo", "messages": [message], "interventions": steer},
            "/v1/completions": {"model": "demo", "prompt": "Hi", "interventions": steer},
            "/v1/batches": {"input_file_id": file_id, "endpoint": "/v1/chat/completions"},
        }

    foreign = sent.json()["id"], things.ids["vector_id"]
    unknown = ids.new_file_id(), ids.new_vector_id()
    for path in bodies(*foreign):
        said = []
        for found in (foreign, unknown):
            answer = keyed.client.post(path, json=bodies(*found)[path], headers=things.bob)
            text = answer.text.replace(found[0], "ID").replace(found[1], "ID")
            said.append((answer.status_code, text, sorted(answer.headers)))
        assert said[0][0] in (400, 422), said[0]
        assert said[0] == said[1], path


def test_the_same_idempotency_key_of_two_owners_makes_two_jobs(keyed: Keyed, things: Things) -> None:
    spec = capture_spec()

    def submit(headers: dict[str, str]) -> str:
        answer = keyed.client.post("/v1/jobs", json=spec, headers=headers | {"Idempotency-Key": "k"})
        return str(answer.json()["id"])

    first, other = submit(things.alice), submit(things.bob)
    assert first != other
    assert (submit(things.alice), submit(things.bob)) == (first, other)


def test_what_was_made_without_keys_is_seen_by_admins_and_by_keys_of_local(keyed: Keyed) -> None:
    from storage.tables.models import JobRow

    root, local = keyed.headers(), keyed.headers(keyed.make_key("read", owner="local"))
    spec = capture_spec()
    job_id = keyed.client.post("/v1/jobs", json=spec, headers=root).json()["id"]
    for owner, count in (("local", 1), ("", 0)):
        with keyed.database.write() as session:
            session.get_one(JobRow, job_id).owner = owner
        assert len(keyed.client.get("/v1/jobs", headers=local).json()["data"]) == count
        assert len(keyed.client.get("/v1/jobs", headers=root).json()["data"]) == 1
