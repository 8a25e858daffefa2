"""Answers of the OpenAI-compatible routes: chats and completions with captured activations, and batches."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, SerializerFunctionWrapHandler, model_serializer

from actograph.contract.base import MAX_TAGS, FileId, Metadata, Resource, Spec, Tag, example
from actograph.contract.chat_job import Endpoint
from actograph.contract.readouts import ReadoutValues, TokenReadouts
from actograph.contract.resources import SessionFile, TensorInfo
from actograph.contract.specs import ExpiresAfter
from actograph.short_texts import seconds_of

FinishReason = Literal["stop", "length", "tool_calls"]


class ActivationFile(SessionFile):
    """A stored file of a session, and where to read it."""

    url: str = Field(description="Path of the file's content.")


_OF_CAPTURES = ("session_id", "activation_files", "activations_meta", "readouts", "token_readouts", "run_id")


class SessionReference(BaseModel):
    """The session of an answer; left out without capture."""

    session_id: str | None = None
    activation_files: list[ActivationFile] | None = None

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out empty fields, so that answers without capture have OpenAI's fields alone."""
        shown = handler(self).items()
        return {name: value for name, value in shown if value is not None or name not in _OF_CAPTURES}


class Captured(SessionReference):
    """Captured activations of a choice; left out without capture."""

    activations_meta: dict[str, TensorInfo] | None = Field(None, description="By hook point.")
    readouts: dict[str, ReadoutValues] | None = Field(
        None,
        description="Readout -> its values in short. One with `stopped` ended the choice, whose "
        "finish_reason is `stop`.",
    )


class CompletionUsage(Resource):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Function(Resource):
    name: str
    arguments: str = Field(description="JSON text.")


class MessageToolCall(Resource):
    id: str
    type: Literal["function"] = "function"
    function: Function


class AssistantMessage(SessionReference):
    """An answer. Its session stands here too, for scripts that read the message alone."""

    run_id: str | None = Field(None, description="Id of the job; left out without capture.")
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[MessageToolCall] | None = None


class ChatLogprobs(Resource):
    content: list[dict[str, Any]] = Field(description="token, logprob, bytes and top_logprobs of each token.")
    refusal: None = None


class ChatChoice(Captured):
    index: int
    message: AssistantMessage
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None = None


class AnswerFields(Captured):
    """Fields of all answers; `session_id` and the other captures are those of the first choice."""

    id: str
    created: int
    model: str
    system_fingerprint: str | None = None
    run_id: str = Field(description="Id of the job.")


class ChatCompletion(AnswerFields):
    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: CompletionUsage


class CompletionLogprobs(Resource):
    """Log probabilities of all tokens with the end token; with `echo` those of the prompt come first."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None
    text_offset: list[int]


class StreamedReadouts(Captured):
    """A choice of a chunk; without readouts it has OpenAI's fields alone."""

    token_readouts: list[TokenReadouts] | None = Field(
        None,
        description="Of chunks of a request that captures readouts: their values at generated tokens, as "
        "they come. A value follows the text of its token.",
    )


class CompletionChoice(StreamedReadouts):
    index: int
    text: str
    finish_reason: FinishReason | None = Field(None, description="null before the end of a stream.")
    logprobs: CompletionLogprobs | None = None


class Completion(AnswerFields):
    """An answer, or a chunk of a streamed answer."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: CompletionUsage | None = None


class ToolCallDelta(MessageToolCall):
    """A whole call; calls are not streamed in pieces."""

    index: int


class Delta(BaseModel):
    """New text and calls of the message; fields without news are left out."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None

    @model_serializer(mode="wrap")
    def _only_what_is_new(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if name in self.model_fields_set}


class ChatChunkChoice(StreamedReadouts):
    index: int
    delta: Delta
    finish_reason: FinishReason | None = None
    logprobs: ChatLogprobs | None = None


class ChatChunk(AnswerFields):
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]
    usage: CompletionUsage | None = None


#: purpose of the files that batches write
OUTPUT_PURPOSE = "batch_output"
#: OpenAI accepts `24h` only
Window = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,4}[smhd]$")]


class BatchRequest(Spec):
    """The body of `POST /v1/batches`; the second part is Actograph's own."""

    model_config = example(
        input_file_id="file_6f1ed002ab5595859014ebf0951522d9",
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"project": "career"},
    )

    input_file_id: FileId = Field(description="JSONL with one request per line.")
    endpoint: Endpoint
    completion_window: Window = Field("24h", description="Unfinished requests expire after it: `24h`, `7d`.")
    metadata: Metadata | None = None

    output_expires_after: ExpiresAfter | None = None

    priority: int = Field(8, ge=0, le=9, description="0 is served first, 9 last.")
    tags: list[Tag] = Field([], max_length=MAX_TAGS, description="Tags of its sessions.")

    @property
    def window_seconds(self) -> float:
        return float(seconds_of(self.completion_window, "completion_window"))


class BatchLine(Spec):
    """One line of an input file."""

    custom_id: str = Field(min_length=1, max_length=512)
    method: Literal["POST"]
    url: Endpoint
    body: dict[str, Any]


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


class BatchUsage(Resource):
    """Tokens of all answered requests. Cached and reasoning tokens are not counted and always 0."""

    input_tokens: int
    input_tokens_details: dict[str, int] = Field({"cached_tokens": 0})
    output_tokens: int
    output_tokens_details: dict[str, int] = Field({"reasoning_tokens": 0})
    total_tokens: int


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
    error_file_id: str | None = Field(None, description="JSONL of the requests that failed.")
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
