"""What clients of OpenAI's routes send is taken, or refused by the name of the field at fault."""

from typing import Any

import pytest
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params

from actograph.contract.job_specs import InvalidFields, validated
from actograph.contract.openai import IGNORED, ChatCompletionRequest, CompletionRequest

ASKED = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def chat(**changes: Any) -> ChatCompletionRequest:
    return validated(ChatCompletionRequest, ASKED | changes)


#: fields that would change the answer
REFUSED = {"audio", "function_call", "functions", "moderation", "verbosity", "web_search_options"}


def test_every_field_of_openai_s_reference_is_known() -> None:
    for params, ours in ((chat_params, ChatCompletionRequest), (text_params, CompletionRequest)):
        theirs = params.CompletionCreateParamsBase.__annotations__
        assert set(theirs) <= {*ours.model_fields, *IGNORED, *REFUSED}


NOTHING: dict[str, Any] = {
    "n": 1, "stop": None, "seed": None, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {},
    "stream": False, "stream_options": None, "user": "u", "logprobs": None,
}  # fmt: skip


def test_what_clients_send_beside_their_question_is_taken(subtests: pytest.Subtests) -> None:
    for changes in [
        NOTHING,
        {"logit_bias": None, "top_logprobs": None, "logprobs": False, "response_format": {"type": "text"}},
        {"store": True, "metadata": {"a": "b"}, "service_tier": "auto", "reasoning_effort": "none"},
        {"modalities": ["text"], "prediction": None, "prompt_cache_key": "k", "safety_identifier": "s"},
        {"stream": True, "stream_options": {"include_usage": True}, "max_completion_tokens": 5},
        {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": True},
        {"tools": [], "tool_choice": "none"},
        {"top_p": 0, "temperature": 2, "stop": ["a", "b", "c", "d"]},
        {"messages": [
            {"role": "developer", "content": [{"type": "text", "text": "a"}], "name": "dev"},
            {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "parsed": None},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "7"}]},
        ]},
        {"functions": None, "audio": None},
    ]:  # fmt: skip
        with subtests.test(changes=changes):
            sampling = chat(**changes).sampling(max_tokens=4, seed=0)
            assert 0 < sampling.top_p <= 1 and sampling.presence_penalty == 0 and sampling.logit_bias == {}


def test_what_cannot_be_done_is_refused_by_its_name(subtests: pytest.Subtests) -> None:
    for changes, param in [
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [TOOL | {"type": "custom"}]}, "tools.0.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"reasoning_effort": "none", "enable_thinking": True}, "reasoning_effort"),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"add_generation_prompt": True}}, "chat_template_kwargs"),
        ({"presence_penalty": -2.1}, "presence_penalty"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"logit_bias": {"word": 1}}, "logit_bias.word"),
        ({"n": 129}, "n"),
        ({"stop": [str(i) for i in range(17)]}, "stop"),
        ({"moderation": {"model": "x"}}, "moderation"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"audio": {"voice": "x", "format": "wav"}}, "audio"),
        ({"capture": {"mode": "prefill"}}, "capture"),
        ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages.0.role"),
        ({"nonsense": 1}, "nonsense"),
    ]:
        with subtests.test(changes=changes, param=param):
            with pytest.raises(InvalidFields) as raised:
                chat(**changes)
            assert raised.value.param == param


def test_json_of_a_client_s_own_form_has_finite_numbers(subtests: pytest.Subtests) -> None:
    function = TOOL["function"] | {"parameters": {"type": "object", "default": [{"x": float("nan")}]}}
    called = CALL | {"function": {"name": "f", "arguments": '{"x": -Infinity}'}}
    messages = [*ASKED["messages"], {"role": "assistant", "content": "", "tool_calls": [called]}]
    for changes in ({"tools": [TOOL | {"function": function}]}, {"messages": messages}):
        with subtests.test(changes=changes), pytest.raises(InvalidFields):
            chat(**changes)
