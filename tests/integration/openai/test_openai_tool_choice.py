"""`tool_choice` and `parallel_tool_calls`: a call that is begun for the model, with the openai package."""

import json
from typing import Any

from tests.integration.openai.conftest import ASKED, MODEL


def tool(name: str) -> Any:
    parameters = {"type": "object", "properties": {"expression": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


TOOLS = [tool("calculator"), tool("weather")]
NAMED: Any = {"type": "function", "function": {"name": "calculator"}}
OPTIONS: dict[str, Any] = {
    "model": MODEL, "messages": ASKED, "tools": TOOLS, "temperature": 0, "max_tokens": 96
}  # fmt: skip


def test_a_model_that_knows_the_tool_calls_it(service: Any, client: Any) -> None:
    for choice in ("required", NAMED):
        check_call(service, client, choice)


def check_call(service: Any, client: Any, choice: Any) -> None:
    capture = {"points": ["resid_post"], "layers": [0], "positions": ["tool_call"]}
    options = OPTIONS | {"tool_choice": choice, "tools": TOOLS[:1]}
    answer = client.chat.completions.create(extra_body={"capture": capture}, **options)
    (found,) = answer.choices
    assert (found.finish_reason, found.message.content) == ("tool_calls", None)
    call = found.message.tool_calls[0]
    assert call.function.name == "calculator" and call.id.startswith("call_")
    assert json.loads(call.function.arguments)["expression"]
    # the beginning is the prompt's, and what was generated is the rest of it
    (sample,) = service.samples(answer.run_id)
    begun = '<tool_call>\n{"name": "calculator", "arguments":'
    assert sample.prompt.endswith(begun) and sample.completion.startswith(begun)
    assert answer.usage.prompt_tokens == len(service.ids(sample.prompt))
    reader = service.session(answer.session_id)
    assert 0 < reader.manifest.tensors["resid_post.0"].shape[0] <= answer.usage.completion_tokens

    chunks = list(client.chat.completions.create(stream=True, **options))
    deltas = [d for chunk in chunks for c in chunk.choices for d in c.delta.tool_calls or []]
    assert [(d.index, d.function.name, d.function.arguments) for d in deltas] == [
        (place, c.function.name, c.function.arguments) for place, c in enumerate(found.message.tool_calls)
    ]
    assert "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices) == ""
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


REST = ', "arguments": {"expression": "3+4"}}\n</tool_call>'


def test_a_call_follows_its_schema_whatever_the_model_would_say(client: Any, says: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"unit": {"enum": ["C", "F"]}},
        "required": ["unit"],
        "additionalProperties": False,
    }
    tools = [tool("calculator"), {"type": "function", "function": {"name": "weather", "parameters": schema}}]
    named = {"type": "function", "function": {"name": "weather"}}
    for said, choice in (
        (f'nothing"{REST}', named),  # no tool of the request
        ("weather is what I want", "required"),
        (f'weather"{REST}', named),  # other arguments
    ):
        says(said)
        (found,) = client.chat.completions.create(**OPTIONS | {"tools": tools, "tool_choice": choice}).choices
        (call,) = found.message.tool_calls
        assert (call.function.name, found.finish_reason) == ("weather", "tool_calls")
        assert json.loads(call.function.arguments)["unit"] in ("C", "F")


def test_a_strict_tool_is_called_by_its_schema_when_the_model_begins_to(client: Any, says: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"unit": {"enum": ["C", "F"]}},
        "required": ["unit"],
        "additionalProperties": False,
    }
    weather = {"name": "weather", "strict": True, "parameters": schema}
    tools = [tool("calculator"), {"type": "function", "function": weather}]
    options = OPTIONS | {"tools": tools, "tool_choice": "auto"}
    says('I look.\n<tool_call>\n{"name": "weather", "arguments": {"place": "Rome"}}\n</tool_call>')
    (found,) = client.chat.completions.create(parallel_tool_calls=False, **options).choices
    (call,) = found.message.tool_calls
    assert (found.message.content, call.function.name) == ("I look.", "weather")
    assert json.loads(call.function.arguments)["unit"] in ("C", "F")
    # text is free, and so are the arguments of the other tool
    says(f"I count.\n{CALL}")
    (found,) = client.chat.completions.create(**options).choices
    assert found.message.content == "I count."
    assert json.loads(found.message.tool_calls[0].function.arguments) == {"expression": "3+4"}
    says("No call.")
    (found,) = client.chat.completions.create(**options).choices
    assert (found.message.content, found.message.tool_calls) == ("No call.", None)


def test_an_answer_with_a_form_may_call_tools_instead(client: Any, says: Any) -> None:
    schema = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
    form = {"type": "json_schema", "json_schema": {"name": "unit", "schema": schema}}
    options = OPTIONS | {"tools": TOOLS[:1], "response_format": form}
    says('{"unit": "D"}')
    (found,) = client.chat.completions.create(**options).choices
    assert json.loads(found.message.content)["unit"] in ("C", "F") and found.message.tool_calls is None
    says(f"{CALL}\n{CALL}")
    (found,) = client.chat.completions.create(**options | {"max_tokens": 200}).choices
    assert (found.finish_reason, found.message.content) == ("tool_calls", None)
    arguments = [json.loads(call.function.arguments) for call in found.message.tool_calls]
    assert arguments == [{"expression": "3+4"}] * 2


def test_a_call_that_is_cut_off_is_told_as_text(client: Any, says: Any) -> None:
    says(f'calculator"{REST}')
    options = OPTIONS | {"tool_choice": "required", "max_tokens": 5}
    (found,) = client.chat.completions.create(**options).choices
    assert found.message.tool_calls is None and found.finish_reason == "length"
    written = '<tool_call>\n{"name": "calculator' + REST
    assert written.startswith(found.message.content[:24]) and len(found.message.content) > 24


CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3+4"}}\n</tool_call>'


def test_calls_come_as_tool_calls_whole_and_streamed(service: Any, client: Any, says: Any) -> None:
    says(f"I count.\n{CALL}\n{CALL}")
    options: dict[str, Any] = {"model": MODEL, "messages": ASKED, "tools": TOOLS[:1], "max_tokens": 200}
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
