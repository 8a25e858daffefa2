"""`response_format`: answers that are JSON of a given form, whatever the model would say."""

import json
from typing import Annotated, Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from tests.integration.openai.conftest import ASKED, MODEL

OPTIONS: dict[str, Any] = {"model": MODEL, "messages": ASKED, "temperature": 1.5, "max_tokens": 120}


class Place(BaseModel):
    city: Literal["Paris", "Rome"]
    tags: Annotated[list[Annotated[str, Field(max_length=4)]], Field(max_length=2)]
    size: Annotated[int, Field(ge=0, le=99)]


def test_answers_are_valid_objects_and_a_sample_s_own(service: Any, client: Any) -> None:
    form = Place.model_json_schema() | {"additionalProperties": False}  # as `parse` sends it
    schema = {"type": "json_schema", "json_schema": {"name": "Place", "schema": form}}
    texts: list[str] = []
    for seed in range(4):
        answer = client.chat.completions.parse(response_format=Place, seed=seed, **OPTIONS)
        (found,) = answer.choices
        assert found.finish_reason == "stop" and isinstance(found.message.parsed, Place)
        texts.append(found.message.content)
    assert len(set(texts)) > 1
    # beside others, one of them free, each has the text that it has alone
    together = client.chat.completions.create(response_format=schema, seed=0, n=3, **OPTIONS)
    assert together.choices[0].message.content == texts[0]
    free = client.chat.completions.create(seed=0, **OPTIONS).choices[0].message.content
    assert free != texts[0]
    streamed = client.chat.completions.create(response_format=schema, seed=1, stream=True, **OPTIONS)
    assert "".join(c.delta.content or "" for chunk in streamed for c in chunk.choices) == texts[1]


def test_any_object(client: Any) -> None:
    answer = client.chat.completions.create(
        response_format={"type": "json_object"}, seed=3, **OPTIONS | {"max_tokens": 200}
    )
    (found,) = answer.choices
    if found.finish_reason == "stop":
        assert isinstance(json.loads(found.message.content), dict)
    else:
        assert found.message.content.startswith("{")


def test_what_cannot_be_constrained_is_refused(service: Any, client: Any, subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"response_format": {"type": "json_schema"}}, "needs json_schema"),
        ({"schema": {"type": "objectt"}}, "Invalid type: objectt"),
        ({"schema": {"$ref": "http://example.com/x"}}, "not present in a registry"),
        ({"schema": {}, "extra_body": {"enable_thinking": True}}, "cannot have a thought"),
    ]
    for changes, says in cases:
        if "schema" in changes:
            form = {"name": "x", "schema": changes.pop("schema")}
            changes["response_format"] = {"type": "json_schema", "json_schema": form}
        with subtests.test(says):
            with pytest.raises(openai.BadRequestError, match=says) as raised:
                client.chat.completions.create(**OPTIONS | changes)
            assert (raised.value.param or "").startswith("response_format")
    assert service.jobs() == []
