"""Changes of sessions and of the queue."""

from pydantic import Field, model_validator

from actograph.contract.specs.base import MAX_TAGS, Spec, Tag


class SessionUpdate(Spec):
    """Changes of stored sessions; a field that is not named stays as it is."""

    expires_at: int | None = Field(
        None, ge=0, le=2**53, description="Unix seconds after which it is deleted; null keeps it."
    )
    pinned: bool = Field(False, description="Whether expiry and deletions of many leave it alone.")
    tags: list[Tag] = Field(
        default_factory=list, max_length=MAX_TAGS, description="All its tags from now on."
    )

    @model_validator(mode="after")
    def _says_something(self) -> "SessionUpdate":
        if not self.model_fields_set:
            raise ValueError("name at least one of expires_at, pinned and tags")
        return self


class PauseRequest(Spec):
    """Why the queue shall stand still; shown to everybody who asks for the queue."""

    reason: str | None = Field(None, min_length=1, max_length=500, pattern=r"^[^\x00]*$")
