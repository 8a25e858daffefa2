"""Jobs, how far they are, their log and their results."""

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from actograph.contract.models.model_identity import PinnedModel
from actograph.contract.resources.base import ErrorRecord, Resource
from actograph.contract.resources.tool_use import ToolTotals


class JobStatus(StrEnum):
    QUEUED = "queued"  # accepted; no sample has been claimed
    IN_PROGRESS = "in_progress"  # samples are being run
    FINALIZING = "finalizing"  # all samples ended; results are being summed up
    COMPLETED = "completed"  # ended, at least one sample completed
    FAILED = "failed"  # ended, and nothing useful came of it
    CANCELLING = "cancelling"  # cancel asked for; a worker still holds samples
    CANCELLED = "cancelled"  # ended by the client; what finished is kept

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
    queue_position: int | None = Field(None, description="1 is next; null once started or ended.")
    waiting_reason: str | None = Field(
        None, description="Why no worker takes it up at once; null if one does, or it has ended."
    )
    samples_per_second: float | None = Field(
        None, description="Over the last minute, turns of other jobs included."
    )
    eta_seconds: float | None = Field(
        None, description="Until it ends, jobs before and beside it counted; null where that cannot be told."
    )
    error: ErrorRecord | None = None
    priority: int
    owner: str | None = Field(None, description="Who submitted it: `local`, or `key:...`.")
    paused_reason: str | None = Field(
        None, description="Which quota keeps it from being begun; it goes on by itself."
    )
    deadline_at: int | None = Field(None, description="When it fails if it has not ended; null: never.")
    identity_sha256: str | None = Field(
        None, description="Digest of the identity of the model that it is pinned to; null until it is pinned."
    )
    pinned: PinnedModel | None = Field(None, description="The model that all of it is run with.")
    tags: list[str] = Field(default_factory=list)
    metadata: dict[str, str] = Field(default_factory=dict)
    spec: dict[str, Any]
    results_url: str


class ConditionResults(Resource):
    """Scores of one condition; metric keys are lm-eval's, `<metric>,<filter>`."""

    alias: str
    metrics: dict[str, float | None]
    samples: int = Field(description="Samples scored.")
    failed: int
    truncated: int = Field(
        description="Samples that ended at max_tokens; in an extract job, texts that were cut to the context."
    )
    tool_use: ToolTotals | None = Field(None, description="null where the condition has no tools.")
    truncated_rate: float | None = Field(None, description="truncated / samples; null without samples.")
    unparsed: dict[str, int] = Field(
        default_factory=dict, description="Metric key -> samples in which that scorer found no answer."
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
    """One entry of a job's log, as sent over SSE."""

    id: int
    job_id: str
    event: str
    created_at: float
    data: dict[str, Any]
