"""Samples and their scores."""

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from actograph.contract.base import Resource
from actograph.contract.resources.base import ErrorRecord
from actograph.contract.resources.tool_use import ToolMessage, ToolUse


class SampleStatus(StrEnum):
    PENDING = "pending"  # not claimed
    LEASED = "leased"  # leased by a worker
    COMPLETED = "completed"  # text, scores and session are stored
    FAILED = "failed"  # ended with an error, which is stored
    CANCELLED = "cancelled"  # its job ended first; a retry of the job runs it


class Sample(Resource):
    """The unit of work: one problem under one condition in one epoch."""

    id: str
    object: Literal["sample"] = "sample"
    job_id: str
    index: int = Field(description="Row of the dataset, counted from 0.")
    condition: str | None = None
    epoch: int = 0
    status: SampleStatus
    input: dict[str, Any] = Field(description="The problem or prompt as submitted.")
    prompt: str | None = Field(None, description="The text that the model reads.")
    completion: str | None = None
    finish_reason: Literal["stop", "length"] | None = None
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    seed: int | None = None
    scores: dict[str, "Score"] = Field(default_factory=dict)
    tool_use: ToolUse | None = Field(None, description="Tool calls; null without tools.")
    messages: list[ToolMessage] = Field(
        default_factory=list, description="The turns after the prompt, with tools only."
    )
    error: ErrorRecord | None = None
    session_id: str | None = None
    attempts: int = Field(
        0,
        description="Number of times that a worker ran it; leases that a worker returned do not count. From "
        "2 on it runs alone, and after 4 it fails. After a stalled batch it continues at 2.",
    )
    started_at: int | None = None
    finished_at: int | None = None


class Score(Resource):
    """A scorer's verdict; `answer` is null if the scorer found no answer."""

    value: float
    answer: str | None = None
