"""Attacks on a whole service, and what its other clients notice of them."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import urlsplit

import pytest

from actograph.demo import MODEL_DIR
from bench.attack import AttackedService

pytestmark = [pytest.mark.e2e, pytest.mark.integration]

ROOT_KEY = "the-admins-own-key"


@pytest.fixture(scope="module")
def attacked(module_up: Callable[..., Any]) -> Iterator[AttackedService]:
    """One service for all attacks: what an attack leaves behind must not hurt the next."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACTOGRAPH_API_KEYS", ROOT_KEY)
        up = module_up(model=f"demo={MODEL_DIR}")
    up.await_ready()
    yield AttackedService(up.url, api_pid=up.child("api").pid, admin_key=ROOT_KEY, model="demo")
    assert up.stop() == 0


def test_connections_that_send_half_a_request_hold_up_nobody(attacked: AttackedService) -> None:
    address = urlsplit(attacked.url)
    half = (
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
        + attacked.key("mallory").encode()
    )
    half += b"\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    with attacked.under_attack() as attack, ExitStack() as stack:
        for _ in range(400):
            connection = socket.create_connection((address.hostname, address.port))
            stack.enter_context(closing(connection))
            connection.sendall(half)
        time.sleep(2)
    attack.require_withstood()
