"""`actograph run` of a whole experiment against the real service, killed in every stage and run again."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actograph.client import Client
from actograph.demo import PROBLEMS

pytestmark = pytest.mark.e2e
EXPERIMENT = """\
name: founding
model:
  model_id: demo
  savepoints: [{name: middle, selector: resid_post.2}]
evaluate:
  base:
    model: demo
    task: gsm8k
    dataset: problems.jsonl
    limit: 50
    sampling: {max_tokens: 96}
    capture: {hooks: [middle]}
  jobs:
    plain: {conditions: [{name: plain}, {name: career, suffix: This matters to me.}]}
    tools: {mode: with_tools, tool_format: annotations}
fetch: {activations: sampled}
report: {}
"""
#: the state in which the process is killed, in this order
MOMENTS: list[Callable[[dict[str, Any]], bool]] = [
    lambda state: "id" in state,
    lambda state: "deploy" in state["stages"],
    lambda state: bool(state.get("loads")),
    lambda state: bool(state["files"]),
    lambda state: bool(state["jobs"]),
    lambda state: len(state["jobs"]) == 2,
    lambda state: "evaluate" in state["stages"],
    lambda state: "fetch" in state["stages"],
]


def test_nothing_is_done_twice_and_nothing_is_missing(up: Callable[..., Any], tmp_path: Path) -> None:
    shutil.copy(PROBLEMS, tmp_path / "problems.jsonl")
    path = tmp_path / "founding.yaml"
    path.write_text(EXPERIMENT)
    folder = tmp_path / "runs" / "founding"
    service = up()
    service.await_ready()
    command = [sys.executable, "-m", "actograph.cli.main", "--url", service.url, "run", str(path)]
    planned = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, check=False)
    assert planned.returncode == 0, planned.stderr
    assert not folder.exists()
    for moment in MOMENTS:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 240
        while process.poll() is None and not reached(folder, moment):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.kill()
        process.wait()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with Client(service.url, "") as client:
        jobs = [job for job in client.jobs.list() if job.kind != "load"]
        assert sorted((job.status, job.progress.total) for job in jobs) == [
            ("completed", 50),
            ("completed", 100),
        ]
        assert len(list(client.jobs.list(kind="load"))) == 1
        assert len(list(client.files.list())) == 1
        assert {sample.attempts for job in jobs for sample in job.samples()} == {1}
        assert len(list(client.sessions.list())) == 150
        again = subprocess.run(command, capture_output=True, text=True, check=False)
        assert again.returncode == 0, again.stderr
        assert again.stderr.count("done before") == 5
        assert len(list(client.jobs.list())) == 3
    report = json.loads((folder / "report.json").read_text())
    assert set(report["jobs"]) == {"plain", "tools"}
    assert "comparison" in report["jobs"]["plain"]
    assert report["stages"]["model"]["identity"]
    assert {path.name for path in (folder / "results").iterdir()} == {"plain", "tools"}
    assert service.stop() == 0


def reached(folder: Path, moment: Callable[[dict[str, Any]], bool]) -> bool:
    try:
        state = json.loads((folder / "state.json").read_text())
    except FileNotFoundError:
        return False
    return moment(state)
