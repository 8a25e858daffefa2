"""Downloads: files of a session, verified before they get their name, and results folders of jobs."""

import hashlib
import json
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

from actograph.client.errors import DownloadDamaged, ServiceUnreachable
from actograph.client.transport import Transport, path_of
from actograph.concurrency import each_of
from actograph.contract.errors import InvalidRequest, StoreDamaged
from actograph.contract.resources import Job, SessionFile
from actograph.progress import Update

Activations = Literal["none", "meta", "sampled", "all"]
#: sessions fetched at once
PARALLEL = 4
#: the service may read for long before it sends the next bytes
READ_SECONDS = 300.0
#: present while a folder is incomplete
STATE_NAME = ".actograph-pull.json"
#: the last file of an archive
SUMMARY_NAME = "summary.json"
#: folders that a new export replaces; session folders under agent_states are kept
_OWN_FOLDERS = ("samples", "trajectories", "lm_eval", "inspect")


@dataclass(frozen=True, kw_only=True)
class ExportedResults:
    """Contents of the folder after a pull."""

    folder: Path
    samples: int
    #: session folders; 0 unless requested
    sessions: int
    #: whether the job had ended
    complete: bool


def plain_name(name: str) -> str:
    """Return `name` if it is a plain file name. Raises StoreDamaged if it leads out of the folder."""
    if not name or name in (".", "..") or Path(name).name != name or "\0" in name or "\\" in name:
        raise StoreDamaged(f"the service lists a file with the unusable name {name!r}")
    return name


def fetch(transport: Transport, path: str, file: SessionFile, folder: Path) -> Path:
    """Download a session's file; see `Sessions.download`."""
    target = folder / plain_name(file.name)
    if target.is_file() and sha256_of(target) == file.sha256:
        return target
    part = target.with_name(target.name + ".part")

    def download() -> None:
        with part.open("wb") as out:
            transport.download(path, out)

    try:
        transport.repeat(download)
        found, size = sha256_of(part), part.stat().st_size
        if found != file.sha256:
            expected = f"expected {file.bytes} bytes with {file.sha256}"
            raise DownloadDamaged(f"{file.name}: got {size} bytes with sha256 {found}, {expected}")
        return part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def pull(
    transport: Transport,
    download_file: Callable[[str, SessionFile, Path], Path],
    job: Job,
    folder: Path,
    *,
    activations: Activations,
    on_progress: Update,
) -> ExportedResults:
    """Download a job's results folder; see `JobHandle.export` and `Sessions.download`."""
    _claim(folder, job.id)
    ended = job.progress.completed + job.progress.failed
    query = {"activations": "meta" if activations == "all" else activations}
    path, samples = path_of("/v1/jobs", job.id, "export"), 0

    def download() -> None:
        nonlocal samples
        _clear(folder)
        samples, last = 0, ""
        on_progress("samples", 0, ended)
        with transport.stream("GET", path, params=query, read_timeout=READ_SECONDS) as response:
            for last in unpack(response.iter_bytes(), folder, job.id):
                samples += last.startswith("samples/")
                on_progress("samples", samples, max(samples, ended))
        if last != SUMMARY_NAME:
            raise ServiceUnreachable(f"the export of job {job.id} was cut off")

    def fetch_all(state_path: Path) -> None:
        """Download the missing and damaged files of a session."""
        state, target = json.loads(state_path.read_bytes()), state_path.with_suffix("")
        target.mkdir(exist_ok=True)
        for file in map(SessionFile.model_validate, state["files"]):
            download_file(state["session_id"], file, target)

    transport.repeat(download)
    states = sorted((folder / "agent_states").glob("*.json")) if activations == "all" else []
    for fetched, _ in enumerate(each_of(fetch_all, states, PARALLEL), 1):
        on_progress("sessions", fetched, len(states))
    (folder / STATE_NAME).unlink()
    complete = bool(json.loads((folder / SUMMARY_NAME).read_bytes())["complete"])
    return ExportedResults(folder=folder, samples=samples, sessions=len(states), complete=complete)


def job_of(folder: Path) -> str | None:
    """Return the id of the job whose results a folder contains: None without one, "" if it is damaged."""
    for path in (folder / STATE_NAME, folder / SUMMARY_NAME):
        if path.is_file():
            try:
                found = json.loads(path.read_bytes())
            except ValueError:
                return ""
            return str(found.get("job_id", "")) if isinstance(found, dict) else ""
    return None


def _claim(folder: Path, job_id: str) -> None:
    """Make the folder and mark it as the job's. Raises InvalidRequest if it contains something else."""
    if (known := job_of(folder)) is None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InvalidRequest(f"{folder} contains other files; choose a new or empty folder")
    elif known != job_id:
        raise InvalidRequest(f"{folder} contains results of another job; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STATE_NAME).write_text(json.dumps({"job_id": job_id}))


def _clear(folder: Path) -> None:
    """Delete the files of an earlier export."""
    for name in _OWN_FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)
    for left in (folder / "agent_states").glob("*.json"):
        left.unlink()
    (folder / SUMMARY_NAME).unlink(missing_ok=True)


class _Chunks:
    """The chunks of an answer as a file."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)

    def read(self, _size: int) -> bytes:
        return next(self._chunks, b"")


def unpack(chunks: Iterable[bytes], folder: Path, top: str) -> Iterator[str]:
    """Unpack a tar.gz with the top folder `top` into `folder` while it arrives.

    Yields the name of each file after it is complete.

    Raises:
        DownloadDamaged: the data is not such an archive, or a name leads out of the folder.
    """
    try:
        with tarfile.open(fileobj=cast(BinaryIO, _Chunks(chunks)), mode="r|gz") as archive:
            for member in archive:
                found_top, _, name = member.name.partition("/")
                # the filter would strip a leading slash; here it is refused
                if not member.isreg() or found_top != top or not name or name.startswith("/"):
                    raise DownloadDamaged(f"{member.name!r} in the export is not a file of {top}")
                archive.extract(member.replace(name=name, deep=False), folder, filter="data")
                yield name
    except tarfile.FilterError as error:
        raise DownloadDamaged(f"a name in the export leads out of the folder: {error}") from error
    except tarfile.TarError as error:
        raise DownloadDamaged(f"the export is not a tar.gz, or is cut off: {error}") from error
