"""Chats with readouts: an answer ends where one crosses its number, and says which."""

import math
from typing import Any

import numpy as np
import pytest

from actograph.contract.interventions import NewVector
from storage.sessions import vectors
from tests.integration.openai.conftest import ASKED, MODEL


def test_an_answer_ends_where_a_readout_crosses_and_says_which(service: Any, client: Any) -> None:
    """In answers, choices, streams, texts and responses; none of the chosen token after it is told."""
    width = service.engine.width_of("resid_post.1")
    vector = np.random.default_rng(0).normal(size=width).astype(np.float32)
    new = NewVector(name="watch", hook="resid_post.1", vector=vector.tolist())
    with service.database.write() as session:
        vectors.insert(session, new)
    capture: dict[str, Any] = {"readouts": [{"vector": "watch"}]}
    asked: dict[str, Any] = {"model": MODEL, "messages": ASKED, "max_tokens": 12, "temperature": 0}
    plain = client.chat.completions.create(**asked, logprobs=True, extra_body={"capture": capture}, stop=None)
    (whole,) = plain.choices
    (sample,) = service.samples(plain.run_id)
    short = whole.readouts["watch"]
    assert short == sample.readouts["watch"] and not short["stopped"]
    reader = service.session(sample.session_id)
    rows = reader.rows("readout:watch", 0, reader.tensor_info("readout:watch").shape[0])
    values = np.frombuffer(rows.data, "<f4")[sample.prompt_tokens :]
    place = int(np.argmax(values > np.median(values)))
    number = float(np.median(values))
    capture = {"readouts": [{"vector": "watch", "name": "alarm", "stop_above": number}]}
    ended = client.chat.completions.create(**asked, logprobs=True, extra_body={"capture": capture})
    (choice,) = ended.choices
    assert choice.finish_reason == "stop", "the specification has no reason of ours"
    assert choice.readouts["alarm"]["stopped"] and ended.readouts == choice.readouts
    assert choice.readouts["alarm"]["max_token"] == sample.prompt_tokens + place
    ids = reader.token_ids()[sample.prompt_tokens :][: place + 1]
    assert choice.message.content == service.engine.model.tokenizer.decode(ids)
    assert len(choice.logprobs.content) == place + 1
    assert [one.token for one in choice.logprobs.content] == [
        one.token for one in whole.logprobs.content[: place + 1]
    ]
    (row,) = service.samples(ended.run_id)
    assert (row.finish_reason, row.generated_tokens) == ("readout", place + 2)
    assert ended.usage.completion_tokens == place + 2

    body = {"extra_body": {"capture": capture}}
    chunks = list(client.chat.completions.create(**asked, **body, stream=True))
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == choice.message.content
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].choices[0].readouts["alarm"]["stopped"]
    text = client.completions.create(
        model=MODEL, prompt=sample.prompt, max_tokens=12, temperature=0, extra_body={"capture": capture}
    )
    assert (text.choices[0].text, text.choices[0].finish_reason) == (choice.message.content, "stop")
    answer = client.responses.create(
        model=MODEL, input=ASKED, max_output_tokens=12, temperature=0, extra_body={"capture": capture}
    )
    assert (answer.status, answer.output_text) == ("completed", choice.message.content)
    assert answer.readouts["alarm"]["stopped"]


def test_a_chat_without_readouts_has_no_field_of_them(client: Any, subtests: pytest.Subtests) -> None:
    for body in ({}, {"capture": {"hooks": ["resid_post.1"]}}):
        with subtests.test(body=body):
            answer = client.chat.completions.create(
                model=MODEL, messages=ASKED, max_tokens=2, extra_body=body
            )
            assert "readouts" not in answer.model_extra
            assert "readouts" not in answer.choices[0].model_extra


def values_in(service: Any, sample: Any, name: str) -> dict[int, float]:
    """The stored values by token, those of the prompt left out."""
    reader = service.session(sample.session_id)
    rows = reader.rows(name, 0, reader.tensor_info(name).shape[0])
    values = np.frombuffer(rows.data, "<f4").tolist()
    of_tokens = zip(reader.tokens_of_rows(name), values, strict=True)
    return {token: value for token, value in of_tokens if token >= sample.prompt_tokens}


def told(chunks: list[Any], index: int) -> list[dict[str, Any]]:
    """The values that the chunks of a choice have."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return [one for choice in choices for one in choice.model_extra.get("token_readouts") or ()]


def test_streams_have_the_values_of_each_token_as_they_come(service: Any, client: Any, slow: Any) -> None:
    random = np.random.default_rng(1)
    with service.database.write() as session:
        for name, hook in (("low", "resid_post.0"), ("high", "resid_post.1")):
            vector = random.normal(size=service.engine.width_of(hook)).astype(np.float32)
            vectors.insert(session, NewVector(name=name, hook=hook, vector=vector.tolist()))
    capture: dict[str, Any] = {"readouts": [{"vector": "low"}, {"vector": "high"}], "hooks": ["resid_post.0"]}
    asked: dict[str, Any] = {
        "model": MODEL, "messages": ASKED, "max_tokens": 40, "temperature": 1, "seed": 2, "n": 2,
        "stream": True, "extra_body": {"capture": capture, "ignore_eos": True},
    }  # fmt: skip
    slow.most = 8
    stream = client.chat.completions.create(**asked)
    seen: list[Any] = []
    while not told(seen, 0):
        seen.append(next(stream))
    assert service.jobs()[0].status == "in_progress"
    slow.most = math.inf
    seen += list(stream)
    for index, sample in enumerate(service.samples(service.jobs()[0].id)):
        values = told(seen, index)
        assert len(values) == 39, "the last token has no row"
        for name in ("low", "high"):
            found = {one["token"]: one["values"][name] for one in values}
            assert list(found) == sorted(found)
            assert found == values_in(service, sample, f"readout:{name}")
    said = [choice for chunk in seen for choice in chunk.choices]
    assert all(choice.delta.content is None for choice in said if choice.model_extra.get("token_readouts"))

    text = client.completions.create(
        model=MODEL, prompt="Tom has", max_tokens=6, stream=True,
        extra_body={"capture": {"readouts": [{"vector": "low"}], "positions": "generated"}},
    )  # fmt: skip
    chunks = list(text)
    (sample,) = service.samples(chunks[0].model_extra["run_id"])
    found = {one["token"]: one["values"]["low"] for one in told(chunks, 0)}
    assert found == values_in(service, sample, "readout:low")
    for body in ({}, {"capture": {"hooks": ["resid_post.1"]}}):
        plain = client.chat.completions.create(**asked | {"extra_body": body, "max_tokens": 3})
        assert not any("token_readouts" in choice.model_extra for one in plain for choice in one.choices)
    answer = client.responses.create(
        model=MODEL, input=ASKED, max_output_tokens=6, stream=True, extra_body={"capture": capture}
    )
    assert list(answer)[-1].type == "response.incomplete"
