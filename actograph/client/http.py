"""The service's HTTP interface as Python calls, typed by the contract.

with Client() as client:
    file = client.upload_file(Path("problems.jsonl"))
    job = client.submit({"kind": "evaluation", "model": "demo", "dataset": {"file_id": file.id}})
    for event in client.events(job.id):
        print(event.event, event.data)
    for session in client.sessions(job_id=job.id):
        rows = client.tensor(session.id, "resid_post.3", rows=(0, 10))
"""

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ValidationError

from actograph.client.answers import path_of as _path
from actograph.client.answers import read as _read
from actograph.client.answers import unexpected as _unexpected
from actograph.client.errors import ApiError, ServiceUnreachable
from actograph.client.event_stream import messages
from actograph.client.session_calls import PAGE_SIZE, Order, SessionCalls
from actograph.client.transport import RETRY_STATUS, Params, Transport, backoff
from actograph.contract import resources
from actograph.contract.comparison import ActivationComparison, ActivationComparisonRequest, JobComparison
from actograph.contract.errors import InvalidRequest
from actograph.contract.interventions import StoredVector, VectorInfo
from actograph.contract.resources import JobStatus
from actograph.settings import Settings

#: a job may have very many samples
RESCORE_SECONDS = 900.0
#: the service sends a comment about every 15 s, so that silence means a dead connection
EVENT_SILENCE_SECONDS = 60.0
#: a service that is restarted, or a network that is down for a moment, does not end a watch
EVENT_PATIENCE_SECONDS = 120.0
LAST_EVENTS = frozenset({"job.completed", "job.failed", "job.cancelled"})


class Client(SessionCalls):
    """A connection to one service; usable from several threads.

    Args:
        base_url: where the service is; by default `ACTOGRAPH_URL`, else this machine.
        api_key: the key to send; by default `ACTOGRAPH_API_KEY`.
        timeout: seconds that one answer may take.
        retries: times that a request is sent again, with growing pauses, when the service cannot be
            reached or cannot serve just now. Only requests that do no harm twice are repeated.

    Raises (every call):
        ApiError: the service refused; `status`, `code`, `message` and `errors` say why.
        ServiceUnreachable: no connection.
        UnexpectedAnswer: the answer has another form than this version of the contract.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 30.0,
        *,
        retries: int = 4,
    ) -> None:
        if base_url is None or api_key is None:
            settings = Settings()
            base_url = settings.effective_url if base_url is None else base_url
            api_key = settings.api_key if api_key is None else api_key
        if not base_url.startswith(("http://", "https://")):
            raise InvalidRequest(
                f"{base_url!r} is no URL of a service; it must start with http:// or https://"
            )
        self.base_url = base_url.rstrip("/")
        self._transport = Transport(self.base_url, api_key, timeout=timeout, retries=retries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    # files

    def upload_file(self, path: str | Path, purpose: str = "dataset") -> resources.File:
        """Send a file from disk, without reading it into memory at once."""
        path = Path(path)
        with path.open("rb") as stream:

            def parts() -> dict[str, Any]:
                stream.seek(0)
                return {"file": (path.name, stream, "application/octet-stream")}

            answer = self._transport.post_form("/v1/files", data={"purpose": purpose}, files=parts)
        return _read(resources.File, answer)

    def delete_file(self, file_id: str) -> resources.Deleted:
        """Remove an uploaded file that no active job reads."""
        return _read(resources.Deleted, self._transport.request("DELETE", _path("/v1/files", file_id)))

    # vectors for interventions

    def store_vector(
        self,
        name: str,
        hook: str,
        vector: Iterable[float],
        *,
        model: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> VectorInfo:
        """Store a vector under an id that interventions may name.

        Args:
            vector: as many numbers as the hook is wide: a list, or a 1-D array.
            model: given, only jobs of this model may use the vector.
        """
        numbers = [float(number) for number in vector]
        body = {
            "name": name,
            "hook": hook,
            "vector": numbers,
            "model": model,
            "metadata": dict(metadata or {}),
        }
        return _read(VectorInfo, self._transport.request("POST", "/v1/interventions", json=body))

    def vectors(self, *, name: str | None = None, model: str | None = None) -> Iterator[VectorInfo]:
        """Stored vectors without their numbers, newest first."""
        return self._items("/v1/interventions", VectorInfo, {"name": name, "model": model})

    def vector(self, vector_id: str) -> StoredVector:
        """One stored vector with its numbers."""
        return _read(StoredVector, self._transport.request("GET", _path("/v1/interventions", vector_id)))

    def delete_vector(self, vector_id: str) -> resources.Deleted:
        """Remove a vector that no active job refers to."""
        return _read(
            resources.Deleted, self._transport.request("DELETE", _path("/v1/interventions", vector_id))
        )

    # jobs

    def estimate(
        self, spec: Mapping[str, Any] | BaseModel, *, prompt_tokens: int | None = None
    ) -> resources.Estimate:
        """What a job would take; nothing is queued.

        Args:
            prompt_tokens: length that every prompt is taken to have, where you know it.
        """
        body = spec.model_dump(mode="json") if isinstance(spec, BaseModel) else dict(spec)
        params: Params = {"prompt_tokens": prompt_tokens}
        answer = self._transport.request("POST", "/v1/estimate", json=body, params=params)
        return _read(resources.Estimate, answer)

    def submit(
        self, spec: Mapping[str, Any] | BaseModel, *, idempotency_key: str | None = None
    ) -> resources.Job:
        """Submit a job. Each call has a key of its own, so that a repeated request makes one job only."""
        body = spec.model_dump(mode="json") if isinstance(spec, BaseModel) else dict(spec)
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        answer = self._transport.request("POST", "/v1/jobs", json=body, headers=headers)
        return _read(resources.Job, answer)

    def job(self, job_id: str) -> resources.Job:
        """The job as it stands now."""
        return _read(resources.Job, self._transport.request("GET", _path("/v1/jobs", job_id)))

    def jobs(
        self,
        *,
        status: JobStatus | str | None = None,
        kind: str | None = None,
        tag: str | None = None,
        order: Order = "desc",
        page_size: int = PAGE_SIZE,
    ) -> Iterator[resources.Job]:
        """Every job that fits, newest first, page after page as the iterator is read."""
        params = {"status": status, "kind": kind, "tag": tag, "order": order, "limit": page_size}
        return self._items("/v1/jobs", resources.Job, params)

    def cancel(self, job_id: str) -> resources.Job:
        """Ask for the end of a job; samples that finished are kept."""
        return _read(resources.Job, self._transport.request("POST", _path("/v1/jobs", job_id, "cancel")))

    def retry(self, job_id: str) -> resources.Job:
        """Run the samples of an ended job that failed or were never run; the others are kept.

        Raises:
            ApiError: 409 where the job has not ended, or every sample has completed.
        """
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        path = _path("/v1/jobs", job_id, "retry")
        return _read(resources.Job, self._transport.request("POST", path, headers=headers))

    def rescore(
        self, job_id: str, scorers: Sequence[str | Mapping[str, Any] | BaseModel]
    ) -> resources.JobResults:
        """Score an ended evaluation's completions anew; scores of other scorers are kept.

        Args:
            scorers: names, or objects with a name and parameters; the first gives the verdict.

        Raises:
            ApiError: 409 where the job has not ended.
        """
        given = [one.model_dump(mode="json") if isinstance(one, BaseModel) else one for one in scorers]
        answer = self._transport.request(
            "POST", _path("/v1/jobs", job_id, "rescore"), json={"scorers": given}, timeout=RESCORE_SECONDS
        )
        return _read(resources.JobResults, answer)

    def delete_job(self, job_id: str, *, include_pinned: bool = False) -> resources.Deleted:
        """Remove an ended job with its samples and sessions, pinned ones only where it is said."""
        params: Params = {"include_pinned": include_pinned or None}
        answer = self._transport.request("DELETE", _path("/v1/jobs", job_id), params=params)
        return _read(resources.Deleted, answer)

    def comparison(
        self, job_id: str, *, baseline: str | None = None, level: float | None = None
    ) -> JobComparison:
        """Every condition of a job against a baseline (its first condition where not named)."""
        params: Params = {"baseline": baseline, "level": level}
        answer = self._transport.request("GET", _path("/v1/jobs", job_id, "comparison"), params=params)
        return _read(JobComparison, answer)

    def compare_activations(
        self, job_id: str, wanted: ActivationComparisonRequest, *, timeout: float = 3600.0
    ) -> ActivationComparison:
        """Pooled activations of a condition minus the baseline's; the service reads every session for it.

        Args:
            timeout: seconds to wait for the answer.
        """
        path = _path("/v1/jobs", job_id, "comparison", "activations")
        body = wanted.model_dump(mode="json")
        answer = self._transport.request("POST", path, json=body, timeout=timeout)
        return _read(ActivationComparison, answer)

    def samples(
        self, job_id: str, *, status: str | None = None, page_size: int = PAGE_SIZE
    ) -> Iterator[resources.Sample]:
        """Every sample of a job, in the order of the dataset."""
        params = {"status": status, "order": "asc", "limit": page_size}
        return self._items(_path("/v1/jobs", job_id, "samples"), resources.Sample, params)

    def results(self, job_id: str) -> resources.JobResults:
        """Scores per condition, of what has finished so far."""
        path = _path("/v1/jobs", job_id, "results")
        return _read(resources.JobResults, self._transport.request("GET", path))

    def events(self, job_id: str, after: int = 0) -> Iterator[resources.Event]:
        """The job's log after event `after`, to its last entry and as it is written.

        A broken connection is taken up again after the last event received. Ends when the job has.

        Raises:
            ServiceUnreachable: the service was away for two minutes.
        """
        path = _path("/v1/jobs", job_id, "events")
        failures, answered_at = 0, time.monotonic()
        while True:
            seen = after
            headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
            try:
                with self._transport.stream(
                    path, headers=headers, read_timeout=EVENT_SILENCE_SECONDS
                ) as response:
                    if response.status_code == _NO_CONTENT:
                        return
                    ended = False
                    for message in messages(response.iter_lines()):
                        event = _event(message.data)
                        after, ended = event.id, event.event in LAST_EVENTS
                        yield event
                    if ended:  # and not by a retry that began the job anew
                        return
                    failures, answered_at = 0, time.monotonic()
            except (ApiError, ServiceUnreachable) as error:
                if isinstance(error, ApiError) and error.status not in RETRY_STATUS:
                    raise
                if after > seen:
                    failures, answered_at = 0, time.monotonic()
                elif time.monotonic() - answered_at > EVENT_PATIENCE_SECONDS:
                    raise
                failures += 1
            time.sleep(backoff(failures))

    # the service

    def models(self) -> list[resources.Model]:
        """The models that are served."""
        return list(self._items("/v1/models", resources.Model, {}))

    def load_model(self, model: str, **options: Any) -> resources.ModelLoad:
        """Have a worker load a served model in place of its own; `model_load` tells how far it is.

        Args:
            options: `revision`, `dtype`, `device_map`, `max_memory`, `attn_implementation`,
                `savepoints`; see docs/models.md.
        """
        body = {"model_id": model} | options
        return _read(resources.ModelLoad, self._transport.request("POST", "/v1/models/load", json=body))

    def model_load(self, load_id: str) -> resources.ModelLoad:
        """What became of a request to load a model."""
        path = _path("/v1/models/load", load_id)
        return _read(resources.ModelLoad, self._transport.request("GET", path))

    def structure(self, model: str | None = None) -> resources.ModelStructure:
        """Layers, widths and hook points of a model that a worker has loaded."""
        answer = self._transport.request("GET", "/v1/model/structure", params={"model": model})
        return _read(resources.ModelStructure, answer)

    def workers(self) -> list[resources.Worker]:
        """Every worker that the index knows, the newest first."""
        return list(self._items("/v1/workers", resources.Worker, {}))

    def queue(self) -> resources.Queue:
        """What waits and what runs."""
        return _read(resources.Queue, self._transport.request("GET", "/v1/queue"))

    def pause_queue(self, reason: str | None = None) -> resources.Queue:
        """Have workers begin nothing new, until `resume_queue`; jobs are still accepted."""
        answer = self._transport.request("POST", "/v1/queue/pause", json={"reason": reason})
        return _read(resources.Queue, answer)

    def resume_queue(self) -> resources.Queue:
        """End the pause that was asked for; `paused` of the answer tells whether another one holds."""
        return _read(resources.Queue, self._transport.request("POST", "/v1/queue/resume"))

    def ready(self) -> bool:
        """Whether requests will be served: database, broker and a worker with its model are there."""
        try:
            self._transport.request("GET", "/readyz", repeatable=False, timeout=10.0)
        except ApiError as error:
            if error.status == 503:
                return False
            raise
        return True


_NO_CONTENT = 204  # the service's word for: the job has ended and you have had its last event


def _event(data: str) -> resources.Event:
    try:
        return resources.Event.model_validate_json(data)
    except ValidationError as error:
        raise _unexpected("event", error) from error
