"""Parts of all specs: the base class, names and texts, and the digest of a spec."""

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


class Spec(BaseModel):
    """Base of all requests of a client."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def canonical_digest(value: Any) -> str:
    """sha256 (hex) of a JSON value, independent of key order and white space."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()
