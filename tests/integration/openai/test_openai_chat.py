"""`/v1/chat/completions` and `/v1/completions` as the openai package asks them."""

import http.client
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from actograph.contract.resources import JobStatus
from tests.integration.openai.conftest import ASKED, MODEL


def test_an_answer_is_what_the_engine_generates_and_its_job_can_be_seen(service: Any, client: Any) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ASKED, temperature=0, max_tokens=12)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.model == MODEL and answer.system_fingerprint.startswith("fp_")
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length") and choice.message.tool_calls is None
    job = service.job(answer.run_id)
    assert (job.kind, job.status, job.priority) == ("chat", JobStatus.COMPLETED, 0)
    (sample,) = service.samples(job.id)
    assert sample.prompt == (
        "<|im_start|>user\nTom has 3 apples and buys 4 more. How many?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert choice.message.content == sample.completion
    assert answer.usage.prompt_tokens == len(service.ids(sample.prompt))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert "session_id" not in answer.model_extra

    text = client.completions.create(model=MODEL, prompt=sample.prompt, temperature=0, max_tokens=12)
    assert text.object == "text_completion" and text.id.startswith("cmpl-")
    assert text.choices[0].text == choice.message.content


def test_choices_have_seeds_that_follow_each_other_and_a_seed_repeats_an_answer(client: Any) -> None:
    def texts(**changes: Any) -> list[str]:
        answer = client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=16, **changes)
        assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
        return [choice.message.content for choice in answer.choices]

    three = texts(n=3, seed=7)
    assert len(set(three)) == 3
    assert [texts(seed=7), texts(seed=8), texts(seed=9)] == [[t] for t in three]
    # no seed: another one each time
    assert texts(n=2, temperature=9) != texts(n=2, temperature=9)
    assert len(set(texts(n=2, temperature=0))) == 1


def test_what_cannot_be_answered_is_an_error_of_openai_s_kind(client: Any, subtests: pytest.Subtests) -> None:
    for changes, kind, code, param in [
        ({"model": "nobody"}, openai.NotFoundError, "model_not_found", "model"),
        ({"max_tokens": 4096}, openai.BadRequestError, "context_length_exceeded", "max_tokens"),
        ({"max_tokens": 2047}, openai.BadRequestError, "context_length_exceeded", None),
        ({"messages": []}, openai.BadRequestError, "invalid_request", "messages"),
        ({"presence_penalty": 2.5}, openai.BadRequestError, "invalid_request", "presence_penalty"),
        ({"logit_bias": {"5": 101}}, openai.BadRequestError, "invalid_request", None),
        ({"logit_bias": {"577": 1}}, openai.BadRequestError, "invalid_request", "logit_bias"),
        ({"tool_choice": "required"}, openai.BadRequestError, "invalid_request", "tool_choice"),
        ({"tool_choice": "any"}, openai.BadRequestError, "invalid_request", "tool_choice"),
        ({"response_format": {"type": "xml"}}, openai.BadRequestError, "invalid_request", None),
        ({"extra_body": {"typo": 1}}, openai.BadRequestError, "invalid_request", "typo"),
        ({"extra_body": {"capture": {"hooks": ["no.such"]}}}, openai.BadRequestError, "unknown_hook", None),
    ]:
        with subtests.test(changes=changes, kind=kind, code=code, param=param):
            with pytest.raises(kind) as raised:
                client.chat.completions.create(
                    **{"model": MODEL, "messages": ASKED, "max_tokens": 4} | changes
                )
            assert raised.value.code == code
            if param is not None:
                assert raised.value.param == param


def test_chats_that_wait_together_run_together_and_keep_their_own_activations(
    service: Any, eventually: Callable[..., None]
) -> None:
    count = 24
    service.works.clear()

    def ask(number: int) -> Any:
        with service.client() as client:
            return client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": f"{number} and {number + 1}"}],
                seed=number,
                max_tokens=4 + number,
                extra_body={"capture": {"points": ["resid_post"], "layers": [0]}},
            )

    runs: list[Any] = []
    run = service.engine.run

    def counted(**options: Any) -> Any:
        runs.append(run(**options))
        return runs[-1]

    service.engine.run = counted
    try:
        with ThreadPoolExecutor(count) as pool:
            asked = [pool.submit(ask, number) for number in range(count)]
            eventually(lambda: len(service.jobs()) == count)
            service.works.set()
            answers = [one.result() for one in asked]
    finally:
        del service.engine.run
    tokens = sum(answer.usage.completion_tokens for answer in answers)
    assert sum(one.passes for one in runs) < tokens / 4, "they run side by side"
    assert len({answer.session_id for answer in answers}) == count
    for number, answer in enumerate(answers):
        (sample,) = service.samples(answer.run_id)
        assert f"user\n{number} and {number + 1}<" in sample.prompt
        reader = service.session(answer.session_id)
        ids = reader.token_ids()
        prompt = service.ids(sample.prompt)
        assert ids[: len(prompt)] == prompt
        assert len(ids) - len(prompt) == answer.usage.completion_tokens <= 4 + number
        shown = service.engine.model.tokenizer.decode(ids[len(prompt) :], skip_special_tokens=True)
        # the text keeps the marks of thoughts and calls, which this tokenizer counts as special
        assert shown == re.sub(r"</?(think|tool_call|tool_response)>", "", answer.choices[0].message.content)
        width = service.engine.structure.hidden_size
        meta = answer.activations_meta["resid_post.0"]
        assert meta["shape"] == [len(ids) - 1, width]
        assert reader.manifest.tensors["resid_post.0"].shape == (len(ids) - 1, width)
        assert reader.manifest.sampling["max_tokens"] == 4 + number
        names = {file["name"] for file in answer.activation_files}
        assert "activations.safetensors" in names and "manifest.json" in names
        assert answer.choices[0].session_id == answer.session_id
        message = answer.choices[0].message
        assert (message.run_id, message.session_id) == (answer.run_id, answer.session_id)
        assert message.activation_files == answer.activation_files


def test_a_client_that_goes_away_ends_its_job_and_leaves_the_others_alone(
    service: Any, slow: list[float], eventually: Callable[..., None]
) -> None:
    service.works.clear()
    request = {"model": MODEL, "messages": ASKED, "temperature": 0, "max_tokens": 100}
    with service.client() as client, ThreadPoolExecutor(1) as pool:
        patient = pool.submit(client.chat.completions.create, **request, extra_body={"tags": ["patient"]})
        url = httpx.URL(service.url)
        hasty = http.client.HTTPConnection(url.host, url.port or 80)
        body = json.dumps(request | {"tags": ["hasty"], "max_tokens": 1500})
        hasty.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        eventually(lambda: len(service.jobs()) == 2)
        by_tag = {job.tags[0]: job.id for job in service.jobs()}
        service.works.set()
        eventually(lambda: service.job(by_tag["hasty"]).status == JobStatus.IN_PROGRESS)
        hasty.close()
        eventually(lambda: service.job(by_tag["hasty"]).status == JobStatus.CANCELLED)
        assert patient.result().usage.completion_tokens == 100
    assert service.job(by_tag["patient"]).status == JobStatus.COMPLETED


def test_a_request_without_a_worker_is_told_at_once(service: Any, client: Any) -> None:
    from storage.queue import workers

    with service.database.write() as session:
        workers.set_offline(session, "wrk_" + "0" * 32)
    with pytest.raises(openai.InternalServerError, match="no worker is alive") as raised:
        client.chat.completions.create(model=MODEL, messages=ASKED)
    assert raised.value.status_code == 503
