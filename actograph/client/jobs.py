"""`client.jobs`, and the job objects that it returns."""

import math
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from time import sleep
from typing import Any, Unpack

from pydantic import BaseModel

from actograph.client import arrays
from actograph.client.downloads import Activations, ExportedResults, pull
from actograph.client.errors import ApiError, JobFailed, ServiceUnreachable, WaitTimeout
from actograph.client.keywords import listed, require_known
from actograph.client.matrix import JobMatrixOptions, Matrix, fetch, samples_frame
from actograph.client.patching import Patching
from actograph.client.sessions import Order, SessionFilters, SessionHandle, Sessions
from actograph.client.transport import (
    LONG_SECONDS,
    PAGE_SIZE,
    RETRY_STATUS,
    APIResource,
    Handle,
    Listing,
    backoff,
    event_data,
    parse,
    path_of,
)
from actograph.contract import base, operations, resources
from actograph.contract.errors import package
from actograph.contract.patching import PatchingResult
from actograph.contract.resources import JobComparison, JobStatus, TextComparison
from actograph.progress import follower, meter

Spec = Mapping[str, Any] | BaseModel

#: pauses between two polls of a job: they grow from the first to the last
FIRST_POLL_SECONDS, LAST_POLL_SECONDS = 0.1, 2.0
#: the service sends a comment about every 15 s; longer silence means a dead connection
SILENCE_SECONDS = 60.0
#: time for a restart of the service
PATIENCE_SECONDS = 120.0
_LAST_EVENTS = frozenset({"job.completed", "job.failed", "job.cancelled"})
_NO_CONTENT = 204  # the job has ended and there are no later events


class JobHandle(Handle, resources.Job):
    """A job as the service last reported it, and its results."""

    @property
    def _jobs(self) -> "Jobs":
        jobs: Jobs = self._client.jobs
        return jobs

    def refresh(self) -> "JobHandle":
        """Return the current state of the job."""
        return self._jobs.get(self.id)

    def wait(
        self, *, progress: bool = False, timeout: float | None = None, check: bool = True
    ) -> "JobHandle":
        """Wait for the end of the job; see `Jobs.wait`."""
        return self._jobs.wait(self.id, progress=progress, timeout=timeout, check=check)

    def cancel(self) -> "JobHandle":
        """Cancel the job. Finished samples are kept."""
        return self._jobs.cancel(self.id)

    def retry(self) -> "JobHandle":
        """Run failed and missing samples again; see `Jobs.retry`."""
        return self._jobs.retry(self.id)

    def sessions(self, **filters: Unpack[SessionFilters]) -> Listing[SessionHandle]:
        """List matching sessions, newest first."""
        require_known(self.sessions, filters, SessionFilters, fixed=["job_id"])
        filters["job_id"] = self.id
        sessions: Sessions = self._client.sessions
        return sessions.list(**filters)

    def samples(
        self, *, status: str | None = None, condition: str | None = None
    ) -> Listing[resources.Sample]:
        """List matching samples of a job in dataset order."""
        filters = {"status": status, "condition": condition, "order": "asc", "limit": PAGE_SIZE}
        return self._jobs._items(resources.Sample, self.id, "samples", **filters)

    def results(self, *, fires_above: float = 0.0) -> resources.JobResults:
        """Return scores per condition of the finished samples, and how often their readouts fired.

        Args:
            fires_above: a readout fires in a sample if one of its values is above it.
        """
        options: Any = {"params": {"fires_above": fires_above}} if fires_above else {}
        return self._jobs._call(resources.JobResults, "GET", self.id, "results", **options)

    def patching(self) -> Patching:
        """Return the effects of a patch job, of the pairs that have ended.

        Raises:
            ApiError: 409 before its first pair has ended, 422 for a job of another kind.
        """
        result = self._jobs._call(PatchingResult, "GET", self.id, "patching", timeout=LONG_SECONDS)
        return Patching(result, partial(self._jobs.read, self.id, "patching"))

    def rescore(self, scorers: Sequence[str | Mapping[str, Any] | BaseModel]) -> resources.JobResults:
        """Score the stored completions of an ended evaluation again. Other scores are kept.

        Args:
            scorers: names, or objects with a name and parameters. The first decides `correct`.

        Raises:
            ApiError: 409 if the job has not ended.
        """
        body = {"scorers": [one if isinstance(one, str) else _body(one) for one in scorers]}
        options: Any = {"json": body, "timeout": LONG_SECONDS}
        return self._jobs._call(resources.JobResults, "POST", self.id, "rescore", **options)

    def comparison(self, *, baseline: str | None = None, level: float | None = None) -> JobComparison:
        """Compare every condition of a job with a baseline (by default the first), problem by problem.

        `level` is the coverage of the intervals.
        """
        params = {"baseline": baseline, "level": level}
        return self._jobs._call(JobComparison, "GET", self.id, "comparison", params=params)

    def compare_texts(
        self,
        *,
        baseline: str | None = None,
        hooks: str | Sequence[str] = (),
        limit: int = 20,
        offset: int = 0,
    ) -> TextComparison:
        """Show the texts of all conditions side by side, where they part, and how far captured rows moved.

        Args:
            hooks: of the shifts; empty: all that both sessions have.
            limit, offset: problems, in the order of the dataset.
        """
        params: Any = {"baseline": baseline, "hooks": listed(hooks), "limit": limit, "offset": offset}
        return self._jobs._call(
            TextComparison, "GET", self.id, "comparison", "texts", params=params, timeout=LONG_SECONDS
        )

    def export(
        self, folder: str | Path, *, activations: Activations = "meta", progress: bool = False
    ) -> ExportedResults:
        """Download the results folder of a job; docs/guides/results.md describes it.

        A folder with earlier results of the job is updated; verified session files are not fetched again.

        Args:
            activations: `none`, `meta` (shapes and sizes), `sampled` (the first 50 features of every row), or
                `all`: every session folder too, verified by sha256.
            progress: show a bar with rate and ETA on stderr, or lines if stderr is no terminal.

        Raises:
            InvalidRequest: the folder contains something else.
            DownloadDamaged: the answer is not a results folder, or a file has another sha256.
        """
        transport, download = self._jobs._transport, self._client.sessions.download
        with meter(show=progress) as update:
            options: Any = {"activations": activations, "on_progress": update}
            return pull(transport, download, self.refresh(), Path(folder), **options)

    def write_arrays(
        self,
        path: str | Path,
        *,
        hooks: str | Sequence[str] = (),
        sequence: int | None = None,
        progress: bool = False,
    ) -> Path:
        """Write the rows of the job's sessions to one file, as arrays `[batch, sequence, width]` by hook.

        `attn_in.3` is `layer_3_ln_attn` there, `mlp_in.3` is `layer_3_ln_mlp`, and other hooks keep their
        names. `token_ids` and `segment_ids` `[batch, sequence]` say whose rows they are: texts count from 1
        in the order of the job, and 0 is padding. The metadata has the model, `layers_extracted`, the hooks,
        and `session_ids` and `positions` (the tokens of the rows as [start, stop) ranges) of each text.
        The files of all sessions are kept beside `path` meanwhile.

        Args:
            path: ends in .safetensors (the stored dtypes) or .npz (bfloat16 as float32).
            hooks: by default all.
            sequence: tokens of a sequence, into which texts are packed; by default each text has its own.

        Raises:
            InvalidRequest: the name has another ending, or the rows are reduced, or of different tokens.
            NotFound: there is no session, or one lacks a hook.
        """
        names = [one["name"] for one in self.spec.get("conditions") or [{"name": None}]]
        places = {name: place for place, name in enumerate(names)}
        sessions = sorted(
            self.sessions(), key=lambda one: (one.sample_index, places.get(one.condition, 0), one.epoch)
        )
        with meter(show=progress) as update:
            return arrays.write(
                sessions, Path(path), hooks=listed(hooks), sequence=sequence, on_progress=update
            )

    def matrix(self, hook: str, **wanted: Unpack[JobMatrixOptions]) -> Matrix:
        """Read rows of one hook over the job's sessions: features, labels, and the origin of each row.

        The service selects the rows. Sessions without such rows are listed in `skipped`.

        Args:
            hook: a hook point, an alias, a savepoint, or a module path of the job's model.
            positions: tokens, as in a capture spec: `last_prompt` (the default), `answer[-5:]`, `[0, -1]`.
            reduce: `mean`, `max` or `last` reduces each session's rows to one.
            label: `correct` (1 or 0, the default), `condition`, `label` or `group` of the inputs,
                `column:NAME`, or a metric key of the scores (`exact_match,strict-match`).
            groups: value of `groups`: `sample` (the default), `group` of the inputs, or `column:NAME`.
            limit: maximum number of sessions, in the order of the dataset.
            max_bytes: maximum size of the features; by default 1 GiB, at most 4 GiB.
            condition, epoch, sample_index, correct, tag: read only matching sessions.

        Raises:
            ApiError: 404 if no session has such rows, with the first reason; 422 if the rows cannot be read
                (a tensor stored as a mean), exceed `max_bytes` or come from different models.
        """
        require_known(self.matrix, wanted, JobMatrixOptions)
        return fetch(self._jobs._transport, path_of(self._jobs._path, self.id, "matrix"), hook, wanted)

    def frame(self) -> Any:
        """Return a `pandas.DataFrame`, one line per sample: its fields, `error`, and one column per score.

        Score columns have lm-eval's metric keys (`exact_match,strict-match`); NaN for samples without that
        score.

        Raises:
            PackageMissing: pandas is not installed.
        """
        package("pandas", "a data frame")  # fail before the samples are fetched
        return samples_frame(self.samples())


class Jobs(APIResource, path="/v1/jobs"):
    """Submit, follow and control jobs, and read their results."""

    def estimate(self, spec: Spec, *, prompt_tokens: int | None = None) -> operations.Estimate:
        """Estimate the memory and disk of a job without submitting it.

        `prompt_tokens` is the assumed length of every prompt.
        """
        options: Any = {"json": _body(spec), "params": {"prompt_tokens": prompt_tokens}}
        return self._transport.call(operations.Estimate, "POST", "/v1/estimate", **options)

    def submit(self, spec: Spec, *, idempotency_key: str | None = None) -> JobHandle:
        """Submit a job. A repeated request creates one job only, by its idempotency key."""
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return self._call(JobHandle, "POST", json=_body(spec), headers=headers)

    def get(self, job_id: str) -> JobHandle:
        """Return the current state of a job."""
        return self._call(JobHandle, "GET", job_id)

    def list(
        self,
        *,
        id_prefix: str | None = None,
        status: JobStatus | str | None = None,
        kind: str | None = None,
        tag: str | None = None,
        model: str | None = None,
        text: str | None = None,
        order: Order = "desc",
        page_size: int = PAGE_SIZE,
    ) -> Listing[JobHandle]:
        """List matching jobs, newest first. Pages are fetched as the list is read."""
        filters = {"id_prefix": id_prefix, "status": status, "kind": kind, "tag": tag}
        filters |= {"model": model, "text": text}
        return self._items(JobHandle, **filters, order=order, limit=page_size)

    def read(self, job_id: str, *parts: str) -> bytes:
        """Return the bytes of a part of a job, such as `"patching", "patch.npz"`. Raises ApiError."""
        file = BytesIO()
        self._transport.download(path_of("/v1/jobs", job_id, *parts), file, read_timeout=LONG_SECONDS)
        return file.getvalue()

    def cancel(self, job_id: str) -> JobHandle:
        """Cancel a job. Finished samples are kept."""
        return self._call(JobHandle, "POST", job_id, "cancel")

    def retry(self, job_id: str) -> JobHandle:
        """Run the failed and missing samples of an ended job again.

        Raises:
            ApiError: 409 if the job has not ended, or every sample is completed.
        """
        return self._call(JobHandle, "POST", job_id, "retry", repeatable=False)

    def delete(self, job_id: str, *, include_pinned: bool = False) -> base.Deleted:
        """Delete an ended job with its samples and sessions; `include_pinned` deletes pinned sessions too."""
        params = {"include_pinned": include_pinned or None}
        return self._call(base.Deleted, "DELETE", job_id, params=params)

    def events(self, job_id: str, after: int = 0) -> Iterator[resources.Event]:
        """Follow the job's log from event `after` to the end of the job.

        Reconnects after a broken connection and continues after the last event.

        Raises:
            ServiceUnreachable: no connection for two minutes.
        """
        path, silence = path_of(self._path, job_id, "events"), SILENCE_SECONDS
        failures, answered_at = 0, time.monotonic()
        while True:
            headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
            last = ""
            try:
                with self._transport.stream("GET", path, headers=headers, read_timeout=silence) as response:
                    for text in event_data(response):
                        event = parse(resources.Event, text)
                        after, last = event.id, event.event
                        failures, answered_at = 0, time.monotonic()
                        yield event
                # a retry may append events after such an event
                if last in _LAST_EVENTS or response.status_code == _NO_CONTENT:
                    return
                failures, answered_at = 0, time.monotonic()
            except (ApiError, ServiceUnreachable) as error:
                if not _is_short_outage(error, answered_at):
                    raise
                failures += 1
            sleep(backoff(failures))

    def wait(
        self, job_id: str, *, progress: bool = False, timeout: float | None = None, check: bool = True
    ) -> JobHandle:
        """Wait until a job has ended, and return it.

        Continues after an outage of up to two minutes.

        Args:
            progress: show a bar with rate and ETA on stderr, or lines if stderr is no terminal or notebook.
            timeout: seconds to wait. The job continues after a timeout.
            check: raise if the job failed or was cancelled. A completed job may have failed samples.

        Raises:
            JobFailed: with `check`.
            WaitTimeout: the job has not ended in time.
        """
        current = self.get(job_id)
        answered_at = time.monotonic()
        deadline = math.inf if timeout is None else answered_at + timeout
        pause = FIRST_POLL_SECONDS
        with follower(show=progress) as show:
            show(current)
            while not current.status.is_terminal():
                left = deadline - time.monotonic()
                if left <= 0:
                    done = (
                        f"{current.progress.completed + current.progress.failed} of {current.progress.total}"
                    )
                    about = f"{current.status} after {timeout:g} s ({done} samples)"
                    raise WaitTimeout(f"job {current.id} is {about}")
                sleep(min(pause, left))
                pause = min(pause * 1.5, LAST_POLL_SECONDS)
                try:
                    current = self.get(job_id)
                    answered_at = time.monotonic()
                    show(current)
                except (ApiError, ServiceUnreachable) as error:
                    if not _is_short_outage(error, answered_at):
                        raise
        if check and current.status is not JobStatus.COMPLETED:
            reason = f": {current.error.message}" if current.error else ""
            raise JobFailed(f"job {current.id} {current.status}{reason}")
        return current


def _is_short_outage(error: ApiError | ServiceUnreachable, answered_at: float) -> bool:
    """Whether to try again after an error; `answered_at` is the monotonic time of the last answer."""
    return error.status in RETRY_STATUS and time.monotonic() - answered_at <= PATIENCE_SECONDS


def _body(spec: Spec) -> dict[str, Any]:
    return spec.model_dump(mode="json") if isinstance(spec, BaseModel) else dict(spec)
