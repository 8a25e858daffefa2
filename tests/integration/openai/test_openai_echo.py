"""`echo` in `/v1/completions`: the prompt in the answer, with its tokens' probabilities."""

from typing import Any

import openai
import pytest
import torch

from tests.integration.openai.conftest import MODEL

#: the last one has characters of several tokens
PROMPTS = ["Tom has 3 apples and buys 4 more.", "a", "é one ☃ two"]
SCORED: dict[str, Any] = {"model": MODEL, "echo": True, "max_tokens": 0, "logprobs": 2}


def assert_scored(service: Any, found: Any, ids: list[int]) -> None:
    assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
    rows = service.forward(ids)
    wanted = [float(row[token]) for row, token in zip(rows, ids[1:], strict=False)]
    assert found.token_logprobs[1 : len(ids)] == pytest.approx(wanted, abs=1e-4)
    for top, token, row in zip(found.top_logprobs[1:], found.tokens[1:], rows, strict=False):
        assert max(top.values()) == pytest.approx(float(row.max()), abs=1e-4)
        assert token in top and 2 <= len(top) <= 3


def test_texts_are_scored_alone_and_together_and_as_token_ids(service: Any, client: Any) -> None:
    single = [client.completions.create(prompt=prompt, **SCORED) for prompt in PROMPTS]
    together = client.completions.create(prompt=PROMPTS, **SCORED)
    by_ids = client.completions.create(prompt=[service.ids(prompt) for prompt in PROMPTS], **SCORED)
    assert together.usage.completion_tokens == 0
    assert together.usage.prompt_tokens == sum(len(service.ids(prompt)) for prompt in PROMPTS)
    for prompt, alone, *others in zip(PROMPTS, single, together.choices, by_ids.choices, strict=True):
        ids, (first,) = service.ids(prompt), alone.choices
        for choice in (first, *others):
            assert choice.text == prompt and choice.finish_reason == "length"
            assert_scored(service, choice.logprobs, ids)
            assert choice.logprobs.tokens == first.logprobs.tokens
            assert choice.logprobs.token_logprobs[1:] == pytest.approx(
                first.logprobs.token_logprobs[1:], abs=1e-4
            )
        # every token begins where its text does
        tokens, offsets = first.logprobs.tokens, first.logprobs.text_offset
        for token, at in zip(tokens, offsets, strict=True):
            assert token.startswith("bytes:") or prompt.startswith(token, at)
    assert "bytes:\\xe2" in single[2].choices[0].logprobs.tokens


def test_a_scored_text_may_be_captured_and_steered(service: Any, client: Any) -> None:
    capture = {"points": ["resid_post", "logits"], "layers": [0]}
    steering = [{"hook": "resid_post.0", "op": "scale", "coefficient": 0.0}]
    prompts = PROMPTS[:2]
    answer = client.completions.create(
        prompt=prompts, extra_body={"capture": capture, "interventions": steering}, **SCORED
    )
    for choice, prompt in zip(answer.choices, prompts, strict=True):
        ids = service.ids(prompt)
        reader = service.session(choice.session_id)
        assert reader.token_ids() == ids
        tensors = reader.manifest.tensors
        assert tensors["resid_post.0"].shape[0] == tensors["logits"].shape[0] == len(ids)
        data = bytearray(reader.rows("logits", 0, len(ids)).data)
        rows = torch.frombuffer(data, dtype=torch.float32).reshape(len(ids), -1).log_softmax(-1)
        wanted = [float(row[token]) for row, token in zip(rows, ids[1:], strict=False)]
        assert choice.logprobs.token_logprobs[1:] == pytest.approx(wanted, abs=1e-4)
        plain = [float(row[t]) for row, t in zip(service.forward(ids), ids[1:], strict=False)]
        assert len(ids) == 1 or wanted != pytest.approx(plain, abs=0.1)
    # rows alone need no probabilities, and a repeated text needs no model
    options = SCORED | {"logprobs": None, "prompt": "Tom"}
    rows_only = client.completions.create(extra_body={"store_activations": True}, **options)
    assert rows_only.choices[0].session_id and rows_only.choices[0].logprobs is None
    assert client.completions.create(**options).choices[0].text == "Tom"


def test_the_last_token_of_a_score_needs_no_place_in_the_context(service: Any, client: Any) -> None:
    """It is predicted and not read: a window of lm-eval has one token more than the context."""
    context = service.engine.structure.context_length
    ids = (service.ids(PROMPTS[0]) * context)[: context + 1]
    capture = {"capture": {"hooks": ["resid_post.0"]}}
    answer = client.completions.create(prompt=ids, extra_body=capture, **SCORED)
    (choice,) = answer.choices
    found = choice.logprobs.token_logprobs
    rows = service.forward(ids[:-1])
    assert len(found) == len(choice.logprobs.tokens) == context + 1
    assert found[-1] == pytest.approx(float(rows[-1][ids[-1]]), abs=1e-4)
    assert found[1] == pytest.approx(float(rows[0][ids[1]]), abs=1e-4)
    assert answer.usage.prompt_tokens == context
    reader = service.session(choice.session_id)
    assert (reader.token_ids(), reader.manifest.tensors["resid_post.0"].shape[0]) == (ids[:-1], context)
    for options in ({"prompt": [*ids, ids[0]]}, {"prompt": ids, "logprobs": None}):
        with pytest.raises(openai.BadRequestError, match="context"):
            client.completions.create(**SCORED | options)
