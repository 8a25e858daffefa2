"""The whole OpenAPI document, fuzzed against the real service: no 5xx, nothing undocumented.

Schemathesis makes requests from the document, valid and not, and follows ids from one answer to the
next request: once with an admin's key, once with one that sees its owner's things alone.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.integration]

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
#: an event stream of a job that waits does not end; tests/integration/api/test_event_stream.py reads those
ENDLESS = "follow_job"
LEAST_CASES = 2000
EXAMPLES = os.environ.get("ACTOGRAPH_TEST_FUZZ_EXAMPLES", "5")
#: for a longer search than CI's; without it the same requests are made each time
SEED = os.environ.get("ACTOGRAPH_TEST_FUZZ_SEED")
ROOT_KEY = "the-fuzzers-key"
#: a chat that the worker did not end in time is a 504, on a busy machine and in a paused queue
SETTINGS = '[checks.not_a_server_error]\nexpected-statuses = ["2xx", "3xx", "4xx", "504"]'
#: against a hang alone: what is slow must not fail
REQUEST_SECONDS = "180"
RUN_SECONDS = 1400


@pytest.mark.timeout(RUN_SECONDS + 100)
def test_no_request_breaks_the_service(
    up: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a request that made the first key would end the search: all others would be answered 401
    monkeypatch.setenv("ACTOGRAPH_API_KEYS", ROOT_KEY)
    # an admin pauses the queue, and then no chat is answered
    monkeypatch.setenv("ACTOGRAPH_CHAT_TIMEOUT_SECONDS", "2")
    service = up()
    service.await_ready()
    with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {ROOT_KEY}"}) as root:
        paths = root.get("/openapi.json").json()["paths"]
        submit = root.post("/v1/keys", json={"name": "fuzz", "role": "submit"}).json()["key"]
    of_admins = {
        operation["operationId"]
        for operations in paths.values()
        for operation in operations.values()
        if "admin" in str(operation.get("security"))
    }
    fuzz(service.url, submit, {ENDLESS, *of_admins}, tmp_path)
    fuzz(service.url, ROOT_KEY, {ENDLESS}, tmp_path)


def fuzz(url: str, key: str, left_out: set[str], folder: Path) -> None:
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"),
        *("--header", f"Authorization: Bearer {key}", "--checks", ",".join(CHECKS)),
        *(part for name in sorted(left_out) for part in ("--exclude-operation-id", name)),
        *(("--seed", SEED) if SEED else ("--generation-deterministic",)),
        *("--max-examples", EXAMPLES, "--continue-on-failure", "--suppress-health-check", "all"),
        *("--request-timeout", REQUEST_SECONDS, "--no-color"),
    ]
    (folder / "schemathesis.toml").write_text(SETTINGS)
    ran = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, timeout=RUN_SECONDS, check=False
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    generated = re.search(r"(\d+) generated", ran.stdout)
    assert generated is not None, ran.stdout[-3000:]
    assert int(generated[1]) >= LEAST_CASES
    assert "Stateful" in ran.stdout
    # routes that let nobody in were not tried
    assert "Authentication failed" not in ran.stdout, ran.stdout[-3000:]
