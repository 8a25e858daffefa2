"""Workers that were killed leave no folders for good, and those that live keep theirs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from worker.process.scratch import scratch_folder

HOLDER = (
    "import sys, time; from worker.process.scratch import scratch_folder\n"
    "with scratch_folder() as folder:\n    print(folder, flush=True); time.sleep(600)"
)
REPO = Path(__file__).resolve().parents[4]


def age(folder: Path) -> None:
    os.utime(folder, (1.0, 1.0))


def test_the_folder_of_a_killed_worker_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(REPO)}
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, env=environment, text=True)
        for _ in range(2)
    ]
    folders = []
    for holder in holders:
        assert holder.stdout is not None
        folders.append(Path(holder.stdout.readline().strip()))
    killed, living = folders
    holders[0].send_signal(signal.SIGKILL)
    holders[0].wait()
    foreign = tmp_path / "actograph-worker-without-a-lock"
    foreign.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch_folder() as own:
        assert own.parent == tmp_path
        assert killed.exists(), "it may be so young that it is not locked yet"
    assert not own.exists()
    for folder in (killed, living, foreign):
        age(folder)
    with scratch_folder():
        assert not killed.exists()
        assert living.exists()
        assert foreign.exists()
    holders[1].kill()
    for holder in holders:
        holder.communicate()
