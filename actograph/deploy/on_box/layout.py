"""Folders and records of a deployment on the box.

FOLDER/code/FP       source of one version, with manifest.json
FOLDER/envs/FP       virtual environment of one locked set
FOLDER/releases/N.*  releases: version, environment and arguments, and secrets (mode 600)
FOLDER/home          index, artifacts and logs of the service: the same for all releases
FOLDER/models        uploaded models
FOLDER/service       starts the current release; FOLDER/actograph is its command line
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEPT_RELEASES = 3


class BoxError(Exception):
    """A failure that the client reports on one line."""


@dataclass(frozen=True)
class Layout:
    """Paths below the folder of a deployment."""

    root: Path

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def log(self) -> Path:
        """Output of `actograph up`."""
        return self.home / "logs" / "service.log"

    @property
    def keeper_log(self) -> Path:
        return self.home / "logs" / "keeper.log"

    @property
    def lock(self) -> Path:
        """Locked by the running keeper, with its pid inside."""
        return self.root / "keeper.lock"

    @property
    def script(self) -> Path:
        return self.root / "service"

    def code(self, fingerprint: str) -> Path:
        return self.root / "code" / fingerprint

    def env(self, fingerprint: str) -> Path:
        return self.root / "envs" / fingerprint

    def python(self, fingerprint: str) -> Path:
        return self.env(fingerprint) / "bin" / "python"

    def release_file(self, number: int) -> Path:
        return self.root / "releases" / f"{number}.json"

    def secrets_file(self, number: int) -> Path:
        return self.root / "releases" / f"{number}.env"

    def state(self) -> dict[str, Any]:
        """`current` and `previous` release, and `systemd`, the name of the unit if there is one."""
        found: dict[str, Any] = _read(self.root / "state.json") or {}
        return {"current": None, "previous": None, "systemd": None} | found

    def save_state(self, **changes: Any) -> None:
        write_json(self.root / "state.json", self.state() | changes)

    def release(self, number: int | None) -> dict[str, Any] | None:
        """Return a release; None if it does not exist."""
        return None if number is None else _read(self.release_file(number))

    def current(self) -> dict[str, Any] | None:
        return self.release(self.state()["current"])

    def add_release(self, release: dict[str, Any], secrets: str) -> int:
        """Write down a new release and return its number."""
        taken = [int(path.stem) for path in (self.root / "releases").glob("*.json")]
        number = max(taken, default=0) + 1
        private(self.secrets_file(number), secrets)
        write_json(self.release_file(number), release | {"number": number})
        return number


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def write_json(path: Path, value: Any) -> None:
    """Write a file in one step: readers see the former or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(value, indent=1), encoding="utf-8")
    part.replace(path)


def private(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file that other users cannot read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)
    part.replace(path)
