"""Base classes of requests and answers, and the types of fields that many requests have."""

import json
from hashlib import sha256
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

MAX_PROMPT_CHARS = 1_000_000
MAX_TAGS = 16
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}$")]
Text = Annotated[str, Field(max_length=MAX_PROMPT_CHARS)]
PromptText = Annotated[str, Field(min_length=1, max_length=MAX_PROMPT_CHARS)]
Tag = Annotated[str, Field(min_length=1, max_length=64)]
#: the client's own keys and values
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]


class Spec(BaseModel):
    """Base of all requests. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Resource(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(frozen=True)


def canonical_digest(value: Any) -> str:
    """sha256 (hex) of a JSON value, independent of key order and white space."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()
