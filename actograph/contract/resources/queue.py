"""The queue, its pauses and the workers."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from actograph.contract.base import Resource
from actograph.contract.resources.base import ErrorRecord


class QueuePause(Resource):
    """A reason why the queue is paused."""

    kind: Literal["manual", "disk", "quota"] = Field(
        description="manual: paused by a client, until `POST /v1/queue/resume`; disk: the artifact store is "
        "nearly full, until there is free space; quota: the quota of all owners is used up, until something "
        "is deleted or expires."
    )
    reason: str | None = None
    by: str | None = Field(
        None, description="Client that paused it: `local`, or `key:` and the start of a digest."
    )
    since: int | None = Field(None, description="Start of the pause; null if unknown.")


class Queue(Resource):
    """State of the queue: waiting and running jobs."""

    object: Literal["queue"] = "queue"
    paused: bool = Field(False, description="True if workers finish their current batch and claim no other.")
    paused_reason: str | None = Field(None, description="All reasons for the pause, in words.")
    pauses: list[QueuePause] = Field(
        default_factory=list, description="Current pauses; the queue continues once the list is empty."
    )
    jobs: dict[str, int] = Field(description="Number of jobs in each status, without ended jobs.")
    samples: dict[str, int] = Field(description="Number of pending and leased samples of these jobs.")
    next: list[str] = Field(description="Ids of the next queued jobs, in order.")
    messages: int | None = Field(
        description="Messages that wait in the broker; null if the broker cannot be reached."
    )
    workers: dict[str, int] = Field(description="Number of workers in each status.")


class WorkerStatus(StrEnum):
    STARTING = "starting"  # the model is being loaded
    READY = "ready"  # idle
    BUSY = "busy"  # running a batch
    SETUP_FAILED = "setup_failed"  # the model could not be loaded
    OFFLINE = "offline"  # stopped, or its heartbeat ended


class Worker(Resource):
    id: str
    object: Literal["worker"] = "worker"
    status: WorkerStatus
    model: str | None = None
    serves: list[str] = Field(default_factory=list, description="Models that it can load.")
    hostname: str
    pid: int
    device: str | None = None
    started_at: int
    last_heartbeat_at: int
    job_id: str | None = None
    error: ErrorRecord | None = None
    memory: dict[str, int] = Field(default_factory=dict)
