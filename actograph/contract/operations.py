"""Answers about the service: queue, workers, store, files, estimates, keys and capabilities."""

from enum import StrEnum
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from actograph.contract import base, hooks, interventions, job_specs, row_selection, specs, tasks
from actograph.contract.base import ErrorRecord, Resource, Spec, example
from actograph.contract.models import Model
from actograph.contract.roles import Role
from actograph.contract.specs import ExpiresAfter


class QueuePause(Resource):
    """A reason why the queue is paused."""

    kind: Literal["manual", "disk", "quota"]
    reason: str | None = None
    by: str | None = Field(None, description="Client that paused it.")
    since: int | None = None


class QueueState(Resource):
    """State of the queue: waiting and running jobs."""

    object: Literal["queue"] = "queue"
    paused: bool = Field(False, description="True if workers claim no other samples.")
    paused_reason: str | None = Field(None, description="All reasons for the pause, in words.")
    pauses: list[QueuePause] = Field([])
    jobs: dict[str, int] = Field(description="Number of jobs in each status, without ended jobs.")
    samples: dict[str, int] = Field(description="Number of pending and leased samples of these jobs.")
    next: list[str] = Field(description="Ids of the next queued jobs, in order.")
    messages: int | None = Field(description="Waiting in the broker; null if it cannot be reached.")
    workers: dict[str, int] = Field(description="Number of workers in each status.")
    sessions_to_store: int = Field(0, description="Sessions of ended samples that the store has not yet.")
    waiting_reason: str | None = Field(
        None, description="Why live workers start no samples: a store that is slow or away, a migration."
    )


class WorkerStatus(StrEnum):
    STARTING = "starting"  # the model is being loaded
    READY = "ready"  # idle
    BUSY = "busy"  # running a batch
    SETUP_FAILED = "setup_failed"  # the model could not be loaded
    SILENT = "silent"  # its heartbeat is late: it has died, or cannot reach the index
    OFFLINE = "offline"  # stopped, or its heartbeat ended


class WorkerActivity(Resource):
    """The work of a worker between its last two heartbeats."""

    seconds: float = Field(description="Time between them.")
    tokens_per_second: float = Field(description="Tokens that the model ran, those of prompts included.")
    generated_per_second: float = Field(description="Generated tokens.")
    pass_share: float = Field(
        description="Share of the time in passes, from 0 to 1: launching them, and waiting for their tokens."
    )


class Worker(Resource):
    id: str
    object: Literal["worker"] = "worker"
    status: WorkerStatus
    model: str | None = None
    serves: list[str] = Field([], description="Models that it can load.")
    hostname: str
    pid: int
    pid_namespace: str | None = Field(
        None, description="Boot of the machine and PID namespace in which `pid` counts; null if unknown."
    )
    device: str | None = None
    started_at: int
    last_heartbeat_at: int
    job_id: str | None = None
    error: ErrorRecord | None = None
    memory: dict[str, int] = Field(
        {},
        description="Bytes. `load_before_bytes`, `load_after_bytes` and `load_peak_bytes` are of the last "
        "load of a model, `run_...` of the last run: of the GPUs of the model, or on a CPU of the engine's "
        "process. A run that goes on has no `run_after_bytes`. Of several ranks it is the first one's. "
        "`pass_bytes`: measured peak of the largest pass on a GPU. `device_used_bytes` and "
        "`device_total_bytes`: of the GPUs of the model, by all programs, or on a CPU of the machine.",
    )
    activity: WorkerActivity | None = Field(
        None, description="Work between its last two heartbeats; null if it holds no model or has ended."
    )


class Usage(Resource):
    """Stored sessions and uploaded files."""

    sessions: int = 0
    session_bytes: int = 0
    files: int = Field(0, description="Uploaded files.")
    file_bytes: int = 0
    deleting: int = Field(0, description="Deleted sessions and files that are still to be removed.")
    deleting_bytes: int = Field(0, description="Their size, which counts in the quotas until then.")
    available_bytes: int | None = Field(None, description="Space left by the quotas; null is no limit.")

    @property
    def total_bytes(self) -> int:
        return self.session_bytes + self.file_bytes + self.deleting_bytes


class OwnerUsage(Usage):
    """Storage used by one owner."""

    owner: str | None = Field(description="`local`, `key:...`, or null for data without an owner.")


class StoreUsage(Usage):
    """Storage used by all owners together and by each, and the quotas."""

    object: Literal["store.usage"] = "store.usage"
    bytes: int
    quota_bytes: int | None = Field(None, description="Quota of all owners together; null is no limit.")
    owner_quota_bytes: int | None = Field(None, description="Quota of each owner; null is no limit.")
    owners: list[OwnerUsage] = Field([], description="Usage by owner, the largest first.")


class StoreGc(Resource):
    """A page of garbage collection; with `dry_run` nothing is deleted."""

    object: Literal["store.gc"] = "store.gc"
    dry_run: bool
    expired_sessions: int = 0
    expired_bytes: int = 0
    expired_files: int = Field(0, description="Not counted with `dry_run`.")
    leftovers: int = Field(0, description="Temporary files and unfinished uploads of killed processes.")
    next: str | None = Field(None, description="Send it as `after` for the next page; null: it is done.")


class StoreProblem(Resource):
    """A difference between the store and the index."""

    id: str = Field(description="Id of the session or the uploaded file.")
    problem: Literal["missing", "damaged", "orphaned"]
    detail: str


class StoreVerification(Resource):
    """A page of comparing the store with the index."""

    object: Literal["store.verification"] = "store.verification"
    checked: int = Field(description="Sessions and uploads verified in this page.")
    bytes: int = Field(description="Bytes of these.")
    total: int = Field(description="Sessions and uploads in the index, or in the sampled share of it.")
    problems: list[StoreProblem] = Field([])
    next: str | None = Field(None, description="Send it as `after` for the next page; null: it is done.")


class File(Resource):
    """An uploaded file, in OpenAI's shape."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = Field(None, description="null keeps it.")
    status: Literal["processed"] = "processed"


PromptTokensSource = Literal["request", "characters", "sessions"]


class Need(Resource):
    """Bytes of one resource. null is unknown; jobs are never refused for an unknown value."""

    needed: int | None = None
    available: int | None = None
    fits: bool | None = Field(None, description="null if needed or available is unknown.")


class Estimate(Resource):
    """The memory and disk that a job needs, without queueing it. Sizes are bytes; null is unknown."""

    object: Literal["estimate"] = "estimate"
    model: str
    samples: int | None = Field(None, description="Inputs or problems x conditions x epochs.")
    hooks: list[str] | None = Field(None, description="Hook points to capture.")
    prompt_tokens_mean: int | None = None
    prompt_tokens_longest: int | None = None
    prompt_tokens_source: PromptTokensSource | None = None
    generated_tokens: int = Field(description="Maximum per sample (max_tokens); 0 if prompts are only read.")
    rows_to_read: int | None = Field(None, description="Most rows of each hook that an analysis reads.")
    bytes_to_read: int | None = Field(None, description="Most bytes that an analysis reads.")
    bytes_per_token: int | None = Field(None, description="One stored row of all hooks; 0 if reduced.")
    bytes_per_sample: int | None = Field(None, description="A session with a prompt of mean length.")
    slots: int | None = Field(None, description="Samples that run at once.")
    weights_bytes: int | None = Field(None, description="Not part of `device`.")
    device: Need = Field(Need(), description="Keys, values and, on a GPU, rows on their way to the host.")
    host: Need = Field(Need(), description="Captured rows; on a CPU keys and values too.")
    disk: Need = Field(Need(), description="All sessions of the job.")
    fits: bool | None = Field(None, description="False if one of the three does not fit.")
    assumptions: list[str] = Field([], description="Assumptions behind the numbers.")


class LengthFit(Resource):
    """How many samples of one length run at once."""

    tokens: int = Field(description="Tokens of a sample: prompt and generated ones.")
    slots: int = Field(description="Samples that run at once; 0: not one fits.")


class CardEstimate(Resource):
    """Room on a card, estimated by a model's config alone. Sizes are bytes of one card."""

    object: Literal["card.estimate"] = "card.estimate"
    model: str
    architecture: str
    dtype: str
    tensor_parallel: int = Field(1, description="Cards that share each layer.")
    num_parameters: int = Field(description="Of the whole model.")
    card_bytes: int
    weights_bytes: int
    pass_bytes: int = Field(description="Activations, logits and choice of tokens of the largest pass.")
    spare_bytes: int = Field(description="Left free for libraries and gaps.")
    run_bytes: int = Field(description="Left for keys, values and captured rows.")
    kv_bytes_per_token: int
    row_bytes_per_token: int = Field(0, description="One captured row of all hooks.")
    block_bytes: int = Field(
        0, description="Rows that a sample which captures holds, on the card and in main memory."
    )
    host_buffer_bytes: int = Field(0, description="Main memory for captured rows.")
    slots: int = Field(description="Samples that run at once if they are short.")
    longest_tokens: int = Field(description="Tokens of the longest sample that fits, alone.")
    fits: bool = Field(description="False if the model leaves no memory for a sample.")
    lengths: list[LengthFit] = Field([])
    assumptions: list[str] = Field([], description="Assumptions behind the numbers.")


#: start of all keys
KEY_PREFIX = "acto_"
#: form of an owner's name; `local` is the client of a service without keys
OWNER_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.@:\-]{0,63}$"
KeyName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]+$")]
Quota = Annotated[int, Field(ge=1, le=1 << 60)]


class NewKey(Spec):
    """A request to create a key."""

    model_config = example(name="laptop", role="submit", owner="alice")

    name: KeyName = Field(description="Name of the key.")
    role: Role = Role.SUBMIT
    owner: str | None = Field(None, pattern=OWNER_PATTERN, description="Default: a new owner.")
    expires_after: ExpiresAfter | None = Field(None, description="Expiry; null is no expiry.")
    quota_bytes: Quota | None = Field(None, description="Quota of the owner.")


class KeyUpdate(Spec):
    """Changes of a key; fields that are left out stay as they are."""

    model_config = example(name="desk", quota_bytes=1 << 40)

    name: KeyName = Field("", description="A key always has a name.")
    quota_bytes: Quota | None = Field(None, description="null removes it.")


class ApiKey(Resource):
    """A key without its secret."""

    id: str
    object: Literal["api_key"] = "api_key"
    name: str
    role: Role
    owner: str = Field(description="Owner of its jobs and sessions.")
    prefix: str = Field(description="First characters of the key.")
    created_at: int
    last_used_at: int | None = Field(None, description="Last use, accurate to a few minutes.")
    expires_at: int | None = None
    revoked_at: int | None = None
    quota_bytes: int | None = None


class CreatedKey(ApiKey):
    """A new key with its secret."""

    key: str = Field(description="The key itself, shown only once.", repr=False)


class Limits(Resource):
    """Sizes are bytes; 0 is no limit."""

    max_upload_bytes: int
    max_body_bytes: int
    store_quota_bytes: int
    owner_quota_bytes: int
    inputs_per_job: int = job_specs.MAX_INPUTS
    conditions_per_job: int = specs.MAX_CONDITIONS
    samples_per_job: int
    prompt_characters: int = base.MAX_PROMPT_CHARS


class Features(Resource):
    """Configuration of the service."""

    database: Literal["sqlite", "postgres"]
    artifacts: Literal["files", "s3"]
    authentication: bool = Field(description="True if clients need a key.")
    model_switching: bool = Field(description="True if workers load other models for jobs.")


class Capabilities(Resource):
    object: Literal["capabilities"] = "capabilities"
    version: str
    models: list[Model]
    job_kinds: list[str]
    capture: dict[str, list[str]] = Field(description="Values of a capture spec's fields.")
    interventions: dict[str, list[str]]
    evaluation: dict[str, list[str]]
    limits: Limits
    features: Features
    openai_endpoints: list[str] = Field(description="OpenAI-compatible paths.")
    endpoints: list[str] = Field(description="`METHOD path` of every route; /openapi.json has the schemas.")


def of_contract() -> dict[str, Any]:
    """The capabilities that all services of this version share."""
    capture = specs.CaptureSpec.model_fields
    return {
        "job_kinds": list(job_specs.JOB_KINDS),
        "capture": {
            "points": list(hooks.POINTS),
            "positions": list(get_args(row_selection.NamedPositions)),
            "segments": list(get_args(row_selection.SegmentName)),
            "reduce": list(get_args(row_selection.Reduce)),
            "dtypes": list(get_args(specs.Dtype)),
            "modes": list(get_args(capture["mode"].annotation)),
            "fields": list(capture),
        },
        "interventions": {
            "ops": list(get_args(interventions.Op)),
            "positions": [name for name in get_args(row_selection.NamedPositions) if name != "last"],
        },
        "evaluation": {
            "tasks": list(get_args(tasks.TaskName)),
            "scorers": list(tasks.SCORER_NAMES),
            "tools": ["none", *specs.BUILT_IN_TOOLS],
            "tool_formats": list(get_args(job_specs.ToolForm)),
        },
    }
