"""Download a job's results folder: unpacked while it arrives, resumed after a broken connection."""

from pathlib import Path
from urllib.parse import urlencode

from actograph.client.answers import path_of
from actograph.client.concurrency import each_of
from actograph.client.errors import ApiError, ServiceUnreachable
from actograph.client.pulls.results_folder import PulledResults, ResultsFolder, SessionFolder
from actograph.client.pulls.session_files import plain_name
from actograph.client.queries import Activations, OnProgress
from actograph.client.resources import downloads
from actograph.client.transport import Transport
from actograph.contract.errors import ExportChanged
from actograph.contract.resources import Job

#: the service may read for long before it sends the next bytes
READ_SECONDS = 300.0


def pull(
    transport: Transport,
    job_id: str,
    folder: Path,
    *,
    activations: Activations = "meta",
    on_progress: OnProgress | None = None,
    parallel: int = 4,
) -> PulledResults:
    """Download a job's results folder; see `Jobs.pull_results`."""
    job = transport.call(Job, "GET", path_of("/v1/jobs", job_id))
    ended = job.progress.completed + job.progress.failed
    report = on_progress or (lambda _what, _done, _total: None)

    def on_sample(count: int) -> None:
        report("samples", count, max(count, ended))

    detail = "meta" if activations == "all" else activations
    results = ResultsFolder(folder, job.id, detail, on_sample)
    on_sample(results.state.samples)
    _fetch_archive(transport, results)
    fetched = 0
    if activations == "all":
        sessions = results.sessions()
        report("sessions", 0, len(sessions))

        def fetch(session: SessionFolder) -> None:
            _fetch_session(transport, session)

        for _ in each_of(fetch, sessions, parallel):
            fetched += 1
            report("sessions", fetched, len(sessions))
    return results.end(fetched)


def _fetch_archive(transport: Transport, results: ResultsFolder) -> None:
    def read() -> None:
        while True:
            results.begin()
            try:
                _read_archive(transport, results)
                return
            except ApiError as error:
                if error.code != ExportChanged.code:
                    raise
                results.state.etag = None
            finally:
                results.save()

    transport.resume(read, lambda: results.state.samples)


def _read_archive(transport: Transport, results: ResultsFolder) -> None:
    """Send one request, from the first missing sample.

    Raises:
        ServiceUnreachable: the connection was lost.
        ApiError: the service refused; `export_changed` if the job has changed since.
    """
    state = results.state
    query: dict[str, str | int] = {"activations": state.activations, "skip": state.samples}
    path = f"{path_of('/v1/jobs', state.job_id, 'export')}?{urlencode(query)}"
    headers = {"Accept-Encoding": "identity"}
    if state.etag is not None:
        headers["If-Match"] = state.etag
    with transport.stream(path, headers=headers, read_timeout=READ_SECONDS) as response:
        state.etag = response.headers.get("etag")
        with results.unpacker() as unpacker:
            # no fixed size: it would lose the last bytes of a broken connection
            for piece in response.iter_bytes():
                unpacker.feed(piece)
    if not results.complete:
        raise ServiceUnreachable(f"the export of job {state.job_id} was cut off")


def _fetch_session(transport: Transport, session: SessionFolder) -> None:
    """Download the missing and damaged files of a session."""
    session.folder.mkdir(exist_ok=True)
    for file in session.files:
        path = path_of("/v1/activations/sessions", session.session_id, "files", file.name)
        downloads.fetch(transport, path, file, session.folder / plain_name(file.name))
