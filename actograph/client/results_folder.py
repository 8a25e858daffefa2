"""A job's results folder on disk, and how far the fetching of it has come.

The service makes the archive anew for every request, so that it has no byte ranges. What stands for them
is the number of samples that have arrived: they come in an order that holds as long as the ETag does.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from actograph.client.unpacking import Unpacker
from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import SessionFile

Activations = Literal["none", "meta", "sampled", "all"]
#: what is fetched, how many are there, of how many
OnProgress = Callable[[str, int, int], None]

#: it stands in a folder that is not complete
STATE_NAME = ".actograph-pull.json"
#: the last file of an archive
SUMMARY_NAME = "summary.json"
#: what an export writes anew; session folders under agent_states are kept
_OWN_FOLDERS = ("samples", "trajectories", "lm_eval", "inspect")
_SAVE_EVERY = 50


@dataclass(frozen=True, kw_only=True)
class PulledResults:
    """What is in the folder now."""

    folder: Path
    samples: int
    #: session folders; 0 where they were not asked for
    sessions: int
    #: whether the job had ended, so that nothing will be added
    complete: bool


@dataclass(frozen=True, kw_only=True)
class SessionFolder:
    """A session that belongs into the results folder."""

    session_id: str
    folder: Path
    files: list[SessionFile]


@dataclass
class PullState:
    """How far a pull has come."""

    job_id: str
    #: what the archive has: `none`, `meta` or `sampled`
    activations: str
    #: None before the first answer, and after one that no longer holds
    etag: str | None = None
    samples: int = 0


class ResultsFolder:
    """The folder of one job; nothing is written before `begin`."""

    def __init__(self, folder: Path, job_id: str, activations: str, on_sample: Callable[[int], None]) -> None:
        """`on_sample`: called with the number of samples that have arrived.

        Raises:
            InvalidRequest: the folder holds something else than this job's results.
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
                    f"{self.folder} is for results of job {kept.job_id}; name another folder"
                )
            if kept.activations == activations:
                return kept
        elif summary.is_file():
            found = json.loads(summary.read_bytes())
            if not isinstance(found, dict) or found.get("job_id") != job_id:
                raise InvalidRequest(f"{self.folder} holds results of another job; name another folder")
        elif self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise InvalidRequest(f"{self.folder} holds something else; name a new or an empty folder")
        return PullState(job_id, activations)

    @property
    def complete(self) -> bool:
        """Whether the archive arrived to its end."""
        return self._last == SUMMARY_NAME

    def begin(self) -> None:
        """Make room for the next answer: nothing of an export that no longer holds stays."""
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
        """What takes the bytes of an answer."""
        return Unpacker(self.folder, self.state.job_id, self._arrived)

    def _arrived(self, name: str) -> None:
        self._last = name
        if name.startswith("samples/"):
            self.state.samples += 1
            self._on_sample(self.state.samples)
            if self.state.samples % _SAVE_EVERY == 0:
                self.save()

    def save(self) -> None:
        """Note how far it is, for a later call."""
        path = self.folder / STATE_NAME
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(asdict(self.state)))
        part.replace(path)

    def sessions(self) -> list[SessionFolder]:
        """Every session of the export, and where its files belong."""
        found = []
        for path in sorted((self.folder / "agent_states").glob("*.json")):
            state: dict[str, Any] = json.loads(path.read_bytes())
            files = [SessionFile.model_validate(file) for file in state["files"]]
            found.append(
                SessionFolder(session_id=state["session_id"], folder=path.with_suffix(""), files=files)
            )
        return found

    def end(self, sessions: int) -> PulledResults:
        """Everything is there."""
        (self.folder / STATE_NAME).unlink(missing_ok=True)
        summary = json.loads((self.folder / SUMMARY_NAME).read_bytes())
        return PulledResults(
            folder=self.folder,
            samples=self.state.samples,
            sessions=sessions,
            complete=bool(summary["complete"]),
        )
