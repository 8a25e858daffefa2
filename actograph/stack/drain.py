"""Waiting until a service has nothing left to do."""

import time
from collections.abc import Callable

from actograph.client import Client
from actograph.contract.errors import ServiceUnavailable
from actograph.contract.operations import QueueState
from actograph.contract.resources import JobStatus

#: the wait ends if no open job could run for so long
PATIENCE_SECONDS = 300.0
_LOOK_SECONDS = 1.0


def wait_for_jobs(client: Client, report: Callable[[str], None]) -> None:
    """Wait until no job and no batch is open.

    Raises:
        ServiceUnavailable: no open job could run for some minutes; the message has the reason.
    """
    shown, idle_since = 0, None
    while True:
        queue = client.queue.get()
        # the output of a batch is written after the end of its job
        opened = sum(queue.jobs.values()) or _open_batches(client)
        if not opened:
            return
        if opened != shown:
            report(f"{opened} jobs waiting or running")
            shown = opened
        reason = _hindrance(client, queue)
        idle_since = (idle_since or time.monotonic()) if reason else None
        if idle_since is not None and time.monotonic() - idle_since >= PATIENCE_SECONDS:
            raise ServiceUnavailable(f"{opened} jobs wait, and none can run: {reason}")
        time.sleep(_LOOK_SECONDS)


def failed_jobs(client: Client) -> set[str]:
    """Return the ids of all failed jobs."""
    return {job.id for job in client.jobs.list(status=JobStatus.FAILED)}


def _open_batches(client: Client) -> int:
    return sum(not batch.status.is_terminal() for batch in client.batches.list())


def _hindrance(client: Client, queue: QueueState) -> str | None:
    """Return the reason why no open job can run; None if one can."""
    if queue.paused_reason or queue.samples["leased"]:
        return queue.paused_reason
    reason = None
    for status in (JobStatus.QUEUED, JobStatus.IN_PROGRESS):
        for job in client.jobs.list(status=status):
            reason = job.paused_reason or job.waiting_reason
            if reason is None:
                return None
    return reason
