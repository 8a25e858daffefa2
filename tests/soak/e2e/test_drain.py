"""`actograph drain`: it runs what is in the index and in an experiment, and ends with the last job."""

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from actograph.client import Client
from actograph.demo import MODEL_DIR, PROBLEMS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
TEXT = """\
name: night
deploy: {target: nobody@nowhere}
evaluate:
  base: {dataset: problems.jsonl, limit: 60, sampling: {max_tokens: 96}, capture: null}
fetch: {activations: none}
"""


def drain(folder: Path, home: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "actograph", "drain", "night.yaml", f"--home={home}", "--port=0"]
    command += [f"--model=demo={MODEL_DIR}", "--threads=1", "--out=results"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_it_ends_with_its_jobs(up: Callable[..., Any], tmp_path: Path, gone: Callable[..., bool]) -> None:
    service = up()
    service.await_ready()
    with Client(service.url) as client:
        inputs = [{"prompt": f"{number} + 1 ="} for number in range(200)]
        spec = {"kind": "capture", "model": "demo", "inputs": inputs, "sampling": {"max_tokens": 64}}
        left = client.submit(spec | {"capture": None}).id
    assert service.stop() == 0

    folder = tmp_path / "desk"
    folder.mkdir()
    shutil.copy(PROBLEMS, folder / "problems.jsonl")
    (folder / "night.yaml").write_text(TEXT)
    with drain(folder, service.home) as process:
        assert process.stderr is not None
        said = [next(line for line in process.stderr if line.startswith("  main: job_"))]
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        said += process.stderr
    assert (process.returncode, said[-1]) == (130, "stopped; run the same command again to go on\n"), said
    assert children and gone(children)

    for _ in ("the rest of its jobs", "nothing"):
        with drain(folder, service.home) as process:
            out, err = process.communicate()
        assert (process.returncode, out) == (0, "drained; failed jobs: none\n"), err
    assert [line for line in err.splitlines() if "done before" in line] == [
        "evaluate: done before", "fetch: done before",
    ]  # fmt: skip
    state = json.loads((folder / "results" / "run.json").read_text())
    samples = folder / "results" / "results" / "main" / "samples"
    assert len(list(samples.iterdir())) == 60
    with closing(sqlite3.connect(service.home / "actograph.db")) as index:
        found = set(index.execute("SELECT id, status, completed FROM jobs"))
    assert found == {(left, "completed", 200), (state["jobs"]["main"], "completed", 60)}
