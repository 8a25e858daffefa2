"""A job's results folder fetched: unpacked while it arrives, taken up again where it broke off."""

from pathlib import Path
from urllib.parse import urlencode

from actograph.client.aio import downloads
from actograph.client.aio.runtime import each_of, sleep
from actograph.client.aio.transport import Transport
from actograph.client.answers import path_of, read
from actograph.client.errors import ApiError, ServiceUnreachable
from actograph.client.results_folder import (
    Activations,
    OnProgress,
    PulledResults,
    ResultsFolder,
    SessionFolder,
)
from actograph.client.session_files import plain_name
from actograph.client.transport import backoff
from actograph.contract.errors import ExportChanged
from actograph.contract.resources import Job

#: the service may read much before it has a piece to send
READ_SECONDS = 300.0


async def pull(
    transport: Transport,
    job_id: str,
    folder: Path,
    *,
    activations: Activations,
    on_progress: OnProgress,
    parallel: int,
    mixed_identities: bool,
) -> PulledResults:
    """See `ResultCalls.pull_results`."""
    job = read(Job, await transport.request("GET", path_of("/v1/jobs", job_id)))
    ended = job.progress.completed + job.progress.failed

    def on_sample(count: int) -> None:
        on_progress("samples", count, max(count, ended))

    detail = "meta" if activations == "all" else activations
    results = ResultsFolder(folder, job.id, detail, on_sample)
    on_sample(results.state.samples)
    await _fetch_archive(transport, results, mixed_identities)
    fetched = 0
    if activations == "all":
        sessions = results.sessions()
        on_progress("sessions", 0, len(sessions))

        async def fetch(session: SessionFolder) -> None:
            await _fetch_session(transport, session)

        async for _ in each_of(fetch, sessions, parallel):
            fetched += 1
            on_progress("sessions", fetched, len(sessions))
    return results.end(fetched)


async def _fetch_archive(transport: Transport, results: ResultsFolder, mixed_identities: bool) -> None:
    failures = 0
    while True:
        results.begin()
        before = results.state.samples
        try:
            await _read_archive(transport, results, mixed_identities)
            return
        except ApiError as error:
            if error.code != ExportChanged.code:
                raise
            results.state.etag = None
        except ServiceUnreachable:
            failures = 0 if results.state.samples > before else failures
            if failures >= transport.retries:
                raise
            await sleep(backoff(failures))
            failures += 1
        finally:
            results.save()


async def _read_archive(transport: Transport, results: ResultsFolder, mixed_identities: bool) -> None:
    """One request, from the first sample that is not there.

    Raises:
        ServiceUnreachable: the connection broke off.
        ApiError: the service refused; `export_changed` where the job went on since.
    """
    state = results.state
    query: dict[str, str | int] = {"activations": state.activations, "skip": state.samples}
    if mixed_identities:
        query["mixed_identities"] = "true"
    path = f"{path_of('/v1/jobs', state.job_id, 'export')}?{urlencode(query)}"
    headers = {"Accept-Encoding": "identity"}
    if state.etag is not None:
        headers["If-Match"] = state.etag
    async with transport.stream(path, headers=headers, read_timeout=READ_SECONDS) as response:
        state.etag = response.headers.get("etag")
        with results.unpacker() as unpacker:
            # pieces as they come: a fixed size would lose the last one when the connection breaks
            async for piece in response.aiter_bytes():
                unpacker.feed(piece)
    if not (unpacker.ended and results.complete):
        raise ServiceUnreachable(f"the export of job {state.job_id} broke off")


async def _fetch_session(transport: Transport, session: SessionFolder) -> None:
    """Its files, but for those that are there and right."""
    session.folder.mkdir(exist_ok=True)
    for file in session.files:
        path = path_of("/v1/activations/sessions", session.session_id, "files", file.name)
        await downloads.fetch(transport, path, file, session.folder / plain_name(file.name))
