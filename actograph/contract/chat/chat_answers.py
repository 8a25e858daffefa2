"""Answers of `/v1/chat/completions` and `/v1/completions`, in OpenAI's form, with captured activations."""

from typing import Any, Literal

from pydantic import BaseModel, Field, SerializerFunctionWrapHandler, model_serializer

from actograph.contract.resources import Resource, SessionFile, TensorInfo

FinishReason = Literal["stop", "length", "tool_calls"]


class ActivationFile(SessionFile):
    """A stored file of a session, and where to read it."""

    url: str = Field(description="Path of the file's content.")


class Captured(BaseModel):
    """Captured activations of a choice; left out without capture."""

    session_id: str | None = None
    activation_files: list[ActivationFile] | None = None
    activations_meta: dict[str, TensorInfo] | None = Field(None, description="By hook point.")

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out empty fields, so that answers without capture have OpenAI's fields alone."""
        absent = [name for name in Captured.model_fields if getattr(self, name) is None]
        return {name: value for name, value in handler(self).items() if name not in absent}


class CompletionUsage(Resource):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Function(Resource):
    name: str
    arguments: str = Field(description="JSON text.")


class ToolCall(Resource):
    id: str
    type: Literal["function"] = "function"
    function: Function


class AssistantMessage(Resource):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | None = None


class TopLogprob(Resource):
    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob] = Field(default_factory=list)


class ChatLogprobs(Resource):
    content: list[TokenLogprob] | None = None
    refusal: None = None


class ChatChoice(Captured):
    index: int
    message: AssistantMessage
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None = None


class Answer(Captured):
    """Fields of all answers; `session_id` and the other captures are those of the first choice."""

    id: str
    created: int
    model: str
    system_fingerprint: str | None = None
    run_id: str = Field(description="Id of the job.")


class ChatCompletion(Answer):
    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: CompletionUsage


class TextToken(BaseModel):
    """A token of a text and its log probability, as samples store it; the first token has none.

    Attributes:
        top: the most likely tokens and this token -> log probability.
    """

    token: str
    bytes: list[int] | None = None
    logprob: float | None = None
    top: dict[str, float] | None = None


class CompletionLogprobs(Resource):
    """Log probabilities of all tokens with the end token; with `echo` those of the prompt come first."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None
    text_offset: list[int]


class CompletionChoice(Captured):
    index: int
    text: str
    finish_reason: FinishReason
    logprobs: CompletionLogprobs | None = None


class Completion(Answer):
    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]
    usage: CompletionUsage


class ToolCallDelta(Resource):
    """A whole call; calls are not streamed in pieces."""

    index: int
    id: str
    type: Literal["function"] = "function"
    function: Function


class Delta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None

    @model_serializer(mode="wrap")
    def _only_what_is_new(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if name in self.model_fields_set}


class ChatChunkChoice(Captured):
    index: int
    delta: Delta
    finish_reason: FinishReason | None = None
    logprobs: ChatLogprobs | None = None


class ChatChunk(Answer):
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatChunkChoice]
    usage: CompletionUsage | None = None


class CompletionChunkChoice(Captured):
    index: int
    text: str
    finish_reason: FinishReason | None = None
    logprobs: CompletionLogprobs | None = None


class CompletionChunk(Answer):
    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChunkChoice]
    usage: CompletionUsage | None = None
