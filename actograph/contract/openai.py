"""Requests to `/v1/chat/completions` and `/v1/completions`, in OpenAI's form.

The reference is the OpenAI API (platform.openai.com/docs/api-reference/chat).
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from actograph.contract.base import Metadata, ModelName, PromptText, Spec, Stop, Stops, Tag, Text, example
from actograph.contract.interventions import InterventionList
from actograph.contract.row_selection import needs_generation
from actograph.contract.specs import CaptureSpec, ExpiresAfter, LogitBias, Penalty, SamplingSpec
from actograph.tool_calls import CLOSE

MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_STOPS = 16


def fault_of(field: str, why: str) -> PydanticCustomError:
    """The error of a check over several fields, reported for one of them."""
    return PydanticCustomError("fault_of", "{why}", {"why": why, "field": field})


Refusals = Mapping[str, tuple[tuple[Any, ...], str]]


class OpenAISpec(Spec):
    """A request in OpenAI's form. Unknown fields are refused as in every request.

    Attributes:
        ignored: fields that do not change the answer.
        unsupported: fields that would change it -> values that change nothing, besides null, and the reason.
    """

    ignored: ClassVar[frozenset[str]] = frozenset()
    unsupported: ClassVar[Refusals] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_unused(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        for field, (accepted, why) in cls.unsupported.items():
            if value.get(field) not in (None, *accepted):
                raise fault_of(field, f"not supported here: {why}")
        unused = cls.ignored | cls.unsupported.keys()
        return {name: field for name, field in value.items() if name not in unused}


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

    ignored = frozenset({"annotations"})
    unsupported: ClassVar[Refusals] = {
        "refusal": ((), "a refusal says nothing to this model"),
        "parsed": ((), "answers are not parsed"),
        "audio": ((), "messages are text"),
        "function_call": ((), "use tool_calls"),
    }

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[TextPart] | None = None
    name: str | None = Field(None, max_length=256)
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = Field(None, max_length=256)
    reasoning_content: Text | None = None

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


class FunctionDefinition(OpenAISpec):
    unsupported: ClassVar[Refusals] = {"strict": ((False,), "generated text is not constrained")}

    name: str = Field(pattern=r"^[A-Za-z0-9_.\-]{1,64}$")
    description: Text | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of the arguments.")


class ToolDefinition(Spec):
    type: Literal["function"]
    function: FunctionDefinition

    def for_template(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class NamedFunction(Spec):
    name: str = Field(min_length=1, max_length=64)


class NamedTool(Spec):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


#: replaces a top_p of 0, which keeps the most likely token at OpenAI
LEAST_TOP_P = 1e-9

TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1, fail_fast=True)]
Few = Field(min_length=1, max_length=2048, fail_fast=True)
Prompts = Annotated[list[PromptText], Few] | Annotated[list[TokenIds], Few]


class StreamOptions(OpenAISpec):
    ignored = frozenset({"include_obfuscation"})

    include_usage: bool = False


class ChatTemplateKwargs(Spec):
    enable_thinking: bool | None = None


class CompletionBase(OpenAISpec):
    """Fields of both routes; the second part is Actograph's own."""

    ignored = frozenset({
        "user", "store", "service_tier", "safety_identifier", "prediction", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention",
    })  # fmt: skip

    model: ModelName
    temperature: float | None = Field(None, ge=0.0, le=100.0, allow_inf_nan=False)
    top_p: float | None = Field(None, ge=0.0, le=1.0, description="0 keeps only the most likely token.")
    max_tokens: int | None = Field(None, ge=0, le=1_000_000)
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Stop | Stops | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None

    top_k: int | None = Field(None, ge=1, description="null samples from all tokens.")
    store_activations: bool | None = Field(None, description="Capture with the default spec.")
    capture: CaptureSpec | None = Field(None, description="See docs/guides/capture.md.")
    interventions: InterventionList = Field(default_factory=list)
    tags: list[Tag] = Field(default_factory=list, max_length=16)
    expires_after: ExpiresAfter | Literal["never"] | None = None

    @model_validator(mode="after")
    def _sensible(self) -> "CompletionBase":
        if self.store_activations is False and self.capture is not None:
            raise fault_of("store_activations", "store_activations is false, but there is a capture spec")
        if self.capture is not None and self.capture.mode != "generate":
            raise fault_of("capture", f"mode {self.capture.mode} is not supported here; send a capture job")
        if self.stream_options is not None and not self.stream:
            raise fault_of("stream_options", "stream_options needs stream: true")
        return self

    @property
    def captures(self) -> CaptureSpec | None:
        """The capture spec; None captures nothing."""
        if self.capture is not None:
            return self.capture
        return CaptureSpec() if self.store_activations else None

    @property
    def choices(self) -> int:
        """Number of answers to each prompt."""
        return self.n or 1

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        if isinstance(self.stop, str):
            return [self.stop]
        return list(dict.fromkeys(self.stop or ()))

    def sampling(self, *, max_tokens: int, seed: int) -> SamplingSpec:
        """The sampling spec, with OpenAI's defaults."""
        return SamplingSpec(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else max(self.top_p, LEAST_TOP_P),
            top_k=self.top_k,
            max_tokens=max_tokens,
            seed=seed,
            stop=self.stops,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=self.logit_bias or {},
        )


class ChatCompletionRequest(CompletionBase):
    """The body of `POST /v1/chat/completions`."""

    model_config = example(
        model="Qwen/Qwen3-0.6B",
        messages=[{"role": "user", "content": "What is 3 + 4?"}],
        max_tokens=64,
        temperature=0.7,
        seed=1,
        capture={"points": ["resid_post"], "layers": [12]},
    )

    unsupported: ClassVar[Refusals] = {
        "moderation": ((), "nothing is moderated"),
        "audio": ((), "answers are text"),
        "modalities": ((["text"],), "answers are text"),
        "response_format": (({"type": "text"},), "generated text is not constrained"),
        "reasoning_effort": (("none",), "say enable_thinking true or false"),
        "functions": ((), "use tools"),
        "function_call": ((), "use tool_choice"),
        "verbosity": ((), "the model knows no verbosity; say it in the prompt"),
        "web_search_options": ((), "there is no web search"),
    }

    messages: list[ChatMessage] = Field(min_length=1, max_length=10_000, fail_fast=True)
    max_tokens: int | None = Field(None, ge=1, le=1_000_000)
    max_completion_tokens: int | None = Field(None, ge=1, le=1_000_000)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: list[ToolDefinition] | None = Field(None, max_length=128)
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = Field(None, description="false allows one call at most.")
    enable_thinking: bool | None = Field(None, description="Passed to the chat template; default false.")
    chat_template_kwargs: ChatTemplateKwargs | None = None
    metadata: Metadata | None = Field(None, description="Metadata of the job.")

    @model_validator(mode="before")
    @classmethod
    def _thinks_or_not(cls, value: Any) -> Any:
        given = value if isinstance(value, Mapping) else {}
        kwargs = given.get("chat_template_kwargs")
        kwargs = kwargs if isinstance(kwargs, Mapping) else {}
        thinks = given.get("enable_thinking") or kwargs.get("enable_thinking")
        if given.get("reasoning_effort") == "none" and thinks:
            raise fault_of("reasoning_effort", "reasoning_effort is none, but enable_thinking is true")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "ChatCompletionRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise fault_of("top_logprobs", "top_logprobs needs logprobs: true")
        both = self.max_tokens, self.max_completion_tokens
        if None not in both and both[0] != both[1]:
            raise fault_of("max_tokens", "max_tokens and max_completion_tokens differ; send one of them")
        names = [tool.function.name for tool in self.tools or ()]
        if self.must_call and not names:
            raise fault_of("tool_choice", "this tool_choice needs tools")
        if self.call_name is not None and self.call_name not in names:
            raise fault_of(
                "tool_choice", f"tool_choice names {self.call_name}, which is not one of the tools"
            )
        kwargs = self.chat_template_kwargs.enable_thinking if self.chat_template_kwargs else None
        if None not in (kwargs, self.enable_thinking) and kwargs != self.enable_thinking:
            raise fault_of(
                "enable_thinking", "enable_thinking and chat_template_kwargs.enable_thinking differ"
            )
        return self

    @property
    def thinks(self) -> bool:
        """Value of enable_thinking for the chat template."""
        kwargs = self.chat_template_kwargs.enable_thinking if self.chat_template_kwargs else None
        return bool(self.enable_thinking if kwargs is None else kwargs)

    @property
    def must_call(self) -> bool:
        """True if the answer must be a tool call."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)

    @property
    def call_name(self) -> str | None:
        """The only tool that the answer may call. Returns None if there are several."""
        if isinstance(self.tool_choice, NamedTool):
            return self.tool_choice.function.name
        names = {tool.function.name for tool in self.tools or ()}
        return names.pop() if self.must_call and len(names) == 1 else None

    @property
    def stops(self) -> list[str]:
        """The stop strings; an answer with a single call ends after the call."""
        stops = super().stops
        # calls within a thought do not count
        if self.one_call and (self.must_call or not self.thinks) and len(stops) < MAX_STOPS:
            return list(dict.fromkeys([*stops, CLOSE]))
        return stops

    @property
    def one_call(self) -> bool:
        """True if only the first call counts."""
        named = isinstance(self.tool_choice, NamedTool)
        return bool(self.offered_tools) and (named or self.parallel_tool_calls is False)

    @property
    def offered_tools(self) -> list[ToolDefinition]:
        """The tools that the model sees."""
        return [] if self.tool_choice == "none" else self.tools or []


class CompletionRequest(CompletionBase):
    """The body of `POST /v1/completions`."""

    unsupported: ClassVar[Refusals] = {"suffix": (("",), "the model only continues text")}

    model_config = example(
        model="Qwen/Qwen3-0.6B", prompt="The capital of France is", max_tokens=8, temperature=0
    )

    prompt: PromptText | TokenIds | Prompts = Field(description="A text, token ids, or a list of either.")
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)

    @model_validator(mode="after")
    def _consistent(self) -> "CompletionRequest":
        if self.best_of is not None and self.best_of != self.choices:
            raise fault_of("best_of", "best_of must be equal to n: all choices are returned")
        if self.max_tokens == 0 and not self.echo:
            raise fault_of("max_tokens", "max_tokens 0 needs echo: true; otherwise the answer is empty")
        lacking = needs_generation(self.capture.positions) if self.capture is not None else None
        if self.max_tokens == 0 and lacking is not None:
            raise fault_of("capture", f"positions {lacking} need generated tokens, and max_tokens is 0")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each as text or as token ids."""
        given: Any = self.prompt
        if isinstance(given, str) or isinstance(given[0], int):
            return [given]
        return list(given)
