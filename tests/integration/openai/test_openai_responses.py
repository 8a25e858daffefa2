"""`/v1/responses` as the openai package asks it: the same answers as a chat's, in another form."""

import json
import math
from typing import Any, Literal

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from actograph.contract.resources import JobStatus
from storage.jobs import jobs
from tests.integration.openai.conftest import ASKED, MODEL
from tests.integration.openai.test_openai_tool_choice import CALL, tool

QUESTION = ASKED[0]["content"]
OPTIONS: dict[str, Any] = {"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 12}
CAPTURE = {"capture": {"points": ["resid_post"], "layers": [0]}}
CALCULATOR = {"type": "function", "strict": False, **tool("calculator")["function"]}


class Unit(BaseModel):
    unit: Literal["C", "F"]


def test_a_response_is_the_chat_s_answer_with_its_session(service: Any, client: Any) -> None:
    messages = [{"role": "system", "content": "Count."}, *ASKED]
    chat = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=12)
    answer = client.responses.create(instructions="Count.", store=True, extra_body=CAPTURE, **OPTIONS)
    Response.model_validate(answer.to_dict())
    assert answer.output_text == chat.choices[0].message.content
    assert (answer.status == "incomplete") == (chat.choices[0].finish_reason == "length")
    assert answer.usage.input_tokens == chat.usage.prompt_tokens
    assert answer.usage.output_tokens == chat.usage.completion_tokens
    assert (answer.id, answer.output[0].id) == (
        answer.run_id.replace("job", "resp"), answer.run_id.replace("job", "msg"),
    )  # fmt: skip
    ids = service.session(answer.session_id).token_ids()
    assert len(ids) == answer.usage.total_tokens and answer.activation_files

    parts = [{"type": "input_text", "text": part} for part in ("Tom has", QUESTION.removeprefix("Tom has"))]
    items = [{"role": "system", "content": "Count."}, {"type": "message", "role": "user", "content": parts}]
    asked = OPTIONS | {"input": items, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    again = client.responses.create(**asked)
    assert again.output_text == answer.output_text
    logprobs = again.output[0].content[0].logprobs
    assert len(logprobs) == 12 and all(len(one.top_logprobs) == 2 for one in logprobs)


def test_calls_and_their_results_are_the_next_input(service: Any, client: Any, says: Any) -> None:
    says(f"I count.\n{CALL}")
    options = OPTIONS | {"tools": [CALCULATOR], "max_output_tokens": 96}
    answer = client.responses.create(**options)
    Response.model_validate(answer.to_dict())
    said, call = answer.output
    assert (answer.status, said.type, call.type) == ("completed", "message", "function_call")
    assert (answer.output_text, call.name) == ("I count.", "calculator")
    assert json.loads(call.arguments) == {"expression": "3+4"}

    says("So 7.")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "7"}
    items = [{"role": "user", "content": QUESTION}, *answer.output, output]
    last = client.responses.create(**options | {"input": items})
    assert last.output_text == "So 7."
    function = {"name": call.name, "arguments": call.arguments}
    turn = {
        "role": "assistant",
        "content": "I count.",
        "tool_calls": [{"id": call.call_id, "type": "function", "function": function}],
    }
    result = {"role": "tool", "tool_call_id": call.call_id, "content": "7"}
    chat = client.chat.completions.create(
        model=MODEL, messages=[*ASKED, turn, result], tools=[tool("calculator")], max_tokens=4
    )
    (ours,), (theirs,) = service.samples(last.run_id), service.samples(chat.run_id)
    assert ours.prompt == theirs.prompt


def test_an_answer_follows_a_schema(client: Any) -> None:
    answer = client.responses.parse(text_format=Unit, **OPTIONS | {"max_output_tokens": 60, "temperature": 5})
    assert isinstance(answer.output_parsed, Unit)


ORDER = [
    "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    "response.output_text.delta", "response.output_text.done", "response.content_part.done",
    "response.output_item.done",
]  # fmt: skip
OF_CALL = [
    "response.output_item.added", "response.function_call_arguments.delta",
    "response.function_call_arguments.done", "response.output_item.done",
]  # fmt: skip


def test_a_stream_is_the_whole_answer_in_pieces(client: Any, says: Any, slow: Any) -> None:
    slow.most, events = 6, []
    for event in client.responses.create(stream=True, extra_body=CAPTURE, **OPTIONS):
        events.append(event)
        slow.most = math.inf if event.type == "response.output_text.delta" else slow.most
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [*dict.fromkeys(event.type for event in events)] == [*ORDER, "response.incomplete"]
    whole = events[-1].response
    Response.model_validate(whole.to_dict())
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1 and "".join(deltas) == whole.output_text
    assert whole.session_id and whole.usage.output_tokens == 12
    assert whole.output_text == client.responses.create(**OPTIONS).output_text

    says(f"I count.\n{CALL}")
    options = OPTIONS | {"tools": [CALCULATOR], "max_output_tokens": 96}
    with client.responses.stream(**options) as stream:
        kinds = [event.type for event in stream if event.type != "response.output_text.delta"]
        final = stream.get_final_response()
    assert kinds == [*(kind for kind in ORDER if "delta" not in kind), *OF_CALL, "response.completed"]
    assert final.output_text == "I count."
    assert json.loads(final.output[1].arguments) == {"expression": "3+4"}


def test_errors_come_before_the_first_event_or_as_one(service: Any, client: Any, slow: list[float]) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(stream=True, **OPTIONS | {"max_output_tokens": 2047})
    assert raised.value.code == "context_length_exceeded"
    events = client.responses.create(stream=True, **OPTIONS | {"max_output_tokens": 1500})
    assert next(events).type == "response.created"
    (job,) = (job for job in service.jobs() if job.status == JobStatus.IN_PROGRESS)
    with service.database.write() as session:
        jobs.cancel(session, job.id)
    with pytest.raises(openai.APIError, match="was cancelled"):
        list(events)


def test_what_cannot_be_answered_names_the_field(client: Any, subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the whole conversation"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input", "item_reference"),
        ({"input": []}, "input", "at least 1 item"),
        ({"tools": [{"type": "web_search"}]}, "tools", "function"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"max_output_tokens": 4096}, "max_output_tokens", "context"),
        ({"extra_body": {"n": 2}}, "n", "unknown field"),
        (
            {"text": {"format": {"type": "json_object"}}, "extra_body": {"enable_thinking": True}},
            "text",
            "cannot have a thought",
        ),
    ]
    for changes, param, says in cases:
        with subtests.test(says):
            with pytest.raises(openai.BadRequestError, match=says) as raised:
                client.responses.create(**OPTIONS | changes)
            assert (raised.value.param or "").partition(".")[0] == param
