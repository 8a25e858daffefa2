"""Kinds of jobs: the same steps for each, rows that are read once, and one shape of a chat."""

import json
from typing import Any

import pytest
import sqlalchemy as sa

from actograph.contract.chat_job import ChatInput
from actograph.contract.job_specs import JOB_KINDS
from actograph.contract.openai import ChatCompletionRequest, CompletionRequest
from api.kinds import KINDS
from api.openai.batches import advance
from api.submit import submit
from storage.files import dataset_sources
from storage.jobs import batches
from storage.tables.models import SampleRow
from tests.integration.api.conftest import Service

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SAID = {"messages": [{"role": "user", "content": "What is 3 + 4?"}]}
ROWS = [{"question": f"{n} + 1?", "answer": f"#### {n + 1}"} for n in range(5)]


def test_every_kind_has_the_three_steps() -> None:
    assert set(KINDS) == {*JOB_KINDS, "chat"}
    for kind in KINDS.values():
        assert all(callable(getattr(kind, step)) for step in ("resolve", "check", "expand"))


def test_each_dataset_is_read_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if few-shot examples are drawn from the tested rows."""
    tested, examples = service.upload(*ROWS), service.upload(*ROWS)
    read: list[str] = []
    real = dataset_sources.read

    def counted(ref: Any, *given: Any, **options: Any) -> Any:
        read.append(ref.file_id)
        return real(ref, *given, **options)

    monkeypatch.setattr(dataset_sources, "read", counted)
    body = {"kind": "evaluation", "model": "demo", "dataset": {"file_id": tested}, "offset": 1, "limit": 2}
    for changes, files in (
        ({}, [tested]),
        ({"num_fewshot": 2}, [tested]),
        ({"num_fewshot": 2, "fewshot_dataset": {"file_id": tested}}, [tested]),
        ({"num_fewshot": 2, "fewshot_dataset": {"file_id": examples}}, [tested, examples]),
    ):
        read.clear()
        answer = service.client.post("/v1/jobs", json=body | changes)
        assert answer.status_code == 202, answer.text
        assert read == files
        with service.database.read() as session:
            of_job = sa.select(SampleRow).where(SampleRow.job_id == answer.json()["id"])
            assert [row.sample_index for row in session.scalars(of_job)] == [1, 2]


def test_a_chat_has_one_shape_from_its_request_to_its_samples(service: Service) -> None:
    service.load_model()
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    bodies = (
        (CHAT, SAID | {"max_tokens": 4, "logit_bias": {"3": 1.0}, "n": 2}),
        (CHAT, SAID | {"tools": [tool], "tool_choice": "required", "temperature": 0.5, "stop": "x"}),
        (TEXT, {"prompt": "3 + 4 =", "logprobs": 2, "echo": True, "max_tokens": 0}),
        (TEXT, {"prompt": [1, 2, 3], "seed": 5, "structured_outputs": {"choice": ["a", "b"]}}),
    )
    for url, body in bodies:
        form = ChatCompletionRequest if url == CHAT else CompletionRequest
        request = form.model_validate({"model": "demo", "seed": 7} | body)
        (asked,) = request.inputs(seed=request.seed or 0, chat_max_tokens=2048)
        job = submit(service.services, request, "")
        line = {"custom_id": "a", "method": "POST", "url": url, "body": {"model": "demo", "seed": 7} | body}
        file_id = service.upload_bytes("in.jsonl", json.dumps(line).encode(), data={"purpose": "batch"})
        wanted = {"input_file_id": file_id, "endpoint": url, "completion_window": "24h"}
        batch = service.client.post("/v1/batches", json=wanted).json()
        advance(service.services, batch["id"])
        with service.database.read() as session:
            of_chat, of_line = (
                session.scalars(sa.select(SampleRow).where(SampleRow.job_id == job_id)).all()
                for job_id in (job.id, batches.get(session, batch["id"]).job_id)
            )
        assert [row.input for row in of_chat] == [asked.stored] * request.choices
        assert [row.seed for row in of_chat] == [(request.seed or 0) + n for n in range(request.choices)]
        own = {"custom_id": "a", "choices": request.choices, "interventions": [], "tags": [], "metadata": {}}
        assert [row.input for row in of_line] == [asked.stored | own] * request.choices
        for row in (*of_chat, *of_line):
            assert ChatInput.model_validate(row.input).stored == row.input


def test_errors_of_a_chat_name_the_field_of_its_request(service: Service, subtests: pytest.Subtests) -> None:
    service.load_model(chat_template=False, context_length=8)
    long = {"temperature": 0, "logit_bias": {"500": 1}}
    for url, body, param in (
        (CHAT, SAID, "messages"),
        ("/v1/responses", {"input": "What is 3 + 4?"}, "input"),
        (TEXT, {"prompt": "a"} | long, "logit_bias"),
        (TEXT, {"prompt": "a", "max_tokens": 9}, "max_tokens"),
        ("/v1/responses", {"input": "a", "max_output_tokens": 9}, "max_output_tokens"),
        (TEXT, {"prompt": "a", "capture": {"hooks": ["none.1"]}}, "capture.hooks"),
    ):
        with subtests.test(url=url, param=param):
            answer = service.client.post(url, json={"model": "demo"} | body)
            assert (answer.status_code // 100, answer.json()["error"]["param"]) == (4, param), answer.text
