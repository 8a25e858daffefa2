"""Manifests of sessions, for readers of a store or folder without a service."""

from pydantic import BaseModel, ValidationError

from actograph.client.matrix.chosen_rows import NamedSpan
from actograph.contract.errors import StoreDamaged
from actograph.contract.resources import Session, SessionFile, TensorInfo

MANIFEST_NAME = "manifest.json"


class Manifest(BaseModel):
    """Parts of a manifest that describe a session. Verdict, tags and expiry are in the service's index."""

    session_id: str
    job_id: str
    sample_id: str
    sample_index: int
    condition: str | None = None
    epoch: int = 0
    model: str
    identity_sha256: str | None = None
    dtype: str
    prompt_tokens: int
    generated_tokens: int
    created_at: int
    tensors: dict[str, TensorInfo]
    files: list[SessionFile] = []
    segments: list[NamedSpan] = []

    def session(self) -> Session:
        """Return the session without what only the index knows: `correct`, `tags`, `owner`, ..."""
        same = self.model_dump(exclude={"session_id", "tensors", "files", "segments"})
        ran = self.prompt_tokens + max(0, self.generated_tokens - 1)
        return Session(
            **same, id=self.session_id, rows=ran, bytes=sum(file.bytes for file in self.files),
            hooks=self.tensors, files=self.files,
        )  # fmt: skip


def read_manifest(data: bytes) -> Manifest:
    """Parse a manifest.

    Raises:
        StoreDamaged: it is not one of a session.
    """
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        raise StoreDamaged(f"{MANIFEST_NAME} cannot be read: {error}") from error
