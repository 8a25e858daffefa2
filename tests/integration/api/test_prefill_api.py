"""Capture jobs that only read, at the API: what is taken, what is refused, and what is estimated."""

from typing import TYPE_CHECKING, Any

import pytest

from storage import samples
from storage.queue import workers

if TYPE_CHECKING:
    from tests.integration.api.conftest import Problem, Service

pytestmark = pytest.mark.integration

MIB = 1 << 20
#: one row of one hook of the demo model: 8 float32
ROW = 32


def reading(capture: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    spec = {"mode": "prefill", "layers": "all"} | (capture or {})
    inputs = [{"prompt": "x" * 400}, {"prompt": "y"}]
    return {"kind": "capture", "model": "demo", "inputs": inputs, "capture": spec} | changes


def stored_samples(service: "Service", job_id: str) -> list[tuple[int, dict[str, Any]]]:
    with service.database.read() as session:
        rows, _ = samples.find(session, job_id, limit=100)
        return [(row.sample_index, dict(row.input)) for row in rows]


def test_inputs_and_rows_of_a_dataset_become_samples(service: "Service") -> None:
    service.load_model()
    answer = service.client.post("/v1/jobs", json=reading())
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert (job["kind"], job["progress"]["total"]) == ("capture", 2)
    assert stored_samples(service, job["id"]) == [(0, {"prompt": "x" * 400}), (1, {"prompt": "y"})]

    file_id = service.upload({"body": "one"}, {"body": "two"}, {"body": "three"})
    dataset = reading(dataset={"file_id": file_id}, text_field="body", offset=1, limit=1)
    del dataset["inputs"]
    answer = service.client.post("/v1/jobs", json=dataset)
    assert answer.status_code == 202, answer.text
    assert stored_samples(service, answer.json()["id"]) == [(1, {"prompt": "two"})]


def test_mistakes_are_refused_with_their_field(service: "Service", problem: "Problem") -> None:
    service.load_model(chat_template=False)
    file_id = service.upload({"body": "one"})
    without = reading(dataset={"file_id": file_id})
    del without["inputs"]
    chat = [{"messages": [{"role": "user", "content": "a"}]}]
    for body, pointer, words in (
        (without, "/dataset", "row 0: text is missing"),
        (reading(capture={"positions": "generated"}), "/capture", "generates none"),
        (reading({"mode": "generate"}, truncate=True), "", "truncate needs capture.mode: prefill"),
        (reading(capture={"points": ["router_logits"]}), "/capture/points", "no experts"),
        (
            reading(inputs=chat),
            "/inputs/0/messages",
            "template",
        ),
        (reading(dataset={"file_id": file_id}), "", "exactly one of inputs and dataset"),
    ):
        found = problem(service.client.post("/v1/jobs", json=body), 422)
        (error,) = found["errors"]
        assert error["pointer"] == pointer and words in error["detail"], (body, found)


def loaded(service: "Service", host_buffer: int) -> None:
    worker_id = service.load_model()
    numbers = {"device_available_bytes": 64 * MIB, "host_available_bytes": 64 * MIB, "batch_cap": 16}
    with service.database.write() as session:
        workers.heartbeat(session, worker_id, numbers | {"host_buffer_bytes": host_buffer})


def test_an_estimate_tells_the_batch(service: "Service") -> None:
    # 100 tokens of a hook take 3,200 bytes: the buffer must hold those of one hook
    loaded(service, host_buffer=3 * 6400)
    body = reading(capture={"points": ["attn_in", "mlp_in"]}, inputs=[{"prompt": "x" * 400}] * 3)
    found = service.client.post("/v1/estimate", json=body).json()
    assert (found["samples"], found["generated_tokens"], len(found["hooks"])) == (3, 0, 8)
    assert found["prompt_tokens_longest"] == 100
    assert found["bytes_per_token"] == 8 * ROW
    assert 100 * 8 * ROW < found["bytes_per_sample"] < 100 * 8 * ROW + 8000
    assert found["batch_size"] == 6
    assert found["fits"] is True
    # on a CPU the same memory holds the forward pass, the buffer, and rows of six hooks on their way to it
    assert found["host"]["needed"] - found["device"]["needed"] == 3 * 6400 + 6 * 6 * 3200


def test_captures_that_only_read_generate_nothing(service: "Service") -> None:
    loaded(service, host_buffer=MIB)
    body = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "x" * 40}]}
    generating = service.client.post("/v1/estimate", json=body).json()
    assert generating["generated_tokens"] == 512
    read = service.client.post("/v1/estimate", json=body | {"capture": {"mode": "prefill"}}).json()
    assert read["generated_tokens"] == 0
    assert read["bytes_per_sample"] < generating["bytes_per_sample"]
