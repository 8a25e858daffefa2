"""`actograph chat` and `Client.chat` against the service, and tool calls of a model that makes them."""

import json
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from actograph import Client
from actograph.cli.main import app
from actograph.client.errors import ApiError

pytestmark = pytest.mark.integration

MODEL = "tiny-qwen3"
ASKED: list[Any] = [{"role": "user", "content": "What is 3 + 4?"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Works it out.",
            "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
        },
    }
]


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


@pytest.fixture
def says(service: Any) -> Any:
    """Makes the model say a text, whatever it is asked."""
    handles = []

    def say(text: str) -> None:
        tokenizer = service.engine.model.tokenizer
        wanted = [*service.ids(text), *service.engine.model.eos_token_ids]
        place = [0]

        def force(_module: Any, _inputs: Any, logits: torch.Tensor) -> torch.Tensor:
            logits[..., -1, :] = -1e4
            logits[..., -1, wanted[place[0] % len(wanted)]] = 1e4
            place[0] += 1
            return logits

        assert tokenizer.decode(wanted[:-1]) == text
        handles.append(service.engine.model.hf.get_submodule("lm_head").register_forward_hook(force))

    yield say
    for handle in handles:
        handle.remove()


CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3+4"}}\n</tool_call>'


def test_calls_come_as_tool_calls_whole_and_streamed(service: Any, client: Any, says: Any) -> None:
    says(f"I count.\n{CALL}\n{CALL}")
    options: dict[str, Any] = {"model": MODEL, "messages": ASKED, "tools": TOOLS, "max_tokens": 200}
    (choice,) = client.chat.completions.create(**options).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I count.")
    calls = choice.message.tool_calls
    assert [json.loads(call.function.arguments) for call in calls] == [{"expression": "3+4"}] * 2
    assert {call.function.name for call in calls} == {"calculator"}
    assert len({call.id for call in calls}) == 2 and calls[0].id.startswith("call_")
    (sample,) = service.samples(service.jobs()[0].id)
    assert '"name": "calculator"' in sample.prompt

    chunks = list(client.chat.completions.create(stream=True, **options))
    said = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    deltas = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
    assert said == "I count."
    assert [(call.index, call.function.arguments) for call in deltas] == [
        (place, call.function.arguments) for place, call in enumerate(calls)
    ]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
