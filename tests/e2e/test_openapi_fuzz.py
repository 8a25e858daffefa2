"""The whole OpenAPI document, fuzzed against the real service: no 5xx, nothing undocumented.

Schemathesis makes requests from the document, valid and not, and follows ids from one answer to the
next request.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
EXAMPLES = os.environ.get("ACTOGRAPH_TEST_FUZZ_EXAMPLES", "20")


def test_no_request_breaks_the_service(up: Callable[..., Any], tmp_path: Path) -> None:
    service = up()
    service.await_ready()
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}/openapi.json"),
        *("--checks", ",".join(CHECKS), "--exclude-operation-id", ENDLESS),
        *("--max-examples", EXAMPLES, "--generation-deterministic", "--continue-on-failure"),
        *("--request-timeout", "30", "--no-color", "--suppress-health-check", "all"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=500, check=False)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    generated = re.search(r"(\d+) generated", ran.stdout)
    assert generated is not None, ran.stdout[-3000:]
    assert int(generated[1]) >= LEAST_CASES
    assert "Stateful" in ran.stdout
