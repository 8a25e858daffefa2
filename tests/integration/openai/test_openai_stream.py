"""Streams as the openai package reads them."""

import json
import math
import socket
from collections.abc import Callable
from typing import Any

import openai
import pytest

from actograph.contract.resources import JobStatus
from tests.integration.openai.conftest import ASKED, MODEL


def texts(chunks: list[Any]) -> dict[int, str]:
    found: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            found[choice.index] = found.get(choice.index, "") + (choice.delta.content or "")
    return found


def test_chunks_come_in_openai_s_order_and_make_up_the_answer(client: Any) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": ASKED, "max_tokens": 24, "seed": 3, "n": 2}
    whole = client.chat.completions.create(**options)
    chunks = list(
        client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **options)
    )
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    for index in (0, 1):
        own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert own[0].delta.role == "assistant"
        assert all(choice.delta.role is None for choice in own[1:])
        assert [choice.finish_reason for choice in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1].finish_reason == whole.choices[index].finish_reason
    assert texts(chunks) == {choice.index: choice.message.content for choice in whole.choices}
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_the_text_comes_while_it_is_generated(service: Any, slow: Any) -> None:
    slow.most = 6
    with service.client() as client:
        chunks = client.chat.completions.create(
            model=MODEL, messages=ASKED, temperature=0, max_tokens=120, stream=True
        )
        seen = [next(chunks)]
        while not any(choice.delta.content for choice in seen[-1].choices):
            seen.append(next(chunks))
        (job,) = service.jobs()
        assert job.status == JobStatus.IN_PROGRESS
        slow.most = math.inf
        seen += list(chunks)
    (sample,) = service.samples(job.id)
    assert texts(seen) == {0: sample.completion}


def test_activations_come_in_the_last_chunk_before_the_usage(service: Any, client: Any) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=ASKED,
            max_tokens=6,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"store_activations": True},
        )
    )
    assert all("session_id" not in chunk.model_extra for chunk in chunks[:-2])
    last = chunks[-2]
    assert last.choices[0].finish_reason and last.choices[0].session_id == last.session_id
    assert last.activations_meta and last.activation_files
    ids = service.session(last.session_id).token_ids()
    assert len(ids) == chunks[-1].usage.total_tokens


def test_who_stops_reading_ends_the_job(
    service: Any, slow: list[float], eventually: Callable[..., None]
) -> None:
    with service.client() as client:
        chunks = client.chat.completions.create(
            model=MODEL, messages=ASKED, temperature=0, max_tokens=1500, stream=True
        )
        next(chunks)
        chunks.close()
    (job,) = service.jobs()
    eventually(lambda: service.job(job.id).status == JobStatus.CANCELLED)


def test_an_error_before_the_first_text_is_an_answer_of_its_own(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=2047, stream=True)
    assert raised.value.code == "context_length_exceeded"


def test_an_error_in_the_middle_is_an_error_of_the_stream(
    service: Any, slow: list[float], eventually: Callable[..., None]
) -> None:
    from storage.jobs import jobs

    with service.client() as client:
        chunks = client.chat.completions.create(
            model=MODEL, messages=ASKED, temperature=0, max_tokens=1500, stream=True
        )
        next(chunks)
        (job,) = service.jobs()
        with service.database.write() as session:
            jobs.cancel(session, job.id)
        with pytest.raises(openai.APIError, match="was cancelled"):
            list(chunks)


@pytest.mark.soak
def test_a_client_that_never_reads_holds_nobody_up(
    service: Any, client: Any, eventually: Callable[..., None]
) -> None:
    asked = {"model": MODEL, "messages": ASKED, "n": 16, "max_tokens": 300, "stream": True}
    body = json.dumps(asked).encode()
    host, port = service.url.removeprefix("http://").split(":")
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        deaf.connect((host, int(port)))
        deaf.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        eventually(lambda: len(service.jobs()) == 1)
        # its job runs on, and others are answered
        whole = client.chat.completions.create(model=MODEL, messages=ASKED, temperature=0, max_tokens=8)
        assert whole.usage.completion_tokens == 8
        eventually(lambda: all(job.status == JobStatus.COMPLETED for job in service.jobs()))
