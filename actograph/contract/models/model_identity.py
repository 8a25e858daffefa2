"""The identity of a loaded model: everything that determines its activations."""

import json
from hashlib import sha256
from typing import Any

from pydantic import Field

from actograph.contract.base import Resource

#: the fields that change the activations, in the order of messages
_DECISIVE = (
    "weights_sha256", "dtype", "attn_implementation", "tokenizer_sha256", "template_sha256", "engine",
)  # fmt: skip
_SHORT = 12


class ModelIdentity(Resource):
    """A model as a worker has loaded it.

    `model`, `source` and `revision` are not part of `sha256`: the same weights under another path or revision
    give the same activations.
    """

    model: str = Field(description="Served name of the model.")
    source: str = Field(description="Folder or Hub id.")
    revision: str | None = Field(None, description="Commit of the Hub; null for a folder.")
    weights_sha256: str = Field(
        description="Digest of the weight files, config.json and generation_config.json."
    )
    dtype: str
    attn_implementation: str | None = None
    tokenizer_sha256: str
    template_sha256: str | None = None
    engine: str = Field("traced", description="The engine that reads activations.")

    @property
    def sha256(self) -> str:
        """Digest of the decisive fields."""
        fields = {name: getattr(self, name) for name in _DECISIVE}
        return sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    def differences(self, other: "ModelIdentity") -> str:
        """The decisive fields in which `other` differs, with both values."""
        changed = [
            f"{name} {_short(getattr(other, name))} instead of {_short(getattr(self, name))}"
            for name in _DECISIVE
            if getattr(self, name) != getattr(other, name)
        ]
        return ", ".join(changed)


class PinnedModel(Resource):
    """The model of a job, fixed at its submission or first claim."""

    identity: ModelIdentity
    savepoints: dict[str, str] = Field(
        default_factory=dict, description="Savepoint -> hook point, at the time when the job was pinned."
    )


def short(identity_sha256: str | None) -> str:
    """The start of an identity's digest, for display."""
    return "unknown" if identity_sha256 is None else identity_sha256[:_SHORT]


def _short(value: Any) -> str:
    text = str(value)
    return text[:_SHORT] if len(text) == 64 else text
