"""Batches in OpenAI's form: chat or completion requests in an uploaded file, without urgency.

The reference is the OpenAI API (platform.openai.com/docs/api-reference/batch).
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from actograph.contract.base import Metadata
from actograph.contract.chat.chat_job import ChatInput
from actograph.contract.interventions import InterventionList
from actograph.contract.resources import Resource
from actograph.contract.specs import (
    MAX_TAGS,
    CaptureSpec,
    ExpiresAfter,
    GeneratingSpec,
    InputJobSpec,
    SamplingSpec,
    Spec,
    Tag,
)

KIND = "batch"
#: purpose of the files that batches write
OUTPUT_PURPOSE = "batch_output"
#: requests with at most this many tokens may share a batch, whatever their length
FEW_TOKENS = 64

Endpoint = Literal["/v1/chat/completions", "/v1/completions"]
#: OpenAI accepts `24h` only
Window = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,4}[smhd]$")]
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class BatchRequest(Spec):
    """The body of `POST /v1/batches`; the second part is Actograph's own."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "input_file_id": "file_6f1ed002ab5595859014ebf0951522d9",
                    "endpoint": "/v1/chat/completions",
                    "completion_window": "24h",
                    "metadata": {"project": "career"},
                }
            ]
        }
    )

    input_file_id: str = Field(pattern=r"^file_[0-9a-f]{32}$", description="JSONL with one request per line.")
    endpoint: Endpoint
    completion_window: Window = Field(
        "24h", description="Time after which unfinished requests expire: `24h`, `7d`."
    )
    metadata: Metadata | None = None

    output_expires_after: ExpiresAfter | None = Field(
        None, description="Deletion of its output and error file; null keeps them."
    )

    priority: int = Field(8, ge=0, le=9, description="0 is served first, 9 last.")
    tags: list[Tag] = Field(default_factory=list, max_length=MAX_TAGS, description="Tags of its sessions.")

    @property
    def window_seconds(self) -> float:
        return float(int(self.completion_window[:-1]) * _SECONDS[self.completion_window[-1]])


class BatchLine(Spec):
    """One line of an input file."""

    custom_id: str = Field(min_length=1, max_length=512)
    method: Literal["POST"]
    url: Endpoint
    body: dict[str, Any]


class BatchInput(ChatInput):
    """The request of one line, as its samples store it; each of its `choices` is a sample.

    Attributes:
        expires_after: expiry of its sessions; None uses the job's.
        tags: tags of its sessions, besides the job's.
    """

    custom_id: str
    sampling: SamplingSpec
    choices: int = 1
    capture: CaptureSpec | None = None
    interventions: InterventionList = Field(default_factory=list)
    expires_after: ExpiresAfter | Literal["never"] | None = None
    tags: list[Tag] = Field(default_factory=list)
    metadata: dict[str, str] = Field(default_factory=dict)


class BatchJobSpec(InputJobSpec, GeneratingSpec):
    """The job of a batch. `sampling` has the largest max_tokens of all lines; each line has its own.

    Each line also has its own `capture` and `interventions`; those of the job are empty.
    """

    kind: Literal["batch"] = "batch"
    batch_id: str
    endpoint: Endpoint
    #: number of lines; each has one sample or more
    requests: int = 0


def unit_key(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a stored `BatchInput` that all samples of one unit share.

    Lines of very different `max_tokens` do not run together: the longest would hold the memory of all.
    """
    sampling = {k: v for k, v in stored["sampling"].items() if k not in ("seed", "max_tokens")}
    shared = {name: stored.get(name) or None for name in ("capture", "interventions")}
    return {"sampling": sampling, "tokens": unit_tokens(stored)} | shared


def unit_tokens(stored: Mapping[str, Any]) -> int:
    """Maximum of generated tokens for samples of the same unit: a power of two."""
    most: int = stored.get("max_tokens") or stored["default_max_tokens"]
    return 1 << (max(most, FEW_TOKENS) - 1).bit_length()


def spec_of(job: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """The stored spec of a batch, with the fields of one line (a stored `BatchInput`) and its unit."""
    own = {name: stored.get(name) or job[name] for name in ("capture", "interventions")}
    most = min(unit_tokens(stored), job["sampling"]["max_tokens"])
    return {**job, **own, "sampling": {**job["sampling"], "max_tokens": most}}


class BatchStatus(StrEnum):
    VALIDATING = "validating"  # the input file is being read
    FAILED = "failed"  # the input file, or the job as a whole, was refused
    IN_PROGRESS = "in_progress"  # its job waits or runs
    FINALIZING = "finalizing"  # everything has ended; the output files are being written
    COMPLETED = "completed"  # every request has an answer or an error
    EXPIRED = "expired"  # its window passed; finished answers are kept
    CANCELLING = "cancelling"  # cancelled; a worker still runs requests
    CANCELLED = "cancelled"  # ended by the client; finished answers are kept

    def is_terminal(self) -> bool:
        return self in (
            BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED
        )  # fmt: skip


class BatchError(Resource):
    code: str
    message: str
    line: int | None = Field(None, description="Line of the input file, counted from 1.")
    param: str | None = None


class BatchErrors(Resource):
    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(Resource):
    total: int = 0
    completed: int = 0
    failed: int = 0


class InputTokensDetails(Resource):
    cached_tokens: int = 0


class OutputTokensDetails(Resource):
    reasoning_tokens: int = 0


class BatchUsage(Resource):
    """Tokens of all answered requests. Cached and reasoning tokens are not counted and always 0."""

    input_tokens: int
    input_tokens_details: InputTokensDetails = InputTokensDetails()
    output_tokens: int
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int

    @classmethod
    def of(cls, read: int, chosen: int) -> "BatchUsage":
        return cls(input_tokens=read, output_tokens=chosen, total_tokens=read + chosen)

    def as_stored(self) -> dict[str, int]:
        return {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}

    @classmethod
    def from_stored(cls, stored: Mapping[str, int] | None) -> "BatchUsage | None":
        """Read the result of `as_stored`. Returns None if the usage is unknown."""
        if stored is None or "input_tokens" not in stored:
            return None
        return cls.of(stored["input_tokens"], stored["output_tokens"])


class Batch(Resource):
    """A batch, in OpenAI's shape."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: Endpoint
    model: str | None = Field(None, description="null until the input file has been read.")
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None = Field(None, description="JSONL of the answers.")
    error_file_id: str | None = Field(
        None, description="JSONL of the requests without an answer, with their errors."
    )
    created_at: int
    in_progress_at: int | None = None
    expires_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts
    usage: BatchUsage | None = Field(None, description="null until it has ended.")
    metadata: dict[str, str] | None = None
    job_id: str | None = Field(None, description="The job that runs it.")
    owner: str | None = None
