"""The store: usage, files, garbage collection and verification."""

from typing import Literal

from pydantic import Field

from actograph.contract.base import Resource


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
    owners: list[OwnerUsage] = Field(default_factory=list, description="Usage by owner, the largest first.")


class StoredObject(Resource):
    """A session or upload in the store that the index does not know."""

    id: str
    bytes: int


class StoreGc(Resource):
    """A page of garbage collection; with `dry_run` nothing is deleted."""

    object: Literal["store.gc"] = "store.gc"
    dry_run: bool
    expired_sessions: int = Field(0, description="Expired sessions that were deleted.")
    expired_bytes: int = 0
    expired_files: int = Field(
        0, description="Expired uploads that were deleted; not counted with `dry_run`."
    )
    orphans: list[StoredObject] = Field(
        default_factory=list, description="Superseded sessions and interrupted uploads."
    )
    unknown: list[StoredObject] = Field(
        default_factory=list, description="Objects that the index does not know; they are kept."
    )
    leftovers: int = Field(0, description="Temporary files and unfinished uploads of killed processes.")
    next: str | None = Field(None, description="Send it as `after` for the next page; null: it is done.")


class StoreProblem(Resource):
    """A difference between the store and the index."""

    id: str = Field(description="Id of the session or the uploaded file.")
    problem: Literal["missing", "damaged", "orphaned"] = Field(
        description="missing: only the index has it; orphaned: only the store has it; damaged: its bytes are "
        "wrong.",
    )
    detail: str


class StoreVerification(Resource):
    """A page of comparing the store with the index."""

    object: Literal["store.verification"] = "store.verification"
    checked: int = Field(description="Sessions and uploads verified in this page.")
    bytes: int = Field(description="Bytes of these.")
    total: int = Field(description="Sessions and uploads in the index, or in the sampled share of it.")
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
    expires_at: int | None = Field(None, description="Unix seconds after which it is deleted; null keeps it.")
    status: Literal["processed"] = Field(
        "processed", description="Files can be read as soon as they are uploaded."
    )
