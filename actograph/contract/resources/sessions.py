"""Sessions, their tensors and files, and bulk changes."""

from typing import Literal

from pydantic import Field

from actograph.contract.base import Resource


class TensorInfo(Resource):
    """A tensor of a session."""

    shape: tuple[int, int] = Field(description="[rows, width]")
    dtype: str = Field(description="Name in safetensors: F32, BF16, F16, I64, ...")
    first_row: int = Field(0, description="Token of row 0.")
    position_offset: int | None = Field(
        None,
        description="null if row i is token first_row + i. Otherwise row i is token "
        "row_positions[position_offset + i]; row_positions is a tensor of the session.",
    )
    summary: str | None = Field(
        None, description="Reduction applied to produce this row; null for rows as captured."
    )
    over: int | None = Field(None, description="Number of reduced rows.")
    nbytes: int = 0


class SessionFile(Resource):
    """A stored file of a session."""

    name: str
    bytes: int
    sha256: str


class Session(Resource):
    """A sample's tokens and its captured activations."""

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
    rows: int = Field(description="Tokens that the model has read: prompt_tokens + generated_tokens - 1.")
    bytes: int
    dtype: str
    hooks: dict[str, TensorInfo]
    files: list[SessionFile]
    tags: list[str] = Field(default_factory=list)
    correct: bool | None = Field(None, description="Verdict of the task's first scorer.")
    owner: str | None = Field(None, description="Owner of its job: `local`, or `key:...`.")
    expires_at: int | None = Field(None, description="Time after which it is deleted; null keeps it.")
    identity_sha256: str | None = Field(None, description="Digest of its model's identity.")
    pinned: bool = Field(False, description="Pinned sessions survive expiry and bulk deletions.")


class SessionStats(Resource):
    object: Literal["activation.session.stats"] = "activation.session.stats"
    sessions: int
    bytes: int
    rows: int


class SessionDeletion(Resource):
    """Result of a bulk deletion; with `dry_run` nothing is deleted."""

    object: Literal["activation.session.deletion"] = "activation.session.deletion"
    dry_run: bool
    sessions: int
    bytes: int
    pinned: int = Field(0, description="Matching sessions that are kept because they are pinned.")


class SessionChange(Resource):
    """Result of a bulk change; with `dry_run` nothing is changed."""

    object: Literal["activation.session.change"] = "activation.session.change"
    dry_run: bool
    sessions: int
