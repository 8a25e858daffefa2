"""Job specs of clients, their errors by field, and their checks against a model's structure.

All fields but `kind`, `model` and the inputs have a default. Unknown fields are refused,
so that a misspelt option is an error and not a silent default.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError, model_validator

from actograph.contract import hooks as hook_names
from actograph.contract.analyses import (
    ANALYSIS_KINDS,
    SAMPLE,
    AnalysisKind,
    AnalysisSpec,
    CompareSpec,
    Groups,
    LensSpec,
    OutliersSpec,
    ProbeSpec,
    SessionQuery,
    TokenId,
    TokenText,
)
from actograph.contract.base import (
    MAX_TAGS,
    ModelName,
    PromptText,
    Spec,
    Tag,
    Text,
    example,
    fault_of,
)
from actograph.contract.errors import InvalidRequest
from actograph.contract.field_wording import in_words
from actograph.contract.head_columns import HEAD_POINTS, common_columns
from actograph.contract.hooks import LayerPoint
from actograph.contract.interventions import READ_ONLY_POINTS, each
from actograph.contract.models import ModelStructure
from actograph.contract.readouts import ReadoutMetric, check_stops, check_turns
from actograph.contract.row_selection import FirstFeatures, HeadFeatures, needs_generation
from actograph.contract.specs import (
    CaptureCondition,
    CaptureSpec,
    Condition,
    Conditions,
    DatasetRef,
    JobSpecBase,
    Layers,
    ModelJobSpec,
    SamplingSpec,
    Tools,
)
from actograph.contract.tasks import OWN_EXAMPLES, ScorerList, TaskRef, TaskSpec

M = TypeVar("M", bound=BaseModel)

MAX_INPUTS = 100_000
#: most errors of fields that are reported at once
MAX_REPORTED = 20

ToolForm = Literal["template", "annotations"]
#: default of `max_turns` with `annotations`: an answer has a turn for each of its calculations
ANNOTATION_TURNS = 32


class EvaluationSpec(JobSpecBase):
    """Run a task on a dataset, score the answers, and store the activations."""

    model_config = example(
        kind="evaluation",
        model="Qwen/Qwen3-0.6B",
        task="gsm8k",
        dataset={"path": "gsm8k/test.jsonl"},
        limit=100,
        sampling={"temperature": 0.0, "max_tokens": 512},
        conditions=[{"name": "baseline"}, {"name": "ep02", "suffix": "This is very important to my career."}],
        capture={"points": ["attn_in", "mlp_in"], "layers": [8, 12, 16]},
    )

    kind: Literal["evaluation"] = Field(description="Kind of the job.")
    task: TaskRef = Field("gsm8k", description="A task's name, your own task, or a YAML file with one.")
    dataset: DatasetRef = Field(description="Problems to answer.")
    fewshot_dataset: DatasetRef | None = Field(None, description="null: `dataset`.")
    limit: int | None = Field(None, ge=1, description="Maximum number of problems.")
    offset: int = Field(0, ge=0, description="Number of problems to skip.")
    tools: Tools = Field("none", description="Tools that the model may call; see docs/guides/tools.md.")
    tool_format: ToolForm = Field("template", description="Calls of the chat template, or GSM8K's `<<48/2=`.")
    max_turns: int = Field(8, ge=1, le=64, description="With annotations 32 by default.")
    num_fewshot: int = Field(0, ge=0, le=64, description="Default: all examples of the task, or 0.")
    apply_chat_template: bool | None = Field(None, description="null uses a chat template if there is one.")
    fewshot_as_multiturn: bool = Field(True, description="Give examples as turns of the chat.")
    enable_thinking: bool = Field(False, description="Passed to the chat template.")
    scorers: ScorerList | None = Field(None, description="The first gives the verdict; null: the task's.")
    conditions: Conditions[Condition] = Field(
        [Condition(name="baseline")], min_length=1, description="Variants on the same problems and seeds."
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, value: Any) -> Any:
        """Show all examples of a task that has its own, as in lm-eval, and give annotations more turns."""
        if not isinstance(value, dict):
            return value
        defaults: dict[str, Any] = {}
        match value.get("task"):
            case str(name):
                defaults["num_fewshot"] = OWN_EXAMPLES.get(name, 0)
            case {"fewshot": {"samples": list(samples)}}:
                defaults["num_fewshot"] = len(samples)
        if value.get("tool_format") == "annotations":
            defaults["max_turns"] = ANNOTATION_TURNS
        return defaults | value

    @property
    def own_examples(self) -> int:
        """Number of the task's own few-shot examples; 0 if they come from a dataset."""
        if isinstance(self.task, TaskSpec):
            return len(self.task.fewshot.samples)
        return OWN_EXAMPLES.get(self.task, 0) if isinstance(self.task, str) else 0

    @property
    def uses_tools(self) -> bool:
        """True if a condition has tools."""
        return any(self.tools_of(condition) for condition in self.conditions)

    def tools_of(self, condition: Condition) -> tuple[str, ...]:
        """Names of a condition's tools."""
        found = condition.tools or self.tools
        names = [found] if isinstance(found, str) else found
        return tuple(name for name in dict.fromkeys(names) if name != "none")

    @model_validator(mode="after")
    def _consistent(self) -> "EvaluationSpec":
        own = self.own_examples
        if self.is_prefill:
            raise ValueError("mode prefill generates no answers to score; send a capture job")
        if own and self.num_fewshot > own:
            raise ValueError(f"num_fewshot {self.num_fewshot}: the task has {own} examples of its own")
        if own and self.fewshot_dataset is not None:
            raise ValueError("the task has its own examples; remove fewshot_dataset")
        if self.capture is not None and any(one.stops for one in self.capture.readouts):
            check_turns(uses_tools=self.uses_tools)
        if not self.uses_tools:
            for name in ("tool_format", "max_turns"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} needs tools: calculator, in the job or in a condition")
        elif self.tool_format == "annotations":
            if {name for condition in self.conditions for name in self.tools_of(condition)} != {"calculator"}:
                raise ValueError("tool_format annotations has the calculator alone")
        elif self.apply_chat_template is False:
            raise ValueError(
                "tools need the chat template: leave apply_chat_template out, or use annotations"
            )
        return self


class Message(Spec):
    """A chat message."""

    role: Literal["system", "user", "assistant"] = Field(description="Speaker.")
    content: Text = Field(description="Text.")


def _storable(value: Any) -> Any:
    """Refuse values that are too long, or that JSON or databases would change."""
    if isinstance(value, str):
        fits = 0 < len(value) <= MAX_VALUE_CHARS
    else:
        fits = value is None or (math.isfinite(value) and abs(value) < 1 << 63)
    if not fits:
        raise ValueError(
            f"labels and groups are texts of 1 to {MAX_VALUE_CHARS} characters, numbers or booleans"
        )
    return value


#: longest label or group that is a text
MAX_VALUE_CHARS = 256
#: a label or group
Value = Annotated[str | bool | int | float | None, AfterValidator(_storable)]


class CaptureInput(Spec):
    """Either a prompt or a conversation, and what you know about it."""

    prompt: PromptText | None = Field(None, description="Used as it is.")
    messages: list[Message] | None = Field(None, min_length=1, description="For the chat template.")
    label: Value = Field(None, description="What a probe learns with `label: label`.")
    group: Value = Field(None, description="Inputs of one group stay together with `groups: group`.")
    tags: list[Tag] = Field([], max_length=MAX_TAGS, description="Of its sessions, beside the job's.")

    @model_validator(mode="after")
    def _exactly_one(self) -> "CaptureInput":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give exactly one of prompt and messages")
        return self


class InputJobSpec(JobSpecBase):
    """A job over prompts or conversations, with optional conditions."""

    conditions: Conditions[CaptureCondition] = Field([], description="Every input runs under each.")
    enable_thinking: bool = Field(False, description="Passed to the chat template.")

    @model_validator(mode="after")
    def _edits_of_what_is_read(self) -> "InputJobSpec":
        if self.is_prefill:
            for param, intervention in each(self.interventions, self.conditions):
                if (lacking := needs_generation(intervention.positions)) is not None:
                    raise ValueError(f"{param}.positions: {lacking} needs generated tokens, unlike prefill")
        return self


Inputs = Annotated[list[CaptureInput], Field(min_length=1, max_length=MAX_INPUTS)]


class CaptureJobSpec(InputJobSpec):
    """Store the activations of prompts, conversations or a dataset's texts.

    The model continues them; with `capture.mode: prefill` it only reads them.
    """

    model_config = example(
        kind="capture",
        model="Qwen/Qwen3-0.6B",
        inputs=[
            {"prompt": "The capital of France is"},
            {"messages": [{"role": "user", "content": "Why is the sky blue?"}]},
        ],
        sampling={"max_tokens": 64, "temperature": 0.7, "seed": 1},
        capture={"hooks": ["resid_post.12", "logits"], "positions": "generated"},
    )

    kind: Literal["capture"] = Field(description="Kind of the job.")
    capture: CaptureSpec | None = Field(CaptureSpec(), description="null: texts only.")
    inputs: Inputs | None = Field(None, description="Instead of `dataset`.")
    dataset: DatasetRef | None = Field(None, description="Prompts, instead of `inputs`.")
    text_field: str = Field("text", min_length=1, max_length=256, description="Column of the prompt.")
    limit: int | None = Field(None, ge=1, description="Maximum number of rows of the dataset.")
    offset: int = Field(0, ge=0, description="Number of rows of the dataset to skip.")
    truncate: bool = Field(False, description="Mode prefill: cut texts to the model's context.")

    @model_validator(mode="after")
    def _one_source(self) -> "CaptureJobSpec":
        if (self.inputs is None) == (self.dataset is None):
            both = self.inputs is not None
            raise ValueError(
                "give inputs or a dataset, not both" if both else "give the prompts: inputs, or a dataset"
            )
        if self.inputs is not None and (self.limit is not None or self.offset):
            raise ValueError("limit and offset need a dataset; remove them or inputs")
        if self.truncate and not self.is_prefill:
            raise ValueError("truncate needs capture.mode: prefill; a cut prompt has no room for an answer")
        return self


class ReplaySpec(ModelJobSpec):
    """Run the stored tokens of sessions again, for other hooks or on another model. Nothing is generated.

    Each sample is one session, with its turns, segments and interventions. Rows that its session has too are
    compared, and a sample whose rows differ fails.
    """

    model_config = example(
        kind="replay",
        sessions={"jobs": ["job_8dd0b0a3c1c74dd3b4f6b65e06f0a6d2"], "correct": False},
        capture={"points": ["mlp_in", "mlp_out"], "layers": "all", "positions": "generated"},
    )

    kind: Literal["replay"] = Field(description="Kind of the job.")
    model: ModelName = Field(
        "", description="A served model with the same tokenizer. Default: the model of the sessions."
    )
    sessions: SessionQuery = Field(description="The sessions as they are at the submission.")
    capture: CaptureSpec = Field(CaptureSpec(), description="`mode` has no effect: nothing is generated.")
    tolerance: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="Largest difference from a stored row, as a share of the hook's largest value; null: "
        "1e-4 for float32, 0.01 for float16, 0.05 for bfloat16.",
    )

    @model_validator(mode="after")
    def _stops_nowhere(self) -> "ReplaySpec":
        check_stops(self.capture.readouts, self.capture.positions, generates=False)
        return self

    @property
    def is_prefill(self) -> bool:
        """True: all tokens are read."""
        return True

    @property
    def max_tokens(self) -> int:
        """0: nothing is generated."""
        return 0


#: most tokens, or groups of tokens, and heads of a patch job
MAX_PLACES = 10_000
#: some tokens of a prompt, which are patched together
_PROMPT_TOKENS = r"^prompt(\[(-?\d{1,8}|(-?\d{1,8})?:(-?\d{1,8})?)\])?$"
PatchPosition = (
    Annotated[int, Field(ge=-10_000_000, le=10_000_000, strict=True)]
    | Annotated[str, Field(pattern=_PROMPT_TOKENS)]
)


class PatchSpec(ModelJobSpec):
    """Put rows of one run into another, and measure what the model then predicts: activation patching.

    Each sample is a pair of sessions, such as a prompt and its corrupted form. A cell is one point, layer,
    position and head: the prompt is read with the row of the other session there. Nothing is generated.
    """

    model_config = example(
        kind="patch",
        clean={"jobs": ["job_8dd0b0a3c1c74dd3b4f6b65e06f0a6d2"], "tag": "clean"},
        corrupted={"jobs": ["job_8dd0b0a3c1c74dd3b4f6b65e06f0a6d2"], "tag": "corrupted"},
        pair_by="group",
        points=["resid_pre", "attn_out", "mlp_out"],
        answer=" Mary",
        against=" John",
        metric="logit_difference",
    )

    kind: Literal["patch"] = Field(description="Kind of the job.")
    model: ModelName = Field("", description="The model of the sessions, which is the default.")
    capture: None = Field(None, description="Nothing is captured.")
    clean: SessionQuery = Field(description="Sessions as they are at the submission.")
    corrupted: SessionQuery = Field(description="Their partners.")
    pair_by: Groups = Field(
        SAMPLE, description="What the two sessions of a pair have in common: `sample` (index and epoch), "
        "`group` of the inputs, or `column:NAME`."
    )  # fmt: skip
    direction: Literal["denoise", "noise"] = Field(
        "denoise", description="`denoise` puts clean rows into the corrupted run, `noise` the reverse."
    )
    points: list[LayerPoint] = Field(["resid_pre"], min_length=1, max_length=16, description="Of the layers.")
    layers: Layers = Field("all", description="Layers, as in a capture spec.")
    heads: Literal["all"] | list[Annotated[int, Field(ge=0, le=10_000)]] | None = Field(
        None,
        min_length=1,
        description="Patch single heads of `q`, `k`, `v` or `z`, each in a cell of its own; null: all.",
    )
    positions: Literal["all"] | Annotated[list[PatchPosition], Field(min_length=1, max_length=MAX_PLACES)] = (
        Field(
            "all",
            description="Tokens of the prompt, each in a cell of its own: numbers from its first token, or "
            "from its end with -1 for the last one. The tokens of `prompt[3:6]` are patched together.",
        )
    )
    metric: Literal["log_probability", "logit_difference"] | ReadoutMetric = Field(
        "log_probability",
        description="Of `answer` after the prompt, or the difference of its logit from that of `against`. An "
        "object is a readout of the prompt.",
    )
    answer: TokenId | TokenText | None = Field(
        None, description="An id, or a token's text with its spaces. null: the first token that the clean "
        "session generated."
    )  # fmt: skip
    against: TokenId | TokenText | None = Field(
        None, description="Of `logit_difference`. null: the first token that the corrupted session generated."
    )

    @property
    def is_prefill(self) -> bool:
        """True: all tokens are read."""
        return True

    @property
    def max_tokens(self) -> int:
        """0: nothing is generated."""
        return 0

    @property
    def queries(self) -> dict[str, SessionQuery]:
        """Queries of sessions, by field."""
        return {"clean": self.clean, "corrupted": self.corrupted}

    @property
    def source(self) -> str:
        """The side whose rows are put into the other."""
        return "clean" if self.direction == "denoise" else "corrupted"

    @model_validator(mode="after")
    def _can_be_patched(self) -> "PatchSpec":
        if read_only := [point for point in self.points if point in READ_ONLY_POINTS]:
            raise fault_of("points", f"{read_only[0]} can be captured but not changed; choose other points")
        if self.heads is not None and (others := [one for one in self.points if one not in HEAD_POINTS]):
            raise fault_of("heads", f"{others[0]} has no heads. Only q, k, v and z have them")
        for name in ("points", "heads", "positions"):
            given = getattr(self, name)
            if isinstance(given, list) and len(set(map(str, given))) != len(given):
                raise fault_of(name, f"{max(given, key=given.count)!r} is there twice")
        if self.against is not None and self.metric != "logit_difference":
            raise fault_of("against", "it is of metric logit_difference; set this metric, or leave it out")
        if self.answer is not None and self.metric_readout is not None:
            raise fault_of("answer", "a readout needs no answer; leave it out, or choose another metric")
        return self

    @property
    def metric_readout(self) -> ReadoutMetric | None:
        """The readout that is the metric; None for tokens' log probabilities."""
        return None if isinstance(self.metric, str) else self.metric


AnyJobSpec = EvaluationSpec | CaptureJobSpec | ReplaySpec | PatchSpec
#: values of `kind` of jobs that run a model, and of all jobs
MODEL_KINDS = ("evaluation", "capture", "replay", "patch")
JOB_KINDS = (*MODEL_KINDS, *ANALYSIS_KINDS)
#: kinds of all jobs in lists: chats, batches and model loads are jobs too, of routes of their own
ListedKind = Literal["evaluation", "capture", "replay", "patch", AnalysisKind, "chat", "batch", "load"]
JobSpec = Annotated[
    EvaluationSpec
    | CaptureJobSpec
    | ReplaySpec
    | PatchSpec
    | OutliersSpec
    | ProbeSpec
    | CompareSpec
    | LensSpec,
    Field(discriminator="kind"),
]
job_spec_adapter: TypeAdapter[AnyJobSpec | AnalysisSpec] = TypeAdapter(JobSpec)


class FieldError(NamedTuple):
    """An error of one field; `path` holds keys and indices from the top of the body."""

    path: tuple[str | int, ...]
    detail: str

    @property
    def field(self) -> str:
        """The path with dots, such as `sampling.seed`; empty for the body as a whole."""
        return ".".join(map(str, self.path))

    @property
    def pointer(self) -> str:
        """RFC 6901; the empty string is the body as a whole."""
        return "".join("/" + str(p).replace("~", "~0").replace("/", "~1") for p in self.path)

    def __str__(self) -> str:
        return f"{self.field}: {self.detail}".removeprefix(": ")


class InvalidFields(InvalidRequest):
    """Some fields of the request are not valid."""

    def __init__(self, errors: Iterable[Mapping[str, Any]], sent: Any) -> None:
        """`errors` are pydantic's; `sent` is the body."""
        self.errors = field_errors(errors, sent)
        first = self.errors[0]
        more = f" (and {len(self.errors) - 1} more)" if len(self.errors) > 1 else ""
        super().__init__(f"{first}{more}", param=first.field or None)


def validated(kind: type[M], value: Any) -> M:
    """A model of the contract from JSON that is no request's body. Raises InvalidFields."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise InvalidFields(error.errors(include_url=False), value) from None


def field_errors(errors: Iterable[Mapping[str, Any]], sent: Any = None) -> list[FieldError]:
    """Merge pydantic's errors per field.

    pydantic's `loc` names members of unions beside fields (`dataset.FileDataset.file_id`). If `sent`, the
    body, is a container, only steps in the body are kept.
    """
    details: dict[tuple[str | int, ...], list[Mapping[str, Any]]] = {}
    for one in errors:
        error, loc, kind, context = one, tuple(one["loc"]), one["type"], one.get("ctx", {})
        if loc and isinstance(sent, dict) and loc[0] == sent.get("kind"):
            loc = loc[1:]  # the kind of a job stands before its fields
        if kind == "json_invalid":
            loc, error = (), {**error, "msg": f"Invalid JSON: {context['error']}"}
        elif kind == "fault_of":
            loc = (*loc, context["field"])
        elif kind.startswith("union_tag") and not loc:
            loc = ("kind",)
            expected = ", ".join(repr(one) for one in JOB_KINDS)
            # pydantic tells of the tag alone
            given = sent.get("kind") if isinstance(sent, dict) else None
            error = {"type": "literal_error", "ctx": {"expected": expected}, "input": given}
        if isinstance(sent, dict | list):
            loc = _path_in(loc, sent, missing=kind == "missing" or loc == ("kind",))
        details.setdefault(loc, []).append(error)
    return [FieldError(path, in_words(found)) for path, found in details.items()][:MAX_REPORTED]


def _path_in(loc: Sequence[str | int], sent: Any, *, missing: bool) -> tuple[str | int, ...]:
    """The steps of `loc` that exist in `sent`; others are names of union members."""
    path = []
    for place, step in enumerate(loc):
        is_key = isinstance(sent, dict) and step in sent
        if is_key or (isinstance(sent, list) and isinstance(step, int) and step < len(sent)):
            sent = sent[step]
            path.append(step)
        elif missing and place == len(loc) - 1:
            path.append(step)
    return tuple(path)


def captured_hooks(capture: CaptureSpec, structure: ModelStructure) -> list[str]:
    """Canonical names of the hooks whose rows a capture stores, see `hooks.expand`. Raises UnknownHook."""
    if not capture.captures_hooks:
        return []
    return hook_names.expand(capture.points, capture.layers, capture.hooks, structure)


def check_capture(capture: CaptureSpec, hooks: Sequence[str], structure: ModelStructure) -> None:
    """Check the requested features, reductions and statistics against the captured hooks.

    Args:
        hooks: canonical names, see `hooks.expand`.

    Raises:
        InvalidRequest: `param` is the field of the spec, such as `capture.features`.
    """
    needed = 0
    if isinstance(capture.features, FirstFeatures):
        needed = capture.features.first
    elif isinstance(capture.features, HeadFeatures):
        common_columns(capture.features, hooks, structure, "capture.features")
    elif capture.features is not None:
        needed = max(capture.features.indices) + 1
    sums_up = "stats" if capture.stats is not None else "reduce" if capture.reduce in ("mean", "max") else ""
    for hook in hooks:
        info = structure.tensor_of(hook)
        if info is None:
            continue
        if sums_up and "int" in info.dtype:
            raise InvalidRequest(
                f"{hook} holds integers ({info.dtype}), which have no mean, maximum or statistics; capture "
                "it in a job without reduce and stats, or with reduce: last",
                param=f"capture.{sums_up}",
            )
        if needed > info.width:
            raise InvalidRequest(
                f"{hook} has {info.width} features (0 to {info.width - 1}); the spec asks for feature "
                f"{needed - 1}. Lower features, or capture hooks that are wide enough",
                param="capture.features",
            )


def check_sampling(sampling: SamplingSpec, structure: ModelStructure) -> None:
    """Raises InvalidRequest if the sampling names a token that the model does not have."""
    for field in ("logit_bias", "stop_token_ids"):
        largest = max(getattr(sampling, field), default=0)
        if largest >= structure.vocab_size:
            raise InvalidRequest(
                f"{field} names token {largest}; this model's ids are from 0 to {structure.vocab_size - 1}",
                param=f"sampling.{field}",
            )
