"""Changes of sessions and of the queue."""

from pydantic import ConfigDict, Field, model_validator

from actograph.contract.base import MAX_TAGS, Spec, Tag


class SessionUpdate(Spec):
    """Changes of stored sessions; fields that are left out stay as they are."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"pinned": True, "tags": ["paper"]}]})

    expires_at: int | None = Field(
        None, ge=0, le=2**53, description="Unix seconds after which it is deleted; null keeps it."
    )
    pinned: bool = Field(False, description="Pinned sessions survive expiry and bulk deletions.")
    tags: list[Tag] = Field(
        default_factory=list, max_length=MAX_TAGS, description="Its new tags, in place of all others."
    )

    @model_validator(mode="after")
    def _says_something(self) -> "SessionUpdate":
        if not self.model_fields_set:
            raise ValueError("give at least one of expires_at, pinned and tags")
        return self


class PauseRequest(Spec):
    """A request to pause the queue. Every client sees the reason."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "the GPU is needed until noon"}]})

    reason: str | None = Field(None, min_length=1, max_length=500, pattern=r"^[^\x00]*$")
