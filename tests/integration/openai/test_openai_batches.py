"""Batches by the openai package: a file in, files out, with captures, errors, cancel and expiry."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import openai
import pytest

from actograph.cli.main import main
from api.openai.batches import advance_all
from storage import samples
from storage.sessions.writer import SessionReader
from tests.integration.openai.conftest import Service

MODEL = "tiny-qwen3"
CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
#: what `chat.completions.create` knows by name
ASKED = ("model", "messages", "temperature", "max_tokens", "seed", "n", "stop")
Eventually = Callable[[Callable[[], bool]], None]


def line(name: str, *, url: str = CHAT, **body: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 6}
    if url == CHAT:
        asked["messages"] = [{"role": "user", "content": f"Say {name}."}]
    return {"custom_id": name, "method": "POST", "url": url, "body": asked | body}


@pytest.fixture
def send(client: openai.OpenAI) -> Callable[..., Any]:
    """Uploads lines and begins a batch of them."""

    def make(*lines: Any, endpoint: Any = CHAT, **changes: Any) -> Any:
        text = "\n".join(item if isinstance(item, str) else json.dumps(item) for item in lines)
        file = client.files.create(file=("in.jsonl", text.encode()), purpose="batch")
        options = {"completion_window": "24h"} | changes
        return client.batches.create(input_file_id=file.id, endpoint=endpoint, **options)

    return make


@pytest.fixture
def ended(service: Service, client: openai.OpenAI, eventually: Eventually) -> Callable[[str], Any]:
    """The batch once it has ended; its files are written by what the reconciler would call."""

    def wait(batch_id: str) -> Any:
        def is_over() -> bool:
            advance_all(service.app.state.services)
            return client.batches.retrieve(batch_id).status in ("completed", "failed", "expired", "cancelled")

        eventually(is_over)
        return client.batches.retrieve(batch_id)

    return wait


def content(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    """custom_id -> line of an output file."""
    assert file_id is not None
    found = [json.loads(text) for text in client.files.content(file_id).text.splitlines()]
    assert all(set(item) == {"id", "custom_id", "response", "error"} for item in found)
    return {item["custom_id"]: item for item in found}


def test_a_batch_answers_each_line_as_the_route_would(
    service: Service, client: openai.OpenAI, send: Callable[..., Any], ended: Callable[[str], Any]
) -> None:
    lines = [
        line("a"),
        line("b", max_tokens=3),
        line("c", temperature=0.9, seed=7),
        line("d", temperature=0.9, seed=8, n=2),
        line("stopped", stop=["e"], max_tokens=40),
        line("biased", logit_bias={"7": 50, "8": 50}, presence_penalty=2.0),
    ]
    batch = send(*lines, metadata={"night": "1"})
    assert (batch.object, batch.status, batch.endpoint, batch.metadata) == (
        "batch", "validating", CHAT, {"night": "1"},
    )  # fmt: skip
    batch = ended(batch.id)
    assert batch.status == "completed", batch
    assert batch.request_counts.model_dump() == {"total": 6, "completed": 6, "failed": 0}
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    assert batch.expires_at - batch.created_at == 86400
    assert batch.error_file_id is None
    found = content(client, batch.output_file_id)
    assert list(found) == [item["custom_id"] for item in lines]
    assert len({item["response"]["body"]["id"] for item in found.values()}) == 6
    for item in lines:
        alone = client.chat.completions.create(**item["body"])
        response = found[item["custom_id"]]["response"]
        assert response["status_code"] == 200
        assert [c["message"]["content"] for c in response["body"]["choices"]] == [
            choice.message.content for choice in alone.choices
        ]
        assert response["body"]["usage"] == alone.usage.model_dump(exclude_none=True)
    assert "e" not in found["stopped"]["response"]["body"]["choices"][0]["message"]["content"]
    kept = client.files.retrieve(batch.output_file_id)
    assert (kept.purpose, kept.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert [item.id for item in client.batches.list(limit=1)] == [batch.id]


def test_texts_with_captures_and_a_line_that_is_too_long(
    service: Service, client: openai.OpenAI, send: Callable[..., Any], ended: Callable[[str], Any]
) -> None:
    capture = {"points": ["resid_post"], "layers": [1]}
    lines = [
        line("short", url="/v1/completions", prompt="Tom has", capture=capture),
        line("long", url="/v1/completions", prompt="Tom has", max_tokens=900_000, capture=capture),
        line("read", url="/v1/completions", prompt="Tom has", max_tokens=0, echo=True, logprobs=1),
        line("kept", url="/v1/completions", prompt="Tom has", max_tokens=0, echo=True, capture=capture),
    ]
    batch = ended(send(*lines, endpoint="/v1/completions").id)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 3, 1)
    found = content(client, batch.output_file_id)
    alone = client.completions.create(**lines[2]["body"])
    (read,) = found["read"]["response"]["body"]["choices"]
    other = alone.choices[0].logprobs.model_dump()
    assert read["text"] == "Tom has" and read["logprobs"]["tokens"] == other["tokens"]
    assert read["logprobs"]["token_logprobs"][1:] == pytest.approx(other["token_logprobs"][1:], abs=1e-4)
    assert read["logprobs"]["top_logprobs"][1] == pytest.approx(other["top_logprobs"][1], abs=1e-4)
    kept = found["kept"]["response"]["body"]
    assert kept["activations_meta"]["resid_post.1"]["shape"][0] == kept["usage"]["total_tokens"]
    body = content(client, batch.output_file_id)["short"]["response"]["body"]
    assert service.session(body["session_id"]).manifest.prompt_tokens == body["usage"]["prompt_tokens"]
    rows = body["usage"]["total_tokens"] - 1
    assert body["activations_meta"]["resid_post.1"]["shape"][0] == rows
    assert body["activation_files"]
    refused = content(client, batch.error_file_id)["long"]
    assert refused["error"] is None
    assert refused["response"]["status_code"] == 400
    assert refused["response"]["body"]["error"]["code"] == "context_length_exceeded"


def rows_of(reader: SessionReader, hook: str) -> np.ndarray[Any, Any]:
    stored = reader.rows(hook, 0, reader.tensor_info(hook).shape[0])
    return np.frombuffer(stored.data, dtype=np.float32).reshape(stored.shape)


def test_each_line_has_captures_edits_tags_and_expiry_of_its_own(
    service: Service, client: openai.OpenAI, send: Callable[..., Any], ended: Callable[[str], Any]
) -> None:
    width = service.engine.structure.hidden_size
    push = {"hook": "resid_post.1", "op": "add", "vector": [0.5] * width, "coefficient": 2.0}
    first, last = {"hooks": ["resid_post.0"]}, {"points": ["mlp_in"], "layers": [1], "positions": "last"}
    lines = [
        line("plain"),
        line("first", capture=first, tags=["mine"]),
        line("last", capture=last, expires_after={"anchor": "created_at", "seconds": 3600}),
        line("default", store_activations=True, max_tokens=300, stop=["e"]),
        line("again", capture=first, max_tokens=4),
        line("steered", capture=first, interventions=[push]),
        line("pushed", interventions=[push], n=2, temperature=0.8, seed=5, metadata={"of": "me"}),
    ]
    batch = ended(send(*lines, extra_body={"tags": ["night"]}).id)
    assert batch.status == "completed", batch
    assert batch.request_counts.model_dump() == {"total": 7, "completed": 7, "failed": 0}
    found = content(client, batch.output_file_id)
    assert list(found) == [item["custom_id"] for item in lines]
    bodies = {name: item["response"]["body"] for name, item in found.items()}
    hooks = {name: set(body.get("activations_meta") or ()) for name, body in bodies.items()}
    assert hooks == {
        "plain": set(), "pushed": set(), "first": {"resid_post.0"}, "again": {"resid_post.0"},
        "steered": {"resid_post.0"}, "last": {"mlp_in.1"}, "default": hooks["default"],
    }  # fmt: skip
    assert hooks["default"]
    assert bodies["last"]["activations_meta"]["mlp_in.1"]["shape"][0] == 1
    # all as if each had been sent alone
    for item in lines:
        given = item["body"]
        named = {name: value for name, value in given.items() if name in ASKED}
        ours_too = {k: v for k, v in given.items() if k not in (*ASKED, "metadata")}
        alone: Any = client.chat.completions.create(**named, extra_body=ours_too)
        texts = [choice.message.content for choice in alone.choices]
        body = bodies[item["custom_id"]]
        assert [choice["message"]["content"] for choice in body["choices"]] == texts, item["custom_id"]
        if not body.get("session_id"):
            continue
        ours, theirs = service.session(body["session_id"]), service.session(alone.session_id)
        assert ours.manifest.capture == theirs.manifest.capture
        assert ours.manifest.interventions == theirs.manifest.interventions
        assert list(ours.manifest.tensors) == list(theirs.manifest.tensors)
        for hook in ours.manifest.tensors:
            assert np.allclose(rows_of(ours, hook), rows_of(theirs, hook), atol=1e-4)
    stored = {
        name: client.get(f"/activations/sessions/{body['session_id']}", cast_to=dict[str, Any])
        for name, body in bodies.items()
        if body.get("session_id")
    }
    assert stored["first"]["tags"] == ["mine", "night"]
    assert [name for name, one in stored.items() if one["expires_at"]] == ["last"]
    assert stored["again"]["tags"] == ["night"]
    usage = [body["usage"] for body in bodies.values()]
    assert batch.usage.input_tokens == sum(one["prompt_tokens"] for one in usage)
    assert batch.usage.total_tokens == sum(one["total_tokens"] for one in usage)
    with service.database.read() as session:
        rows = samples.find(session, batch.job_id, limit=100)[0]
    kept = {row.input["custom_id"]: row for row in rows}
    assert kept["pushed"].input["metadata"] == {"of": "me"}
    assert list(kept) == list(bodies), "in the order of the file"


def test_a_bad_file_is_refused_with_every_line_at_fault(
    send: Callable[..., Any], ended: Callable[[str], Any]
) -> None:
    batch = ended(
        send(
            line("a"),
            "no JSON",
            "",
            line("a"),
            line("b", url="/v1/completions", prompt="x"),
            line("c", temperature=-1),
            line("d", capture={"hooks": ["resid_post.99"]}),
            line("e", model="nobody"),
            line("f", stream=True),
            {"method": "POST", "url": CHAT, "body": {}},
            line("g") | {"method": "GET"},
            line("h") | {"url": "/v1/embeddings"},
            "[1, 2]",
            line("i", interventions=[{"hook": "resid_post.0", "op": "add", "vector_id": "vec_" + "0" * 32}]),
        ).id
    )
    assert batch.status == "failed"
    assert batch.failed_at is not None
    told = {error.line: (error.param, error.message) for error in batch.errors.data}
    assert list(told) == [2, *range(4, 15)]
    assert told[4] == ("custom_id", "custom_id 'a' is that of line 1 too")
    assert [told[n][0] for n in range(5, 15)] == [
        "url", "body.temperature", "body.capture.hooks", "body.model", "body.stream", "custom_id", "method",
        "url", None, "body.interventions.0.vector_id",
    ]  # fmt: skip
    assert [error.code for error in batch.errors.data] == [
        "invalid_json_line", "duplicate_custom_id", "url_mismatch", "invalid_request", "unknown_hook",
        "model_not_found", "invalid_request", "invalid_request", "invalid_request", "invalid_request",
        "invalid_json_line", "invalid_request",
    ]  # fmt: skip
    assert batch.request_counts.model_dump() == {"total": 0, "completed": 0, "failed": 0}
    assert batch.output_file_id is None


def test_the_command_line_sends_a_batch_and_gets_its_answers(
    service: Service, ended: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> str:
        status = main(["--url", service.url, "batches", *arguments])
        said = capsys.readouterr()
        assert status == 0, said.err
        return said.out.strip()

    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(line("a")) + "\n" + json.dumps(line("b")) + "\n")
    batch_id = run("create", str(path), "--quiet", "--window", "2h")
    ended(batch_id)
    assert json.loads(run("show", batch_id, "--format", "json"))["completion_window"] == "2h"
    assert "completed" in run("ls")
    answers = [json.loads(text) for text in run("results", batch_id).splitlines()]
    assert [answer["custom_id"] for answer in answers] == ["a", "b"]
    assert main(["--url", service.url, "batches", "results", batch_id, "--errors"]) == 1
    assert "no file of errors" in capsys.readouterr().err
