"""Numbers and booleans of requests, which are not made of texts or of each other."""

from typing import Any

import pytest

from actograph.contract.errors import InvalidRequest
from actograph.contract.job_specs import CaptureJobSpec, validated
from actograph.contract.openai import ChatCompletionRequest

CAPTURE: dict[str, Any] = {"kind": "capture", "model": "m", "inputs": [{"prompt": "x"}]}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


def test_texts_and_booleans_are_no_numbers(subtests: pytest.Subtests) -> None:
    for form, body, field in [
        (CaptureJobSpec, CAPTURE | {"priority": "5"}, "priority"),
        (CaptureJobSpec, CAPTURE | {"priority": True}, "priority"),
        (CaptureJobSpec, CAPTURE | {"truncate": "true"}, "truncate"),
        (CaptureJobSpec, CAPTURE | {"truncate": 1}, "truncate"),
        (CaptureJobSpec, CAPTURE | {"sampling": {"temperature": "0.7"}}, "sampling.temperature"),
        (CaptureJobSpec, CAPTURE | {"sampling": {"stop_token_ids": ["5"]}}, "sampling.stop_token_ids"),
        (CaptureJobSpec, CAPTURE | {"sampling": {"logit_bias": {"5": "1"}}}, "sampling.logit_bias"),
        (ChatCompletionRequest, CHAT | {"max_tokens": "16"}, "max_tokens"),
        (ChatCompletionRequest, CHAT | {"n": True}, "n"),
        (ChatCompletionRequest, CHAT | {"stream": "yes"}, "stream"),
    ]:
        with subtests.test(field=field, form=form), pytest.raises(InvalidRequest) as raised:
            validated(form, body)
        assert raised.value.param == field
        assert "is not a" in raised.value.message
    assert validated(CaptureJobSpec, CAPTURE | {"sampling": {"temperature": 1}}).sampling.temperature == 1.0
    chat = validated(ChatCompletionRequest, CHAT | {"max_tokens": 16, "logit_bias": {"5": 1}})
    assert chat.logit_bias == {5: 1.0}
