"""Workers."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from actograph.contract.resources.base import ErrorRecord, Resource


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
