"""Folders and records of a deployment on the box.

ROOT/versions/FINGERPRINT   source of a version
ROOT/envs/LOCK-PYTHON-TIME  virtual environment of a locked set
ROOT/home                   index, artifacts and logs of the service: the same for all versions
ROOT/home/index-backups     copies of the index from before migrations and rollbacks
ROOT/cache                  caches of pip and of the service
ROOT/state.json             current and previous release, with their secrets; mode 600
ROOT/service.pid            pid and start time of the service
ROOT/current                link to the current version
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Mapping, Sequence  # noqa: UP035 (Python 3.8)

#: names in ROOT
OURS = {
    "versions", "envs", "home", "cache", "current", "lock", "state.json", "state.json.part", "service.pid",
    "service.pid.part",
}  # fmt: skip


class BoxError(Exception):
    """A failure that the user reads on one line."""


class Box:
    """Paths and state of a deployment."""

    def __init__(self, folder: str) -> None:
        """`folder`: absolute, or relative to the user's home."""
        self.root = root = Path.home() / Path(folder).expanduser()
        self.versions, self.envs, self.home = root / "versions", root / "envs", root / "home"
        self.state_file, self.pid_file = root / "state.json", root / "service.pid"
        self.log = self.home / "logs" / "service.log"
        digest = hashlib.sha256(str(root).encode()).hexdigest()[:8]
        self.unit = Path.home() / ".config/systemd/user" / f"actograph-{digest}.service"

    def state(self) -> dict[str, Any]:
        """Return the `current` and the `previous` release; None if there is none."""
        if not self.state_file.exists():
            return {"current": None, "previous": None}
        state: dict[str, Any] = json.loads(self.state_file.read_text())
        return state

    def save(self, state: Mapping[str, Any]) -> None:
        part = self.root / "state.json.part"
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(state, file, indent=1)
        part.replace(self.state_file)
        link = self.root / "current"
        if link.is_symlink():
            link.unlink()
        if state["current"]:
            link.symlink_to(self.versions / state["current"]["version"])


def log(line: str) -> None:
    """Show a line to the user."""
    answer(log=line)


def answer(**values: object) -> None:
    """Write one JSON line to the client. A change goes on to its end if the connection breaks."""
    try:
        sys.stdout.write(json.dumps(values) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        pass


def run(
    command: Sequence[str], variables: Mapping[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in a folder if one is given, and return its output."""
    return subprocess.run(
        command,
        env=variables,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")


def fingerprint(files: Mapping[str, Path]) -> str:
    """Fingerprint of the names and contents of a version's files."""
    whole = hashlib.sha256()
    for name in sorted(files):
        whole.update(f"{name}\0{hashlib.sha256(files[name].read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()[:12]


def files_below(folder: Path) -> dict[str, Path]:
    """Files of a version by their names in it, without those that Python compiled."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(folder).as_posix(): path for path in found}
