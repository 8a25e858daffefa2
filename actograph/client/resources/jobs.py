"""`client.jobs`, and the job objects that it returns."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import sleep
from typing import Any, Unpack

from pydantic import BaseModel, PrivateAttr

from actograph.client.answers import path_of
from actograph.client.errors import ApiError, ServiceUnreachable, WaitTimeout
from actograph.client.matrix import sample_frames
from actograph.client.matrix.matrix import Matrix
from actograph.client.optional import package
from actograph.client.pulls.results_folder import PulledResults
from actograph.client.queries import (
    LONG_SECONDS,
    PAGE_SIZE,
    ComparisonOptions,
    MatrixOptions,
    Order,
    PullOptions,
    SessionChoice,
)
from actograph.client.resources import events, results_pull
from actograph.client.resources.matrices import read_matrix
from actograph.client.resources.sessions import SessionHandle, Sessions
from actograph.client.retries import Params
from actograph.client.transport import Transport
from actograph.contract import resources
from actograph.contract.comparison import ActivationComparison, JobComparison
from actograph.contract.resources import JobStatus
from actograph.progress import follower

#: pauses between two polls of a job: they grow from the first to the last
FIRST_POLL_SECONDS, LAST_POLL_SECONDS = 0.1, 2.0
RESCORE_SECONDS = 900.0
_PATH = "/v1/jobs"


class JobHandle(resources.Job):
    """A job as the service last reported it. Methods are short for those of `client.jobs`."""

    _jobs: "Jobs" = PrivateAttr()

    def __eq__(self, other: Any) -> bool:
        """Whether both have the same fields."""
        return isinstance(other, resources.Job) and bool(self.__dict__ == other.__dict__)

    def __hash__(self) -> int:
        return hash(self.id)

    def refresh(self) -> "JobHandle":
        """Return the current state of the job."""
        return self._jobs.get(self.id)

    def wait(self, *, progress: bool = False, timeout: float | None = None) -> "JobHandle":
        """Wait for the end of the job; see `Jobs.wait`."""
        return self._jobs.wait(self, progress=progress, timeout=timeout)

    def events(self, after: int = 0) -> Iterator[resources.Event]:
        """Follow the job's log; see `Jobs.events`."""
        return self._jobs.events(self.id, after)

    def cancel(self) -> "JobHandle":
        """Cancel the job. Finished samples are kept."""
        return self._jobs.cancel(self.id)

    def retry(self) -> "JobHandle":
        """Run failed and missing samples again; see `Jobs.retry`."""
        return self._jobs.retry(self.id)

    def delete(self, *, include_pinned: bool = False) -> resources.Deleted:
        """Delete the ended job with its samples and sessions."""
        return self._jobs.delete(self.id, include_pinned=include_pinned)

    def samples(
        self, *, status: str | None = None, condition: str | None = None
    ) -> Iterator[resources.Sample]:
        """List matching samples in dataset order."""
        return self._jobs.samples(self.id, status=status, condition=condition)

    def sessions(self, **filters: Unpack[SessionChoice]) -> Iterator[SessionHandle]:
        """List matching sessions, newest first."""
        return self._jobs.sessions.list(job=self, **filters)

    def results(self) -> resources.JobResults:
        """Return scores per condition of the finished samples."""
        return self._jobs.results(self.id)

    def comparison(self, *, baseline: str | None = None, level: float | None = None) -> JobComparison:
        """Compare every condition with a baseline; see `Jobs.comparison`."""
        return self._jobs.comparison(self.id, baseline=baseline, level=level)

    def compare_activations(
        self, condition: str, **options: Unpack[ComparisonOptions]
    ) -> ActivationComparison:
        """Compare a condition's mean activations with the baseline's; see `Jobs.compare_activations`."""
        return self._jobs.compare_activations(self.id, condition, **options)

    def pull_results(self, folder: str | Path, **options: Unpack[PullOptions]) -> PulledResults:
        """Download the results as a folder of files; see `Jobs.pull_results`."""
        return self._jobs.pull_results(self.id, folder, **options)

    def matrix(self, hook: str, **options: Unpack[MatrixOptions]) -> Matrix:
        """Read rows of one hook over all sessions; see `Jobs.matrix`."""
        return self._jobs.matrix(self, hook, **options)

    def frame(self) -> Any:
        """Return the samples as a `pandas.DataFrame`; see `Jobs.frame`."""
        return self._jobs.frame(self.id)


class Jobs:
    """Submit, follow and control jobs, and read their results."""

    def __init__(self, transport: Transport, sessions: Sessions) -> None:
        self._transport = transport
        self.sessions = sessions

    def estimate(
        self, spec: Mapping[str, Any] | BaseModel, *, prompt_tokens: int | None = None
    ) -> resources.Estimate:
        """Estimate the memory and disk that a job needs, without submitting it.

        Args:
            prompt_tokens: assumed length of every prompt.
        """
        params: Params = {"prompt_tokens": prompt_tokens}
        return self._transport.call(
            resources.Estimate, "POST", "/v1/estimate", json=_body(spec), params=params
        )

    def submit(self, spec: Mapping[str, Any] | BaseModel, *, idempotency_key: str | None = None) -> JobHandle:
        """Submit a job. A repeated request creates one job only, by its idempotency key."""
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return self._job("POST", _PATH, json=_body(spec), headers=headers)

    def get(self, job_id: str) -> JobHandle:
        """Return the current state of a job."""
        return self._job("GET", path_of(_PATH, job_id))

    def list(
        self,
        *,
        id_prefix: str | None = None,
        status: JobStatus | str | None = None,
        kind: str | None = None,
        tag: str | None = None,
        order: Order = "desc",
        page_size: int = PAGE_SIZE,
    ) -> Iterator[JobHandle]:
        """List matching jobs, newest first. Pages are fetched as the iterator is read."""
        params = {
            "id_prefix": id_prefix, "status": status, "kind": kind, "tag": tag, "order": order,
            "limit": page_size,
        }  # fmt: skip
        for job in self._transport.items(JobHandle, _PATH, params):
            yield self._bound(job)

    def cancel(self, job_id: str) -> JobHandle:
        """Cancel a job. Finished samples are kept."""
        return self._job("POST", path_of(_PATH, job_id, "cancel"))

    def retry(self, job_id: str) -> JobHandle:
        """Run the failed and missing samples of an ended job again.

        Raises:
            ApiError: 409 if the job has not ended, or every sample is completed.
        """
        return self._job("POST", path_of(_PATH, job_id, "retry"), repeatable=False)

    def delete(self, job_id: str, *, include_pinned: bool = False) -> resources.Deleted:
        """Delete an ended job with its samples and sessions.

        Args:
            include_pinned: delete pinned sessions too.
        """
        params: Params = {"include_pinned": include_pinned or None}
        return self._transport.call(resources.Deleted, "DELETE", path_of(_PATH, job_id), params=params)

    def events(self, job_id: str, after: int = 0) -> Iterator[resources.Event]:
        """Follow the job's log from event `after` to the end of the job.

        Reconnects after a broken connection and continues after the last event.

        Raises:
            ServiceUnreachable: no connection for two minutes.
        """
        return events.follow(self._transport, job_id, after)

    def wait(
        self, job: resources.Job | str, *, progress: bool = False, timeout: float | None = None
    ) -> JobHandle:
        """Wait until a job has ended in any way: check `status` of the returned job.

        Continues after an outage of up to two minutes.

        Args:
            job: the job, or its id.
            progress: show a bar with rate and ETA on stderr, or lines if stderr is no terminal.
            timeout: seconds to wait. The job continues after a timeout.

        Raises:
            WaitTimeout: the job has not ended in time.
        """
        began = answered_at = time.monotonic()
        pause, current = FIRST_POLL_SECONDS, None
        with follower(show=progress) as show:
            while True:
                try:
                    current = self.get(job if isinstance(job, str) else job.id)
                except (ApiError, ServiceUnreachable) as error:
                    if current is None or not events.is_short_outage(error, answered_at):
                        raise
                else:
                    answered_at = time.monotonic()
                    show(current)
                    if current.status.is_terminal():
                        return current
                left = None if timeout is None else began + timeout - time.monotonic()
                if left is not None and left <= 0:
                    done = current.progress.completed + current.progress.failed
                    raise WaitTimeout(
                        f"job {current.id} is {current.status} after {timeout:g} s "
                        f"({done} of {current.progress.total} samples)"
                    )
                sleep(pause if left is None else min(pause, left))
                pause = min(pause * 1.5, LAST_POLL_SECONDS)

    def samples(
        self,
        job_id: str,
        *,
        status: str | None = None,
        condition: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> Iterator[resources.Sample]:
        """List matching samples of a job in dataset order."""
        params = {"status": status, "condition": condition, "order": "asc", "limit": page_size}
        return self._transport.items(resources.Sample, path_of(_PATH, job_id, "samples"), params)

    def results(self, job_id: str) -> resources.JobResults:
        """Return scores per condition of the finished samples."""
        return self._transport.call(resources.JobResults, "GET", path_of(_PATH, job_id, "results"))

    def rescore(
        self, job_id: str, scorers: Sequence[str | Mapping[str, Any] | BaseModel]
    ) -> resources.JobResults:
        """Score the stored completions of an ended evaluation again. Other scores are kept.

        Args:
            scorers: names, or objects with a name and parameters. The first decides `correct`.

        Raises:
            ApiError: 409 if the job has not ended.
        """
        listed = [one.model_dump(mode="json") if isinstance(one, BaseModel) else one for one in scorers]
        return self._transport.call(
            resources.JobResults, "POST", path_of(_PATH, job_id, "rescore"),
            json={"scorers": listed}, timeout=RESCORE_SECONDS,
        )  # fmt: skip

    def comparison(
        self,
        job_id: str,
        *,
        baseline: str | None = None,
        level: float | None = None,
    ) -> JobComparison:
        """Compare every condition of a job with a baseline, problem by problem.

        Args:
            baseline: by default the first condition.
            level: coverage of the intervals.
        """
        params: Params = {"baseline": baseline, "level": level}
        return self._transport.call(JobComparison, "GET", path_of(_PATH, job_id, "comparison"), params=params)

    def compare_activations(
        self, job_id: str, condition: str, **options: Unpack[ComparisonOptions]
    ) -> ActivationComparison:
        """Subtract the baseline's mean activations per hook; see docs/guides/steering.md.

        The service reads every session for it.

        Args:
            options: `positions`, `hooks`, `baseline`, `limit` and `store_as`, see `ComparisonOptions`.
        """
        return self._transport.call(
            ActivationComparison, "POST", path_of(_PATH, job_id, "comparison", "activations"),
            json={**options, "condition": condition}, timeout=LONG_SECONDS,
        )  # fmt: skip

    def pull_results(self, job_id: str, folder: str | Path, **options: Unpack[PullOptions]) -> PulledResults:
        """Download the results folder of a job; docs/guides/results.md describes it.

        An interrupted download is resumed, within this call and by the next one. A folder with earlier
        results of the job is updated.

        Args:
            options: `activations`, `on_progress` and `parallel`, see `PullOptions`.

        Raises:
            InvalidRequest: the folder contains something else.
            DownloadDamaged: the answer is not a results folder, or a file has another sha256.
        """
        return results_pull.pull(self._transport, job_id, Path(folder), **options)

    def matrix(self, job: resources.Job | str, hook: str, **options: Unpack[MatrixOptions]) -> Matrix:
        """Read rows of one hook over a job's sessions: features, labels, and the origin of each row.

        Only the requested rows are read. Sessions without such rows are listed in `skipped`.

        Args:
            hook: a hook point, an alias, or a module path of the job's model.
            options: `positions`, `reduce`, `label`, `limit`, `parallel`, `max_bytes` and `progress`, see
                `MatrixOptions`; and the filters of `SessionChoice`.

        Raises:
            NotFound: no session has such rows; the message contains the first reason.
            InvalidRequest: the rows cannot be read (a tensor stored as a mean), or exceed `max_bytes`.
            MixedIdentities: sessions were recorded with different models.
        """
        return read_matrix(self._transport, self.sessions, job, hook, **options)

    def frame(self, job_id: str) -> Any:
        """Return a job's samples as a `pandas.DataFrame`; see `sample_frames.frame`.

        Raises:
            PackageMissing: pandas is not installed.
        """
        package("pandas", "a data frame")  # fail before the samples are fetched
        samples = []
        for sample in self.samples(job_id):
            samples.append(sample)
        return sample_frames.frame(samples)

    def _job(self, method: str, path: str, **options: Any) -> JobHandle:
        return self._bound(self._transport.call(JobHandle, method, path, **options))

    def _bound(self, job: JobHandle) -> JobHandle:
        job._jobs = self
        return job


def _body(spec: Mapping[str, Any] | BaseModel) -> dict[str, Any]:
    return spec.model_dump(mode="json") if isinstance(spec, BaseModel) else dict(spec)
