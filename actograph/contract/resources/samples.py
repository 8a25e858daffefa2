"""Samples and their scores."""

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from actograph.contract.resources.base import ErrorRecord, Resource
from actograph.contract.resources.tool_use import ToolMessage, ToolUse


class SampleStatus(StrEnum):
    PENDING = "pending"  # not claimed
    LEASED = "leased"  # a worker runs it until its lease ends
    COMPLETED = "completed"  # text, scores and session are stored
    FAILED = "failed"  # ended with an error, which is stored
    CANCELLED = "cancelled"  # its job ended before it did; a retry of the job runs it


class Sample(Resource):
    """One unit of work: one problem under one condition in one epoch."""

    id: str
    object: Literal["sample"] = "sample"
    job_id: str
    index: int = Field(description="Row of the dataset, counted from its start.")
    condition: str | None = None
    epoch: int = 0
    status: SampleStatus
    input: dict[str, Any] = Field(description="The problem or prompt as submitted.")
    prompt: str | None = Field(None, description="The text that the model was given.")
    completion: str | None = None
    finish_reason: Literal["stop", "length"] | None = None
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    seed: int | None = None
    scores: dict[str, "Score"] = Field(default_factory=dict)
    tool_use: ToolUse | None = Field(None, description="Where it had tools.")
    messages: list[ToolMessage] = Field(
        default_factory=list, description="The turns after the prompt, where it had tools."
    )
    error: ErrorRecord | None = None
    session_id: str | None = None
    attempts: int = Field(
        0,
        description="Times that a worker took it up, those that it gave back not counted. From 2 on it is "
        "run alone, after 4 it fails; where its batch hung it goes on at 2.",
    )
    started_at: int | None = None
    finished_at: int | None = None


class Score(Resource):
    """One scorer's verdict; `answer` is null where the scorer found none."""

    value: float
    answer: str | None = None
