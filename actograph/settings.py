"""Settings, read from the environment (`ACTOGRAPH_<NAME>`) and listed in docs/reference/settings.md."""

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from actograph import service_urls
from actograph.contract.field_wording import in_words
from actograph.contract.specs import BUILT_IN_TOOLS
from actograph.contract.tasks import SCORER_NAMES

_FUNCTION = re.compile(r"([A-Za-z0-9][\w.\-]{0,63})=([A-Za-z_][\w.]*:[A-Za-z_]\w*)")

#: segments with characters that need no escape in a URL, none of them `.` or `..`
_PREFIX = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~@:+=-]+)+")

CommaList = Annotated[tuple[str, ...], NoDecode]

#: folder of settings as files, such as `actograph_api_keys`: secrets of Docker and Kubernetes
SECRETS = Path(os.environ.get("ACTOGRAPH_SECRETS_DIR", "/run/secrets"))


def functions_of(listed: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Return name -> `module:function` of texts such as `units=lab_scorers:units`.

    Raises:
        ValueError: a text has another form, or its name is one of `taken`, or comes twice.
    """
    found: dict[str, str] = {}
    for text in listed:
        parts = _FUNCTION.fullmatch(text)
        if parts is None:
            raise ValueError(f"{text!r} is not NAME=module:function")
        name, target = parts.groups()
        if name in found or name in taken:
            raise ValueError(f"the name {name!r} is already taken")
        found[name] = target
    return found


class Settings(BaseSettings):
    """Settings of all processes. Default URLs are in `home`."""

    # pydantic-settings warns of a folder that does not exist
    model_config = SettingsConfigDict(
        env_prefix="ACTOGRAPH_",
        frozen=True,
        extra="ignore",
        secrets_dir=SECRETS if SECRETS.is_dir() else None,
    )

    home: Path = Field(
        default_factory=lambda: Path.home() / ".actograph",
        description="Folder of the default database, artifacts, broker data and logs.",
    )
    listen_database_url: str = Field(
        "", description="Postgres itself, if `database_url` names a pooler. For LISTEN.", repr=False
    )
    database_url: str = Field("", description="`postgresql://...`. Default: SQLite in `home`.", repr=False)
    broker_url: str = Field("redis://127.0.0.1:6379/0", description="Redis that wakes workers.", repr=False)
    artifact_url: str = Field("", description="`file:///folder` or `s3://bucket/prefix`. Default: in `home`.")
    downloads: Literal["redirect", "proxy"] = Field(
        "redirect", description="S3: clients get a presigned URL, or the bytes from the API."
    )
    s3_public_endpoint: str = Field("", description="URL of the S3 server for clients. Default: the API's.")
    s3_public_addressing: Literal["path", "virtual"] = Field(
        "path", description="`path`: HOST/BUCKET; `virtual`: BUCKET.HOST."
    )
    model: str = Field("", description="Hub id or folder of the model, or `NAME=<id or folder>`.")
    revision: str | None = Field(None, description="Hub revision of the model.")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = Field(
        "auto", description="`auto` is the checkpoint's dtype."
    )
    device: str = Field("auto", description="`cpu`, `cuda`, `cuda:1` ...; `auto` uses a GPU if there is one.")
    tensor_parallel: int = Field(
        1, ge=1, le=64, description="Ranks that share the model, each with a GPU of its own."
    )
    threads: int = Field(0, ge=0, description="CPU threads of torch; 0 is torch's default.")
    repeatable: bool = Field(
        False, description="Numbers of a sample do not depend on what runs beside it: bit-equal runs, slower."
    )
    slots: int = Field(0, ge=0, description="Most samples at once; 0: 64 on a CPU, 256 on a GPU.")
    cuda_graphs: bool = Field(
        False, description="Replay decode passes as CUDA graphs, each verified when it is captured."
    )
    allowed_models: CommaList = Field((), description="Further models of jobs, comma-separated.")
    model_switching: bool = Field(True, description="Load allowed models; false serves only `model`.")
    data_roots: CommaList = Field(
        (), description="Folders of `dataset: {path}` and of SAEs, comma-separated."
    )
    api_keys: CommaList = Field(
        (), description="Admin keys, comma-separated. Without keys the API serves only loopback.", repr=False
    )
    supervisor_key: str = Field("", description="Key of `up` for the workers' state, set by it.", repr=False)
    user_tools: CommaList = Field((), description="Tools: `NAME=module:function`, comma-separated.")
    user_scorers: CommaList = Field((), description="Scorers: `NAME=module:function`, comma-separated.")
    user_function_seconds: float = Field(10.0, gt=0, description="Limit of a call of such a function.")
    host: str = Field("127.0.0.1", description="Address of the API.")
    port: int = Field(8420, ge=0, le=65535, description="Port of the API.")
    root_path: str = Field(
        "", description="Path prefix of a proxy, such as `/user/me/proxy/8420`, for links of the page."
    )
    api_processes: int = Field(1, ge=1, le=64, description="Processes behind the address of the API.")
    metrics_open: bool = Field(False, description="Serve `/metrics` without a key.")
    url: str = Field("", description="Client: the service's URL. Default: http://127.0.0.1:8420.")
    api_key: str = Field("", description="Client: the key to send.", repr=False)
    lease_seconds: float = Field(30.0, gt=0, description="Samples of a worker silent for so long are freed.")
    submit_priority_floor: int = Field(1, ge=0, le=9, description="Most urgent priority for `submit` keys.")
    model_hold_seconds: float = Field(600.0, ge=0, description="Most delay by jobs of the loaded model.")
    stall_seconds: float = Field(600.0, gt=0, description="A worker is restarted after so long a stall.")
    stop_grace_seconds: float = Field(
        15.0, gt=0, description="Time to end and store running samples after SIGTERM; the rest is given back."
    )
    sample_timeout_seconds: float = Field(0.0, ge=0, description="Default limit of a sample; 0: none.")
    max_consecutive_failures: int = Field(10, ge=0, description="Failures that stop a job; 0: never.")
    reconcile_seconds: float = Field(5.0, gt=0, description="Interval of the search for silent workers.")
    idle_poll_seconds: float = Field(3.0, gt=0, description="Interval in which idle workers look for jobs.")
    host_buffer_bytes: int = Field(2 << 30, gt=0, description="Memory for rows before they are on disk.")
    upload_memory_bytes: int = Field(
        1 << 30, gt=0, description="S3: most memory for session files that wait for their upload."
    )
    upload_disk_bytes: int = Field(
        8 << 30, ge=0, description="S3: most bytes in `TMPDIR` of those that do not fit in this memory."
    )
    shard_bytes: int = Field(256 << 20, gt=0, description="Approximate size of session files.")
    disk_floor_bytes: int = Field(2 << 30, ge=0, description="The queue pauses below this space; 0: never.")
    store_quota_bytes: int = Field(0, ge=0, description="Quota of sessions and uploads; 0: no limit.")
    owner_quota_bytes: int | None = Field(
        None, ge=0, description="The same of one owner. Default: 3/4 of the local disk for owners of keys."
    )
    expire_after_seconds: int = Field(0, ge=0, description="Default lifetime of sessions; 0 keeps them.")
    chat_max_tokens: int = Field(2048, ge=1, description="Default max_tokens of chats.")
    chat_timeout_seconds: float = Field(600.0, gt=0, description="Limit of a chat, queueing included.")
    chat_retention_seconds: int = Field(
        3600, ge=0, description="Lifetime of ended chats without sessions; 0: no end."
    )
    job_retention_seconds: int = Field(
        0, ge=0, description="Lifetime of other ended jobs without sessions; 0: no end."
    )
    max_upload_bytes: int = Field(1 << 30, gt=0, description="Maximum size of an uploaded file.")
    max_body_bytes: int = Field(8 << 20, gt=0, description="Maximum size of a JSON body.")
    batch_max_requests: int = Field(50_000, ge=1, le=200_000, description="Most lines of a batch's file.")
    batch_max_bytes: int = Field(200 << 20, gt=0, description="Maximum size of a batch's file.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Log level.")
    log_format: Literal["text", "json"] = Field("text", description="Log lines as text, or as JSON objects.")

    @field_validator("database_url", "listen_database_url", "broker_url")
    @classmethod
    def _is_service(cls, value: str, info: ValidationInfo) -> str:
        check = service_urls.broker_url if info.field_name == "broker_url" else service_urls.database_url
        return check(value) if value else value

    @field_validator("root_path")
    @classmethod
    def _is_prefix(cls, value: str) -> str:
        prefix = value.rstrip("/")
        if prefix and not _PREFIX.fullmatch(prefix):
            raise ValueError(f"{value!r} is not a path such as /user/me/proxy/8420")
        return prefix

    @field_validator("s3_public_endpoint")
    @classmethod
    def _is_endpoint(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in ("http", "https") or not parts.hostname or parts.query):
            raise ValueError(f"{value!r} is not a URL such as https://s3.example.org")
        return value

    @field_validator("allowed_models", "data_roots", "user_tools", "user_scorers", "api_keys", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("user_tools", "user_scorers")
    @classmethod
    def _name_functions(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        functions_of(value, ("none", *BUILT_IN_TOOLS) if info.field_name == "user_tools" else SCORER_NAMES)
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


def settings_or_exit(program: str) -> Settings:
    """The settings of the environment; a wrong one ends the process with one line on stderr."""
    try:
        return Settings()
    except ValidationError as error:
        sys.stderr.write(f"{program}: {first_problem(error)}\n")
        sys.exit(1)


def first_problem(error: ValidationError) -> str:
    """The first wrong variable and what is wrong with it."""
    first = error.errors(include_url=False, include_input=False)[0]
    name = "_".join(str(part) for part in first["loc"])
    return f"ACTOGRAPH_{name.upper()}: {in_words([first])}"
