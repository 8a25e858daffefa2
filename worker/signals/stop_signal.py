"""The stop signal between a worker's two processes: a file.

Celery's parent process receives SIGTERM; its child holds the model. Celery's warm shutdown waits for the
running task and sends the child nothing, so the parent writes a file, and the child checks for it between
decode steps. A child that cannot load its model writes the reason into the same file and ends the parent.
The child inherits the file's name through the environment.
"""

import os
import time
from pathlib import Path

_ENVIRONMENT = "ACTOGRAPH_WORKER_STOP_FILE"


class StopSignal:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen_at: float | None = None

    @classmethod
    def create(cls, folder: Path) -> "StopSignal":
        """In the parent: make an unset signal, inherited by processes started from now on."""
        signal = cls(folder / "stop-worker")
        signal._path.unlink(missing_ok=True)
        os.environ[_ENVIRONMENT] = str(signal._path)
        return signal

    @classmethod
    def inherited(cls) -> "StopSignal":
        """In the child: the parent's signal."""
        return cls(Path(os.environ[_ENVIRONMENT]))

    @property
    def folder(self) -> Path:
        """The folder shared by parent and child."""
        return self._path.parent

    def set(self, failure: str = "") -> None:
        """Set the signal; `failure` is the reason if the end is not orderly."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(failure)

    def failure(self) -> str:
        """The reason why the child gave up; "" if it did not."""
        return self._path.read_text(encoding="utf-8") if self._path.exists() else ""

    def is_set(self) -> bool:
        if self._seen_at is None and self._path.exists():
            self._seen_at = time.monotonic()
        return self._seen_at is not None

    def seconds_since_set(self) -> float:
        """Seconds since this process first saw it set; 0 while it is not."""
        return time.monotonic() - self._seen_at if self.is_set() and self._seen_at is not None else 0.0
