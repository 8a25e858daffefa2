"""Parts of job specs: sampling, capture, conditions, datasets and the fields of all jobs."""

from hashlib import sha256
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Discriminator, Field, model_validator
from pydantic import Tag as Kind

from actograph.contract import hooks
from actograph.contract.base import (
    MAX_TAGS,
    FileId,
    HookList,
    Metadata,
    ModelChoice,
    Name,
    ServerPath,
    Spec,
    Stops,
    Tag,
    Text,
    canonical_digest,
    example,
)
from actograph.contract.interventions import InterventionList
from actograph.contract.models import EngineChoice
from actograph.contract.readouts import MOST as MOST_READOUTS
from actograph.contract.readouts import ReadoutCapture, check_stops
from actograph.contract.row_selection import (
    Features,
    Positions,
    Reduce,
    Stats,
    capturable,
    held_back,
    needs_generation,
)
from actograph.contract.saes import SaeCapture

Temperature = Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False)]
TopP = Annotated[float, Field(gt=0.0, le=1.0)]
TopK = Annotated[int, Field(ge=1)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0, allow_inf_nan=False)]
_Bias = Annotated[float, Field(ge=-100.0, le=100.0, allow_inf_nan=False)]
LogitBias = Annotated[dict[Annotated[int, Field(ge=0, lt=2**31)], _Bias], Field(max_length=1024)]


class SamplingOptions(Spec):
    """Rarely used parts of sampling, with vLLM's names and meanings."""

    min_p: float = Field(0.0, ge=0.0, le=1.0, description="Least probability, as a part of the largest.")
    repetition_penalty: float = Field(
        1.0, gt=0.0, le=100.0, description="For tokens of the prompt or generated before; 1 changes nothing."
    )
    min_tokens: int = Field(0, ge=0, le=1_000_000, description="No end token is chosen before.")
    stop_token_ids: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(
        [], max_length=64, description="More end tokens; their text is left out."
    )
    ignore_eos: bool = Field(False, description="Only `stop_token_ids`, `stop` and `max_tokens` end it.")


class SamplingSpec(SamplingOptions):
    """Sampling of tokens. Temperature 0 is greedy decoding."""

    temperature: Temperature = 0.0
    top_p: TopP = 1.0
    top_k: TopK | None = Field(None, description="null samples from all tokens.")
    max_tokens: int = Field(512, ge=1, le=1_000_000, description="Per sample.")
    seed: int = Field(0, ge=0, lt=2**63, description="Each sample's own seed is derived from it.")
    stop: Stops = Field([], description="Strings that end the generation.")
    presence_penalty: Penalty = Field(0.0, description="For tokens generated before.")
    frequency_penalty: Penalty = Field(0.0, description="For each time a token was generated.")
    logit_bias: LogitBias = Field({}, description="Token id -> number added to its logit.")


class SamplingChange(Spec):
    """A condition's changes of the job's sampling; null keeps the job's value."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None

    def applied(self, sampling: SamplingSpec) -> SamplingSpec:
        """The job's sampling with these changes."""
        return sampling.model_copy(update=self.model_dump(exclude_none=True))


def sample_seed(job_seed: int, sample_index: int, epoch: int) -> int:
    """The seed of one sample, from job seed, sample index and epoch.

    It does not depend on the condition, so that conditions are compared under the same noise.
    """
    digest = sha256(f"{job_seed}:{sample_index}:{epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


Dtype = Literal["model", "float32", "float16", "bfloat16", "float8_e4m3fn"]
Layers = list[Annotated[int, Field(ge=0)]] | Literal["all"] | hooks.LayerSlice


class CaptureSpec(Spec):
    """The activations to store. See docs/guides/capture.md.

    A job captures `points` x `layers` and the explicit `hooks`, in which `{i}` stands for each of `layers`.
    Points without a layer (`embed`, `final_norm`, `logits`) ignore `layers`. `layers: null` means a quarter,
    a half and three quarters of the depth; a job shows their numbers once its model is known. Without
    `points`, `hooks`, `saes` and `readouts` the point is `resid_post`.
    """

    points: list[hooks.PointName] = Field([], max_length=100, description="Read in each of `layers`.")
    layers: Layers | None = Field(None, description="null: 1/4, 1/2 and 3/4 of the depth.")
    hooks: HookList = Field([], description="Hook names or aliases; `{i}` stands for each of `layers`.")
    saes: list[SaeCapture] = Field(
        [], max_length=64, description="SAEs whose latents are stored, of whole rows in float32."
    )
    readouts: list[ReadoutCapture] = Field(
        [],
        max_length=MOST_READOUTS,
        description="Stored vectors whose inner products with whole rows are stored.",
    )
    positions: Annotated[Positions, AfterValidator(capturable)] = Field("all", description="Tokens to store.")
    features: Features | None = Field(None, description="Columns of hooks to store.")
    reduce: Reduce = Field("none", description="Store one row per hook and sample.")
    stats: Stats = Field(None, description="Per-channel statistics of the tokens.")
    dtype: Dtype = Field(
        "model", description="`model` keeps the model's own; `float8_e4m3fn` has a scale a row."
    )
    mode: Literal["generate", "prefill"] = Field("generate", description="`prefill` generates nothing.")

    @model_validator(mode="after")
    def _consistent(self) -> "CaptureSpec":
        lacking = needs_generation(self.positions)
        if self.mode == "prefill" and lacking is not None:
            raise ValueError(f"positions {lacking} need generated tokens, and mode prefill generates none")
        if held_back(self.positions) is not None and (self.reduce != "none" or self.stats is not None):
            raise ValueError(
                f"positions {self.positions} count from the end of the generation, but reduce and stats sum "
                "rows up while it runs; store the rows, and reduce them when they are read"
            )
        if self.reduce != "none" and self.stats is not None and not self.stats.tensors:
            raise ValueError("reduce makes a tensor and stats.tensors: false stores none; remove one of them")
        check_stops(self.readouts, self.positions, generates=self.mode != "prefill")
        computed = "latents" if self.saes else "readouts" if self.readouts else None
        if computed and (self.reduce != "none" or self.stats is not None):
            raise ValueError(
                f"reduce and stats sum rows up, and {computed} are stored row by row; store them in a job of "
                "their own"
            )
        return self

    @property
    def captures_hooks(self) -> bool:
        """Whether rows of hooks are stored, and not latents and readouts alone."""
        return bool(self.points or self.hooks or not (self.saes or self.readouts))

    def digest(self) -> str:
        """sha256 of the spec in canonical JSON, stored in each session's manifest."""
        return canonical_digest(self.model_dump(mode="json"))


#: tools of every service; its operator may add others
BUILT_IN_TOOLS = ("calculator",)
#: `none`, the name of a tool, or several names
Tools = Name | Annotated[list[Name], Field(min_length=1, max_length=64)]


class CaptureCondition(Spec):
    """A named variant of the prompt; all conditions of a job have the same inputs and seeds."""

    name: Name = Field(description="Name in the results.")
    system: Text | None = Field(None, description="System message (chats only), instead of the input's own.")
    prefix: Text = Field("", description="Text before the question, prompt or last message of the user.")
    suffix: Text = Field("", description="Text after it, separated by a space.")
    interventions: InterventionList = Field([], description="Applied after the job's.")


class Condition(CaptureCondition):
    """A condition of an evaluation."""

    tools: Tools | None = Field(None, description="null uses the job's.")
    sampling: SamplingChange | None = Field(None, description="Changes of the job's sampling.")


C = TypeVar("C", bound=CaptureCondition)


def _distinct_names(value: list[C]) -> list[C]:
    if len({condition.name for condition in value}) != len(value):
        raise ValueError("condition names must differ")
    return value


#: one for each patched layer and position of a prompt, for example
MAX_CONDITIONS = 1024
Conditions = Annotated[list[C], Field(max_length=MAX_CONDITIONS), AfterValidator(_distinct_names)]

DatasetFormat = Literal["jsonl", "csv", "parquet"]
Format = Annotated[
    DatasetFormat | None,
    Field(description="null takes the format from the file's name: .csv, .parquet, otherwise JSONL."),
]


class FileDataset(Spec):
    """A file of rows uploaded through /v1/files."""

    file_id: FileId = Field(description="Id of an upload.")
    format: Format = None


class PathDataset(Spec):
    """A file of rows on the server, under one of the allowed data roots."""

    path: ServerPath
    format: Format = None


class HubDataset(Spec):
    """A dataset on the Hugging Face Hub."""

    hub: str = Field(pattern=r"^[A-Za-z0-9_][\w.\-]*/[A-Za-z0-9_][\w.\-]*$", description="`owner/name`")
    config: str | None = Field(None, description="Configuration.")
    split: str = Field("test", description="Split.")


_KINDS = {"file_id": "FileDataset", "path": "PathDataset", "hub": "HubDataset"}


def _kind(value: Any) -> str | None:
    """The class of a dataset, by the one field that names it."""
    if not isinstance(value, dict):
        return type(value).__name__
    named = [kind for field, kind in _KINDS.items() if field in value]
    return named[0] if len(named) == 1 else None


DatasetRef = Annotated[
    Annotated[FileDataset, Kind("FileDataset")]
    | Annotated[PathDataset, Kind("PathDataset")]
    | Annotated[HubDataset, Kind("HubDataset")],
    Discriminator(
        _kind,
        custom_error_type="dataset_kind",
        custom_error_message=f"give exactly one of {', '.join(_KINDS)}",
    ),
]

MAX_EXPIRY_SECONDS = 100 * 366 * 24 * 3600


class ExpiresAfter(Spec):
    """Expiry of sessions or files: `seconds` after their creation (`anchor`)."""

    anchor: Literal["created_at"] = Field("created_at", description="Start of the time.")
    seconds: int = Field(ge=1, le=MAX_EXPIRY_SECONDS)


Expiry = Annotated[ExpiresAfter | Literal["never"] | None, Field(description="null: the service's default.")]


class QueuedSpec(Spec):
    """Fields of all jobs, analyses included. Defaults that are null are settings of the service."""

    priority: int = Field(5, ge=0, le=9, description="0 is served first, 9 last.")
    deadline_seconds: float | None = Field(None, gt=0, le=1e9, description="From submission or retry.")
    tags: list[Tag] = Field([], max_length=MAX_TAGS, description="Of the job and its sessions.")
    expires_after: Expiry = None
    metadata: Metadata = Field({}, description="Your own keys and values.")


class ModelJobSpec(QueuedSpec):
    """Fields of all jobs that run a model."""

    model: ModelChoice = Field(description="A served model: a name, or `{base, adapter}`.")
    capture: CaptureSpec | None = Field(None, description="null keeps texts and scores only.")
    engine: EngineChoice = Field("auto", description="See docs/guides/models.md.")
    sample_timeout_seconds: float | None = Field(None, ge=0, le=1e8, description="null: the default.")
    max_consecutive_failures: int | None = Field(None, ge=0, description="null: the default; 0: no limit.")


class JobSpecBase(ModelJobSpec):
    """Fields of all jobs that prompt a model."""

    interventions: InterventionList = Field([], description="Changes of activations, in this order.")
    sampling: SamplingSpec = Field(SamplingSpec(), description="Choice of tokens.")
    epochs: int = Field(1, ge=1, le=1000, description="Runs of each sample.")

    @property
    def is_prefill(self) -> bool:
        """True if the job reads prompts and generates nothing."""
        return self.capture is not None and self.capture.mode == "prefill"

    @property
    def max_tokens(self) -> int:
        """Maximum of generated tokens per sample; 0 if prompts are only read."""
        return 0 if self.is_prefill else self.sampling.max_tokens


class SessionUpdate(Spec):
    """Changes of stored sessions; fields that are left out stay as they are."""

    model_config = example(pinned=True, tags=["paper"])

    expires_at: int | None = Field(None, ge=0, le=2**53, description="Unix seconds; null keeps it.")
    pinned: bool = Field(False, description="Pinned sessions survive expiry and bulk deletions.")
    tags: list[Tag] = Field([], max_length=MAX_TAGS, description="Replace all other tags.")

    @model_validator(mode="after")
    def _says_something(self) -> "SessionUpdate":
        if not self.model_fields_set:
            raise ValueError("give at least one of expires_at, pinned and tags")
        return self


class PauseRequest(Spec):
    """A request to pause the queue. Every client sees the reason."""

    model_config = example(reason="the GPU is needed until noon")

    reason: str | None = Field(None, min_length=1, max_length=500, pattern=r"^[^\x00]*$")
