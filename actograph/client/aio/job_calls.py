"""The calls about jobs: submit, list, steer, and follow to the end."""

import time
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

from pydantic import BaseModel

from actograph.client.aio.calls import Calls
from actograph.client.aio.handles import JobHandle
from actograph.client.aio.runtime import sleep
from actograph.client.answers import path_of, read, read_text
from actograph.client.errors import ApiError, ServiceUnreachable, WaitTimeout
from actograph.client.event_stream import Parser
from actograph.client.progress import follower
from actograph.client.queries import PAGE_SIZE, Order
from actograph.client.transport import RETRY_STATUS, Params, backoff
from actograph.contract import resources
from actograph.contract.resources import JobStatus

#: the service sends a comment about every 15 s, so that silence means a dead connection
EVENT_SILENCE_SECONDS = 60.0
#: a service that is restarted, or a network that is down for a moment, does not end a watch
EVENT_PATIENCE_SECONDS = 120.0
LAST_EVENTS = frozenset({"job.completed", "job.failed", "job.cancelled"})
#: pauses between two looks at a job that is waited for: they grow from the first to the last
FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS = 0.1, 2.0
_NO_CONTENT = 204  # the service's word for: the job has ended and you have had its last event


class JobCalls(Calls):
    """Jobs."""

    async def estimate(
        self, spec: Mapping[str, Any] | BaseModel, *, prompt_tokens: int | None = None
    ) -> resources.Estimate:
        """What a job would take; nothing is queued.

        Args:
            prompt_tokens: length that every prompt is taken to have, where you know it.
        """
        body = spec.model_dump(mode="json") if isinstance(spec, BaseModel) else dict(spec)
        params: Params = {"prompt_tokens": prompt_tokens}
        answer = await self._transport.request("POST", "/v1/estimate", json=body, params=params)
        return read(resources.Estimate, answer)

    async def submit(
        self, spec: Mapping[str, Any] | BaseModel, *, idempotency_key: str | None = None
    ) -> JobHandle:
        """Submit a job. Each call has a key of its own, so that a repeated request makes one job only."""
        body = spec.model_dump(mode="json") if isinstance(spec, BaseModel) else dict(spec)
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        answer = await self._transport.request("POST", "/v1/jobs", json=body, headers=headers)
        return self._bound_job(read(JobHandle, answer))

    async def job(self, job_id: str) -> JobHandle:
        """The job as it stands now."""
        return self._bound_job(
            read(JobHandle, await self._transport.request("GET", path_of("/v1/jobs", job_id)))
        )

    async def jobs(
        self,
        *,
        id_prefix: str | None = None,
        status: JobStatus | str | None = None,
        kind: str | None = None,
        tag: str | None = None,
        order: Order = "desc",
        page_size: int = PAGE_SIZE,
    ) -> AsyncIterator[JobHandle]:
        """Every job that fits, newest first, page after page as the iterator is read."""
        params = {
            "id_prefix": id_prefix, "status": status, "kind": kind, "tag": tag, "order": order,
            "limit": page_size,
        }  # fmt: skip
        async for job in self._items("/v1/jobs", JobHandle, params):
            yield self._bound_job(job)

    async def cancel(self, job_id: str) -> JobHandle:
        """Ask for the end of a job; samples that finished are kept."""
        answer = await self._transport.request("POST", path_of("/v1/jobs", job_id, "cancel"))
        return self._bound_job(read(JobHandle, answer))

    async def retry(self, job_id: str) -> JobHandle:
        """Run the samples of an ended job that failed or were never run; the others are kept.

        Raises:
            ApiError: 409 where the job has not ended, or every sample has completed.
        """
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        path = path_of("/v1/jobs", job_id, "retry")
        return self._bound_job(read(JobHandle, await self._transport.request("POST", path, headers=headers)))

    async def delete_job(self, job_id: str, *, include_pinned: bool = False) -> resources.Deleted:
        """Remove an ended job with its samples and sessions, pinned ones only where it is said."""
        params: Params = {"include_pinned": include_pinned or None}
        answer = await self._transport.request("DELETE", path_of("/v1/jobs", job_id), params=params)
        return read(resources.Deleted, answer)

    async def events(self, job_id: str, after: int = 0) -> AsyncIterator[resources.Event]:
        """The job's log after event `after`, to its last entry and as it is written.

        A broken connection is taken up again after the last event received. Ends when the job has.

        Raises:
            ServiceUnreachable: the service was away for two minutes.
        """
        path = path_of("/v1/jobs", job_id, "events")
        failures, answered_at = 0, time.monotonic()
        while True:
            seen = after
            headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
            try:
                async with self._transport.stream(
                    path, headers=headers, read_timeout=EVENT_SILENCE_SECONDS
                ) as response:
                    if response.status_code == _NO_CONTENT:
                        return
                    ended, parser = False, Parser()
                    async for line in response.aiter_lines():
                        message = parser.feed(line)
                        if message is None:
                            continue
                        event = read_text(resources.Event, message.data)
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
            await sleep(backoff(failures))

    async def wait(
        self, job: resources.Job | str, *, progress: bool = False, timeout: float | None = None
    ) -> JobHandle:
        """Wait for a job's end, however it ends: look at `status` of what is returned.

        Args:
            job: the job, or its id.
            progress: show a bar with rate and ETA on stderr, or lines where that is no terminal.
            timeout: seconds to wait at most; the job goes on.

        Raises:
            WaitTimeout: it has not ended in time.
        """
        began, pause = time.monotonic(), FIRST_LOOK_SECONDS
        with follower(show=progress) as show:
            while True:
                found = await self.job(job if isinstance(job, str) else job.id)
                show(found)
                if found.status.is_terminal():
                    return found
                left = None if timeout is None else began + timeout - time.monotonic()
                if left is not None and left <= 0:
                    done = found.progress.completed + found.progress.failed
                    raise WaitTimeout(
                        f"job {found.id} is {found.status} after {timeout:g} s "
                        f"({done} of {found.progress.total} samples)"
                    )
                await sleep(pause if left is None else min(pause, left))
                pause = min(pause * 1.5, LAST_LOOK_SECONDS)

    def _bound_job(self, job: JobHandle) -> JobHandle:
        job._client = self._own()
        return job
