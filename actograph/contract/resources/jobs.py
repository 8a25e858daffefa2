"""Jobs: status, progress, events and results."""

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from actograph.contract.base import Resource
from actograph.contract.models.model_identity import PinnedModel
from actograph.contract.resources.base import ErrorRecord
from actograph.contract.resources.tool_use import ToolTotals


class JobStatus(StrEnum):
    QUEUED = "queued"  # accepted; no sample has been claimed
    IN_PROGRESS = "in_progress"  # samples are running
    COMPLETED = "completed"  # ended, at least one sample completed
    FAILED = "failed"  # ended without a completed sample, or stopped by an error
    CANCELLING = "cancelling"  # cancelled; a worker still runs samples
    CANCELLED = "cancelled"  # ended by the client; completed samples are kept

    def is_terminal(self) -> bool:
        return self in (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)


class Progress(Resource):
    total: int
    completed: int
    failed: int


class Job(Resource):
    id: str
    object: Literal["job"] = "job"
    kind: str
    status: JobStatus
    model: str
    created_at: int
    started_at: int | None = None
    finished_at: int | None = None
    progress: Progress
    queue_position: int | None = Field(
        None, description="Position in the queue, from 1; null once the job has started or ended."
    )
    waiting_reason: str | None = Field(
        None, description="Reason why no worker runs it; null if one does, or if it has ended."
    )
    samples_per_second: float | None = Field(
        None, description="Mean over the last minute, including the time spent on other jobs."
    )
    eta_seconds: float | None = Field(
        None, description="Remaining samples by `samples_per_second`; null if it does not run."
    )
    error: ErrorRecord | None = None
    priority: int
    owner: str | None = Field(None, description="Owner who submitted it: `local`, or `key:...`.")
    paused_reason: str | None = Field(
        None, description="Quota that stops it; it continues by itself when there is space."
    )
    deadline_at: int | None = Field(
        None, description="Time at which it fails if it has not ended; null is never."
    )
    identity_sha256: str | None = Field(
        None, description="Digest of the pinned model's identity; null until a model is pinned."
    )
    pinned: PinnedModel | None = Field(None, description="The model that runs all of its samples.")
    tags: list[str] = Field(default_factory=list)
    metadata: dict[str, str] = Field(default_factory=dict)
    spec: dict[str, Any]
    results_url: str


class ConditionResults(Resource):
    """Scores of one condition; metric keys have lm-eval's form, `<metric>,<filter>`."""

    alias: str
    metrics: dict[str, float | None]
    samples: int = Field(description="Number of scored samples.")
    failed: int
    truncated: int = Field(
        description="Samples that reached max_tokens; in an extract job, texts that were cut to the context."
    )
    tool_use: ToolTotals | None = Field(None, description="Tool calls; null if the condition has no tools.")
    truncated_rate: float | None = Field(None, description="truncated / samples; null without samples.")
    unparsed: dict[str, int] = Field(
        default_factory=dict, description="Metric key -> samples without an answer that the scorer can read."
    )
    unparsed_rate: dict[str, float] = Field(
        default_factory=dict, description="Metric key -> unparsed / samples."
    )


class JobResults(Resource):
    object: Literal["job.results"] = "job.results"
    job_id: str
    status: JobStatus
    task: str | None = None
    progress: Progress
    conditions: dict[str, ConditionResults]


class Event(Resource):
    """An entry of a job's log, as sent over SSE."""

    id: int
    job_id: str
    event: str
    created_at: float
    data: dict[str, Any]
