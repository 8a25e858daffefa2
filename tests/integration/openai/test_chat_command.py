"""`actograph chat` and `Client.chat` against the service, and tool calls of a model that makes them."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from actograph import Client
from actograph.cli.main import app
from actograph.client.errors import ApiError

MODEL = "tiny-qwen3"
ASKED: list[Any] = [{"role": "user", "content": "What is 3 + 4?"}]


def test_the_client_asks_and_streams_with_activations(service: Any) -> None:
    options: dict[str, Any] = {"max_tokens": 8, "seed": 2, "store_activations": True}
    with Client(service.url) as client:
        answer = client.chat("What is 3 + 4?", **options)
        chunks = list(client.chat.stream(ASKED, model=MODEL, **options))
        assert answer.session_id is not None and answer.activations_meta is not None
        assert client.sessions.get(answer.session_id).job_id == answer.run_id
        with pytest.raises(ApiError, match="presence_penalty"):
            client.chat("x", presence_penalty=3)
    assert answer.model == MODEL
    said = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert said == answer.choices[0].message.content
    meta = chunks[-1].activations_meta
    assert chunks[-1].session_id and meta is not None and meta.keys() == answer.activations_meta.keys()


def run(service: Any, *arguments: str, typed: str = "") -> Any:
    return CliRunner().invoke(app, ["--url", service.url, "chat", *arguments], input=typed)


def test_one_question_is_answered_at_the_command_line(service: Any) -> None:
    flags = ["--max-tokens", "8", "--seed", "2"]
    plain = run(service, "What", "is 3 + 4?", *flags)
    assert plain.exit_code == 0, plain.output
    shown = run(service, "What is 3 + 4?", *flags, "--capture", "resid_post@0", "--format", "json")
    answer = json.loads(shown.stdout)
    assert plain.stdout == answer["choices"][0]["message"]["content"] + "\n"
    assert list(answer["activations_meta"]) == ["resid_post.0"]
    with_session = run(service, "-", *flags, "--capture", "resid_post@0", typed="What is 3 + 4?")
    assert with_session.stdout == plain.stdout and "session ses_" in with_session.stderr


def test_a_conversation_remembers_what_was_said(service: Any) -> None:
    done = run(
        service, "--max-tokens", "4", "--system", "Be short.", typed="one and two\n\nand three\n/exit\nx\n"
    )
    assert done.exit_code == 0, done.output
    last, first = service.jobs()[:2]
    assert len(service.jobs()) == 2
    (begun,), (followed,) = service.samples(first.id), service.samples(last.id)
    roles = [message["role"] for message in followed.input["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert followed.input["messages"][2]["content"] == begun.completion
    assert done.stdout == f"{begun.completion}\n{followed.completion}\n"
