"""POST /v1/jobs: what is taken, what is refused, and that a refusal leaves the queue as it was."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from actograph.settings import Settings
from api import submission
from storage import samples
from storage.index import visible
from storage.jobs import jobs
from storage.tables.models import JobRow
from tests.integration.api.conftest import Problem, Service, Start
from tests.integration.api.conftest import capture_spec as capture
from tests.support.command_line import Run

GOOD_ROWS = [{"question": f"What is {i}?", "answer": f"It is {i}. #### {i}"} for i in range(5)]


def evaluation(dataset: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"kind": "evaluation", "model": "demo", "dataset": dataset} | changes


def test_a_capture_job_is_accepted_with_its_place_and_woken_once(service: Service) -> None:
    answer = service.client.post("/v1/jobs", json=capture(priority=2, tags=["a"], metadata={"k": "v"}))
    job = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/jobs/{job['id']}")
    assert int(answer.headers["retry-after"]) >= 1
    assert (job["status"], job["queue_position"]) == ("queued", 1)
    assert job["progress"] == {"total": 1, "completed": 0, "failed": 0}
    assert (job["priority"], job["tags"], job["metadata"]) == (2, ["a"], {"k": "v"})
    assert service.woken() == ["demo"]
    assert service.client.get(answer.headers["location"]).json() == job


def test_the_canonical_model_name_is_stored_whatever_alias_was_used(service: Service) -> None:
    assert service.client.post("/v1/jobs", json=capture(model="example/demo-model")).json()["model"] == "demo"
    assert service.client.post("/v1/jobs", json=capture(model="other")).json()["model"] == "other"


def test_hooks_are_resolved_where_the_structure_is_known_and_left_open_where_not(service: Service) -> None:
    spec = capture(capture={"points": ["mlp_in"], "layers": "1:3", "hooks": ["blocks.0.hook_resid_pre"]})
    before = service.client.post("/v1/jobs", json=spec).json()
    service.load_model()
    after = service.client.post("/v1/jobs", json=spec).json()
    off = service.client.post("/v1/jobs", json=capture(capture=None)).json()
    with service.database.read() as session:
        found = [jobs.get(session, job["id"]).hooks for job in (before, after, off)]
    assert found == [None, ["resid_pre.0", "mlp_in.1", "mlp_in.2"], []]


def test_a_job_shows_the_layers_that_null_stands_for(service: Service, url: str, run: Run) -> None:
    job = service.client.post("/v1/jobs", json=capture(capture={"points": ["mlp_in"]})).json()
    assert job["spec"]["capture"]["layers"] is None, "the model is not known yet"
    service.load_model()
    for given, layers in [({"points": ["mlp_in"]}, [1, 2, 3]), ({}, [1, 2, 3]), ({"hooks": ["embed"]}, None)]:
        job = service.client.post("/v1/jobs", json=capture(capture=given)).json()
        assert job["spec"]["capture"]["layers"] == layers
    code, _, said = run("jobs", "submit", "--model", "demo", "--prompt", "Hi", "--capture", "mlp_in")
    assert (code, said.splitlines()[-1][:23]) == (0, "captures layers 1, 2, 3")
    code, _, said = run("jobs", "submit", "--model", "demo", "--prompt", "Hi", "--capture", "mlp_in@1")
    assert "captures" not in said


def test_a_path_below_a_data_root_is_read_and_stored_resolved(service: Service, settings: Settings) -> None:
    root = Path(settings.data_roots[0])
    (root / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in GOOD_ROWS))
    (root / "link.jsonl").symlink_to("rows.jsonl")
    for path in (str(root / "rows.jsonl"), "rows.jsonl", "link.jsonl"):
        answer = service.client.post("/v1/jobs", json=evaluation({"path": path}))
        assert answer.status_code == 202, answer.text
        assert answer.json()["progress"]["total"] == 5
        assert answer.json()["spec"]["dataset"]["path"] == str(root.resolve() / "rows.jsonl")


def test_a_hub_dataset_is_left_to_the_worker(service: Service) -> None:
    job = service.client.post("/v1/jobs", json=evaluation({"hub": "openai/gsm8k", "config": "main"})).json()
    assert job["status"] == "queued"
    with service.database.read() as session:
        assert jobs.get(session, job["id"]).total is None
        assert samples.find(session, job["id"]) == ([], False)


def test_a_job_is_stored_although_the_broker_is_away(start: Start, settings: Settings) -> None:
    service = start(settings.model_copy(update={"broker_url": "redis://127.0.0.1:1/0"}))
    assert service.client.post("/v1/jobs", json=capture()).status_code == 202


# Refusals. Each case: the body, the code and the pointer that the answer must have.


@pytest.fixture
def refused(service: Service, problem: Problem) -> Iterator[Callable[..., dict[str, Any]]]:
    """Sends a body that must be refused; afterwards the queue must be as it was."""
    service.submit()
    before: list[Any] = []

    def send(
        body: Any, pointer: str | None, *, code: str = "invalid_request", says: str = ""
    ) -> dict[str, Any]:
        if not before:
            before.append(service.queue_state())
        return problem(service.client.post("/v1/jobs", json=body), 422, code, pointer, says=says)

    yield send
    assert service.queue_state() == before[0]


def test_a_field_at_fault_is_named(
    service: Service, refused: Callable[..., Any], subtests: pytest.Subtests
) -> None:
    service.load_model()
    for body, pointer in [
        (capture(temprature=0.5), "/temprature"),
        (capture(sampling={"temprature": 0.5}), "/sampling/temprature"),
        (capture(sampling={"max_tokens": "many"}), "/sampling/max_tokens"),
        (capture(capture={"points": ["resid_pst"]}), "/capture/points/0"),
        (capture(metadata={"a/b~c": 1}), "/metadata/a~1b~0c"),
        (capture(interventions=[{}]), "/interventions/0/hook"),
        (capture(inputs=[{"prompt": "x"}, {}]), "/inputs/1"),
        (capture(inputs=[{"prompt": "x", "messages": [{"role": "user", "content": "y"}]}]), "/inputs/0"),
        (capture(inputs=[{"messages": [{"role": "tool", "content": "y"}]}]), "/inputs/0/messages/0/role"),
        ({"kind": "capture", "inputs": [{"prompt": "x"}]}, "/model"),
        ({"model": "demo", "inputs": [{"prompt": "x"}]}, "/kind"),
        ({"kind": "evaluation", "model": "demo"}, "/dataset"),
        (evaluation({"file_id": "file_" + "0" * 32, "path": "x"}), "/dataset"),
        (evaluation({"path": "x"}, task="mmlu"), "/task"),
    ]:  # fmt: skip
        with subtests.test(body=body, pointer=pointer):
            refused(body, pointer)
    for spec, pointer, says in [
        ({"hooks": ["resid_post.9"]}, "/capture/hooks", "layers 0 to 3"),
        ({"hooks": ["resid_pots.1"]}, "/capture/hooks", "resid_post.1"),
        ({"hooks": ["__class__.output"]}, "/capture/hooks", "no such"),
        ({"points": ["router_logits"]}, "/capture/points", "no experts"),
        ({"points": ["resid_post"], "layers": [2, 4]}, "/capture/layers", "layer 4"),
        ({"points": ["resid_post"], "layers": "7:9"}, "/capture/layers", "selects none"),
    ]:
        with subtests.test(spec=spec, pointer=pointer, says=says):
            refused(capture(capture=spec), pointer, code="unknown_hook", says=says)
    missing, hub = {"file_id": "file_" + "0" * 32}, {"hub": "openai/gsm8k"}
    for body, field in (
        (evaluation(missing), "dataset"),
        (evaluation(hub, num_fewshot=1, fewshot_dataset=missing), "fewshot_dataset"),
        (evaluation(hub, task=missing), "task"),
    ):
        refused(body, f"/{field}/file_id", code="invalid_dataset")
    # beyond the context, with both numbers
    too_long = capture(sampling={"max_tokens": 1024})
    body = refused(too_long, "/sampling/max_tokens", code="context_length_exceeded")
    assert body["detail"].count("1024") == 2
    fits = service.client.post("/v1/estimate", json=capture(sampling={"max_tokens": 1023}))
    assert fits.status_code == 200


def test_what_needs_a_chat_template_is_refused_without_one(
    service: Service, refused: Callable[..., Any], settings: Settings
) -> None:
    service.load_model(chat_template=False)
    rows = Path(settings.data_roots[0]) / "rows.jsonl"
    rows.write_text(json.dumps(GOOD_ROWS[0]))
    messages = [{"role": "user", "content": "hi"}]
    dataset, conditions = {"path": str(rows)}, [{"name": "a"}, {"name": "b", "system": "You are helpful."}]
    for body, pointer in (
        (capture(inputs=[{"prompt": "x"}, {"messages": messages}]), "/inputs/1/messages"),
        (evaluation(dataset, apply_chat_template=True), "/apply_chat_template"),
        (evaluation(dataset, conditions=conditions), "/conditions/1/system"),
        (evaluation(dataset, tools="calculator"), "/tools"),
    ):
        refused(body, pointer, says="chat template")


def test_tools_are_refused_if_the_chat_template_does_not_offer_them(
    service: Service, refused: Callable[..., Any], settings: Settings
) -> None:
    rows = Path(settings.data_roots[0]) / "rows.jsonl"
    rows.write_text(json.dumps(GOOD_ROWS[0]))
    service.load_model(chat_template=True, tool_calls=False)
    for changes in ({"tools": "calculator"}, {"conditions": [{"name": "a", "tools": "calculator"}]}):
        body = evaluation({"path": str(rows)}, **changes)
        refused(body, "/tools", says="does not offer tools in the <tool_call> form")
    body["conditions"].append({"name": "b"})
    refused(body, "/tools", says="does not offer tools")
    without = {"conditions": [{"name": "a", "tools": "none"}]}
    shown = {"tools": "calculator", "tool_format": "annotations", "apply_chat_template": False}
    for has_template in (True, False):
        service.load_model(chat_template=has_template, tool_calls=False)
        for changes in (without, shown):
            body = evaluation({"path": str(rows)}, **changes)
            assert service.client.post("/v1/estimate", json=body).status_code == 200, changes


def test_no_path_leads_out_of_the_data_roots(
    refused: Callable[..., Any], settings: Settings, tmp_path: Path
) -> None:
    root = Path(settings.data_roots[0])
    outside = tmp_path / "secret.jsonl"
    outside.write_text(json.dumps(GOOD_ROWS[0]))
    (root / "link.jsonl").symlink_to(outside)
    (root / "folder").mkdir()
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    (root.parent / "data2").mkdir()
    (root.parent / "data2" / "x.jsonl").write_text(json.dumps(GOOD_ROWS[0]))
    messages = set()
    for path in (
        str(outside), "../../secret.jsonl", "link.jsonl", "/etc/passwd", "/nonexistent", "folder", "loop",
        "pipe",
        str(root.parent / "data2" / "x.jsonl"), "x" * 4096, "missing.jsonl", ".", "/",
    ):  # fmt: skip
        body = refused(evaluation({"path": path}), "/dataset/path", code="invalid_dataset")
        messages.add(body["detail"].replace(path, "PATH"))
    assert len(messages) == 1, "the message must not tell whether a file exists"


def test_a_bad_row_is_named(service: Service, refused: Callable[..., Any], subtests: pytest.Subtests) -> None:
    for rows, options, says in [
        ([*GOOD_ROWS[:2], {"answer": "#### 1"}], {}, "row 2: question is missing"),
        ([{"question": "q", "answer": "no number"}], {}, "row 0: answer"),
        ([{"question": 5, "answer": "#### 1"}], {}, "row 0: question is not a string"),
        (GOOD_ROWS, {"offset": 5}, "offset 5"),
        (GOOD_ROWS, {"offset": 10**30}, "no rows at offset"),
    ]:
        with subtests.test(rows=rows, options=options, says=says):
            file_id = service.upload(*rows)
            refused(
                evaluation({"file_id": file_id}, **options), "/dataset", code="invalid_dataset", says=says
            )


def test_too_few_rows_for_the_examples_are_refused(service: Service, refused: Callable[..., Any]) -> None:
    few, more = service.upload(*GOOD_ROWS[:2]), service.upload(*GOOD_ROWS)
    same = evaluation({"file_id": few}, num_fewshot=2)
    refused(same, "/num_fewshot", code="invalid_dataset", says="needs 3 rows")
    spec = evaluation({"file_id": more}, num_fewshot=3, fewshot_dataset={"file_id": few})
    refused(spec, "/num_fewshot", code="invalid_dataset", says="there are 2")


def test_a_job_of_too_many_samples_is_refused(
    service: Service, refused: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "MAX_SAMPLES", 9)
    file_id = service.upload(*GOOD_ROWS)
    refused(evaluation({"file_id": file_id}, epochs=2), None, says="9")
    refused(capture(epochs=10), None, says="9")
    fits = service.client.post("/v1/estimate", json=evaluation({"file_id": file_id}, limit=4, epochs=2))
    assert fits.status_code == 200


# Idempotency-Key


def test_a_repeated_key_gets_the_job_as_it_is_now(service: Service) -> None:
    headers = {"Idempotency-Key": "k1"}
    first = service.client.post("/v1/jobs", json=capture(), headers=headers)
    assert first.status_code == 202
    service.client.post(f"{first.headers['location']}/cancel")
    again = service.client.post("/v1/jobs", json=capture(), headers=headers)
    assert (again.status_code, again.json()["status"]) == (200, "cancelled")
    assert again.headers["location"] == first.headers["location"]
    assert service.queue_state()[:2] == (1, 1)
    assert len(service.messages()) == 1
    # a deleted job frees its key
    service.client.delete(first.headers["location"])
    assert service.client.post("/v1/jobs", json=capture(), headers=headers).status_code == 202


def test_a_key_in_flight_is_a_conflict(service: Service, problem: Problem) -> None:
    headers = {"Idempotency-Key": "k1"}
    service.client.post("/v1/jobs", json=capture(), headers=headers)
    with service.database.write() as session:  # its samples are still being stored
        session.execute(sa.update(JobRow).values(visible.unpublished(2.0**40)))
    again = service.client.post("/v1/jobs", json=capture(), headers=headers)
    problem(again, 409, "idempotency_in_flight")


def test_many_requests_with_one_key_at_once_make_one_job(service: Service) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def send(_: int) -> int:
        answer = service.client.post("/v1/jobs", json=capture(), headers={"Idempotency-Key": "k1"})
        return answer.status_code

    with ThreadPoolExecutor(8) as pool:
        statuses = set(pool.map(send, range(16)))
    assert 202 in statuses
    assert statuses <= {202, 200, 409}
    assert service.queue_state()[:2] == (1, 1)


# Body limits


def test_a_body_beyond_the_limit_is_refused_with_and_without_a_length(
    start: Start, settings: Settings, problem: Problem
) -> None:
    service = start(settings.model_copy(update={"max_body_bytes": 10_000}))
    body = json.dumps(capture(inputs=[{"prompt": "x" * 20_000}])).encode()
    headers = {"Content-Type": "application/json"}
    problem(service.client.post("/v1/jobs", content=body, headers=headers), 413, "payload_too_large")

    def chunks() -> Iterator[bytes]:
        for begin in range(0, len(body), 1000):
            yield body[begin : begin + 1000]

    answer = service.client.post("/v1/jobs", content=chunks(), headers=headers)
    assert "content-length" not in answer.request.headers
    problem(answer, 413, "payload_too_large", says="ACTOGRAPH_MAX_BODY_BYTES")
    assert service.queue_state() == (0, 0, [])
    service.submit()
