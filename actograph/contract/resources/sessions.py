"""Sessions, their tensors and files, and changes of many of them."""

from typing import Literal

from pydantic import Field

from actograph.contract.resources.base import Resource


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
    identity_sha256: str | None = Field(
        None, description="Digest of the identity of its model; null in sessions of older versions."
    )
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
