"""Jobs of kind `chat` and `batch`: requests to the OpenAI-compatible routes.

A request becomes a list of `ChatInput` as it arrives; its job has them, and each sample stores one unchanged.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, model_validator

from actograph.contract import json_grammar
from actograph.contract.base import JsonObject, Name, PromptText, RequestPart, Spec, Tag
from actograph.contract.interventions import InterventionList
from actograph.contract.job_specs import InputJobSpec
from actograph.contract.specs import CaptureSpec, Expiry, SamplingSpec

BATCH = "batch"
CHAT = "chat"
Endpoint = Literal["/v1/chat/completions", "/v1/completions"]


class OwnSample(Spec):
    """A sample of the client's own evaluation, by which the sessions of a request are searched."""

    sample_index: int = Field(0, ge=0, lt=2**31, description="Row of the client's dataset.")
    condition: Name | None = Field(None, description="For example the number of the turn.")
    epoch: int = Field(0, ge=0, lt=2**31)


class JsonSchema(RequestPart):
    """A JSON schema with a name. The answer follows it whether or not `strict` says so."""

    model_config = ConfigDict(extra="ignore", frozen=True, serialize_by_alias=True)

    name: str = Field(pattern=r"^[A-Za-z0-9_\-]{1,64}$")
    definition: JsonObject = Field({}, alias="schema")


class ResponseFormat(RequestPart):
    """The form of an answer, as OpenAI has it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> "ResponseFormat":
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("the type json_schema needs json_schema")
        return self

    @property
    def grammar(self) -> str | None:
        """Grammar of the answer, see `json_grammar`; None for any text."""
        if self.type == "text":
            return None
        schema = json_grammar.ANY_OBJECT if self.json_schema is None else self.json_schema.definition
        return json_grammar.of_json(schema)


class StructuredOutputs(Spec):
    """The form of an answer, as vLLM has it: a JSON schema, one of several texts, or a regular expression."""

    definition: JsonObject | None = Field(None, alias="json")
    choice: list[PromptText] | None = Field(None, min_length=1, max_length=1024)
    regex: str | None = Field(None, min_length=1, max_length=10_000, description="In Rust's syntax.")

    @model_validator(mode="after")
    def _says_one(self) -> "StructuredOutputs":
        if sum(form is not None for form in (self.definition, self.choice, self.regex)) != 1:
            raise ValueError("structured_outputs has one of json, choice and regex")
        return self

    @property
    def grammar(self) -> str:
        """Grammar of the answer, see `json_grammar`."""
        if self.definition is not None:
            return json_grammar.of_json(self.definition)
        return json_grammar.of_choice(self.choice) if self.choice else json_grammar.of_regex(self.regex or "")


#: what a request cannot set in its chat template, since other fields or the service do
_TAKEN = frozenset(
    {
        "messages", "conversation", "tools", "chat_template", "add_generation_prompt", "tokenize", "padding",
        "continue_final_message", "truncation", "max_length", "return_tensors", "return_dict",
        "return_assistant_tokens_mask", "tokenizer_kwargs",
    }
)  # fmt: skip


def _variables(value: dict[str, Any]) -> dict[str, Any]:
    for name in value:
        if name in _TAKEN or not name.isidentifier():
            raise ValueError(f"{name[:64]} cannot be set for the chat template")
    if not isinstance(value.get("enable_thinking"), bool | None):
        raise ValueError("enable_thinking must be true or false")
    return value


ChatTemplateKwargs = Annotated[
    JsonObject,
    Field(max_length=64, description="Variables of the model's chat template, such as `enable_thinking`."),
    AfterValidator(_variables),
]


class ChatInput(Spec):
    """The input of one choice: a conversation, a text or token ids.

    Attributes:
        sampling: of the request; `max_tokens` stands beside it.
        max_tokens: maximum of generated tokens; 0 only reads the prompt. None is `default_max_tokens`, or
            the rest of the model's context if that is less.
        top_logprobs: number of most likely tokens to store log probabilities of; None stores none at all.
        echo: True if the answer and its log probabilities begin with the prompt.
        must_call: True if the answer must be a call of one of `tools`.
        call_name: the only tool that the answer may call.
        strict_tools: tools whose arguments follow their schemas in calls that the model begins itself.
        grammar: what the answer follows, see `json_grammar`; None leaves it free.
        continues: True if the answer goes on with the last message.
        one_call: True if only the first call of an answer counts.
        template_variables: of the chat template, beside `enable_thinking`.
        live: True if the text is published while it is generated.
        sample: what its sessions show as their sample; None is the place of the prompt and the choice.
        custom_id: of the line of a batch file, which alone has this and the fields after it.
        choices: number of answers to the line; each is a sample.
        expires_after: expiry of its sessions; None uses the job's.
        tags: tags of its sessions, besides the job's.
    """

    sampling: SamplingSpec = SamplingSpec()
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    prompt_token_ids: list[int] | None = None
    tools: list[dict[str, Any]] | None = None
    must_call: bool = False
    call_name: str | None = None
    strict_tools: list[str] | None = None
    grammar: str | None = None
    continues: bool = False
    one_call: bool = False
    enable_thinking: bool = False
    template_variables: dict[str, Any] = Field({})
    max_tokens: int | None = Field(None, ge=0)
    default_max_tokens: int = Field(16, ge=1)
    top_logprobs: int | None = Field(None, ge=0)
    echo: bool = False
    live: bool = False
    sample: OwnSample | None = None
    custom_id: str | None = None
    choices: int | None = None
    capture: CaptureSpec | None = None
    interventions: InterventionList | None = None
    expires_after: Expiry = None
    tags: list[Tag] | None = None
    metadata: dict[str, str] | None = None

    @property
    def stored(self) -> dict[str, JsonValue]:
        """The input of its samples."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def most_tokens(self) -> int:
        """Maximum of generated tokens, by request or default."""
        return self.default_max_tokens if self.max_tokens is None else self.max_tokens


def is_only_read(given: Mapping[str, Any]) -> bool:
    """True if a stored input only reads its prompt."""
    return given.get("max_tokens") == 0


class ChatJobSpec(InputJobSpec):
    """A request; `epochs` is the number of choices for each of `inputs`."""

    kind: Literal["chat"] = "chat"
    inputs: list[ChatInput] = Field(min_length=1)
    priority: int = Field(0, ge=0, le=9)

    @property
    def is_prefill(self) -> bool:
        return all(given.max_tokens == 0 for given in self.inputs)


class BatchJobSpec(InputJobSpec):
    """The job of a batch. `sampling` has the largest max_tokens of all lines; each line has its own.

    Each line also has its own `capture` and `interventions`; those of the job are empty.
    """

    kind: Literal["batch"] = "batch"
    batch_id: str
    endpoint: Endpoint
    #: number of lines; each has one sample or more
    requests: int = 0
    #: ids of the vectors and SAEs that the lines name
    uses: list[str] = Field(default_factory=list)
