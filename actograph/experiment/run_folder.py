"""The run folder: state of each stage, input files, results."""

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from actograph.contract.base import canonical_digest
from actograph.contract.errors import Conflict

STATE = "state.json"


class RunFolder:
    """State and files of one run. Every change is on disk before the next step begins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state: dict[str, Any] = {"stages": {}, "jobs": {}, "files": {}}
        if (path / STATE).is_file():
            self.state = json.loads((path / STATE).read_text(encoding="utf-8"))

    @property
    def id(self) -> str:
        """Random name of this run, in the tags of its jobs."""
        return str(self.state["id"])

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder, and let no other process run the experiment in it.

        Raises:
            Conflict: another process runs it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(f"another process runs the experiment in {self.path}") from None
            if "id" not in self.state:
                self.state["id"] = secrets.token_hex(6)
                self.save()
            yield

    def save(self) -> None:
        """Write the state durably and in one step."""
        self.write(STATE, json.dumps(self.state, indent=1, sort_keys=True) + "\n")

    def write(self, name: str, text: str) -> Path:
        """Write a file of the folder in one step."""
        target = self.path / name
        aside = target.with_name(f".{target.name}.new")
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
        return target

    def is_done(self, stage: str, fingerprint: str) -> bool:
        """Whether a stage was completed with this fingerprint."""
        return bool(self.state["stages"].get(stage, {}).get("fingerprint") == fingerprint)

    def done(self, stage: str, fingerprint: str, **outputs: Any) -> None:
        """Record the completion of a stage."""
        self.state["stages"][stage] = {"fingerprint": fingerprint, **outputs}
        self.save()

    def keep_input(self, file: Path) -> Path:
        """Copy an input file into the folder, under the start of its sha256. Returns the copy."""
        digest = digest_of(file)
        kept = self.path / "inputs" / f"{digest[:16]}-{file.name}"
        if not kept.is_file():
            kept.parent.mkdir(exist_ok=True)
            aside = kept.with_name(f".{kept.name}.new")
            shutil.copyfile(file, aside)
            aside.replace(kept)
        return kept


def digest_of(file: Path) -> str:
    """sha256 of a file."""
    with file.open("rb") as opened:
        found = sha256()
        while chunk := opened.read(1 << 20):
            found.update(chunk)
    return found.hexdigest()


def fingerprint(*parts: Any) -> str:
    """Digest of the values that a stage depends on."""
    return canonical_digest(list(parts))
