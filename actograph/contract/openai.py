"""Requests to `/v1/chat/completions` and `/v1/completions`, in OpenAI's form.

The reference is the OpenAI API (platform.openai.com/docs/api-reference/chat). Unknown fields of a request are
refused; those of its messages and tools are ignored, so that answers of other services can be sent back.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, Json, model_validator

from actograph.contract import json_grammar
from actograph.contract.base import (
    JsonObject,
    Metadata,
    ModelName,
    PromptText,
    RequestPart,
    Stop,
    Stops,
    Tag,
    Text,
    example,
    fault_of,
)
from actograph.contract.chat_job import (
    CHAT,
    ChatInput,
    ChatTemplateKwargs,
    OwnSample,
    ResponseFormat,
    StructuredOutputs,
)
from actograph.contract.interventions import InterventionList
from actograph.contract.row_selection import needs_generation
from actograph.contract.specs import CaptureSpec, Expiry, LogitBias, Penalty, SamplingOptions, SamplingSpec
from actograph.contract.tool_calls import CLOSE

MAX_CHOICES = 128
#: OpenAI's own default for `/v1/completions`
COMPLETION_MAX_TOKENS = 16
MAX_TOP_LOGPROBS = 20
MAX_STOPS = 16
#: replaces a top_p of 0, which keeps the most likely token at OpenAI
LEAST_TOP_P = 1e-9
#: fields of OpenAI's requests that do not change the answer
IGNORED = frozenset({
    "user", "store", "service_tier", "safety_identifier", "prediction", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention",
})  # fmt: skip


#: fields of vLLM at the values that change nothing; others are refused
NEUTRAL: Mapping[str, Any] = {
    "top_k": (0, -1), "skip_special_tokens": (True,), "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,), "use_beam_search": (False,), "length_penalty": (1,),
    "add_special_tokens": (False,), "return_token_ids": (False,),
}  # fmt: skip


def only_text(content: Any) -> Any:
    """Refuse parts of a message that are no text, such as images. Raises ValueError."""
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and any(word in kind for word in ("image", "audio", "video", "file")):
            name = kind.removeprefix("input_").removesuffix("_url")
            raise ValueError(f"a part of type {kind[:40]} is not supported ({name}): send text parts only")
    return content


class TextPart(RequestPart):
    """A text part of a message's content."""

    type: Literal["text"]
    text: Text


#: JSON text of an object; some clients send calls without arguments as an empty text
Arguments = Annotated[Json[JsonObject], BeforeValidator(lambda text: text or "{}")]


class CalledFunction(RequestPart):
    name: str = Field(min_length=1, max_length=256)
    arguments: Arguments = Field(description="JSON text of an object.")


class CalledTool(RequestPart):
    """A call that the model made in an earlier turn."""

    id: str = Field(max_length=256)
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(RequestPart):
    """A message of the history; earlier answers can be sent back unchanged."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Text | list[TextPart] | None, BeforeValidator(only_text)] = None
    name: str | None = Field(None, max_length=256)
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = Field(None, max_length=256)
    reasoning_content: Text | None = None

    @model_validator(mode="after")
    def _says_something(self) -> "ChatMessage":
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only an assistant's message has tool_calls")
        if self.content is None and not self.tool_calls:
            raise ValueError("content is missing; only an assistant's message with tool_calls may lack it")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates take it: a text, and calls with their arguments as objects."""
        content = self.content or ""
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        return self.model_dump(exclude_none=True) | {"role": role, "content": content}


class ToolFunction(RequestPart):
    name: str = Field(pattern=r"^[A-Za-z0-9_.\-]{1,64}$")
    description: Text | None = None
    parameters: JsonObject | None = Field(None, description="JSON schema of the arguments.")
    strict: bool | None = Field(None, description="true: calls follow the schema; forced calls always do.")


class ChatTool(RequestPart):
    """A tool, or with its name alone the tool that must be called."""

    type: Literal["function"]
    function: ToolFunction


TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1, fail_fast=True)]
Few = Field(min_length=1, max_length=2048, fail_fast=True)
Prompts = Annotated[list[PromptText], Few] | Annotated[list[TokenIds], Few]


class StreamOptions(RequestPart):
    include_usage: bool = False


class GenerationBase(SamplingOptions):
    """Fields of all routes that generate; the second part is Actograph's own."""

    ignored: ClassVar[frozenset[str]] = IGNORED

    model: ModelName
    temperature: float | None = Field(None, ge=0.0, le=100.0, allow_inf_nan=False)
    top_p: float | None = Field(None, ge=0.0, le=1.0, description="0 keeps only the most likely token.")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Stop | Stops | None = None
    stream: bool | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None

    top_k: int | None = Field(None, ge=1, description="null samples from all tokens.")
    structured_outputs: StructuredOutputs | None = None
    store_activations: bool | None = Field(
        None,
        description="true: keep the model's savepoints, or the default capture if it has none; "
        "false: keep nothing.",
    )
    capture: CaptureSpec | None = Field(None, description="See docs/guides/capture.md.")
    interventions: InterventionList = Field([])
    tags: list[Tag] = Field([], max_length=16)
    expires_after: Expiry = None
    sample: OwnSample | None = Field(None, description="Shown by the sessions as theirs.")

    @model_validator(mode="before")
    @classmethod
    def _drop_unused(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {
            name: field
            for name, field in value.items()
            if not (field is None or name in cls.ignored or field in NEUTRAL.get(name, ()))
        }


class CompletionBase(GenerationBase):
    """Fields of chats and texts."""

    #: of the job that such a request becomes
    kind: ClassVar[str] = CHAT

    max_tokens: int | None = Field(None, ge=0, le=1_000_000)
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _sensible(self) -> "CompletionBase":
        if self.capture is not None and self.capture.mode != "generate":
            raise fault_of("capture", f"mode {self.capture.mode} is not supported here; send a capture job")
        if self.stream_options is not None and not self.stream:
            raise fault_of("stream_options", "stream_options needs stream: true")
        return self

    def captures(self, savepoints: Sequence[str] = ()) -> CaptureSpec | None:
        """The capture spec; None captures nothing.

        Args:
            savepoints: of the loaded model.
        """
        if self.store_activations is False:
            return None
        if self.store_activations and self.capture is None:
            return CaptureSpec(hooks=list(savepoints))
        return self.capture

    @property
    def choices(self) -> int:
        """Number of answers to each prompt."""
        return self.n or 1

    @property
    def grammar(self) -> str | None:
        """Grammar of the answer, see `json_grammar`; None leaves it free."""
        return None if self.structured_outputs is None else self.structured_outputs.grammar

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else list(dict.fromkeys(self.stop or ()))

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
            **{name: getattr(self, name) for name in SamplingOptions.model_fields},
        )

    @property
    def grammars(self) -> dict[str, str]:
        """Grammars that text must be able to follow, by the field that asks for them."""
        return {} if self.grammar is None else {"structured_outputs": self.grammar}

    @abstractmethod
    def inputs(self, *, seed: int, chat_max_tokens: int) -> list[ChatInput]:
        """Its prompts; `chat_max_tokens` is the default of conversations."""

    def _of_all(self, seed: int, asked: int | None, default: int) -> dict[str, Any]:
        """Fields of each input, with the requested maximum of generated tokens, or the default."""
        # what generates nothing needs a valid number too
        most = max(1, default if asked is None else asked)
        return {
            "sampling": self.sampling(max_tokens=most, seed=seed),
            "max_tokens": asked,
            "default_max_tokens": default,
            "grammar": self.grammar,
            "sample": self.sample,
        }


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

    messages: list[ChatMessage] = Field(min_length=1, max_length=10_000, fail_fast=True)
    max_tokens: int | None = Field(None, ge=1, le=1_000_000)
    max_completion_tokens: int | None = Field(None, ge=1, le=1_000_000)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: list[ChatTool] | None = Field(None, max_length=128)
    tool_choice: Literal["auto", "none", "required"] | ChatTool | None = None
    parallel_tool_calls: bool | None = Field(None, description="false allows one call at most.")
    modalities: list[Literal["text"]] | None = None
    response_format: ResponseFormat | None = Field(
        None, description="json_object, json_schema: no token is chosen that would leave the form."
    )
    reasoning_effort: Literal["none"] | None = Field(None, description="See `enable_thinking`.")
    enable_thinking: bool | None = Field(None, description="Passed to the chat template; default false.")
    chat_template_kwargs: ChatTemplateKwargs | None = None
    continue_final_message: bool = Field(False, description="Continue the last message, an assistant's.")
    add_generation_prompt: bool | None = Field(None, description="The opposite of `continue_final_message`.")
    metadata: Metadata | None = Field(None, description="Metadata of the job.")

    @model_validator(mode="after")
    def _consistent(self) -> "ChatCompletionRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise fault_of("top_logprobs", "top_logprobs needs logprobs: true")
        if len({self.max_tokens, self.max_completion_tokens} - {None}) > 1:
            raise fault_of("max_tokens", "max_tokens and max_completion_tokens differ; send one of them")
        names = [tool.function.name for tool in self.tools or ()]
        if self.must_call and not names:
            raise fault_of("tool_choice", "this tool_choice needs tools")
        if isinstance(self.tool_choice, ChatTool) and self.tool_choice.function.name not in names:
            name = self.tool_choice.function.name
            raise fault_of("tool_choice", f"tool_choice names {name}, which is not one of the tools")
        if len({self.enable_thinking, self._template_thinking} - {None}) > 1:
            reason = "enable_thinking and chat_template_kwargs.enable_thinking differ"
            raise fault_of("enable_thinking", reason)
        if self.grammar is not None and self.thinks:
            field = "structured_outputs" if self.structured_outputs else "response_format"
            raise fault_of(field, "an answer in this form cannot have a thought too")
        if self.structured_outputs and self.response_format:
            raise fault_of("structured_outputs", "send either response_format or structured_outputs")
        if self.continue_final_message and (self.messages[-1].role != "assistant" or self.must_call):
            raise fault_of("continue_final_message", "only an assistant's message, and no call, can continue")
        if self.add_generation_prompt is self.continue_final_message:
            raise fault_of("add_generation_prompt", "it is the opposite of continue_final_message")
        if self.reasoning_effort == "none" and self.thinks:
            raise fault_of("reasoning_effort", "reasoning_effort is none, but enable_thinking is true")
        return self

    @property
    def _template_thinking(self) -> bool | None:
        return (self.chat_template_kwargs or {}).get("enable_thinking")

    @property
    def template_variables(self) -> dict[str, Any]:
        """Variables of the chat template beside `enable_thinking`."""
        return {n: value for n, value in (self.chat_template_kwargs or {}).items() if n != "enable_thinking"}

    @property
    def thinks(self) -> bool:
        """Value of enable_thinking for the chat template."""
        return bool(self.enable_thinking or self._template_thinking)

    @property
    def grammar(self) -> str | None:
        """Grammar of the answer, see `json_grammar`; None leaves it free."""
        asked = self.response_format
        return super().grammar if asked is None else asked.grammar

    @property
    def must_call(self) -> bool:
        """True if the answer must be a tool call."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, ChatTool)

    @property
    def call_name(self) -> str | None:
        """The only tool that the answer may call. Returns None if there are several."""
        if isinstance(self.tool_choice, ChatTool):
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
        is_named = isinstance(self.tool_choice, ChatTool)
        return bool(self.offered_tools) and (is_named or self.parallel_tool_calls is False)

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The tools that the model sees, as chat templates take them."""
        tools = [] if self.tool_choice == "none" else self.tools or []
        # prompts do not show `strict`
        return [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in tools]

    @property
    def strict_tools(self) -> list[str] | None:
        """Tools whose arguments follow their schemas in calls that the model begins itself."""
        offered = [] if self.tool_choice == "none" else self.tools or []
        return [tool.function.name for tool in offered if tool.function.strict] or None

    @property
    def grammars(self) -> dict[str, str]:
        found = super().grammars
        if self.response_format is not None and self.grammar is not None:
            found = {"response_format": self.grammar}
        if self.must_call or self.strict_tools:
            only = None if self.must_call else self.strict_tools
            schemas = json_grammar.arguments_of(self.offered_tools, only)
            found = {"tools": json_grammar.of_call(schemas, "")} | found
        return found

    def inputs(self, *, seed: int, chat_max_tokens: int) -> list[ChatInput]:
        return [
            ChatInput(
                messages=[message.for_template() for message in self.messages],
                tools=self.offered_tools or None,
                must_call=self.must_call,
                call_name=self.call_name,
                strict_tools=self.strict_tools,
                one_call=self.one_call,
                continues=self.continue_final_message,
                enable_thinking=self.thinks,
                template_variables=self.template_variables,
                top_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
                # tool calls are sent whole
                live=bool(self.stream)
                and not (self.logprobs or self.must_call or self.continue_final_message),
                **self._of_all(seed, self.max_completion_tokens or self.max_tokens, chat_max_tokens),
            )
        ]


class CompletionRequest(CompletionBase):
    """The body of `POST /v1/completions`."""

    model_config = example(
        model="Qwen/Qwen3-0.6B", prompt="The capital of France is", max_tokens=8, temperature=0
    )

    prompt: PromptText | TokenIds | Prompts = Field(description="A text, token ids, or a list of either.")
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)
    suffix: Literal[""] | None = Field(None, description="The model only continues text.")

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
        return [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)

    def inputs(self, *, seed: int, chat_max_tokens: int) -> list[ChatInput]:
        shared = self._of_all(seed, self.max_tokens, COMPLETION_MAX_TOKENS) | {
            "top_logprobs": self.logprobs,
            "echo": bool(self.echo),
            "live": bool(self.stream) and self.logprobs is None and not self.echo,
        }
        return [
            ChatInput(**{"prompt" if isinstance(prompt, str) else "prompt_token_ids": prompt}, **shared)
            for prompt in self.prompts
        ]
