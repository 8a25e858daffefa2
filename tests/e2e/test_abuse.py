"""Attacks on a whole service, and what its other clients notice of them."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from actograph.demo import MODEL_DIR
from bench.attack import AttackedService

pytestmark = [pytest.mark.e2e, pytest.mark.integration]

JSON = {"Content-Type": "application/json"}
ROOT_KEY = "the-admins-own-key"


@pytest.fixture(scope="module")
def attacked(module_up: Callable[..., Any]) -> Iterator[AttackedService]:
    """One service for all attacks: what an attack leaves behind must not hurt the next."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACTOGRAPH_API_KEYS", ROOT_KEY)
        up = module_up(model=f"demo={MODEL_DIR}")
    up.await_ready()
    yield AttackedService(
        up.url,
        api_pid=up.child("api").pid,
        api_log=up.home / "logs" / "api.log",
        admin_key=ROOT_KEY,
        model="demo",
    )
    assert up.stop() == 0


def half_a_request(attacked: AttackedService, path: str, content_type: str) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {attacked.key('mallory')}",
        f"Content-Type: {content_type}",
        "Content-Length: 1000",
    ]
    return "\r\n".join([*lines, "", "{"]).encode()


def test_connections_that_send_half_a_request_hold_up_nobody(attacked: AttackedService) -> None:
    address = urlsplit(attacked.url)
    half = half_a_request(attacked, "/v1/jobs", "application/json")
    with attacked.under_attack() as attack, ExitStack() as stack:
        for _ in range(400):
            connection = socket.create_connection((address.hostname, address.port))
            stack.enter_context(closing(connection))
            connection.sendall(half)
        time.sleep(2)
    attack.require_withstood()


def junk() -> bytes:
    return b'{"junk": [' + b"[]," * 20_000_000 + b"[]]}"


def unknown_keys() -> bytes:
    return b"{" + b",".join(b'"%d":0' % number for number in range(640_000)) + b"}"


def wide_texts() -> bytes:
    """Valid, and each text takes four times its size in memory."""
    text = "a" * 600_000 + "\N{BALLOON}"
    spec = {"kind": "capture", "model": "demo", "sampling": {"max_tokens": 1}, "capture": {"mode": "off"}}
    return json.dumps(spec | {"inputs": [{"prompt": text}] * 100}, ensure_ascii=False).encode()


def many_inputs() -> bytes:
    spec = {"kind": "capture", "model": "demo", "sampling": {"max_tokens": 1}, "capture": {"mode": "off"}}
    return json.dumps(spec | {"inputs": [{"prompt": "What is 2 + 2?"}] * 100_000}).encode()


@pytest.mark.parametrize("path", ["/v1/estimate", "/v1/chat/completions", "/v1/interventions"])
@pytest.mark.parametrize("body", [junk, unknown_keys])
def test_one_large_body_holds_up_nobody(
    attacked: AttackedService, body: Callable[[], bytes], path: str
) -> None:
    """60 MB of empty lists, and 640,000 unknown keys, from a key that may only read where that is enough."""
    sent, role = body(), "read" if path == "/v1/estimate" else "submit"
    with attacked.under_attack() as attack, attacked.client("mallory", role) as mallory:
        began = time.monotonic()
        answer = mallory.post(path, content=sent, headers=JSON)
        assert answer.status_code in (413, 422), answer.text
        assert time.monotonic() - began < 5
    attack.require_withstood()


@pytest.mark.parametrize("body", [wide_texts])
def test_large_bodies_that_are_valid_hold_up_nobody(
    attacked: AttackedService, body: Callable[[], bytes]
) -> None:
    """Four clients at once send as much as a job may have; a 503 says when to come back."""
    sent = body()

    def estimate(_: int) -> httpx.Response:
        with attacked.client("mallory", "read") as mallory:
            return mallory.post("/v1/estimate", content=sent, headers=JSON)

    with attacked.under_attack() as attack, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(estimate, range(8)))
    assert 200 in {answer.status_code for answer in answers}, answers[0].text
    for answer in answers:
        assert answer.status_code in (200, 503), answer.text
        assert answer.status_code == 200 or int(answer.headers["Retry-After"]) >= 1
    attack.require_withstood()


def test_aborted_bodies_write_no_tracebacks(attacked: AttackedService) -> None:
    address = urlsplit(attacked.url)
    lines = []
    with attacked.under_attack() as attack:
        before = attacked.log()
        for path, content_type in (
            ("/v1/jobs", "application/json"),
            ("/v1/files", "multipart/form-data; boundary=x"),
        ):
            for _ in range(50):
                with socket.create_connection((address.hostname, address.port)) as connection:
                    connection.sendall(half_a_request(attacked, path, content_type))
        time.sleep(1)
        lines = attacked.log()[len(before) :].splitlines()
    attack.require_withstood()
    assert not [line for line in lines if "Traceback" in line or "Error" in line]
    assert len([line for line in lines if "/v1/jobs" in line or "/v1/files" in line]) <= 100
