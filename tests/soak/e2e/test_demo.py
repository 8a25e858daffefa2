"""`actograph demo` on an empty folder, and the commands that it tells people to type."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from actograph.client.stored_session import open_folder
from tests.support.processes import words_of

pytestmark = pytest.mark.e2e

PROGRAM = Path(sys.executable).with_name("actograph")


def run(*command: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        # `actograph` is on no PATH, as in a shell without the environment
        env={**os.environ, "PATH": _path_without(PROGRAM.parent), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _path_without(folder: Path) -> str:
    return os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if Path(p) != folder)


def test_from_nothing_to_activations(tmp_path: Path, up: Callable[..., Any]) -> None:
    if not PROGRAM.exists():
        pytest.skip("the package is not installed as a command")
    # what a user's shell may have set must not lead the demo elsewhere
    done = run(PROGRAM, "demo", "--limit", 24, cwd=tmp_path, ACTOGRAPH_API_KEYS="k", ACTOGRAPH_PORT="1")
    assert done.returncode == 0, done.stderr
    assert [process for process in psutil.process_iter() if _belongs_to(process, tmp_path)] == []

    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("gsm8k ")]
    assert [(row[2], row[-2:]) for row in rows] == [
        ("strict-match", ["24", "0"]),
        ("flexible-extract", ["24", "0"]),
        ("numeric", ["24", "0"]),
    ]
    assert all(float(row[5]) >= 0.8 for row in rows)
    assert re.search(r"^Rate: +[\d.]+ samples/s", done.stdout, re.M)
    shown = re.search(r"resid_post\.2 of (ses_\w+)\n +shape \[(\d+), 96\], dtype float32", done.stdout)
    assert shown is not None

    # every session on disk can be read, and is what was shown
    folders = sorted((tmp_path / ".demo" / "artifacts" / "sessions").iterdir())
    assert len(folders) == 24
    for folder in folders:
        session = open_folder(folder)
        tensor = session["resid_post.2"]
        assert tensor.shape[0] == len(session.token_ids) - 1
        if folder.name == shown[1]:
            assert tensor.shape[0] == int(shown[2])

    # the commands under "Next:" work as they stand
    commands = [
        shlex.split(line) for line in done.stdout.partition("Next:")[2].splitlines() if line.startswith("  ")
    ]
    assert [command[1] for command in commands] == ["up", "sessions", "sessions", "sessions"]
    assert Path(tmp_path, commands[0][0]).exists()
    flags = commands[0][2:]
    home, model = flags[flags.index("--home") + 1], flags[flags.index("--model") + 1]
    service = up(home=tmp_path / home, model=model)
    service.await_ready()
    for command in commands[1:]:
        again = run(*command, cwd=tmp_path, ACTOGRAPH_URL=service.url)
        assert again.returncode == 0, again.stderr
    assert (tmp_path / "pulled" / shown[1] / "manifest.json").is_file()
    assert service.stop() == 0


def _belongs_to(process: psutil.Process, folder: Path) -> bool:
    """Whether a process was started for a service below `folder`."""
    try:
        words = [*words_of(process), process.environ().get("ACTOGRAPH_HOME", "")]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return any(str(folder) in word for word in words)
