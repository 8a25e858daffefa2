"""What a client sends: job specs, sampling, capture and dataset references.

Every field but `kind`, `model` and the inputs has a default. Unknown fields are refused,
so that a misspelt option is an error and not a silent default.
"""

import json
from hashlib import sha256
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    field_validator,
    model_validator,
)

from actograph.contract import hooks
from actograph.contract.interventions import InterventionList, each
from actograph.contract.row_selection import Features, Positions, Reduce, Stats, needs_generation
from actograph.contract.scorers import ScorerList
from actograph.contract.tasks import OWN_EXAMPLES, TaskRef, TaskSpec
from actograph.contract.webhooks import WebhookSpec

MAX_PROMPT_CHARS = 1_000_000
MAX_INPUTS = 100_000
MAX_TAGS = 16

Dtype = Literal["model", "float32", "float16", "bfloat16"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}$")]
Text = Annotated[str, Field(max_length=MAX_PROMPT_CHARS)]
PromptText = Annotated[str, Field(min_length=1, max_length=MAX_PROMPT_CHARS)]
Tag = Annotated[str, Field(min_length=1, max_length=64)]
LayerIndex = Annotated[int, Field(ge=0)]
Layers = list[LayerIndex] | Literal["all"] | hooks.LayerSlice
SampleTimeout = Annotated[
    float | None,
    Field(
        ge=0,
        le=366 * 86400.0,
        allow_inf_nan=False,
        description="A sample that is decoded for longer fails; null: the service's default, 0: never. All "
        "samples of a batch are decoded at the same time.",
    ),
]


class Spec(BaseModel):
    """Base of everything that a client sends."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SamplingSpec(Spec):
    """How tokens are chosen. Temperature 0 is greedy decoding."""

    temperature: float = Field(0.0, ge=0.0, le=100.0, allow_inf_nan=False)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    top_k: int | None = Field(None, ge=1, description="Keep the k likeliest tokens; null keeps all.")
    max_tokens: int = Field(512, ge=1, le=1_000_000, description="Most tokens to generate per sample.")
    seed: int = Field(
        0, ge=0, lt=2**63, description="Seed of the job; each sample's own seed is derived from it."
    )
    stop: list[Annotated[str, Field(min_length=1, max_length=1000)]] = Field(
        default_factory=list, max_length=16, description="Generation ends after any of these strings."
    )


class CaptureSpec(Spec):
    """Which activations to keep. See docs/capture.md, and docs/hook-points.md for the names.

    `points` x `layers` and the explicit `hooks` are joined. Points without a layer
    (`embed`, `final_norm`, `logits`) ignore `layers`. `layers: null` means a quarter, a half
    and three quarters of the depth. Where neither `points` nor `hooks` is given, `resid_post`
    is meant.
    """

    points: list[hooks.PointName] = Field(default_factory=list, max_length=len(hooks.POINTS))
    layers: Layers | None = None
    hooks: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(
        default_factory=list, max_length=10_000, description="Hook names, or any accepted alias of one."
    )
    positions: Positions = Field(
        "all",
        description="Tokens whose rows are kept: a name, one segment or several, {stride: k}, or token "
        "numbers (negative ones count from the end of the prompt).",
    )
    features: Features | None = Field(
        None, description="Columns to keep of every hook, such as {first: 50} or {indices: [3, 700]}."
    )
    reduce: Reduce = Field(
        "none", description="One row per hook and sample, of the chosen tokens, instead of a row for each."
    )
    stats: Stats = Field(
        None, description="Per-channel statistics of the chosen tokens, beside the tensors or instead."
    )
    dtype: Dtype = Field(
        "model", description="Stored dtype; `model` keeps what the model computed. Integers stay integers."
    )
    mode: Literal["generate", "prefill", "off"] = Field(
        "generate", description="`prefill` reads the prompt and generates nothing; `off` captures nothing."
    )

    @model_validator(mode="after")
    def _within_the_prompt(self) -> "CaptureSpec":
        lacking = needs_generation(self.positions)
        if self.mode == "prefill" and lacking is not None:
            raise ValueError(f"positions {lacking} need generated tokens, and mode prefill generates none")
        return self

    @model_validator(mode="after")
    def _reduced_or_dropped(self) -> "CaptureSpec":
        if self.reduce != "none" and self.stats is not None and not self.stats.tensors:
            raise ValueError("reduce makes a tensor and stats.tensors: false keeps none; drop one of them")
        return self

    def digest(self) -> str:
        """sha256 of the spec in canonical JSON, as recorded in each session's manifest."""
        return canonical_digest(self.model_dump(mode="json"))


DatasetFormat = Literal["jsonl", "csv", "parquet"]
Format = Annotated[
    DatasetFormat | None,
    Field(description="null: by the file's name, which ends in .csv or .parquet; any other is JSONL."),
]


class FileDataset(Spec):
    """A file of rows uploaded through /v1/files."""

    file_id: str = Field(pattern=r"^file_[0-9a-f]{32}$")
    format: Format = None


class PathDataset(Spec):
    """A file of rows on the server, under one of the allowed data roots."""

    path: str = Field(min_length=1, max_length=4096)
    format: Format = None


class HubDataset(Spec):
    """A dataset on the Hugging Face Hub."""

    hub: str = Field(
        max_length=256, pattern=r"^[A-Za-z0-9_][\w.\-]*/[A-Za-z0-9_][\w.\-]*$", description="`owner/name`"
    )
    config: str | None = Field(None, max_length=256)
    split: str = Field("test", max_length=256)


DatasetRef = FileDataset | PathDataset | HubDataset


Mode = Literal["no_tools", "with_tools"]
ToolName = Literal["calculator"]


def _calculator() -> list[ToolName]:
    return ["calculator"]


class SamplingChange(Spec):
    """What a condition samples otherwise than its job; null keeps the job's."""

    temperature: float | None = Field(None, ge=0.0, le=100.0, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    top_k: int | None = Field(None, ge=1)

    def applied(self, sampling: SamplingSpec) -> SamplingSpec:
        """The job's sampling with these changes."""
        return sampling.model_copy(update=self.model_dump(exclude_none=True))


class Condition(Spec):
    """A named variant of the prompt; all conditions of a job meet the same problems and seeds."""

    name: Name
    system: Text | None = Field(None, description="System message (chat template only).")
    prefix: Text = Field("", description="Put before the question.")
    suffix: Text = Field("", description="Put after the question, with one space between.")
    mode: Mode | None = Field(None, description="With or without tools; null: as the job says.")
    sampling: SamplingChange | None = Field(None, description="Other sampling than the job's.")
    interventions: InterventionList = Field(
        default_factory=list, description="Applied after the job's, to the samples of this condition alone."
    )


class CaptureCondition(Spec):
    """A named variant of a capture job; all conditions meet the same inputs and seeds."""

    name: Name
    interventions: InterventionList = Field(
        default_factory=list, description="Applied after the job's, to the samples of this condition alone."
    )


C = TypeVar("C", Condition, CaptureCondition)


def _distinct_names(value: list[C]) -> list[C]:
    names = [c.name for c in value]
    if len(set(names)) != len(names):
        raise ValueError("condition names must differ")
    return value


class ExpiresAfter(Spec):
    """When a job's sessions are deleted: so many seconds after each of them was created (`anchor`)."""

    anchor: Literal["created_at"] = "created_at"
    seconds: int = Field(ge=1, le=100 * 366 * 24 * 3600)


class JobSpecBase(Spec):
    """What every kind of job has."""

    model: str = Field(min_length=1, max_length=1024)
    capture: CaptureSpec | None = None
    interventions: InterventionList = Field(
        default_factory=list, description="Changes of the activations, in the order in which they apply."
    )
    priority: int = Field(5, ge=0, le=9, description="0 is served first, 9 last.")
    max_consecutive_failures: int | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="The job stops when so many samples failed one after the other; null: the service's "
        "default, 0: never.",
    )
    deadline_seconds: float | None = Field(
        None,
        gt=0,
        le=10 * 366 * 86400.0,
        description="The job fails if it has not ended so long after it was submitted or retried; waiting "
        "counts. null: never.",
    )
    tags: list[Tag] = Field(default_factory=list, max_length=MAX_TAGS)
    expires_after: ExpiresAfter | Literal["never"] | None = Field(
        None, description="When its sessions are deleted; null takes the service's own default."
    )
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] = Field(
        default_factory=dict, max_length=16
    )
    webhook: WebhookSpec | None = Field(
        None, description="Who is told when it ends, see docs/webhooks.md; null: the service's default."
    )

    @property
    def is_prefill(self) -> bool:
        """Whether prompts are only read, and nothing is generated."""
        return self.capture is not None and self.capture.mode == "prefill"

    @property
    def max_tokens(self) -> int:
        """Most tokens that a sample generates."""
        return 0


class GeneratingSpec(JobSpecBase):
    """A job that generates, or can."""

    sampling: SamplingSpec = Field(default_factory=SamplingSpec)
    epochs: int = Field(1, ge=1, le=1000, description="Times that every sample is run.")

    @property
    def max_tokens(self) -> int:
        return 0 if self.is_prefill else self.sampling.max_tokens


class EvaluationSpec(GeneratingSpec):
    """Run a task over a dataset, score every answer, keep the activations."""

    kind: Literal["evaluation"]
    task: TaskRef = Field(
        "gsm8k", description="A task's name, one of your own, or a YAML file that holds one."
    )
    dataset: DatasetRef
    fewshot_dataset: DatasetRef | None = Field(
        None, description="Where few-shot examples come from; null takes them from `dataset`."
    )
    limit: int | None = Field(None, ge=1, description="Most problems to take; null takes all.")
    offset: int = Field(0, ge=0, description="Problems to skip first.")
    mode: Mode = Field("no_tools", description="Whether the model may call tools; see docs/tools.md.")
    tools: list[ToolName] = Field(
        default_factory=_calculator, min_length=1, max_length=1, description="Of `with_tools`."
    )
    max_turns: int = Field(
        8, ge=1, le=64, description="Most turns of the model with tools; max_tokens is for each of them."
    )
    num_fewshot: int = Field(
        0, ge=0, le=64, description="Examples to show; a task that brings its own shows all by default."
    )
    apply_chat_template: bool | None = Field(
        None, description="null: use the tokenizer's chat template where it has one."
    )
    fewshot_as_multiturn: bool = Field(True, description="Few-shot examples as turns of the chat.")
    sample_timeout_seconds: SampleTimeout = None
    enable_thinking: bool = Field(False, description="Passed to the chat template.")
    scorers: ScorerList | None = Field(
        None,
        description="Names, or objects with parameters; the first gives the verdict. null: the task's own.",
    )
    conditions: Annotated[list[Condition], AfterValidator(_distinct_names)] = Field(
        default_factory=lambda: [Condition(name="baseline")], min_length=1, max_length=64
    )

    @field_validator("capture")
    @classmethod
    def _answers(cls, value: CaptureSpec | None) -> CaptureSpec | None:
        if value is not None and value.mode == "prefill":
            raise ValueError(
                "mode prefill generates nothing, so there would be no answers to score; send an extract or a "
                "capture job"
            )
        return value

    @model_validator(mode="before")
    @classmethod
    def _all_own_examples(cls, value: Any) -> Any:
        """The default of `num_fewshot` where the task brings its examples along, as in lm-eval."""
        if not isinstance(value, dict) or "num_fewshot" in value:
            return value
        task = value.get("task")
        if isinstance(task, str):
            own = OWN_EXAMPLES.get(task, 0)
        else:
            fewshot = task.get("fewshot") if isinstance(task, dict) else None
            samples = fewshot.get("samples") if isinstance(fewshot, dict) else None
            own = len(samples) if isinstance(samples, list) else 0
        return {**value, "num_fewshot": own} if own else value

    @model_validator(mode="after")
    def _enough_own_examples(self) -> "EvaluationSpec":
        own = self.own_examples
        if own and self.num_fewshot > own:
            raise ValueError(f"num_fewshot {self.num_fewshot}: the task has {own} examples of its own")
        if own and self.fewshot_dataset is not None:
            raise ValueError("the task has examples of its own; leave fewshot_dataset out")
        return self

    @property
    def own_examples(self) -> int:
        """How many few-shot examples the task brings along; 0 where they come from a dataset."""
        if isinstance(self.task, TaskSpec):
            return len(self.task.fewshot.samples)
        return OWN_EXAMPLES.get(self.task, 0) if isinstance(self.task, str) else 0

    @property
    def uses_tools(self) -> bool:
        """Whether any condition has tools."""
        return any(self.mode_of(condition) == "with_tools" for condition in self.conditions)

    def mode_of(self, condition: Condition) -> Mode:
        return condition.mode or self.mode

    @model_validator(mode="after")
    def _fits_its_tools(self) -> "EvaluationSpec":
        if not self.uses_tools:
            if self.max_turns != type(self).model_fields["max_turns"].default:
                raise ValueError("max_turns needs mode: with_tools, of the job or of a condition")
            return self
        if self.apply_chat_template is False:
            raise ValueError(
                "tools are offered through the chat template; apply_chat_template cannot be false"
            )
        capture = self.capture
        if capture is not None and (capture.reduce != "none" or capture.stats is not None):
            raise ValueError("a sample with tools has several turns, which reduce and stats do not sum up")
        if capture is not None and not _named(capture.positions):
            raise ValueError(
                "with tools, positions are all, prompt, generated, last_prompt or segments: a sample of "
                "several turns has no single count of tokens"
            )
        changes = [*self.interventions, *(i for c in self.conditions for i in c.interventions)]
        if any(change.positions != "all" for change in changes):
            raise ValueError("with tools, interventions apply at positions: all")
        return self


def _named(positions: Positions) -> bool:
    """Whether rows are chosen by a name that has a meaning in every turn."""
    if isinstance(positions, str):
        return positions != "last"
    return isinstance(positions, list) and all(isinstance(name, str) for name in positions)


class Message(Spec):
    """One chat message."""

    role: Literal["system", "user", "assistant"]
    content: Text


class CaptureInput(Spec):
    """One prompt or one conversation; exactly one of the two."""

    prompt: PromptText | None = None
    messages: list[Message] | None = Field(None, min_length=1, max_length=1000)

    @model_validator(mode="after")
    def _exactly_one(self) -> "CaptureInput":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give exactly one of prompt and messages")
        return self


class InputJobSpec(JobSpecBase):
    """A job over prompts or conversations that a client sends, under steered conditions."""

    conditions: Annotated[list[CaptureCondition], AfterValidator(_distinct_names)] = Field(
        default_factory=list, max_length=64, description="Every input is run under each; none: run once."
    )
    enable_thinking: bool = Field(False, description="Passed to the chat template.")

    @model_validator(mode="after")
    def _edits_of_what_is_read(self) -> "InputJobSpec":
        if self.is_prefill:
            for param, intervention in each(self.interventions, self.conditions):
                lacking = needs_generation(intervention.positions)
                if lacking is not None:
                    raise ValueError(
                        f"{param}.positions: {lacking} needs generated tokens; mode prefill generates none"
                    )
        return self


class CaptureJobSpec(InputJobSpec, GeneratingSpec):
    """Generate from prompts or conversations and keep the activations."""

    kind: Literal["capture"]
    inputs: list[CaptureInput] = Field(min_length=1, max_length=MAX_INPUTS)
    sample_timeout_seconds: SampleTimeout = None


class ExtractCaptureSpec(CaptureSpec):
    """The capture spec of an extraction: every layer unless some are named, and always prefill."""

    layers: Annotated[
        Layers,
        BeforeValidator(
            lambda value: "all" if value is None else value, json_schema_input_type=Layers | None
        ),
    ] = Field("all", description="null means all.")
    mode: Literal["prefill"] = "prefill"


class ExtractSpec(InputJobSpec):
    """Read texts, generate nothing, keep the activations of every token: prefill in chunks of layers."""

    kind: Literal["extract"]
    inputs: list[CaptureInput] | None = Field(
        None, min_length=1, max_length=MAX_INPUTS, description="Texts or conversations; or `dataset`."
    )
    dataset: DatasetRef | None = Field(None, description="Rows with a text each; or `inputs`.")
    text_field: str = Field("text", min_length=1, max_length=256, description="Of each row, what is read.")
    limit: int | None = Field(None, ge=1, description="Most rows of the dataset to take; null takes all.")
    offset: int = Field(0, ge=0, description="Rows of the dataset to skip first.")
    truncate: bool = Field(
        False, description="Cut a text to the model's context; false fails a sample that is longer."
    )
    layers_per_pass: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="Layers whose rows are held at once; null: the memory plan decides.",
    )
    capture: ExtractCaptureSpec = Field(default_factory=ExtractCaptureSpec)

    @model_validator(mode="after")
    def _one_source(self) -> "ExtractSpec":
        if (self.inputs is None) == (self.dataset is None):
            raise ValueError("give exactly one of inputs and dataset")
        if self.inputs is not None and (self.limit is not None or self.offset):
            raise ValueError("limit and offset are for a dataset; inputs are taken as they are")
        return self


AnyJobSpec = EvaluationSpec | CaptureJobSpec | ExtractSpec
#: values of `kind`
JOB_KINDS = ("evaluation", "capture", "extract")
JobSpec = Annotated[AnyJobSpec, Field(discriminator="kind")]
job_spec_adapter: TypeAdapter[AnyJobSpec] = TypeAdapter(JobSpec)


class SessionUpdate(Spec):
    """Changes of stored sessions; a field that is not named stays as it is."""

    expires_at: int | None = Field(
        None, ge=0, le=2**53, description="Unix seconds after which it is deleted; null keeps it."
    )
    pinned: bool = Field(False, description="Whether expiry and deletions of many leave it alone.")
    tags: list[Tag] = Field(
        default_factory=list, max_length=MAX_TAGS, description="All its tags from now on."
    )

    @model_validator(mode="after")
    def _says_something(self) -> "SessionUpdate":
        if not self.model_fields_set:
            raise ValueError("name at least one of expires_at, pinned and tags")
        return self


def canonical_digest(value: Any) -> str:
    """sha256 (hex) of a JSON value, independent of key order and spacing."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()


def sample_seed(job_seed: int, sample_index: int, epoch: int) -> int:
    """The seed of one sample: a function of job seed, sample index and epoch alone.

    The condition takes no part, so that conditions are compared under the same noise.
    """
    digest = sha256(f"{job_seed}:{sample_index}:{epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
