"""The SAEs of a job: their rows in the index, and their weights as files that the engine can read."""

import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session

from actograph.contract.errors import InvalidRequest, NotFound
from actograph.contract.models import ModelStructure
from actograph.contract.saes import Sae, latents_name, require_distinct, resolve_sae
from actograph.contract.specs import CaptureSpec
from storage.artifacts.checked_files import CheckedFile
from storage.artifacts.store import ArtifactStore
from storage.files import files
from storage.index.database import Database
from storage.saes import saes
from storage.sessions.manifest import AppliedSae
from worker.engine.messages import Encoding


@dataclass(frozen=True)
class SaeInUse:
    """An SAE of a capture, ready for the engine.

    Attributes:
        weights: keeps the file of its weights.
    """

    sae: Sae
    encoding: Encoding
    weights: "SaeWeights"

    @property
    def record(self) -> AppliedSae:
        """The entry of the manifest."""
        sae, encoding = self.sae, self.encoding
        return AppliedSae(
            id=sae.id,
            name=sae.name,
            hook=encoding.hook,
            top=encoding.top,
            config=sae.config,
            sha256=sae.sha256,
            source=sae.source,
        )


class SaeWeights:
    """The weights of an SAE in a file of this machine: that of a local store, or a copy.

    A copy is removed when nothing refers to it.

    Raises:
        StoreDamaged: the stored file is not what was written.
    """

    def __init__(self, store: ArtifactStore, file: CheckedFile) -> None:
        local = store.local_path(file.key)
        if local is not None:
            file.check_whole()
            self.path = local
            return
        with tempfile.NamedTemporaryFile(prefix="actograph-sae-", delete=False) as copy:
            self.path = Path(copy.name)
            self._remove = weakref.finalize(self, self.path.unlink, missing_ok=True)
            for piece in file.stream():
                copy.write(piece)


def saes_of(
    database: Database, capture: CaptureSpec, model: str, structure: ModelStructure, store: ArtifactStore
) -> Mapping[str, SaeInUse]:
    """The SAEs of a capture, by the name of their latents.

    Args:
        structure: of the loaded model.

    Raises:
        InvalidRequest: an SAE was deleted, or does not suit the model.
        UnknownHook: the model has no such hook.
        StoreDamaged: see `SaeWeights`.
    """
    if not capture.saes:
        return {}
    with database.read() as session:
        stored = [
            stored_sae(session, one.sae, store, f"capture.saes.{place}.sae")
            for place, one in enumerate(capture.saes)
        ]
    require_distinct(sae.name for sae, _ in stored)
    found: dict[str, SaeInUse] = {}
    for place, (one, (sae, file)) in enumerate(zip(capture.saes, stored, strict=True)):
        hook = resolve_sae(one, sae, model, structure, f"capture.saes.{place}")
        weights = SaeWeights(store, file)
        name = latents_name(sae.name)
        encoding = Encoding(
            name=name,
            hook=hook,
            top=min(one.top, sae.config.d_sae),
            config=sae.config,
            sha256=sae.sha256,
            path=str(weights.path),
        )
        found[name] = SaeInUse(sae, encoding, weights)
    return found


def stored_sae(session: Session, sae_id: str, store: ArtifactStore, param: str) -> tuple[Sae, CheckedFile]:
    """The SAE that a spec names in a field, and the file of its weights. Raises InvalidRequest."""
    try:
        row = saes.get(session, sae_id)
        return saes.resource(row), files.stored(files.get(session, row.file_id), store)
    except NotFound:
        raise InvalidRequest(
            f"{param}: there is no SAE {sae_id}; it was deleted after the job was submitted", param=param
        ) from None
