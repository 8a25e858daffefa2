"""`actograph drain`: from a job spec to results and an exit status, and again after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from actograph.demo import MODEL_DIR, PROBLEMS

pytestmark = pytest.mark.e2e


def test_jobs_run_and_the_command_ends(tmp_path: Path) -> None:
    spec = {
        "kind": "evaluation", "task": "gsm8k", "dataset": {"path": str(PROBLEMS)}, "limit": 100,
        "sampling": {"max_tokens": 96}, "capture": {"points": ["resid_post"], "layers": "all"},
    }  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(spec))
    command = [
        sys.executable, "-m", "actograph.cli.main", "drain", "--model", f"demo={MODEL_DIR}",
        "--format", "json", "--home", tmp_path / "home", "--job", tmp_path / "job.json",
        "--out", tmp_path / "out", "--options", f"--threads=1 --data-root {PROBLEMS.parent}",
    ]  # fmt: skip
    with (tmp_path / "err").open("w") as err:
        first = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=err)
    deadline = time.monotonic() + 240
    while "1 jobs waiting" not in (tmp_path / "err").read_text():
        assert first.poll() is None, (tmp_path / "err").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    first.send_signal(signal.SIGTERM)  # the machine is taken away
    assert first.wait(120) == 130
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=500, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    (job,) = map(json.loads, done.stdout.splitlines())
    assert (job["status"], job["progress"]["completed"]) == ("completed", 100)
    (folder,) = (tmp_path / "out").iterdir()
    assert folder.name == job["id"]
    assert len(list(folder.rglob("manifest.json"))) == 100
