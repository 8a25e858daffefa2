"""A job's results folder: unpacked while it is downloaded, resumed after a broken connection.

The service builds the archive for each request, so there are no byte ranges. A download resumes after the
samples that have arrived: their order is fixed as long as the ETag is the same.
"""

import json
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

from actograph.client.downloads import fetch, plain_name
from actograph.client.errors import ApiError, DownloadDamaged, ServiceUnreachable
from actograph.client.transport import Transport, path_of
from actograph.concurrency import each_of
from actograph.contract.errors import ExportChanged, InvalidRequest
from actograph.contract.resources import Job, SessionFile

Activations = Literal["none", "meta", "sampled", "all"]
#: called with `samples` or `sessions`, the number fetched, and the total
OnProgress = Callable[[str, int, int], None]

#: the service may read for long before it sends the next bytes
READ_SECONDS = 300.0
#: present while a folder is incomplete
STATE_NAME = ".actograph-pull.json"
#: the last file of an archive
SUMMARY_NAME = "summary.json"
#: folders that a new export replaces; session folders under agent_states are kept
_OWN_FOLDERS = ("samples", "trajectories", "lm_eval", "inspect")
#: tarfile's errors for an incomplete archive. It is not damaged: the missing last file shows
_CUT_OFF = ("unexpected end of data", "truncated header", "empty file")


@dataclass(frozen=True, kw_only=True)
class PulledResults:
    """Contents of the folder after a pull."""

    folder: Path
    samples: int
    #: session folders; 0 unless requested
    sessions: int
    #: whether the job had ended
    complete: bool


def pull(
    transport: Transport,
    job: Job,
    folder: Path,
    *,
    activations: Activations,
    on_progress: OnProgress,
    parallel: int,
) -> PulledResults:
    """Download a job's results folder; see `Jobs.pull_results`."""
    ended = job.progress.completed + job.progress.failed

    def on_samples(count: int) -> None:
        on_progress("samples", count, max(count, ended))

    archive = _Archive(transport, job.id, folder, "meta" if activations == "all" else activations, on_samples)
    transport.resume(archive.read, lambda: archive.samples)
    fetched = 0
    if activations == "all":
        states = sorted((folder / "agent_states").glob("*.json"))
        on_progress("sessions", 0, len(states))
        for fetched, _ in enumerate(each_of(lambda one: _fetch(transport, one), states, parallel), 1):
            on_progress("sessions", fetched, len(states))
    (folder / STATE_NAME).unlink()
    complete = bool(json.loads((folder / SUMMARY_NAME).read_bytes())["complete"])
    return PulledResults(folder=folder, samples=archive.samples, sessions=fetched, complete=complete)


def _fetch(transport: Transport, state_path: Path) -> None:
    """Download the missing and damaged files of a session."""
    state = json.loads(state_path.read_bytes())
    folder = state_path.with_suffix("")
    folder.mkdir(exist_ok=True)
    for file in map(SessionFile.model_validate, state["files"]):
        path = path_of("/v1/activations/sessions", state["session_id"], "files", file.name)
        fetch(transport, path, file, folder / plain_name(file.name))


class _Archive:
    """Downloads the export of a job to its folder.

    Raises:
        InvalidRequest: the folder contains something else.
    """

    def __init__(
        self,
        transport: Transport,
        job_id: str,
        folder: Path,
        activations: str,
        on_samples: Callable[[int], None],
    ) -> None:
        self._transport = transport
        self._job_id = job_id
        self._folder = folder
        self._activations = activations
        self._on_samples = on_samples
        #: of the export whose samples the folder contains
        self._etag = self._found_etag()
        self.samples = len(list((folder / "samples").glob("*.json"))) if self._etag else 0
        on_samples(self.samples)

    def read(self) -> None:
        """Download the rest of the archive. Raises ServiceUnreachable if it was cut off."""
        if self._etag is None:
            self._clear()
        query = {"activations": self._activations, "skip": self.samples}
        headers = {"Accept-Encoding": "identity"} | ({"If-Match": self._etag} if self._etag else {})
        path = path_of("/v1/jobs", self._job_id, "export")
        last = ""
        try:
            with self._transport.stream(
                "GET", path, params=query, headers=headers, read_timeout=READ_SECONDS
            ) as response:
                self._etag = response.headers.get("etag")
                self._save()
                # no fixed size: it would lose the last bytes of a broken connection
                for last in unpack(response.iter_bytes(), self._folder, self._job_id):
                    self._count(last)
        except ApiError as error:
            if error.code != ExportChanged.code:
                raise
            self._etag = None
            self.read()
            return
        if last != SUMMARY_NAME:
            raise ServiceUnreachable(f"the export of job {self._job_id} was cut off")

    def _count(self, name: str) -> None:
        if name.startswith("samples/"):
            self.samples += 1
            self._on_samples(self.samples)

    def _found_etag(self) -> str | None:
        """The ETag of an interrupted pull of the same job and activations."""
        folder, state = self._folder, self._folder / STATE_NAME
        for path in (state, folder / SUMMARY_NAME):
            if path.is_file():
                found = json.loads(path.read_bytes())
                if not isinstance(found, dict) or found.get("job_id") != self._job_id:
                    raise InvalidRequest(f"{folder} contains results of another job; choose another folder")
                same = path == state and found["activations"] == self._activations
                return found["etag"] if same else None
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InvalidRequest(f"{folder} contains other files; choose a new or empty folder")
        return None

    def _save(self) -> None:
        state = {"job_id": self._job_id, "activations": self._activations, "etag": self._etag}
        part = self._folder / f"{STATE_NAME}.part"
        part.write_text(json.dumps(state))
        part.replace(self._folder / STATE_NAME)

    def _clear(self) -> None:
        """Delete the files of an outdated export."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._save()
        self.samples = 0
        for name in _OWN_FOLDERS:
            if (self._folder / name).is_dir():
                shutil.rmtree(self._folder / name)
        for left in (self._folder / "agent_states").glob("*.json"):
            left.unlink()
        (self._folder / SUMMARY_NAME).unlink(missing_ok=True)


class _Chunks:
    """The chunks of an answer as a file."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)

    def read(self, _size: int) -> bytes:
        return next(self._chunks, b"")


def unpack(chunks: Iterable[bytes], folder: Path, top: str) -> Iterator[str]:
    """Unpack a tar.gz with the top folder `top` into `folder` while it arrives.

    Yields the name of each file after it is complete. A part of a file never has its name.

    Raises:
        DownloadDamaged: the data is not such an archive, or a name leads out of the folder.
    """
    try:
        with tarfile.open(fileobj=cast(BinaryIO, _Chunks(chunks)), mode="r|gz") as archive:
            for member in archive:
                yield _extract(archive, member, folder, top)
    except tarfile.TarError as error:
        if str(error) not in _CUT_OFF:
            raise DownloadDamaged(f"the export is not a tar.gz: {error}") from error


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, top: str) -> str:
    found_top, _, name = member.name.partition("/")
    # data_filter would strip a leading slash; here it is refused
    if not member.isreg() or found_top != top or not name or name.startswith("/"):
        raise DownloadDamaged(f"{member.name!r} in the export is not a file of {top}")
    try:
        name = tarfile.data_filter(member.replace(name=name, deep=False), str(folder)).name
    except tarfile.FilterError as error:
        raise DownloadDamaged(f"{name!r} in the export leads out of the folder") from error
    content = archive.extractfile(member)
    assert content is not None, "regular files have content"
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with part.open("wb") as out:
        shutil.copyfileobj(content, out)
    part.replace(target)
    return name
