"""Attacks on a whole service, and what its other clients notice of them."""

import fcntl
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.attack import AttackedService

pytestmark = [pytest.mark.e2e, pytest.mark.integration]

JSON = {"Content-Type": "application/json"}


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


def junk(count: int) -> bytes:
    return b'{"junk": [' + b"[]," * count + b"[]]}"


def longest_junk() -> bytes:
    return junk(20_000_000)


def largest_junk() -> bytes:
    """No larger than a job's body may be, so that its values are what is refused."""
    return junk(10_000_000)


def unknown_keys() -> bytes:
    return b"{" + b",".join(b'"%d":0' % number for number in range(640_000)) + b"}"


def wide_texts() -> bytes:
    """Valid, and each text takes four times its size in memory."""
    text = "a" * 600_000 + "\N{BALLOON}"
    spec = {"kind": "capture", "model": "demo", "sampling": {"max_tokens": 1}, "capture": None}
    return json.dumps(spec | {"inputs": [{"prompt": text}] * 50}, ensure_ascii=False).encode()


def many_inputs() -> bytes:
    spec = {"kind": "capture", "model": "demo", "sampling": {"max_tokens": 1}, "capture": None}
    return json.dumps(spec | {"inputs": [{"prompt": "What is 2 + 2?"}] * 100_000}).encode()


@pytest.mark.parametrize("path", ["/v1/estimate", "/v1/chat/completions", "/v1/interventions"])
@pytest.mark.parametrize("body", [longest_junk, largest_junk, unknown_keys])
def test_one_large_body_holds_up_nobody(
    attacked: AttackedService, body: Callable[[], bytes], path: str
) -> None:
    """60 MB and 30 MB of empty lists, and 640,000 unknown keys; a key that may only read sends estimates."""
    sent, role = body(), "read" if path == "/v1/estimate" else "submit"
    with attacked.under_attack() as attack, attacked.client("mallory", role) as mallory:
        began = time.monotonic()
        answer = mallory.post(path, content=sent, headers=JSON)
        assert answer.status_code in (413, 422), answer.text
        assert time.monotonic() - began < 5
    attack.require_withstood()


@pytest.mark.parametrize("body", [wide_texts, many_inputs])
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


def at_once(count: int, request: Callable[[int], httpx.Response]) -> Counter[int]:
    """Status -> how many of so many requests that are sent at once; a 503 says when to come back."""
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(request, range(count)))
    assert all(int(one.headers["Retry-After"]) >= 1 for one in answers if one.status_code == 503)
    return Counter(answer.status_code for answer in answers)


def test_estimates_with_examples_hold_up_nobody(attacked: AttackedService) -> None:
    rows = "".join(
        json.dumps({"question": f"What is {n} + 2?", "answer": f"#### {n + 2}"}) + "\n" for n in range(7_000)
    )
    with attacked.client("mallory") as mallory:
        file = (
            mallory.post("/v1/files", files={"file": ("rows.jsonl", rows.encode())}).raise_for_status().json()
        )
        spec = {
            "kind": "evaluation",
            "model": "demo",
            "task": "gsm8k",
            "dataset": {"file_id": file["id"]},
            "num_fewshot": 5,
            "sampling": {"max_tokens": 16},
            "capture": None,
        }
        with attacked.under_attack() as attack:
            statuses = at_once(48, lambda _: mallory.post("/v1/estimate", json=spec))
    assert statuses[200] >= 1
    assert set(statuses) <= {200, 503}
    attack.require_withstood()


def store_vector(client: httpx.Client, name: str) -> httpx.Response:
    return client.post("/v1/interventions", json={"name": name, "hook": "resid_post.0", "vector": [1.0]})


def test_writers_that_wait_for_the_index_hold_up_no_reader(attacked: AttackedService) -> None:
    """Something outside keeps the index for itself: whatever writes must wait, and what reads must not."""
    with attacked.client("mallory") as mallory, ExitStack() as stack:
        turn = stack.enter_context((attacked.home / "actograph.db-turn").open("a"))
        writers = stack.enter_context(ThreadPoolExecutor(46))
        with attacked.under_attack() as attack:
            fcntl.flock(turn, fcntl.LOCK_EX)
            waiting = [writers.submit(store_vector, mallory, f"v{number}") for number in range(46)]
            time.sleep(5)
            fcntl.flock(turn, fcntl.LOCK_UN)
            statuses = Counter(one.result().status_code for one in waiting)
    assert statuses.keys() <= {200, 201, 503}, statuses
    attack.require_withstood(kinds=["list"])


def test_many_writers_hold_up_nobody(attacked: AttackedService) -> None:
    with attacked.client("mallory") as mallory, attacked.under_attack() as attack:
        first = at_once(46, lambda number: store_vector(mallory, f"first-{number}"))
        second = at_once(46, lambda number: store_vector(mallory, f"second-{number}"))
    assert (first + second).keys() <= {200, 201, 503}, first + second
    attack.require_withstood()


def test_exports_that_nobody_reads_hold_up_nobody(attacked: AttackedService) -> None:
    address = urlsplit(attacked.url)
    with attacked.client("mallory") as mallory, ExitStack() as stack:
        spec = {"kind": "capture", "model": "demo", "sampling": {"max_tokens": 1}, "capture": None}
        inputs = [{"prompt": random.randbytes(60).hex()} for _ in range(600)]
        job = mallory.post("/v1/jobs", json=spec | {"inputs": inputs}).raise_for_status().json()
        while mallory.get(f"/v1/jobs/{job['id']}").json()["status"] != "completed":
            time.sleep(0.2)
        lines = [f"GET /v1/jobs/{job['id']}/export HTTP/1.1", "Host: localhost"]
        request = "\r\n".join([*lines, f"Authorization: Bearer {attacked.key('mallory')}", "", ""]).encode()
        with attacked.under_attack(least_seconds=5) as attack:
            for _ in range(120):
                connection = stack.enter_context(closing(socket.socket()))
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.connect((address.hostname, address.port))
                connection.sendall(request)
    attack.require_withstood()
