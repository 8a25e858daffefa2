"""Messages and tools of chat requests, in OpenAI's form."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from actograph.contract.chat.accepted import OpenAISpec
from actograph.contract.specs import Spec, Text

#: content of other models -> its name
_OTHER_PARTS = {
    "image_url": "images", "input_image": "images", "input_audio": "sounds", "audio_url": "sounds",
    "video_url": "videos", "file": "files", "input_file": "files",
}  # fmt: skip


class TextPart(Spec):
    """A text part of a message's content."""

    type: Literal["text"]
    text: Text


class CalledFunction(Spec):
    name: str = Field(min_length=1, max_length=256)
    arguments: Text = Field(description="JSON text of an object.")

    @field_validator("arguments")
    @classmethod
    def _object(cls, value: str) -> str:
        value = value or "{}"  # some clients send calls without arguments so
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ValueError("arguments must be the JSON text of an object")
        return value


class CalledTool(Spec):
    """A call that the model made in an earlier turn."""

    id: str = Field(max_length=256)
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(OpenAISpec):
    """A message of the history; earlier answers can be sent back unchanged."""

    ignored = frozenset({"annotations", "run_id", "session_id", "activation_files"})
    unsupported: ClassVar[Mapping[str, str]] = {
        "refusal": "a refusal says nothing to this model",
        "parsed": "answers are not parsed",
        "audio": "messages are text",
        "function_call": "use tool_calls",
    }

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[TextPart] | None = None
    name: str | None = Field(None, max_length=256)
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = Field(None, max_length=256)
    reasoning_content: Text | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _only_text(cls, value: Any) -> Any:
        for part in value if isinstance(value, list) else ():
            kind = part.get("type") if isinstance(part, Mapping) else None
            if isinstance(kind, str) and kind in _OTHER_PARTS:
                raise ValueError(f"{_OTHER_PARTS[kind]} ({kind}) are not supported: the model reads text")
        return value

    @model_validator(mode="after")
    def _says_something(self) -> "ChatMessage":
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("content is missing; only an assistant's message with tool_calls may lack it")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only an assistant's message has tool_calls")
        return self

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates take it."""
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.text,
        }
        for field in ("name", "tool_call_id", "reasoning_content"):
            if (value := getattr(self, field)) is not None:
                message[field] = value
        if self.tool_calls:
            # templates write arguments as JSON themselves
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": json.loads(call.function.arguments),
                    },
                }
                for call in self.tool_calls
            ]
        return message


class FunctionDefinition(Spec):
    name: str = Field(pattern=r"^[A-Za-z0-9_.\-]{1,64}$")
    description: Text | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of the arguments.")
    strict: bool | None = Field(None, description="Arguments follow the schema exactly.")


class ToolDefinition(Spec):
    type: Literal["function"]
    function: FunctionDefinition

    def for_template(self) -> dict[str, Any]:
        return {
            "type": "function",
            "function": self.function.model_dump(exclude={"strict"}, exclude_none=True),
        }


class NamedFunction(Spec):
    name: str = Field(min_length=1, max_length=64)


class NamedTool(Spec):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction
