"""The queue and what holds it."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from actograph.contract.resources.base import ErrorRecord, Resource


class QueuePause(Resource):
    """One of the reasons for which the queue may stand still."""

    kind: Literal["manual", "disk", "quota"] = Field(
        description="manual: asked for, and ended by `POST /v1/queue/resume`; disk: the artifact store is "
        "nearly full, ended by free space; quota: what is stored has reached the quota of all, ended by "
        "deletion or expiry."
    )
    reason: str | None = None
    by: str | None = Field(None, description="Who asked: `local`, or `key:` and a digest's beginning.")
    since: int | None = Field(None, description="null where nobody noted when it began.")


class Queue(Resource):
    """What waits and what runs."""

    object: Literal["queue"] = "queue"
    paused: bool = Field(False, description="Workers finish what they hold and begin nothing new.")
    paused_reason: str | None = Field(None, description="Every reason why it is paused, in words.")
    pauses: list[QueuePause] = Field(
        default_factory=list, description="What holds the queue; it goes on once the list is empty."
    )
    jobs: dict[str, int] = Field(description="Number of jobs in each status that is not an end.")
    samples: dict[str, int] = Field(description="pending and leased samples of those jobs.")
    next: list[str] = Field(description="Ids of the next queued jobs, the first one first.")
    messages: int | None = Field(description="Messages in the broker, not taken yet; null if it is away.")
    workers: dict[str, int] = Field(description="Number of workers in each status.")


class WorkerStatus(StrEnum):
    STARTING = "starting"  # the model is being loaded
    READY = "ready"  # idle, waiting for work
    BUSY = "busy"  # running a unit
    SETUP_FAILED = "setup_failed"  # the model could not be loaded
    OFFLINE = "offline"  # stopped, or its heartbeat ended


class Worker(Resource):
    id: str
    object: Literal["worker"] = "worker"
    status: WorkerStatus
    model: str | None = None
    serves: list[str] = Field(default_factory=list, description="Models that it may hold.")
    hostname: str
    pid: int
    device: str | None = None
    started_at: int
    last_heartbeat_at: int
    job_id: str | None = None
    error: ErrorRecord | None = None
    memory: dict[str, int] = Field(default_factory=dict)
