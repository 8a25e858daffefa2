"""Log probabilities are those of the model's own forward."""

import math
from typing import Any

import pytest

from tests.integration.openai.conftest import ASKED, MODEL


def test_those_of_a_chat_are_those_of_a_forward(service: Any, client: Any) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=ASKED,
        temperature=1.3,
        seed=4,
        max_tokens=12,
        logprobs=True,
        top_logprobs=3,
    )
    tokens = answer.choices[0].logprobs.content
    (sample,) = service.samples(answer.run_id)
    tokenizer = service.engine.model.tokenizer
    assert "".join(token.token for token in tokens) == answer.choices[0].message.content
    chosen = service.ids(answer.choices[0].message.content)
    assert [tokenizer.decode([i]) for i in chosen] == [token.token for token in tokens]
    prompt = service.ids(sample.prompt)
    wanted = service.forward(prompt + chosen)[len(prompt) - 1 : -1]
    for row, token, token_id in zip(wanted, tokens, chosen, strict=True):
        assert math.isclose(token.logprob, float(row[token_id]), abs_tol=1e-4)
        best = row.topk(3)
        assert [top.token for top in token.top_logprobs] == [
            tokenizer.decode([i]) for i in best.indices.tolist()
        ]
        assert [top.logprob for top in token.top_logprobs] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert bytes(token.bytes).decode() == token.token


def test_those_of_a_text_have_openai_s_older_form(service: Any, client: Any) -> None:
    options: dict[str, Any] = {"model": MODEL, "prompt": "Tom has", "temperature": 0, "max_tokens": 6}
    plain = client.completions.create(**options).choices[0]
    assert plain.logprobs is None
    choice = client.completions.create(logprobs=2, **options).choices[0]
    found = choice.logprobs
    assert choice.text == plain.text == "".join(found.tokens)
    assert [choice.text[at:] for at in found.text_offset[1:]] == [
        "".join(found.tokens[place:]) for place in range(1, len(found.tokens))
    ]
    prompt = service.ids("Tom has")
    wanted = service.forward(prompt + service.ids(choice.text))[len(prompt) - 1 : -1]
    assert found.token_logprobs == pytest.approx(wanted.max(dim=-1).values.tolist(), abs=1e-4)
    assert all(len(top) == 2 for top in found.top_logprobs)
