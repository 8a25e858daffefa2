"""The tables of the index. Times are Unix seconds (UTC) as double precision."""

from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from actograph.contract.chat_job import CHAT

_NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

_ID_LENGTH = 64
_LEASED = "leased"
_IS_HIDDEN = "removal_due_at IS NOT NULL"
_OPEN_BATCHES = ("validating", "in_progress", "finalizing", "cancelling")


class Visibility(StrEnum):
    """State of a row that decides who sees it, see `storage.index.visible`."""

    VISIBLE = "visible"
    #: in the making: its maker publishes it before its removal is due
    UNPUBLISHED = "unpublished"
    #: the reaper has not begun with its files
    DELETED = "deleted"
    #: its files may be gone; it is tried again when its removal is due
    REMOVING = "removing"


class Base(DeclarativeBase):
    metadata = sa.MetaData(naming_convention=_NAMING)
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy reads it from the class)
        float: sa.Double,
        dict[str, Any]: sa.JSON(none_as_null=True),
        list[str]: sa.JSON(none_as_null=True),
        list[dict[str, Any]]: sa.JSON(none_as_null=True),
    }


def _id_key() -> Mapped[str]:
    return mapped_column(sa.String(_ID_LENGTH), primary_key=True)


def _visibility() -> Mapped[str]:
    return mapped_column(sa.String(16), default=Visibility.VISIBLE, server_default=Visibility.VISIBLE.value)


def _partial_index(name: str, *columns: str, where: str) -> sa.Index:
    """An index of some rows alone. A query uses it if it repeats the condition with literal values."""
    condition = sa.text(where)
    return sa.Index(name, *columns, sqlite_where=condition, postgresql_where=condition)


class JobRow(Base):
    __tablename__ = "jobs"
    __table_args__ = (
        # jobs with work, in the order of service
        _partial_index(
            "ix_jobs_order", "model", "priority", "served_at", "created_at", "id", where="pending > 0"
        ),
        sa.Index("ix_jobs_created_at_id", "created_at", "id"),
        sa.Index("ix_jobs_owner_created_at_id", "owner", "created_at", "id"),
        sa.Index("ix_jobs_status_created_at_id", "status", "created_at", "id"),
        sa.Index("ix_jobs_kind_created_at_id", "kind", "created_at", "id"),
        sa.Index("uq_jobs_owner_idempotency_key", "owner", "idempotency_key", unique=True),
        # usage of the store by owner
        _partial_index("ix_jobs_owner_bytes", "owner", "bytes", where="bytes > 0"),
        _partial_index("ix_jobs_removal_due_at", "removal_due_at", where=_IS_HIDDEN),
    )

    id: Mapped[str] = _id_key()
    kind: Mapped[str] = mapped_column(sa.String(32))
    status: Mapped[str] = mapped_column(sa.String(16))
    #: name under which the model is served
    model: Mapped[str] = mapped_column(sa.String(1024))
    #: the job spec as validated, every default filled in
    spec: Mapped[dict[str, Any]]
    priority: Mapped[int]
    #: numbers of samples; `total` is null until `is_expanded`
    total: Mapped[int | None]
    #: 1 if a worker may find a sample to claim, a dataset to read or a model to load, else 0. A claim that
    #: finds nothing corrects it. Whoever changes it has locked the job
    pending: Mapped[int] = mapped_column(default=0)
    #: without the tallies that were not folded yet, see `storage.index.tallies`; so are `cached_tokens`,
    #: `bytes` and `failed_in_a_row`
    completed: Mapped[int] = mapped_column(default=0)
    failed: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    error: Mapped[dict[str, Any] | None]
    #: canonical hook names, once the model's structure is known
    hooks: Mapped[list[str] | None]
    #: `PinnedModel`, see `storage.jobs.jobs.pin`; null until the model's identity is known
    pinned: Mapped[dict[str, Any] | None]
    #: digest of the pinned model's identity
    identity_sha256: Mapped[str | None] = mapped_column(sa.String(64))
    #: submitter, see `storage.accounts.quotas`; "" for nobody
    owner: Mapped[str] = mapped_column(sa.String(_ID_LENGTH), default="")
    #: an active job fails at this time; null for never
    deadline_at: Mapped[float | None]
    #: last claim, by which jobs of one priority take turns; 0 before the first
    served_at: Mapped[float] = mapped_column(default=0.0)
    #: last entry of its progress in its log
    logged_at: Mapped[float] = mapped_column(default=0.0)
    #: consecutive failures, up to the last sample that ended
    failed_in_a_row: Mapped[int] = mapped_column(default=0, server_default=sa.text("0"))
    #: tokens of prompts that were computed for several samples at once
    cached_tokens: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    #: bytes of its sessions, also of deleted ones until their files are gone
    bytes: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    visibility: Mapped[str] = _visibility()
    #: the reaper removes it from then on; null for a visible job
    removal_due_at: Mapped[float | None]
    #: see `storage.jobs.request_keys`
    idempotency_key: Mapped[str | None] = mapped_column(sa.String(255))
    idempotency_sha256: Mapped[str | None] = mapped_column(sa.String(64))

    @hybrid_property
    def is_expanded(self) -> bool:
        """Whether it has its samples; else a worker reads its dataset first, or loads its model."""
        return self.total is not None

    @is_expanded.inplace.expression
    @classmethod
    def _is_expanded(cls) -> sa.ColumnElement[bool]:
        return cls.total.is_not(None)

    @hybrid_property
    def is_urgent_chat(self) -> bool:
        """A chat of priority 0 takes part in the next pass, in a slot beside the others."""
        return self.kind == CHAT and self.priority == 0

    @is_urgent_chat.inplace.expression
    @classmethod
    def _is_urgent_chat(cls) -> sa.ColumnElement[bool]:
        return sa.and_(cls.kind == CHAT, cls.priority == 0)


class JobTagRow(Base):
    __tablename__ = "job_tags"
    __table_args__ = (sa.Index("ix_job_tags_tag", "tag"),)

    job_id: Mapped[str] = mapped_column(sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    tag: Mapped[str] = mapped_column(sa.String(64), primary_key=True)


class SampleRow(Base):
    __tablename__ = "samples"
    __table_args__ = (
        sa.UniqueConstraint("job_id", "position"),
        sa.UniqueConstraint("job_id", "sample_index", "condition", "epoch"),
        sa.Index("ix_samples_job_id_status_position", "job_id", "status", "position"),
        _partial_index("ix_samples_worker_id_leased", "worker_id", where=f"status = {_LEASED!r}"),
    )

    id: Mapped[str] = _id_key()
    job_id: Mapped[str] = mapped_column(sa.ForeignKey("jobs.id", ondelete="CASCADE"))
    #: order in which the job's samples are claimed
    position: Mapped[int]
    sample_index: Mapped[int]
    condition: Mapped[str] = mapped_column(sa.String(64), default="")
    epoch: Mapped[int] = mapped_column(default=0)
    status: Mapped[str] = mapped_column(sa.String(16))
    #: raised by every claim; a commit with an older token changes nothing
    lease_token: Mapped[int] = mapped_column(default=0)
    worker_id: Mapped[str | None] = mapped_column(sa.String(_ID_LENGTH))
    #: workers that were lost while they ran it, see `storage.queue.leases`
    losses: Mapped[int] = mapped_column(default=0)
    input: Mapped[dict[str, Any]]
    prompt: Mapped[str | None]
    completion: Mapped[str | None]
    finish_reason: Mapped[str | None] = mapped_column(sa.String(16))
    prompt_tokens: Mapped[int | None]
    generated_tokens: Mapped[int | None]
    seed: Mapped[int | None] = mapped_column(sa.BigInteger)
    #: metric key -> {value, answer}
    scores: Mapped[dict[str, Any] | None]
    #: name of a readout -> a `ReadoutValues`; null without readouts
    readouts: Mapped[dict[str, Any] | None]
    #: tool use, and the turns after the prompt; null without tools
    tool_use: Mapped[dict[str, Any] | None]
    messages: Mapped[list[dict[str, Any]] | None]
    #: one `chat_answers.TokenLogprob` per generated token; null if not requested
    logprobs: Mapped[list[dict[str, Any]] | None]
    error: Mapped[dict[str, Any] | None]
    session_id: Mapped[str | None] = mapped_column(sa.String(_ID_LENGTH))
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]


class TallyRow(Base):
    """One commit's additions to its job, see `storage.index.tallies`.

    Without a foreign key, whose check would lock the job. A job that has ended has none.
    """

    __tablename__ = "tallies"

    id: Mapped[int] = mapped_column(
        sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    job_id: Mapped[str] = mapped_column(sa.String(_ID_LENGTH), index=True)
    completed: Mapped[int]
    failed: Mapped[int]
    #: 1 for each completed and 0 for each failed sample in their order, without those with a faulty input
    outcomes: Mapped[str] = mapped_column(sa.Text)
    #: message of the last of these failures
    failure: Mapped[str | None] = mapped_column(sa.Text)
    cached_tokens: Mapped[int] = mapped_column(sa.BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(sa.BigInteger)
    generated_tokens: Mapped[int] = mapped_column(sa.BigInteger)
    #: sessions that were published, with their rows and bytes
    sessions: Mapped[int]
    session_rows: Mapped[int] = mapped_column(sa.BigInteger)
    session_bytes: Mapped[int] = mapped_column(sa.BigInteger)
    #: time that the worker was busy since its last commit
    busy_seconds: Mapped[float]


class SessionRow(Base):
    __tablename__ = "sessions"
    __table_args__ = (
        # in the order of lists; other filters read on along these
        sa.Index("ix_sessions_created_at_id", "created_at", "id"),
        sa.Index("ix_sessions_job_id_created_at_id", "job_id", "created_at", "id"),
        sa.Index("ix_sessions_model_created_at_id", "model", "created_at", "id"),
        sa.Index("ix_sessions_owner_created_at_id", "owner", "created_at", "id"),
        _partial_index(
            "ix_sessions_source_session",
            "source_session",
            "created_at",
            "id",
            where="source_session IS NOT NULL",
        ),
        _partial_index("ix_sessions_expires_at", "expires_at", where="expires_at IS NOT NULL"),
        _partial_index("ix_sessions_removal_due_at", "removal_due_at", where=_IS_HIDDEN),
    )

    id: Mapped[str] = _id_key()
    job_id: Mapped[str] = mapped_column(sa.ForeignKey("jobs.id", ondelete="CASCADE"))
    #: A foreign key would need an index. Each claim announces a session; the sample names the valid one.
    sample_id: Mapped[str] = mapped_column(sa.String(_ID_LENGTH))
    sample_index: Mapped[int]
    condition: Mapped[str] = mapped_column(sa.String(64), default="")
    epoch: Mapped[int] = mapped_column(default=0)
    model: Mapped[str] = mapped_column(sa.String(1024))
    created_at: Mapped[float]
    prompt_tokens: Mapped[int]
    generated_tokens: Mapped[int]
    rows: Mapped[int]
    bytes: Mapped[int] = mapped_column(sa.BigInteger)
    dtype: Mapped[str] = mapped_column(sa.String(16))
    #: hook name -> {shape, dtype, first_row, nbytes}
    hooks: Mapped[dict[str, Any]]
    #: stored files, in the order of their names: name -> {bytes, sha256}; empty before it is published
    files: Mapped[dict[str, Any]] = mapped_column(default=dict)
    #: verdict of the task's first scorer
    correct: Mapped[bool | None]
    #: owner of its job
    owner: Mapped[str] = mapped_column(sa.String(_ID_LENGTH), default="")
    #: time after which it is deleted; null keeps it
    expires_at: Mapped[float | None]
    #: digest of its model's identity
    identity_sha256: Mapped[str | None] = mapped_column(sa.String(64))
    #: the session that it replays, which may have been deleted
    source_session: Mapped[str | None] = mapped_column(sa.String(_ID_LENGTH))
    #: expiry and bulk deletions leave a pinned session out
    pinned: Mapped[bool] = mapped_column(default=False, server_default=sa.false())
    #: a session of a hidden job is hidden too, whatever stands here
    visibility: Mapped[str] = _visibility()
    removal_due_at: Mapped[float | None]


class SessionTagRow(Base):
    """A tag of a session. A new session has the tags of its job."""

    __tablename__ = "session_tags"
    __table_args__ = (
        sa.Index("ix_session_tags_tag_created_at_session_id", "tag", "created_at", "session_id"),
    )

    session_id: Mapped[str] = mapped_column(
        sa.ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True
    )
    tag: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    #: of the session, so that the sessions of a tag are listed without sorting
    created_at: Mapped[float]


class EventRow(Base):
    __tablename__ = "events"
    __table_args__ = (sa.Index("ix_events_job_id_id", "job_id", "id"),)

    id: Mapped[int] = mapped_column(
        sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    job_id: Mapped[str] = mapped_column(sa.ForeignKey("jobs.id", ondelete="CASCADE"))
    event: Mapped[str] = mapped_column(sa.String(64))
    created_at: Mapped[float]
    data: Mapped[dict[str, Any]]


class WorkerRow(Base):
    __tablename__ = "workers"

    id: Mapped[str] = _id_key()
    hostname: Mapped[str] = mapped_column(sa.String(255))
    pid: Mapped[int]
    #: where `pid` counts, and start of the process in ticks; null on systems without /proc
    pid_namespace: Mapped[str | None] = mapped_column(sa.String(255))
    process_started: Mapped[int | None] = mapped_column(sa.BigInteger)
    status: Mapped[str] = mapped_column(sa.String(16))
    model: Mapped[str | None] = mapped_column(sa.String(1024))
    #: identity of the last loaded model
    identity_sha256: Mapped[str | None] = mapped_column(sa.String(64))
    device: Mapped[str | None] = mapped_column(sa.String(64))
    started_at: Mapped[float]
    heartbeat_at: Mapped[float]
    job_id: Mapped[str | None] = mapped_column(sa.String(_ID_LENGTH))
    error: Mapped[dict[str, Any] | None]
    memory: Mapped[dict[str, Any] | None]
    #: names of the models that this worker may hold
    served: Mapped[list[str] | None]


class ModelRow(Base):
    """The structure of a model, verified by the last worker that loaded it."""

    __tablename__ = "models"

    name: Mapped[str] = mapped_column(sa.String(1024), primary_key=True)
    structure: Mapped[dict[str, Any]]
    loaded_at: Mapped[float]


class FileRow(Base):
    __tablename__ = "files"
    __table_args__ = (
        sa.Index("ix_files_expires_at", "expires_at"),
        sa.Index("ix_files_created_at_id", "created_at", "id"),
        sa.Index("ix_files_owner_created_at_id", "owner", "created_at", "id"),
        _partial_index("ix_files_removal_due_at", "removal_due_at", where=_IS_HIDDEN),
    )

    id: Mapped[str] = _id_key()
    filename: Mapped[str] = mapped_column(sa.String(255))
    purpose: Mapped[str] = mapped_column(sa.String(64))
    bytes: Mapped[int] = mapped_column(sa.BigInteger)
    sha256: Mapped[str] = mapped_column(sa.String(64))
    created_at: Mapped[float]
    #: uploader
    owner: Mapped[str] = mapped_column(sa.String(_ID_LENGTH), default="")
    #: time after which it is deleted; null keeps it
    expires_at: Mapped[float | None]
    visibility: Mapped[str] = _visibility()
    removal_due_at: Mapped[float | None]


class VectorRow(Base):
    """A vector that interventions refer to."""

    __tablename__ = "vectors"
    __table_args__ = (
        sa.Index("ix_vectors_created_at_id", "created_at", "id"),
        sa.Index("ix_vectors_owner_created_at_id", "owner", "created_at", "id"),
    )

    id: Mapped[str] = _id_key()
    name: Mapped[str] = mapped_column(sa.String(64))
    #: canonical name if the model's structure was known, else the client's
    hook: Mapped[str] = mapped_column(sa.String(256))
    model: Mapped[str | None] = mapped_column(sa.String(1024))
    #: numbers in `data`: little-endian float32
    width: Mapped[int]
    data: Mapped[bytes]
    sha256: Mapped[str] = mapped_column(sa.String(64))
    details: Mapped[dict[str, Any]]
    created_at: Mapped[float]
    #: client that stored it
    owner: Mapped[str] = mapped_column(sa.String(_ID_LENGTH), default="")


class SaeRow(Base):
    """An SAE that captures encode with; its weights are a file."""

    __tablename__ = "saes"
    __table_args__ = (
        sa.Index("ix_saes_created_at_id", "created_at", "id"),
        sa.Index("ix_saes_owner_created_at_id", "owner", "created_at", "id"),
        sa.Index("ix_saes_file_id", "file_id"),
    )

    id: Mapped[str] = _id_key()
    name: Mapped[str] = mapped_column(sa.String(64))
    #: canonical name if it has one, else as the client or the file names it
    hook: Mapped[str] = mapped_column(sa.String(256))
    model: Mapped[str | None] = mapped_column(sa.String(1024))
    #: a `SaeConfig`
    config: Mapped[dict[str, Any]]
    #: folder or repository of its files
    source: Mapped[str] = mapped_column(sa.Text)
    #: file with its weights, which nothing else refers to
    file_id: Mapped[str] = mapped_column(sa.String(_ID_LENGTH))
    bytes: Mapped[int] = mapped_column(sa.BigInteger)
    sha256: Mapped[str] = mapped_column(sa.String(64))
    details: Mapped[dict[str, Any]]
    created_at: Mapped[float]
    #: client that stored it
    owner: Mapped[str] = mapped_column(sa.String(_ID_LENGTH), default="")


class BatchRow(Base):
    """A batch of requests in OpenAI's form, and its result."""

    __tablename__ = "batches"
    __table_args__ = (
        sa.Index("ix_batches_created_at_id", "created_at", "id"),
        sa.Index("ix_batches_job_id", "job_id"),
        sa.Index("ix_batches_owner_created_at_id", "owner", "created_at", "id"),
        sa.Index("uq_batches_owner_idempotency_key", "owner", "idempotency_key", unique=True),
        _partial_index("ix_batches_open", "created_at", "id", where=f"status IN {_OPEN_BATCHES}"),
    )

    id: Mapped[str] = _id_key()
    status: Mapped[str] = mapped_column(sa.String(16))
    input_file_id: Mapped[str] = mapped_column(sa.String(_ID_LENGTH))
    #: the request as validated
    request: Mapped[dict[str, Any]]
    #: null until the input file has been read
    model: Mapped[str | None] = mapped_column(sa.String(1024))
    job_id: Mapped[str | None] = mapped_column(sa.ForeignKey("jobs.id", ondelete="SET NULL"))
    #: reasons of a failure, with the faulty lines
    errors: Mapped[list[dict[str, Any]] | None]
    #: numbers of requests and tokens; null until it has ended
    counts: Mapped[dict[str, Any] | None]
    output_file_id: Mapped[str | None] = mapped_column(sa.String(_ID_LENGTH))
    error_file_id: Mapped[str | None] = mapped_column(sa.String(_ID_LENGTH))
    created_at: Mapped[float]
    #: status -> time at which the batch reached it
    moments: Mapped[dict[str, Any]]
    owner: Mapped[str] = mapped_column(sa.String(_ID_LENGTH), default="")
    #: see `storage.jobs.request_keys`
    idempotency_key: Mapped[str | None] = mapped_column(sa.String(255))
    idempotency_sha256: Mapped[str | None] = mapped_column(sa.String(64))


class StateRow(Base):
    """State of the deployment: pause of the queue, turns of background duties, mark of the store."""

    __tablename__ = "state"

    name: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    value: Mapped[dict[str, Any] | None]
    at: Mapped[float]


class CounterRow(Base):
    """A count that only grows, see `storage.index.counters`."""

    __tablename__ = "counters"

    name: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    #: kind of the job; "" without a job
    kind: Mapped[str] = mapped_column(sa.String(32), primary_key=True)
    status: Mapped[str] = mapped_column(sa.String(16), primary_key=True)
    value: Mapped[float]


class ApiKeyRow(Base):
    """An API key, stored as its sha256.

    A key has 256 random bits, so nobody can guess it from the digest. A slow hash would only delay requests.
    """

    __tablename__ = "api_keys"

    id: Mapped[str] = _id_key()
    name: Mapped[str] = mapped_column(sa.String(64))
    role: Mapped[str] = mapped_column(sa.String(16))
    #: owner of the visible and new rows; several keys may share one
    owner: Mapped[str] = mapped_column(sa.String(_ID_LENGTH), index=True)
    sha256: Mapped[str] = mapped_column(sa.String(64), unique=True)
    #: first characters of the key, for display
    prefix: Mapped[str] = mapped_column(sa.String(16))
    created_at: Mapped[float]
    #: written every few minutes
    last_used_at: Mapped[float | None]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]
    #: bytes that its owner may store; null for the setting
    quota_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)


# Conditions of the partial indexes, for use in queries. A bound value would prevent the use of the index.
HAS_PENDING = JobRow.pending > sa.literal(0, literal_execute=True)
IS_LEASED = SampleRow.status == sa.literal(_LEASED, literal_execute=True)
IS_OPEN_BATCH = BatchRow.status.in_(
    sa.bindparam("open_batches", _OPEN_BATCHES, expanding=True, literal_execute=True)
)
