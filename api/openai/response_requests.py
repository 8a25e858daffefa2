"""Requests to `/v1/responses`: OpenAI's newer form of a conversation, translated into a chat.

The reference is platform.openai.com/docs/api-reference/responses. Nothing is kept for later requests, so each
one has the whole conversation as its input.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationError, model_validator

from actograph.contract.base import Metadata, RequestPart, Text, example, fault_of
from actograph.contract.chat_job import ChatTemplateKwargs, JsonSchema
from actograph.contract.openai import (
    IGNORED,
    MAX_TOP_LOGPROBS,
    Arguments,
    CalledFunction,
    CalledTool,
    ChatCompletionRequest,
    ChatMessage,
    ChatTool,
    GenerationBase,
    ToolFunction,
    only_text,
)

LOGPROBS = "message.output_text.logprobs"
#: field of a chat -> field of this route
NAMES = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text"}


class ContentPart(RequestPart):
    """A text part of a message's content."""

    type: Literal["input_text", "output_text"]
    text: Text


Content = Annotated[Text | list[ContentPart], BeforeValidator(only_text)]
Role = Literal["system", "developer", "user", "assistant"]


def _text(content: str | Sequence[ContentPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


class MessageItem(RequestPart):
    """A message of the conversation; earlier answers can be sent back unchanged."""

    type: Literal["message"] = "message"
    role: Role
    content: Content


class CallItem(RequestPart):
    """A call that the model made in an earlier turn."""

    type: Literal["function_call"]
    call_id: str = Field(max_length=256)
    name: str = Field(min_length=1, max_length=256)
    arguments: Arguments = Field(description="JSON text of an object.")

    def for_chat(self) -> CalledTool:
        function = CalledFunction.model_construct(name=self.name, arguments=self.arguments)
        return CalledTool(id=self.call_id, function=function)


class CallOutputItem(RequestPart):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str = Field(max_length=256)
    output: Content


class ReasoningItem(RequestPart):
    """A thought of another service; the model does not see it."""

    type: Literal["reasoning"]


def _type_of(item: Any) -> str:
    return str(item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "message"))


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_type_of),
]


def _items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


Input = Annotated[list[InputItem], BeforeValidator(_items, json_schema_input_type=Text | list[InputItem])]


class OfFunction(RequestPart):
    """OpenAI's own tools (web search and others) do not exist here."""

    type: Literal["function"]


class FunctionTool(ToolFunction, OfFunction):
    """A tool of the client."""


class NamedTool(OfFunction):
    """The tool that must be called."""

    name: str


class TextFormat(JsonSchema):
    """Form of the answer; `name` and `schema` belong to `json_schema`."""

    type: Literal["text", "json_object", "json_schema"]
    name: str = Field("answer", pattern=r"^[A-Za-z0-9_\-]{1,64}$")


class TextOptions(RequestPart):
    format: TextFormat | None = None


class Reasoning(RequestPart):
    effort: Literal["none"] | None = Field(None, description="See `enable_thinking`.")


class ResponseRequest(GenerationBase):
    """The body of `POST /v1/responses`."""

    model_config = example(
        model="Qwen/Qwen3-0.6B",
        instructions="Answer in one word.",
        input="What is the capital of France?",
        max_output_tokens=16,
        capture={"points": ["resid_post"], "layers": [12]},
    )
    ignored: ClassVar[frozenset[str]] = IGNORED | {"max_tool_calls", "stream_options"}

    input: Input = Field(description="A text, or the items of the whole conversation.")
    instructions: Text | None = Field(None, description="The system message.")
    max_output_tokens: int | None = Field(None, ge=1, le=1_000_000)
    text: TextOptions | None = None
    tools: list[FunctionTool] | None = Field(None, max_length=128)
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = Field(None, description="false allows one call at most.")
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] = Field([])
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    reasoning: Reasoning | None = None
    truncation: Literal["disabled"] | None = Field(None, description="A longer input is an error.")
    background: Literal[False] | None = Field(None, description="Send a batch to answer later.")
    previous_response_id: str | None = Field(None, description="Refused, as nothing is kept.")
    metadata: Metadata | None = Field(None, description="Metadata of the job.")

    enable_thinking: bool | None = Field(None, description="Passed to the chat template; default false.")
    chat_template_kwargs: ChatTemplateKwargs | None = None

    @model_validator(mode="after")
    def _fits(self) -> "ResponseRequest":
        if self.previous_response_id is not None:
            reason = "responses are not kept; send the whole conversation as input, with the earlier output"
            raise fault_of("previous_response_id", reason)
        try:
            self.chat()
        except ValidationError as error:
            first = error.errors()[0]
            field = str(first.get("ctx", {}).get("field") or first["loc"][0])
            raise fault_of(NAMES.get(field, field), first["msg"]) from None
        return self

    def chat(self) -> ChatCompletionRequest:
        """The same request as a chat."""
        same = GenerationBase.model_fields.keys() | {
            "tool_choice", "parallel_tool_calls", "metadata", "top_logprobs", "enable_thinking",
            "chat_template_kwargs",
        }  # fmt: skip
        asked = {name: getattr(self, name) for name in self.model_fields_set & same}
        if isinstance(self.tool_choice, NamedTool):
            function = ToolFunction.model_construct(name=self.tool_choice.name)
            asked["tool_choice"] = ChatTool(type="function", function=function)
        if self.tools:
            asked["tools"] = [ChatTool(type="function", function=tool) for tool in self.tools]
        if self.text is not None and self.text.format is not None:
            form = self.text.format
            schema = {"json_schema": form} if form.type == "json_schema" else {}
            asked["response_format"] = {"type": form.type, **schema}
        if self.reasoning is not None:
            asked["reasoning_effort"] = self.reasoning.effort
        return ChatCompletionRequest.model_validate(
            asked
            | {
                "messages": self._messages(),
                "max_tokens": self.max_output_tokens,
                "logprobs": LOGPROBS in self.include or self.top_logprobs is not None,
            }
        )

    def _messages(self) -> list[ChatMessage]:
        """The conversation. A turn's text and its calls are one message."""
        found = [ChatMessage(role="system", content=self.instructions)] if self.instructions else []
        for item in self.input:
            if isinstance(item, MessageItem):
                found.append(ChatMessage(role=item.role, content=_text(item.content)))
            elif isinstance(item, CallOutputItem):
                found.append(ChatMessage(role="tool", content=_text(item.output), tool_call_id=item.call_id))
            elif isinstance(item, CallItem):
                turn = ChatMessage.model_construct(role="assistant", tool_calls=[])
                if found and found[-1].role == "assistant":
                    turn = found.pop()
                calls = [*(turn.tool_calls or ()), item.for_chat()]
                found.append(turn.model_copy(update={"tool_calls": calls}))
        return found
