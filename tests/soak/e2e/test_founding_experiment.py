"""A whole experiment from one YAML file, killed in every stage, as is the service once, and run again."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actograph.client import Client
from actograph.demo import PROBLEMS
from actograph.stack.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3000)]

# the demo's model answers about half of its problems right at this temperature: a probe needs both kinds
TEXT = """\
name: founding
model: {model_id: demo, savepoints: [{name: middle, selector: resid_post.2}]}
evaluate:
  base:
    dataset: problems.jsonl
    limit: 20
    sampling: {temperature: 1.8, max_tokens: 96}
    capture: {hooks: [middle]}
  jobs:
    plain: {conditions: [{name: plain}, {name: career, suffix: This matters to me.}]}
    tools: {tools: calculator, tool_format: annotations}
analyse:
  jobs:
    right: {kind: probe, sessions: {jobs: [plain]}, positions: generated, reduce: mean}
fetch: {activations: all}
report: {title: A founding experiment}
"""
SAMPLES = {"plain": 40, "tools": 20, "right": 1}
#: the experiment is killed once it has said each of these
LINES = (
    "model: running", "evaluate: running", "  plain: job_", "  tools: job_", "analyse: running",
    "  right: job_", "fetch: running", "  plain: 40 samples", "report: running",
)  # fmt: skip


class Desk:
    """A folder with the experiment, and the command that runs it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        shutil.copy(PROBLEMS, folder / "problems.jsonl")
        (folder / "founding.yaml").write_text(TEXT)
        self._command = [sys.executable, "-m", "actograph", "--url", url, "run", "founding.yaml"]

    def run(self, until: str | None = None) -> tuple[int, list[str]]:
        """Run the experiment to its end, or kill it at the first line that begins so."""
        said = []
        with subprocess.Popen(
            self._command, cwd=self.folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        ) as process:
            for line in process.stderr or ():
                said.append(line.rstrip("\n"))
                if until is not None and line.startswith(until):
                    process.kill()
                    break
        return process.returncode, said


def test_nothing_is_done_twice_and_nothing_is_missing(up: Callable[..., Any], tmp_path: Path) -> None:
    port = f"--port={free_port('127.0.0.1')}"
    service = up(port)
    service.await_ready()
    (tmp_path / "desk").mkdir()
    desk = Desk(tmp_path / "desk", service.url)
    for line in LINES:
        code, said = desk.run(until=line)
        assert code == -signal.SIGKILL, said
        if line == "  tools: job_":
            os.kill(service.process.pid, signal.SIGKILL)
            service.process.wait()
            service = up(port)
            service.await_ready()
    code, said = desk.run()
    assert code == 0, said
    stages = ("model", "evaluate", "analyse", "fetch", "report")
    assert desk.run()[1] == [f"{stage}: done before" for stage in stages]

    folder = desk.folder / "runs" / "founding"
    state = json.loads((folder / "run.json").read_text())
    with Client(service.url) as client:
        jobs = {job.id: job for job in client.jobs.list() if job.kind != "load"}
        assert jobs.keys() == set(state["jobs"].values())
        ended = {name: jobs[job_id] for name, job_id in state["jobs"].items()}
        assert {name: job.status for name, job in ended.items()} == dict.fromkeys(SAMPLES, "completed")
        assert {name: job.progress.completed for name, job in ended.items()} == SAMPLES
        assert len(list(client.jobs.list(kind="load"))) == 1
        assert len(list(client.files.list())) == 1
        kept = Counter(session.job_id for session in client.sessions.list())
        assert {name: kept[job_id] for name, job_id in state["jobs"].items()} == SAMPLES
        pages = list(client.store.verify(sample=1.0, seed=0))
        assert [problem for page in pages for problem in page.problems] == []
    for name in ("plain", "tools"):
        states = list((folder / "results" / name / "agent_states").glob("*/*.safetensors"))
        assert len(states) == SAMPLES[name]
    page = (folder / "report.html").read_text()
    assert all(job_id in page for job_id in state["jobs"].values())
    assert service.stop() == 0
