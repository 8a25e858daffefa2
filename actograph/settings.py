"""Settings, read from the environment (`ACTOGRAPH_<NAME>`) and listed in docs/reference/settings.md."""

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

CommaList = Annotated[tuple[str, ...], NoDecode]


class Settings(BaseSettings):
    """Settings of all processes. Default URLs are in `home`."""

    model_config = SettingsConfigDict(env_prefix="ACTOGRAPH_", frozen=True, extra="ignore")

    home: Path = Field(
        default_factory=lambda: Path.home() / ".actograph",
        description="Folder of the default database, artifacts, broker data and logs.",
    )
    database_url: str = Field(
        "", description="SQLAlchemy URL of the index. Default: SQLite, `home/actograph.db`.", repr=False
    )
    database_pool_size: int = Field(16, ge=1, description="Open database connections per process.")
    database_pool_overflow: int = Field(
        48, ge=0, description="Maximum number of further connections per process, closed after use."
    )
    database_pool_timeout_seconds: float = Field(
        10.0,
        gt=0,
        description="Longest wait of a request for a connection; then the answer is 503 with `Retry-After`.",
    )
    broker_url: str = Field(
        "redis://127.0.0.1:6379/0", description="Redis that wakes the workers.", repr=False
    )
    artifact_url: str = Field(
        "", description="`file:///folder` or `s3://bucket/prefix`. Default: `home/artifacts`."
    )
    downloads: Literal["redirect", "proxy"] = Field(
        "redirect",
        description="API with an S3 store: `redirect` sends clients to a presigned URL, `proxy` sends them "
        "the bytes.",
    )
    s3_public_endpoint: str = Field(
        "",
        description="URL of the S3 server for clients, used in presigned URLs. Default: the endpoint of the "
        "API.",
    )
    s3_public_addressing: Literal["path", "virtual"] = Field(
        "path",
        description="Place of the bucket in that URL: `path` is HOST/BUCKET, `virtual` is BUCKET.HOST.",
    )
    model: str = Field("", description="Hub id or folder of the model, or `NAME=<id or folder>`.")
    revision: str | None = Field(None, description="Hub revision of the model.")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        "auto", description="Dtype of the loaded model; `auto` is the checkpoint's dtype."
    )
    device: str = Field("auto", description="`cpu`, `cuda`, `cuda:1` ...; `auto` uses a GPU if there is one.")
    threads: int = Field(0, ge=0, description="CPU threads of torch; 0 is torch's default.")
    batch_size: int = Field(
        0,
        ge=0,
        description="Maximum number of samples in a batch; 0 is 16 on a CPU and 256 on a GPU. Memory may "
        "allow fewer.",
    )
    allowed_models: CommaList = Field(
        (), description="Further models that jobs may name, comma-separated, in the form of `model`."
    )
    model_switching: bool = Field(
        True,
        description="Worker: load allowed models for jobs that no worker can run; false serves only `model`.",
    )
    data_roots: CommaList = Field(
        (), description="Folders that `dataset: {path}` may read from, comma-separated."
    )
    api_keys: CommaList = Field(
        (),
        description="Admin keys, comma-separated; `actograph keys create` creates others. Without any key "
        "the API serves only loopback.",
        repr=False,
    )
    supervisor_key: str = Field(
        "",
        description="API: key of `up` for reading the state of the workers; `up` sets it.",
        repr=False,
    )
    host: str = Field("127.0.0.1", description="Address of the API.")
    port: int = Field(8420, ge=0, le=65535, description="Port of the API.")
    api_processes: int = Field(
        1, ge=1, le=64, description="Processes that `python -m api` runs behind its address."
    )
    metrics_open: bool = Field(False, description="Serve `/metrics` without a key.")
    url: str = Field("", description="Client: the service's URL. Default: http://127.0.0.1:8420.")
    api_key: str = Field("", description="Client: the key to send.", repr=False)
    lease_seconds: float = Field(
        30.0,
        gt=0,
        description="Lease of a sample: if its worker is silent for this long, another worker gets the "
        "sample.",
    )
    slice_seconds: float = Field(
        60.0,
        gt=0,
        description="Longest run of one job on a worker before it claims the next job in the queue.",
    )
    turn_seconds: float = Field(
        10.0,
        gt=0,
        description="The same while another job of this model and priority has no worker, and the longest "
        "run of chats while another job waits.",
    )
    submit_priority_floor: int = Field(
        1, ge=0, le=9, description="Most urgent priority for jobs and batches of `submit` keys."
    )
    model_hold_seconds: float = Field(
        600.0, ge=0, description="Longest time that jobs of a loaded model may delay a job of another model."
    )
    stall_seconds: float = Field(
        600.0, gt=0, description="A worker without progress for this long is restarted."
    )
    sample_timeout_seconds: float = Field(
        0.0,
        ge=0,
        description="Default time limit for decoding a sample; 0 is no limit.",
    )
    max_consecutive_failures: int = Field(
        10,
        ge=0,
        description="Default number of consecutive failed samples that stops a job; 0 never stops it.",
    )
    reconcile_seconds: float = Field(
        5.0, gt=0, description="Interval of the check for silent workers and unfinished jobs."
    )
    idle_poll_seconds: float = Field(
        3.0,
        gt=0,
        description="Interval in which an idle worker looks for jobs in the index.",
    )
    host_buffer_bytes: int = Field(
        2 << 30, gt=0, description="Memory for a batch's captured rows that are not yet on disk."
    )
    shard_bytes: int = Field(
        256 << 20, gt=0, description="Approximate size at which session files are split."
    )
    disk_floor_bytes: int = Field(
        2 << 30,
        ge=0,
        description="The queue pauses if the artifact store has less free space; 0 never pauses it.",
    )
    store_quota_bytes: int = Field(
        0, ge=0, description="Quota for all sessions and uploaded files; 0 is no limit."
    )
    owner_quota_bytes: int | None = Field(
        None,
        ge=0,
        description="Quota for the sessions and uploaded files of one owner; 0 is no limit. Default: three "
        "quarters of the disk of a local store, for each owner with a key.",
    )
    expire_after_seconds: int = Field(0, ge=0, description="Default lifetime of sessions; 0 keeps them.")
    chat_max_tokens: int = Field(2048, ge=1, description="Default maximum number of tokens in a chat answer.")
    chat_timeout_seconds: float = Field(
        600.0, gt=0, description="Time limit of a chat, including the time in the queue."
    )
    chat_retention_seconds: int = Field(
        3600,
        ge=0,
        description="Lifetime of ended chat jobs without sessions; 0 keeps them.",
    )
    job_retention_seconds: int = Field(
        0,
        ge=0,
        description="Lifetime of other ended jobs without sessions, with their samples and events; 0 keeps "
        "them.",
    )
    max_upload_bytes: int = Field(1 << 30, gt=0, description="Maximum size of an uploaded file.")
    max_body_bytes: int = Field(
        8 << 20, gt=0, description="Maximum size of a JSON body; larger inputs are uploaded as files."
    )
    batch_max_requests: int = Field(
        50_000, ge=1, le=200_000, description="Maximum number of lines in a batch's input file."
    )
    batch_max_bytes: int = Field(200 << 20, gt=0, description="Maximum size of a batch's input file.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Log level.")

    @field_validator("s3_public_endpoint")
    @classmethod
    def _is_endpoint(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in ("http", "https") or not parts.hostname or parts.query):
            raise ValueError(f"{value!r} is not a URL such as https://s3.example.org")
        return value

    @field_validator("allowed_models", "data_roots", "api_keys", mode="before")
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
