"""Fields that vLLM has beside OpenAI's, with the openai package."""

import re
from typing import Any

import openai
import pytest

from tests.integration.openai.conftest import ASKED, MODEL

OPTIONS: dict[str, Any] = {"model": MODEL, "messages": ASKED, "temperature": 0, "max_tokens": 40}


def test_an_answer_is_one_of_some_texts_or_matches(client: Any) -> None:
    texts = ["yes", "yes, it is\n", 'a "no"']
    for form, fits in (
        ({"choice": texts}, lambda said: said in texts),
        ({"regex": "[0-9]{2}/[A-F]|x"}, lambda said: re.fullmatch("[0-9]{2}/[A-F]|x", said)),
        ({"json": {"enum": [17, 18]}}, lambda said: said in ("17", "18")),
    ):
        extra = {"extra_body": {"structured_outputs": form}}
        (choice,) = client.chat.completions.create(**OPTIONS, **extra).choices
        assert fits(choice.message.content) and choice.finish_reason == "stop"
        for prompt in ("Is it so?", [60, 61, 62]):
            (choice,) = client.completions.create(model=MODEL, prompt=prompt, max_tokens=40, **extra).choices
            assert fits(choice.text)


def test_ends_of_an_answer(service: Any, client: Any, says: Any) -> None:
    text = "Tom has three apples."
    ids = service.ids(text)
    says(text)
    plain = client.chat.completions.create(**OPTIONS)
    assert plain.choices[0].message.content == text and plain.usage.completion_tokens == len(ids) + 1
    for extra, count, reason in (
        ({"ignore_eos": True}, 40, "length"),
        ({"min_tokens": len(ids) + 5}, 2 * (len(ids) + 1), "stop"),
        ({"stop_token_ids": [ids[3]]}, 4, "stop"),
    ):
        says(text)
        answer = client.chat.completions.create(extra_body=extra, **OPTIONS)
        (choice,) = answer.choices
        assert (answer.usage.completion_tokens, choice.finish_reason) == (count, reason), extra
        if "stop_token_ids" in extra:
            assert choice.message.content == service.engine.model.tokenizer.decode(ids[:3])
        says(text)
        chunks = client.chat.completions.create(stream=True, extra_body=extra, **OPTIONS)
        said = "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)
        assert said == choice.message.content


def test_an_answer_goes_on_with_the_last_message(service: Any, client: Any) -> None:
    begun = {"role": "assistant", "content": "Tom has 3 +"}
    options = OPTIONS | {"messages": [*ASKED, begun]}
    extra = {"continue_final_message": True, "add_generation_prompt": False}
    answer = client.chat.completions.create(extra_body=extra, **options)
    (sample,) = service.samples(answer.run_id)
    assert sample.prompt.endswith("Tom has 3 +")
    alone = client.completions.create(model=MODEL, prompt=sample.prompt, temperature=0, max_tokens=40)
    assert answer.choices[0].message.content.strip() == alone.choices[0].text.strip()
    chunks = client.chat.completions.create(stream=True, extra_body=extra, **options)
    said = "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)
    assert said == answer.choices[0].message.content


def test_a_chat_template_s_own_variables(service: Any, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{{ messages[-1].content }} {{ effort }}{% if enable_thinking %} think{% endif %}"
    monkeypatch.setattr(service.engine.model.tokenizer, "chat_template", template)
    for more, end in (({}, " high"), ({"enable_thinking": True}, " high think")):
        extra = {"chat_template_kwargs": {"effort": "high", "unknown": [1]} | more}
        answer = client.chat.completions.create(extra_body=extra, **OPTIONS)
        (sample,) = service.samples(answer.run_id)
        assert sample.prompt == ASKED[-1]["content"] + end


def test_what_would_change_the_answer_is_refused_by_name(client: Any, subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"guided_json": {}}, "guided_json"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["a"], "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["a"]}, "enable_thinking": True}, "structured_outputs"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"stop_token_ids": [577]}, "stop_token_ids"),
    ]
    for extra, param in cases:
        with subtests.test(extra=extra):
            with pytest.raises(openai.BadRequestError) as raised:
                client.chat.completions.create(extra_body=extra, **OPTIONS)
            assert raised.value.param == param


def test_values_that_change_nothing_are_accepted(client: Any) -> None:
    plain = client.chat.completions.create(**OPTIONS)
    extra = {
        "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "min_tokens": 0, "ignore_eos": False,
        "stop_token_ids": [], "skip_special_tokens": True, "length_penalty": 1.0,
    }  # fmt: skip
    answer = client.chat.completions.create(extra_body=extra, **OPTIONS)
    assert answer.choices[0].message.content == plain.choices[0].message.content


def test_tokens_beyond_the_vocabulary_are_refused_before_the_first_load_too(
    service: Any, client: Any, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """Until a worker has loaded the model, the API does not know its vocabulary: the sample is refused."""
    monkeypatch.setattr(type(service.app.state.services.structures), "find", lambda *_: None)
    for extra in ({"logit_bias": {"577": 1.0}}, {"stop_token_ids": [577]}):
        for create, asked in (
            (client.chat.completions.create, {"messages": ASKED}),
            (client.completions.create, {"prompt": "Tom"}),
        ):
            with subtests.test(extra=extra, asked=asked), pytest.raises(openai.BadRequestError) as raised:
                create(model=MODEL, max_tokens=2, extra_body=extra, **asked)
            assert f"{next(iter(extra))} names token 577" in raised.value.message
            assert raised.value.param == next(iter(extra))
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=MODEL, prompt=[577], max_tokens=2)
    assert raised.value.param == "prompt"


def test_parts_that_are_no_text_are_refused_by_their_kind(client: Any, subtests: pytest.Subtests) -> None:
    for kind, named in (("image_url", "image"), ("input_audio", "audio"), ("file", "file")):
        content = [{"type": "text", "text": "What is this?"}, {"type": kind, kind: {"url": "data:x"}}]
        with subtests.test(kind=kind), pytest.raises(openai.BadRequestError) as raised:
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": content}])
        assert f"({named}): send text parts only" in raised.value.message
        assert raised.value.param.startswith("messages.0.content")
    parts = [{"type": "input_image", "image_url": "data:x"}]
    with pytest.raises(openai.BadRequestError, match=r"\(image\): send text parts only"):
        client.responses.create(model=MODEL, input=[{"role": "user", "content": parts}])
