"""A job's results folder on disk, and the state of its download.

The service builds the archive for each request, so there are no byte ranges. A download resumes after the
number of samples that have arrived: their order is fixed as long as the ETag is the same.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actograph.client.pulls.unpacking import Unpacker
from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import SessionFile

#: present while a folder is incomplete
STATE_NAME = ".actograph-pull.json"
#: the last file of an archive
SUMMARY_NAME = "summary.json"
#: folders that a new export replaces; session folders under agent_states are kept
_OWN_FOLDERS = ("samples", "trajectories", "lm_eval", "inspect")
_SAVE_EVERY = 50


@dataclass(frozen=True, kw_only=True)
class PulledResults:
    """Contents of the folder after a pull."""

    folder: Path
    samples: int
    #: session folders; 0 unless requested
    sessions: int
    #: whether the job had ended
    complete: bool


@dataclass(frozen=True, kw_only=True)
class SessionFolder:
    """A session of the results folder."""

    session_id: str
    folder: Path
    files: list[SessionFile]


@dataclass
class PullState:
    """State of a pull, kept in the folder."""

    job_id: str
    #: `none`, `meta` or `sampled`
    activations: str
    #: None before the first answer, and after the export has changed
    etag: str | None = None
    samples: int = 0


class ResultsFolder:
    """The results folder of one job. `begin` is the first call that writes."""

    def __init__(self, folder: Path, job_id: str, activations: str, on_sample: Callable[[int], None]) -> None:
        """`on_sample`: called with the number of samples received.

        Raises:
            InvalidRequest: the folder contains something else.
        """
        self.folder = folder
        self._on_sample = on_sample
        self.state = self._found(job_id, activations)
        self._last = ""

    def _found(self, job_id: str, activations: str) -> PullState:
        state, summary = self.folder / STATE_NAME, self.folder / SUMMARY_NAME
        if state.is_file():
            kept = PullState(**json.loads(state.read_bytes()))
            if kept.job_id != job_id:
                raise InvalidRequest(
                    f"{self.folder} contains results of job {kept.job_id}; choose another folder"
                )
            if kept.activations == activations:
                return kept
        elif summary.is_file():
            found = json.loads(summary.read_bytes())
            if not isinstance(found, dict) or found.get("job_id") != job_id:
                raise InvalidRequest(f"{self.folder} contains results of another job; choose another folder")
        elif self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise InvalidRequest(f"{self.folder} contains other files; choose a new or empty folder")
        return PullState(job_id, activations)

    @property
    def complete(self) -> bool:
        """Whether the whole archive has arrived."""
        return self._last == SUMMARY_NAME

    def begin(self) -> None:
        """Prepare the folder for the next answer: files of an outdated export are deleted."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._last = ""
        if self.state.etag is None:
            self.state.samples = 0
            for name in _OWN_FOLDERS:
                if (self.folder / name).is_dir():
                    shutil.rmtree(self.folder / name)
            for left in (self.folder / "agent_states").glob("*.json"):
                left.unlink()
            (self.folder / SUMMARY_NAME).unlink(missing_ok=True)
        self.save()

    def unpacker(self) -> Unpacker:
        """Return the unpacker for the bytes of an answer."""
        return Unpacker(self.folder, self.state.job_id, self._arrived)

    def _arrived(self, name: str) -> None:
        self._last = name
        if name.startswith("samples/"):
            self.state.samples += 1
            self._on_sample(self.state.samples)
            if self.state.samples % _SAVE_EVERY == 0:
                self.save()

    def save(self) -> None:
        """Write the state, for a later call."""
        path = self.folder / STATE_NAME
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(asdict(self.state)))
        part.replace(path)

    def sessions(self) -> list[SessionFolder]:
        """Return every session of the export, with the folder of its files."""
        found = []
        for path in sorted((self.folder / "agent_states").glob("*.json")):
            state: dict[str, Any] = json.loads(path.read_bytes())
            files = [SessionFile.model_validate(file) for file in state["files"]]
            found.append(
                SessionFolder(session_id=state["session_id"], folder=path.with_suffix(""), files=files)
            )
        return found

    def end(self, sessions: int) -> PulledResults:
        """Finish a complete pull."""
        (self.folder / STATE_NAME).unlink(missing_ok=True)
        summary = json.loads((self.folder / SUMMARY_NAME).read_bytes())
        return PulledResults(
            folder=self.folder,
            samples=self.state.samples,
            sessions=sessions,
            complete=bool(summary["complete"]),
        )
