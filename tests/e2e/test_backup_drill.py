"""The drill: back up a service in the middle of a drain, restore it elsewhere, and let the drain go on."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actograph.client import Client
from actograph.contract.resources import JobStatus
from actograph.demo import PROBLEMS

pytestmark = pytest.mark.e2e
ACTOGRAPH = [sys.executable, "-m", "actograph.cli.main"]
PROBLEM_COUNT = 120


def command(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ACTOGRAPH, *map(str, words)], capture_output=True, text=True, timeout=600, check=False
    )


def test_a_busy_service_is_restored_elsewhere(
    up: Callable[..., Any], wait: Callable[..., None], tmp_path: Path
) -> None:
    service = up()
    service.await_ready()
    with Client(service.url, "") as client:
        spec = {
            "kind": "evaluation", "model": "demo", "dataset": {"file_id": client.files.upload(PROBLEMS).id},
            "limit": PROBLEM_COUNT, "sampling": {"max_tokens": 96},
            "capture": {"points": ["resid_post"], "layers": "all"},
        }  # fmt: skip
        job_id = client.submit(spec).id
        wait(lambda: client.jobs.get(job_id).progress.completed > 0)
        saved = command("backup", tmp_path / "backup", "--home", service.home)
        assert saved.returncode == 0, saved.stderr
        assert saved.stdout.startswith("saved: ")
        assert client.jobs.wait(job_id, timeout=300).status is JobStatus.COMPLETED
    # a running service is not overwritten
    refused = command("restore", tmp_path / "backup", "--home", service.home)
    assert (refused.returncode, "another actograph up" in refused.stderr) == (1, True)
    assert service.stop() == 0

    restored = command("restore", tmp_path / "backup", "--home", tmp_path / "elsewhere")
    assert restored.returncode == 0, restored.stderr
    again = up(home=tmp_path / "elsewhere")
    again.await_ready()
    with Client(again.url, "") as client:
        assert client.jobs.wait(job_id, timeout=300).status is JobStatus.COMPLETED
        samples = list(client.jobs.samples(job_id))
        assert len({sample.session_id for sample in samples} - {None}) == PROBLEM_COUNT
        assert len(list(client.sessions.list(job_id=job_id))) == PROBLEM_COUNT
    verified = command("--url", again.url, "store", "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert again.stop() == 0
