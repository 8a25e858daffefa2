"""API keys: what may be asked of one, and how it is shown. The key itself is shown once."""

from typing import Literal, Self

from pydantic import Field, field_validator

from actograph.contract.resources import Resource
from actograph.contract.service.key_roles import Role
from actograph.contract.specs import ExpiresAfter, Spec

#: by which a key is known wherever it turns up
KEY_PREFIX = "acto_"
#: an owner as a client may name one; `local` is who asks where a service has no keys
OWNER_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.@:\-]{0,63}$"
_NAME_PATTERN = r"^[^\x00-\x1f\x7f]+$"
MAX_QUOTA_BYTES = 1 << 60


class NewKey(Spec):
    """A key that shall be made."""

    name: str = Field(min_length=1, max_length=64, pattern=_NAME_PATTERN, description="For people.")
    role: Role = Role.SUBMIT
    owner: str | None = Field(
        None,
        pattern=OWNER_PATTERN,
        description="Whose jobs and sessions it sees and makes; keys may share one. Default: one of its own.",
    )
    expires_after: ExpiresAfter | None = Field(None, description="When it ends; null: when it is revoked.")
    quota_bytes: int | None = Field(
        None,
        ge=1,
        le=MAX_QUOTA_BYTES,
        description="What its owner may store; null: what ACTOGRAPH_OWNER_QUOTA_BYTES says.",
    )
    requests_per_minute: int | None = Field(None, ge=1, le=1_000_000, description="null: no limit.")


class KeyUpdate(Spec):
    """A change of a key: what is named is changed, null takes a limit away."""

    name: str | None = Field(None, min_length=1, max_length=64, pattern=_NAME_PATTERN)
    quota_bytes: int | None = Field(None, ge=1, le=MAX_QUOTA_BYTES)
    requests_per_minute: int | None = Field(None, ge=1, le=1_000_000)

    @field_validator("name")
    @classmethod
    def _require_name(cls, value: str | None) -> str:
        if value is None:
            raise ValueError("a key has a name")
        return value

    @property
    def changes(self) -> dict[str, str | int | None]:
        """Field -> new value."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class ApiKey(Resource):
    """A key, without itself."""

    id: str
    object: Literal["api_key"] = "api_key"
    name: str
    role: Role
    owner: str = Field(description="Whose jobs and sessions it sees and makes.")
    prefix: str = Field(description="How the key begins.")
    created_at: int
    last_used_at: int | None = Field(None, description="To within a few minutes.")
    expires_at: int | None = None
    revoked_at: int | None = None
    quota_bytes: int | None = None
    requests_per_minute: int | None = None


class CreatedKey(ApiKey):
    """A key that was just made."""

    key: str = Field(description="The key itself. It is shown here and never again.", repr=False)

    @classmethod
    def of(cls, shown: ApiKey, key: str) -> Self:
        return cls(**shown.model_dump(), key=key)
