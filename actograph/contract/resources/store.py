"""What the store holds, and what clearing and checking it found."""

from typing import Literal

from pydantic import Field

from actograph.contract.resources.base import Resource


class Usage(Resource):
    """What one owner has stored."""

    owner: str | None = Field(description="`local`, `key:...`, or null for what is older than owners.")
    sessions: int = 0
    session_bytes: int = 0
    files: int = Field(0, description="Uploaded files.")
    file_bytes: int = 0
    deleting: int = Field(0, description="Deleted sessions and files that are still to be removed.")
    deleting_bytes: int = Field(0, description="Their size, which counts in the quotas until then.")
    available_bytes: int | None = Field(None, description="What the quotas leave; null: no limit.")

    @property
    def bytes(self) -> int:
        return self.session_bytes + self.file_bytes + self.deleting_bytes


class StoreUsage(Resource):
    """What is stored, by whom, and the quotas."""

    object: Literal["store.usage"] = "store.usage"
    sessions: int
    session_bytes: int
    files: int
    file_bytes: int
    deleting: int = Field(0, description="Deleted sessions and files that are still to be removed.")
    deleting_bytes: int = Field(0, description="Their size, which counts in the quotas until then.")
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
    expired_files: int = Field(0, description="Uploaded files whose time was over; not counted by `dry_run`.")
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
    expires_at: int | None = Field(None, description="Unix seconds after which it is deleted; null: kept.")
    status: Literal["processed"] = Field("processed", description="It can be read as soon as it is uploaded.")
