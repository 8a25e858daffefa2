"""API keys: requests and answers. The key itself is shown once, when it is created."""

from typing import Literal, Self

from pydantic import ConfigDict, Field, field_validator

from actograph.contract.resources import Resource
from actograph.contract.service.key_roles import Role
from actograph.contract.specs import ExpiresAfter, Spec

#: start of all keys
KEY_PREFIX = "acto_"
#: form of an owner's name; `local` is the client of a service without keys
OWNER_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.@:\-]{0,63}$"
_NAME_PATTERN = r"^[^\x00-\x1f\x7f]+$"
MAX_QUOTA_BYTES = 1 << 60


class NewKey(Spec):
    """A request to create a key."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "laptop", "role": "submit", "owner": "alice"}]}
    )

    name: str = Field(min_length=1, max_length=64, pattern=_NAME_PATTERN, description="Name of the key.")
    role: Role = Role.SUBMIT
    owner: str | None = Field(
        None,
        pattern=OWNER_PATTERN,
        description="Owner of its jobs and sessions; several keys may share one. Default: a new owner.",
    )
    expires_after: ExpiresAfter | None = Field(None, description="Expiry; null is no expiry.")
    quota_bytes: int | None = Field(
        None,
        ge=1,
        le=MAX_QUOTA_BYTES,
        description="Quota of its owner; null uses ACTOGRAPH_OWNER_QUOTA_BYTES.",
    )


class KeyUpdate(Spec):
    """Changes of a key; fields that are left out stay as they are, and null removes a limit."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "desk", "quota_bytes": 1 << 40}]})

    name: str | None = Field(None, min_length=1, max_length=64, pattern=_NAME_PATTERN)
    quota_bytes: int | None = Field(None, ge=1, le=MAX_QUOTA_BYTES)

    @field_validator("name")
    @classmethod
    def _require_name(cls, value: str | None) -> str:
        if value is None:
            raise ValueError("a key needs a name")
        return value

    @property
    def changes(self) -> dict[str, str | int | None]:
        """Field -> new value."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class ApiKey(Resource):
    """A key without its secret."""

    id: str
    object: Literal["api_key"] = "api_key"
    name: str
    role: Role
    owner: str = Field(description="Owner of its jobs and sessions.")
    prefix: str = Field(description="First characters of the key.")
    created_at: int
    last_used_at: int | None = Field(None, description="Last use, accurate to a few minutes.")
    expires_at: int | None = None
    revoked_at: int | None = None
    quota_bytes: int | None = None


class CreatedKey(ApiKey):
    """A new key with its secret."""

    key: str = Field(description="The key itself, shown only once.", repr=False)

    @classmethod
    def of(cls, shown: ApiKey, key: str) -> Self:
        return cls(**shown.model_dump(), key=key)
