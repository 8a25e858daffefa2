"""`response_format`, `strict` tools and required calls: valid objects, even at a high temperature."""

import json
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

pytestmark = pytest.mark.integration

MODEL = "tiny-qwen3"
ASKED: list[Any] = [{"role": "user", "content": "Tom has 3 apples and buys 4 more. How many?"}]
#: noise rather than the model chooses the tokens
WILD: dict[str, Any] = {"model": MODEL, "messages": ASKED, "temperature": 50, "max_tokens": 200}


class Sum(BaseModel):
    model_config = ConfigDict(extra="forbid")

    thing: str = Field(max_length=10)
    total: int = Field(ge=0, le=999)
    unit: Literal["apple", "pear"]


TOOL: Any = {
    "type": "function",
    "function": {"name": "note", "strict": True, "parameters": Sum.model_json_schema()},
}


@pytest.mark.parametrize("seed", range(3))
def test_an_answer_is_parsed_into_its_model(client: Any, seed: int) -> None:
    (choice,) = client.chat.completions.parse(response_format=Sum, seed=seed, **WILD).choices
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Sum)
    assert json.loads(choice.message.content) == choice.message.parsed.model_dump()


def test_a_stream_and_choices_and_log_probabilities_are_constrained_too(client: Any) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "sum", "schema": Sum.model_json_schema()}}
    options = WILD | {"response_format": schema, "n": 2, "seed": 1, "logprobs": True, "top_logprobs": 2}
    answer = client.chat.completions.create(**options)
    texts = [choice.message.content for choice in answer.choices]
    assert len({Sum.model_validate_json(text).thing for text in texts}) == 2
    for choice in answer.choices:
        tokens = choice.logprobs.content
        assert "".join(token.token for token in tokens if not token.token.startswith("bytes:"))
        assert all(-1e4 < token.logprob <= 0 for token in tokens)  # the model's own, so never -inf
    streamed = ["", ""]
    for chunk in client.chat.completions.create(**options, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_an_object_is_an_object(client: Any) -> None:
    options = WILD | {"temperature": 0, "max_tokens": 300, "response_format": {"type": "json_object"}}
    (choice,) = client.chat.completions.create(**options).choices
    assert choice.message.content.startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "note"}}])
def test_a_required_call_is_valid(client: Any, choice: Any, seed: int) -> None:
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    other = {"type": "function", "function": {"name": "stop", "parameters": nothing}}
    options = WILD | {"tools": [TOOL, other], "tool_choice": choice, "parallel_tool_calls": False}
    (found,) = client.chat.completions.create(seed=seed, **options).choices
    assert found.finish_reason == "tool_calls"
    (call,) = found.message.tool_calls
    if call.function.name == "note":
        assert Sum.model_validate_json(call.function.arguments)
    else:
        assert choice == "required" and call.function.arguments == "{}"


def test_a_strict_tool_constrains_only_calls(client: Any) -> None:
    options = WILD | {"tools": [TOOL], "max_tokens": 24, "temperature": 0}
    strict = client.chat.completions.with_raw_response.create(**options)
    assert "x-actograph-not-applied" not in strict.headers
    loose = json.loads(json.dumps(TOOL).replace('"strict": true', '"strict": false'))
    free = client.chat.completions.create(**options | {"tools": [loose]})
    before = free.choices[0].message.content or ""
    assert (strict.parse().choices[0].message.content or "")[:20] == before[:20]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"response_format": {"type": "json_schema"}}, "needs json_schema"),
        ({"response_format": {"type": "json_object"}, "extra_body": {"enable_thinking": True}}, "thought"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": {"not": {}}},
                }
            },
            "response_format is not supported: .*Unimplemented",
        ),
    ],
)
def test_a_format_that_cannot_be_is_refused(client: Any, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(openai.BadRequestError, match=why):
        client.chat.completions.create(**WILD | changes)
