"""Settings, read from the environment (`ACTOGRAPH_<NAME>`); docs/settings.md lists them all."""

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

CommaList = Annotated[tuple[str, ...], NoDecode]


class Settings(BaseSettings):
    """One object for every process; unset URLs follow from `home`."""

    model_config = SettingsConfigDict(env_prefix="ACTOGRAPH_", frozen=True, extra="ignore")

    home: Path = Field(
        default_factory=lambda: Path.home() / ".actograph",
        description="Folder of the default database, artifacts, broker data and logs.",
    )
    database_url: str = Field(
        "", description="SQLAlchemy URL of the index. Default: SQLite, `home/actograph.db`.", repr=False
    )
    database_pool_size: int = Field(
        16, ge=1, description="Connections to the database that each process keeps open."
    )
    database_pool_overflow: int = Field(
        48, ge=0, description="Further connections of a process at most, closed after use."
    )
    database_pool_timeout_seconds: float = Field(
        10.0,
        gt=0,
        description="A request that waits longer for a free connection gets a 503 with `Retry-After`.",
    )
    broker_url: str = Field(
        "redis://127.0.0.1:6379/0", description="Redis that wakes the workers.", repr=False
    )
    artifact_url: str = Field(
        "", description="`file:///folder` or `s3://bucket/prefix`. Default: `home/artifacts`."
    )
    downloads: Literal["redirect", "proxy"] = Field(
        "redirect",
        description="API with an S3 store: `redirect` sends clients to the store by a presigned URL, `proxy` "
        "sends them the bytes.",
    )
    s3_public_endpoint: str = Field(
        "",
        description="URL of the S3 server as clients reach it, for presigned URLs. Default: the endpoint "
        "that the API itself uses.",
    )
    s3_public_addressing: Literal["path", "virtual"] = Field(
        "path",
        description="Place of the bucket in that URL: `path` for HOST/BUCKET, `virtual` for BUCKET.HOST.",
    )
    model: str = Field("", description="Hub id or folder of the model, or `NAME=<id or folder>`.")
    revision: str | None = Field(None, description="Hub revision of the model.")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        "auto", description="Dtype to load the model in; `auto` is the checkpoint's own."
    )
    device: str = Field("auto", description="`cpu`, `cuda`, `cuda:1` ...; `auto` takes a GPU where one is.")
    threads: int = Field(0, ge=0, description="Torch CPU threads; 0 leaves torch's own choice.")
    batch_size: int = Field(
        0,
        ge=0,
        description="Most samples run at once, if memory allows; 0: 16 on a CPU, 256 on a GPU.",
    )
    allowed_models: CommaList = Field(
        (), description="Further models that jobs may name, comma-separated, each like `model`."
    )
    model_switching: bool = Field(
        True,
        description="Worker: change the model for jobs of an allowed one that no worker holds; else serve "
        "`model` alone.",
    )
    data_roots: CommaList = Field(
        (), description="Folders that `dataset: {path}` may read from, comma-separated."
    )
    api_keys: CommaList = Field(
        (),
        description="Keys of admins, comma-separated; further keys are made with `actograph keys create`. "
        "Without any key only loopback is served.",
        repr=False,
    )
    supervisor_key: str = Field(
        "",
        description="API: key that `up` makes for itself; it asks with it how far workers are.",
        repr=False,
    )
    host: str = Field("127.0.0.1", description="Address that the API listens on.")
    port: int = Field(8420, ge=0, le=65535, description="Port that the API listens on.")
    api_processes: int = Field(
        1, ge=1, le=64, description="Processes that `python -m api` runs behind its address."
    )
    metrics_open: bool = Field(False, description="Serve `/metrics` to everyone, without a key.")
    url: str = Field("", description="Client: the service's URL. Default: http://127.0.0.1:8420.")
    api_key: str = Field("", description="Client: the key to send.", repr=False)
    lease_seconds: float = Field(
        30.0, gt=0, description="A sample whose worker is silent for so long is given to another worker."
    )
    slice_seconds: float = Field(
        60.0, gt=0, description="A worker turns to the next job in the queue after so long."
    )
    turn_seconds: float = Field(
        10.0,
        gt=0,
        description="A worker turns to a job of the same priority and model that nobody runs after so long, "
        "and from chats to any job of the model.",
    )
    submit_priority_floor: int = Field(
        1, ge=0, le=9, description="Most urgent priority that jobs and batches of `submit` keys may have."
    )
    model_hold_seconds: float = Field(
        600.0, ge=0, description="So long a job may be put off by jobs of the model that a worker holds."
    )
    stall_seconds: float = Field(
        600.0, gt=0, description="A worker without progress for so long ends itself and is restarted."
    )
    sample_timeout_seconds: float = Field(
        0.0,
        ge=0,
        description="A sample of a job that says nothing fails if it is decoded for longer; 0: never.",
    )
    max_consecutive_failures: int = Field(
        10,
        ge=0,
        description="A job stops after so many failed samples in a row, where it says nothing; 0: never.",
    )
    reconcile_seconds: float = Field(
        5.0, gt=0, description="Pause between two searches for silent workers and jobs that nobody ended."
    )
    idle_poll_seconds: float = Field(
        3.0,
        gt=0,
        description="An idle worker asks the index for jobs so often; the longest delay without Redis.",
    )
    host_buffer_bytes: int = Field(
        2 << 30, gt=0, description="Captured rows kept in memory per batch before they go to disk."
    )
    shard_bytes: int = Field(256 << 20, gt=0, description="A session file is split at about this size.")
    disk_floor_bytes: int = Field(
        2 << 30, ge=0, description="With less free where artifacts are stored the queue pauses; 0 never does."
    )
    store_quota_bytes: int = Field(
        0, ge=0, description="Sessions and uploaded files may take so much in all; 0: no limit."
    )
    owner_quota_bytes: int | None = Field(
        None,
        ge=0,
        description="Sessions and uploaded files of one owner may take so much; 0: no limit. Default: three "
        "quarters of the disk of a local store for each owner with a key.",
    )
    expire_after_seconds: int = Field(
        0, ge=0, description="Sessions are deleted so long after they were made; 0 keeps them."
    )
    chat_max_tokens: int = Field(
        2048, ge=1, description="Most tokens of a chat answer where the request says nothing."
    )
    chat_timeout_seconds: float = Field(
        600.0, gt=0, description="A chat that is not answered after so long, waiting included, has failed."
    )
    chat_retention_seconds: int = Field(
        3600,
        ge=0,
        description="Ended chat jobs without sessions are removed after so long; 0 keeps them for good.",
    )
    job_retention_seconds: int = Field(
        0,
        ge=0,
        description="Other ended jobs without sessions are removed, samples and events included, after so "
        "long; 0 keeps them for good.",
    )
    max_upload_bytes: int = Field(1 << 30, gt=0, description="Largest file that may be uploaded.")
    max_body_bytes: int = Field(
        32 << 20, gt=0, description="Largest JSON request body: that of a job. Other routes take less."
    )
    stalled_client_seconds: float = Field(
        600.0,
        gt=0,
        le=86_400,
        description="API, on Linux: a client that takes nothing of its answer for so long is disconnected.",
    )
    batch_max_requests: int = Field(
        50_000, ge=1, le=200_000, description="Most lines of a batch's input file."
    )
    batch_max_bytes: int = Field(200 << 20, gt=0, description="Largest input file of a batch.")
    webhook_hosts: CommaList = Field(
        (),
        description="Hosts that webhooks of jobs may name, comma-separated, each `host` or `host:port`; a "
        "private address only where it stands here itself. Empty: jobs may name none.",
    )
    webhook_url: str = Field(
        "", description="Told of the end of every job that names no webhook; no job shows it.", repr=False
    )
    webhook_secret: str = Field(
        "",
        description="Signs webhooks: `whsec_` and base64, or any text. Without it none is accepted or sent.",
        repr=False,
    )
    webhook_timeout_seconds: float = Field(
        10.0, gt=0, description="A receiver that has not answered after so long counts as failed."
    )
    webhook_retry_seconds: float = Field(
        5.0,
        gt=0,
        description="Pause before a webhook's second attempt; each further one is four times as long.",
    )
    webhook_max_attempts: int = Field(
        8, ge=1, le=20, description="A webhook is given up after so many failed attempts."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Log level.")
    log_max_bytes: int = Field(
        64 << 20,
        gt=0,
        description="`up`: a log of this size becomes `NAME.log.1`, in place of the one before.",
    )

    @field_validator("s3_public_endpoint")
    @classmethod
    def _is_endpoint(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in ("http", "https") or not parts.hostname or parts.query):
            raise ValueError(f"{value!r} is not a URL such as https://s3.example.org")
        return value

    @field_validator("allowed_models", "data_roots", "api_keys", "webhook_hosts", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @property
    def effective_database_url(self) -> str:
        return self.database_url or f"sqlite:///{self.home / 'actograph.db'}"

    @property
    def effective_artifact_url(self) -> str:
        return self.artifact_url or (self.home / "artifacts").absolute().as_uri()

    @property
    def effective_url(self) -> str:
        return (self.url or f"http://127.0.0.1:{self.port}").rstrip("/")
