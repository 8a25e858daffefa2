"""What the service answers with. Times are Unix seconds (UTC), sizes are bytes."""

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from actograph.contract.tool_use import ToolMessage, ToolTotals, ToolUse

T = TypeVar("T")


class Resource(BaseModel):
    model_config = ConfigDict(frozen=True)


class JobStatus(StrEnum):
    QUEUED = "queued"  # accepted; no sample has been claimed
    IN_PROGRESS = "in_progress"  # samples are being run
    FINALIZING = "finalizing"  # all samples ended; results are being summed up
    COMPLETED = "completed"  # ended, at least one sample completed
    FAILED = "failed"  # ended, and nothing useful came of it
    CANCELLING = "cancelling"  # cancel asked for; a worker still holds samples
    CANCELLED = "cancelled"  # ended by the client; what finished is kept

    def is_terminal(self) -> bool:
        return self in (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)


class SampleStatus(StrEnum):
    PENDING = "pending"  # not claimed
    LEASED = "leased"  # a worker runs it until its lease ends
    COMPLETED = "completed"  # text, scores and session are stored
    FAILED = "failed"  # ended with an error, which is stored
    CANCELLED = "cancelled"  # its job ended before it did; a retry of the job runs it


class WorkerStatus(StrEnum):
    STARTING = "starting"  # the model is being loaded
    READY = "ready"  # idle, waiting for work
    BUSY = "busy"  # running a unit
    SETUP_FAILED = "setup_failed"  # the model could not be loaded
    OFFLINE = "offline"  # stopped, or its heartbeat ended


class ErrorRecord(Resource):
    """Why a job or sample failed."""

    type: str
    message: str
    details: dict[str, int] | None = Field(
        None, description="Numbers behind the message: for cuda_out_of_memory, bytes in use as it happened."
    )


class ListPage(Resource, Generic[T]):
    """One page of a list, in OpenAI's shape; `after=<last_id>` gives the next."""

    object: Literal["list"] = "list"
    data: list[T]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class Deleted(Resource):
    id: str
    object: str
    deleted: bool = True


class Progress(Resource):
    total: int
    completed: int
    failed: int


class Job(Resource):
    id: str
    object: Literal["job"] = "job"
    kind: str
    status: JobStatus
    model: str
    created_at: int
    started_at: int | None = None
    finished_at: int | None = None
    progress: Progress
    queue_position: int | None = Field(None, description="1 is next; null once started or ended.")
    waiting_reason: str | None = Field(
        None, description="Why no worker can run it now; null where one can, or it has ended."
    )
    samples_per_second: float | None = Field(
        None, description="Over the last minute, turns of other jobs included."
    )
    eta_seconds: float | None = Field(
        None, description="Until it ends, jobs before and beside it counted; null where that cannot be told."
    )
    error: ErrorRecord | None = None
    priority: int
    owner: str | None = Field(None, description="Who submitted it: `local`, or `key:...`.")
    paused_reason: str | None = Field(
        None, description="Which quota keeps it from being begun; it goes on by itself."
    )
    deadline_at: int | None = Field(None, description="When it fails if it has not ended; null: never.")
    tags: list[str] = Field(default_factory=list)
    metadata: dict[str, str] = Field(default_factory=dict)
    spec: dict[str, Any]
    results_url: str


class Sample(Resource):
    """One unit of work: one problem under one condition in one epoch."""

    id: str
    object: Literal["sample"] = "sample"
    job_id: str
    index: int = Field(description="Row of the dataset, counted from its start.")
    condition: str | None = None
    epoch: int = 0
    status: SampleStatus
    input: dict[str, Any] = Field(description="The problem or prompt as submitted.")
    prompt: str | None = Field(None, description="The text that the model was given.")
    completion: str | None = None
    finish_reason: Literal["stop", "length"] | None = None
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    seed: int | None = None
    scores: dict[str, "Score"] = Field(default_factory=dict)
    tool_use: ToolUse | None = Field(None, description="Where it had tools.")
    messages: list[ToolMessage] = Field(
        default_factory=list, description="The turns after the prompt, where it had tools."
    )
    error: ErrorRecord | None = None
    session_id: str | None = None
    attempts: int = Field(
        0,
        description="Times that a worker took it up, those that it gave back not counted. From 2 on it is "
        "run alone, after 4 it fails; where its batch hung it goes on at 2.",
    )
    started_at: int | None = None
    finished_at: int | None = None


class Score(Resource):
    """One scorer's verdict; `answer` is null where the scorer found none."""

    value: float
    answer: str | None = None


class ConditionResults(Resource):
    """Scores of one condition; metric keys are lm-eval's, `<metric>,<filter>`."""

    alias: str
    metrics: dict[str, float | None]
    samples: int = Field(description="Samples scored.")
    failed: int
    truncated: int = Field(description="Samples that ended at max_tokens.")
    tool_use: ToolTotals | None = Field(None, description="null where the condition has no tools.")
    truncated_rate: float | None = Field(None, description="truncated / samples; null without samples.")
    unparsed: dict[str, int] = Field(
        default_factory=dict, description="Metric key -> samples in which that scorer found no answer."
    )
    unparsed_rate: dict[str, float] = Field(
        default_factory=dict, description="Metric key -> unparsed / samples."
    )


class JobResults(Resource):
    object: Literal["job.results"] = "job.results"
    job_id: str
    status: JobStatus
    task: str | None = None
    progress: Progress
    conditions: dict[str, ConditionResults]


class TensorInfo(Resource):
    """One tensor of a session."""

    shape: list[int]
    dtype: str
    first_row: int = Field(0, description="The token of row 0.")
    position_offset: int | None = Field(
        None,
        description="null: row i is token first_row + i; else token row_positions[position_offset + i], "
        "row_positions being a tensor of the session.",
    )
    summary: str | None = Field(
        None, description="What the single row is of the `over` tokens from there on; null: rows as captured."
    )
    over: int | None = Field(None, description="Rows that were summed up.")
    nbytes: int


class SessionFile(Resource):
    name: str
    bytes: int
    sha256: str


class Session(Resource):
    """One sample's generation with everything that was captured."""

    id: str
    object: Literal["activation.session"] = "activation.session"
    job_id: str
    sample_id: str
    sample_index: int
    condition: str | None = None
    epoch: int = 0
    model: str
    created_at: int
    prompt_tokens: int
    generated_tokens: int
    rows: int = Field(description="prompt_tokens + generated_tokens - 1: the tokens that the model ran.")
    bytes: int
    dtype: str
    hooks: dict[str, TensorInfo]
    files: list[SessionFile]
    tags: list[str] = Field(default_factory=list)
    correct: bool | None = Field(None, description="Verdict of the task's first scorer.")
    owner: str | None = Field(None, description="Who submitted its job: `local`, or `key:...`.")
    expires_at: int | None = Field(None, description="It is deleted some time after; null keeps it.")
    pinned: bool = Field(False, description="Neither expiry nor a deletion of many removes it.")


class SessionStats(Resource):
    object: Literal["activation.session.stats"] = "activation.session.stats"
    sessions: int
    bytes: int
    rows: int


class SessionDeletion(Resource):
    """Sessions that a bulk deletion removed or, with `dry_run`, would remove."""

    object: Literal["activation.session.deletion"] = "activation.session.deletion"
    dry_run: bool
    sessions: int
    bytes: int
    pinned: int = Field(0, description="Sessions that fit and stay, because they are pinned.")


class SessionChange(Resource):
    """Sessions that a change of many reached or, with `dry_run`, would reach."""

    object: Literal["activation.session.change"] = "activation.session.change"
    dry_run: bool
    sessions: int


class Usage(Resource):
    """What one owner has stored."""

    owner: str | None = Field(description="`local`, `key:...`, or null for what is older than owners.")
    sessions: int = 0
    session_bytes: int = 0
    files: int = Field(0, description="Uploaded files.")
    file_bytes: int = 0
    available_bytes: int | None = Field(None, description="What the quotas leave; null: no limit.")

    @property
    def bytes(self) -> int:
        return self.session_bytes + self.file_bytes


class StoreUsage(Resource):
    """What is stored, by whom, and the quotas."""

    object: Literal["store.usage"] = "store.usage"
    sessions: int
    session_bytes: int
    files: int
    file_bytes: int
    bytes: int
    quota_bytes: int | None = Field(None, description="Of all owners together; null: no limit.")
    owner_quota_bytes: int | None = Field(None, description="Of each owner; null: no limit.")
    available_bytes: int | None = Field(None, description="What the quota of all leaves; null: no limit.")
    owners: list[Usage] = Field(default_factory=list, description="The largest first.")


class StoredObject(Resource):
    """Files in the store that the index does not know: those of a session, or an upload."""

    id: str
    bytes: int


class StoreGc(Resource):
    """One page of clearing the store; with `dry_run` what would go."""

    object: Literal["store.gc"] = "store.gc"
    dry_run: bool
    expired_sessions: int = Field(0, description="Sessions whose time was over.")
    expired_bytes: int = 0
    orphans: list[StoredObject] = Field(
        default_factory=list, description="Superseded sessions and uploads that broke off."
    )
    unknown: list[StoredObject] = Field(
        default_factory=list, description="What the index does not know; it is left alone."
    )
    leftovers: int = Field(0, description="Temporary files and unfinished uploads of killed writers.")
    idempotency_keys: int = Field(0, description="Stored answers that nobody may ask for any more.")
    next: str | None = Field(None, description="Send it as `after` for the next page; null: it is done.")


class StoreProblem(Resource):
    """Something in the store that is not as the index says."""

    id: str = Field(description="Id of the session or the uploaded file.")
    problem: Literal["missing", "damaged", "orphaned"] = Field(
        description="missing: the index has it, the store not; orphaned: the other way round."
    )
    detail: str


class StoreVerification(Resource):
    """One page of comparing the store with the index."""

    object: Literal["store.verification"] = "store.verification"
    checked: int = Field(description="Sessions and uploaded files that were read in this page.")
    bytes: int = Field(description="Their bytes.")
    total: int = Field(description="Sessions and uploaded files in the index, the sampled share of them.")
    problems: list[StoreProblem] = Field(default_factory=list)
    next: str | None = Field(None, description="Send it as `after` for the next page; null: it is done.")


class File(Resource):
    """An uploaded file, in OpenAI's shape."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = Field("processed", description="It can be read as soon as it is uploaded.")


class Event(Resource):
    """One entry of a job's log, as sent over SSE."""

    id: int
    job_id: str
    event: str
    created_at: float
    data: dict[str, Any]


class HookInfo(Resource):
    location: str = Field(description="Module path with .input or .output.")
    width: int
    dtype: str
    aliases: list[str] = Field(
        default_factory=list,
        description="Every other name of it in this model: module paths with dots and with brackets, flat "
        "names, TransformerLens's, nnterp's, and savepoints.",
    )


class LocationInfo(Resource):
    """The tensor that passes one module location."""

    width: int
    dtype: str
    tail_only: bool = Field(
        False, description="While generating, it has rows from the last prompt token on, as logits have."
    )


class ModelStructure(Resource):
    """What a loaded model looks like, as its worker found and proved it."""

    object: Literal["model.structure"] = "model.structure"
    model: str
    architecture: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    context_length: int
    dtype: str
    device: str = Field(description="Where inputs go in and tokens come out.")
    devices: list[str] = Field(default_factory=list, description="Where each layer computes.")
    num_parameters: int
    chat_template: bool
    eos_token_ids: list[int]
    hooks: dict[str, HookInfo] = Field(description="Every standard hook point of this model.")
    module_locations: list[str] = Field(description="Every module location, in execution order.")
    module_tensors: dict[str, LocationInfo] = Field(
        default_factory=dict, description="Width and dtype of the tensor at every module location."
    )
    unavailable: dict[str, str] = Field(
        default_factory=dict,
        description="Point, or hook (`router_logits.0`) where only some layers lack it -> why it is missing.",
    )
    proofs: list[str] = Field(default_factory=list, description="Identities checked when it was loaded.")
    revision: str | None = None
    savepoints: dict[str, str] = Field(
        default_factory=dict, description="Names given when it was loaded -> hook point."
    )
    kv_bytes_per_token: int | None = Field(
        None, description="Bytes that one token takes in the key-value cache; null where unknown."
    )
    num_experts: int | None = Field(None, description="Experts of a layer that the router chooses from.")
    experts_per_token: int | None = Field(None, description="Experts that the router chooses for a token.")

    @cached_property
    def locations(self) -> Mapping[str, str]:
        """Canonical hook name -> module location, as `hooks.resolve` wants it."""
        return {name: info.location for name, info in self.hooks.items()}

    def tensor_of(self, hook: str) -> LocationInfo | None:
        """The tensor of a hook point or module location; None where this structure does not tell.

        A structure that was stored before module locations had their tensors tells of hook points only.
        """
        info = self.hooks.get(hook)
        found = self.module_tensors.get(hook if info is None else info.location)
        if found is None and info is not None:
            return LocationInfo(width=info.width, dtype=info.dtype, tail_only=hook == "logits")
        return found


class Model(Resource):
    """A served model, in OpenAI's shape."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "actograph"
    status: Literal["loaded", "available"] = "available"


class ModelLoad(Resource):
    """A request to load a model, and what became of it. It is a job of kind `load`, with the same id."""

    id: str
    object: Literal["model.load"] = "model.load"
    model: str
    status: JobStatus
    created_at: int
    started_at: int | None = None
    finished_at: int | None = None
    worker_id: str | None = Field(None, description="Who loads or last tried to load it.")
    options: dict[str, Any]
    error: ErrorRecord | None = Field(None, description="Why it was refused; the worker went on as before.")


class Worker(Resource):
    id: str
    object: Literal["worker"] = "worker"
    status: WorkerStatus
    model: str | None = None
    serves: list[str] = Field(default_factory=list, description="Models that it may hold.")
    hostname: str
    pid: int
    device: str | None = None
    started_at: int
    last_heartbeat_at: int
    job_id: str | None = None
    error: ErrorRecord | None = None
    memory: dict[str, int] = Field(default_factory=dict)


class Need(Resource):
    """Bytes of one resource; null is unknown, and what is unknown refuses nothing."""

    needed: int | None = None
    available: int | None = None
    fits: bool | None = Field(None, description="null where needed or available is unknown.")


class Estimate(Resource):
    """What a job would take, before anything is queued. Sizes are bytes; null is unknown."""

    object: Literal["estimate"] = "estimate"
    model: str
    samples: int | None = Field(None, description="Units of work: inputs or problems x conditions x epochs.")
    hooks: list[str] | None = Field(None, description="Hook points that would be captured.")
    prompt_tokens_mean: int | None = None
    prompt_tokens_longest: int | None = None
    generated_tokens: int = Field(
        description="max_tokens: what a sample generates at most; 0 where prompts are only read."
    )
    bytes_per_token: int | None = Field(
        None, description="One stored row over all hooks; 0 where rows are summed up."
    )
    bytes_per_sample: int | None = Field(None, description="One session of a prompt of mean length.")
    batch_size: int | None = Field(None, description="Samples that would run at once.")
    layers_per_pass: int | None = Field(
        None, description="Prefill: layers whose rows would be held at once; null in other jobs."
    )
    weights_bytes: int | None = Field(None, description="The model itself; `device` counts on top of it.")
    device: Need = Field(default_factory=Need, description="Memory of one batch where the model is.")
    host: Need = Field(default_factory=Need, description="Main memory of one batch.")
    disk: Need = Field(default_factory=Need, description="Every session of the job.")
    fits: bool | None = Field(None, description="False if one of the three does not fit.")
    assumptions: list[str] = Field(default_factory=list, description="What the numbers rest on.")


class QueuePause(Resource):
    """One of the reasons for which the queue may stand still."""

    kind: Literal["manual", "disk", "quota"] = Field(
        description="manual: asked for, and ended by `POST /v1/queue/resume`; disk: the artifact store is "
        "nearly full, ended by free space; quota: what is stored has reached the quota of all, ended by "
        "deletion or expiry."
    )
    reason: str | None = None
    by: str | None = Field(None, description="Who asked: `local`, or `key:` and a digest's beginning.")
    since: int | None = Field(None, description="null where nobody noted when it began.")


class Queue(Resource):
    """What waits and what runs."""

    object: Literal["queue"] = "queue"
    paused: bool = Field(False, description="Workers finish what they hold and begin nothing new.")
    paused_reason: str | None = Field(None, description="Every reason why it is paused, in words.")
    pauses: list[QueuePause] = Field(
        default_factory=list, description="What holds the queue; it goes on once the list is empty."
    )
    jobs: dict[str, int] = Field(description="Number of jobs in each status that is not an end.")
    samples: dict[str, int] = Field(description="pending and leased samples of those jobs.")
    next: list[str] = Field(description="Ids of the next queued jobs, the first one first.")
    messages: int | None = Field(description="Jobs with a message in the broker; null where it is away.")
    workers: dict[str, int] = Field(description="Number of workers in each status.")


class ProblemItem(Resource):
    detail: str
    pointer: str = Field(description="JSON pointer to the field at fault.")


class OpenAIError(Resource):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Problem(Resource):
    """RFC 9457 problem details; `error` is the same failure in OpenAI's form."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str | None = None
    errors: list[ProblemItem] = Field(default_factory=list)
    error: OpenAIError
