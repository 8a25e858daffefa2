"""`actograph smoke` against the real service."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from actograph.client import Client

pytestmark = [pytest.mark.e2e, pytest.mark.soak]


def test_a_real_service_passes_and_keeps_nothing_of_the_test(up: Callable[..., Any]) -> None:
    service = up()
    service.await_ready()
    command = [sys.executable, "-m", "actograph.cli.main", "smoke", service.url, "--model"]
    done = subprocess.run([*command, "demo"], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["ok"] * 7
    refused = subprocess.run([*command, "other"], capture_output=True, text=True, timeout=600, check=False)
    assert refused.returncode == 13, refused.stdout
    with Client(service.url, "") as client:
        assert list(client.jobs.list()) == []
        assert list(client.sessions.list()) == []
    assert service.stop() == 0
