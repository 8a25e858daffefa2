"""Readouts by every reader, and captures that name vectors: with full ids, or refused by field."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.client import Client, open_folder
from actograph.contract.analyses import SessionQuery
from actograph.contract.openai import ChatCompletionRequest
from api.kinds import KINDS
from evals import plans
from storage.analyses import queries
from storage.jobs import jobs
from storage.queue import workers
from storage.sessions.writer import TensorRows
from storage.tables.models import SampleRow
from tests.integration.api.conftest import Problem, Service

NAME = "readout:career"
VALUES = np.array([[0.5], [-1], [2], [0], [3], [-4]], np.float32)


def capture_spec(**changes: Any) -> dict[str, Any]:
    return {"kind": "capture", "model": "demo", "inputs": [{"prompt": "p"}]} | changes


def store(service: Service, name: str = "career", hook: str = "resid_post.1", **changes: Any) -> str:
    body = {"name": name, "hook": hook, "vector": [1.0] * 8} | changes
    answer = service.client.post("/v1/vectors", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_values_are_read_by_every_reader(service: Service, url: str, tmp_path: Path) -> None:
    service.load_model()
    job_id = service.submit(inputs=[{"prompt": "prompt"}])
    (lease,) = service.claim(job_id, 1)
    rows = np.random.default_rng(0).normal(size=(6, 8)).astype("<f4")
    tensors = {
        "resid_post.1": TensorRows("resid_post.1", "F32", (6, 8), 0, rows),
        NAME: TensorRows(NAME, "F32", (6, 1), 0, VALUES),
    }
    service.finish(lease, tensors=tensors)
    with Client(url) as client:
        job = client.jobs.get(job_id)
        (session,) = job.sessions()
        for one in (session, open_folder(session.download(tmp_path))):
            assert NAME in one and np.array_equal(one[NAME][:], VALUES)
            assert np.array_equal(one.tokens_of(NAME), np.arange(6))
        assert np.array_equal(job.matrix(NAME, positions="all").features, VALUES)
        assert job.matrix(NAME, positions="all", reduce="max").features.tolist() == [[3]]
    path = f"/v1/activations/sessions/{session.id}/tensors/{NAME}"
    assert service.client.get(path, params={"format": "json"}).json()["data"] == VALUES.tolist()
    page = service.client.get(f"/sessions/{session.id}", headers={"accept": "text/html"}).text
    assert NAME in page
    with service.database.write() as index:
        short = {
            "tokens": 3,
            "generated": True,
            "max": 3,
            "min": -4,
            "mean": -0.5,
            "last": -4,
            "max_token": 4,
        }
        row = index.get(SampleRow, lease.id)
        assert row is not None
        row.readouts = {"career": short | {"max_token": 4, "stopped": True}}
    page = service.client.get(f"/jobs/{job_id}/samples/{lease.id}", headers={"accept": "text/html"}).text
    assert "Readout career" in page and "largest of 3, ended the sample" in page
    (sample,) = service.client.get(f"/v1/jobs/{job_id}/samples").json()["data"]
    assert sample["readouts"]["career"]["max_token"] == 4
    for of in ("norm", "channel"):
        asked = {"hook": NAME, "of": of, "channel": 0, "start": 0, "stop": 6}
        shown = service.client.get(f"/sessions/{session.id}/values", params=asked)
        assert np.frombuffer(shown.content, "<f4").tolist() == VALUES[:, 0].tolist()
    with service.database.read() as index:
        query = SessionQuery(jobs=[job_id])
        assert list(queries.survey(index, query, [], kind="probe").tensors) == ["resid_post.1"]
        assert list(queries.survey(index, query, [NAME], kind="probe").tensors) == [NAME]


def test_captures_name_vectors_and_keep_them(service: Service, problem: Problem) -> None:
    """Jobs and chats are stored with full ids; hooks of a job name its readouts."""
    service.load_model()
    made = store(service, model="demo")
    store(service, hook="resid_post.2")
    for reference, more in (
        ("career@blocks.1.hook_resid_post", {}),
        ("career", {"hook": "resid_post.1"}),
        (made[:14], {"name": "first", "bias": -1}),
    ):
        capture = {"readouts": [{"vector": reference} | more]}
        job_id = service.submit(capture=capture)
        shown = service.client.get(f"/v1/jobs/{job_id}").json()
        (stored,) = shown["spec"]["capture"]["readouts"]
        assert stored["vector"] == made
        with service.database.read() as session:
            assert jobs.get(session, job_id).hooks == [f"readout:{more.get('name', 'career')}"]
        problem(service.client.delete(f"/v1/vectors/{made}"), 409, "conflict", says=job_id)
        service.client.post(f"/v1/jobs/{job_id}/cancel")
        chat = {"model": "demo", "messages": [{"role": "user", "content": "a"}], "capture": capture}
        asked = KINDS["chat"].resolve(service.services, ChatCompletionRequest.model_validate(chat))
        assert asked.capture is not None and asked.capture.readouts[0].vector == made
    assert service.client.delete(f"/v1/vectors/{made}").json()["deleted"]


def test_a_capture_by_a_wrong_vector_is_refused_by_field(
    service: Service, problem: Problem, subtests: pytest.Subtests
) -> None:
    service.load_model()
    service.load_model("other")
    store(service, model="demo")
    store(service, "wide", vector=[1.0] * 24)
    store(service, "biased", metadata={"bias": "much"})
    store(service, "twice")
    store(service, "twice", hook="resid_post.2")
    whole, first = "/capture", "/capture/readouts/0"
    for capture, more, pointer, says in [
        ({"vector": "carer"}, {}, f"{first}/vector", "there is no vector carer. Did you mean 'career'?"),
        ({"vector": "vec_" + "0" * 32}, {}, f"{first}/vector", "it was deleted, or is another owner's"),
        ({"vector": "no spaces"}, {}, f"{first}/vector", "names no vector"),
        ({"vector": "twice"}, {}, f"{first}/vector", "name one with its hook, such as twice@resid_post."),
        ({"vector": "career"}, {"model": "other"}, f"{first}/vector", "stored for the model demo, not other"),
        ({"vector": "career@resid_post.1", "hook": "resid_post.9"}, {}, f"{first}/hook", "layers 0 to 3"),
        ({"vector": "wide"}, {}, f"{first}/hook", "(wide) has 24 numbers, resid_post.1 is 8 wide"),
        ({"vector": "biased"}, {}, f"{first}/bias", "is 'much', which is no finite number"),
        ({"vector": "career", "name": "no spaces"}, {}, f"{first}/name", "no spaces"),
        ([{"vector": "career"}] * 2, {}, "/capture/readouts/1/name", "two readouts are named career"),
        ({"vector": "career", "reduce": "mean"}, {}, whole, "readouts are stored row by row"),
        ({"vector": "career", "stats": True}, {}, whole, "readouts are stored row by row"),
    ]:
        with subtests.test(capture=capture, more=more):
            given = capture if isinstance(capture, list) else [capture]
            own = {"reduce", "stats"}
            spec: dict[str, Any] = {
                "readouts": [{k: v for k, v in one.items() if k not in own} for one in given],
                **{k: v for one in given for k, v in one.items() if k in own},
            }
            answer = service.client.post("/v1/jobs", json=capture_spec(capture=spec) | more)
            problem(answer, 422, pointer=pointer, says=says)
    fine = {"readouts": [{"vector": "career"}, {"vector": "career", "name": "again", "bias": 2}]}
    assert service.client.post("/v1/jobs", json=capture_spec(capture=fine)).status_code == 202


def test_an_estimate_has_the_values_and_the_vectors(service: Service) -> None:
    worker_id = service.load_model(kv_bytes_per_token=1024)
    store(service, model="demo")
    with service.database.write() as session:
        numbers = {"run_bytes": 1 << 30, "host_available_bytes": 1 << 30, "slots": 4}
        workers.heartbeat(session, worker_id, numbers)

    def estimate(*names: str) -> Any:
        wanted = [{"vector": "career", "name": name} for name in names]
        capture = {"hooks": ["resid_post.0"], "readouts": wanted, "mode": "prefill"}
        body = capture_spec(capture=capture, inputs=[{"prompt": "x" * 40}])
        return service.client.post("/v1/estimate", json=body).json()

    plain, two = estimate(), estimate("a", "b")
    assert two["bytes_per_token"] - plain["bytes_per_token"] == 8
    size = plans.readout_bytes([8, 8])
    assert size == 8 * (16 + 2 + 64 * 8)
    assert two["host"]["needed"] - plain["host"]["needed"] == size + plain["slots"] * 64 * 8


def test_a_stop_that_could_not_be_exact_is_refused(
    service: Service, problem: Problem, subtests: pytest.Subtests
) -> None:
    service.load_model()
    store(service, model="demo")
    rows = service.upload({"question": "1 + 1?", "answer": "#### 2"})
    evaluation = {"kind": "evaluation", "model": "demo", "dataset": {"file_id": rows}}
    late = "values of generated tokens while they come"
    readouts = [{"vector": "career", "stop_below": -1}]
    for body, more, says in [
        (capture_spec(), {"mode": "prefill"}, "this job generates none"),
        (capture_spec(), {"positions": "prompt"}, late),
        (capture_spec(), {"positions": "last"}, late),
        (capture_spec(), {"positions": "last_prompt"}, late),
        (capture_spec(), {"positions": "generated[-5:]"}, late),
        (evaluation | {"tools": "calculator"}, {}, "do not go with tools"),
        (evaluation | {"tools": "calculator", "tool_format": "annotations"}, {}, "do not go with tools"),
        ({"kind": "replay", "sessions": {"jobs": ["job_" + "0" * 32]}}, {}, "this job generates none"),
    ]:
        with subtests.test(says=says, more=more):
            answer = service.client.post("/v1/jobs", json=body | {"capture": {"readouts": readouts} | more})
            problem(answer, 422, says=says)
    for more in ({}, {"positions": "generated"}, {"positions": "answer"}):
        body = capture_spec(capture={"readouts": readouts} | more)
        assert service.client.post("/v1/jobs", json=body).status_code == 202
    body = evaluation | {"capture": {"readouts": readouts}}
    assert service.client.post("/v1/jobs", json=body).status_code == 202


def test_an_intervention_that_could_never_begin_is_refused(
    service: Service, problem: Problem, subtests: pytest.Subtests
) -> None:
    service.load_model()
    store(service, model="demo")
    rows = service.upload({"question": "1 + 1?", "answer": "#### 2"})
    evaluation = {"kind": "evaluation", "model": "demo", "dataset": {"file_id": rows}}
    after = {"readout": "career", "above": 1}
    fine = {"readouts": [{"vector": "career"}]}
    named = {"readouts": [{"vector": "career", "name": "alarm"}]}
    late = "values of generated tokens while they come"
    for body, capture, change, says in [
        (capture_spec(), {}, {}, "has no readout career; add it to capture.readouts"),
        (capture_spec(), named, {}, "has no readout career; there are alarm"),
        (evaluation, None, {}, "has no readout career; add it to capture.readouts"),
        (capture_spec(), fine, {"above": None}, "give above, below or both"),
        (capture_spec(), fine | {"mode": "prefill"}, {}, "this job generates none"),
        (capture_spec(), fine | {"positions": "last"}, {}, late),
        (evaluation | {"tools": "calculator"}, fine, {}, "do not go with tools"),
    ]:
        with subtests.test(says=says, capture=capture):
            waits = {name: value for name, value in (after | change).items() if value is not None}
            edit = {"hook": "resid_post.1", "op": "zero", "after": waits}
            where = "/conditions/0/interventions/0/after" if body["kind"] == "evaluation" else ""
            own = (
                {"conditions": [{"name": "c", "interventions": [edit]}]}
                if where
                else {"interventions": [edit]}
            )
            answer = service.client.post("/v1/jobs", json=body | own | {"capture": capture})
            problem(answer, 422, says=says)
            assert answer.json()["errors"][0]["pointer"].startswith(where or "/interventions/0/after")
    edit = {"hook": "resid_post.1", "op": "zero", "after": after}
    for capture in (fine, fine | {"positions": "generated"}):
        body = capture_spec(capture=capture, interventions=[edit])
        assert service.client.post("/v1/jobs", json=body).status_code == 202
