"""Sessions that hold files of results, and no tensors: those of analyses and of patched pairs."""

import hashlib
import io
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from actograph.contract.analyses import ANALYSIS
from actograph.contract.base import canonical_digest
from actograph.contract.errors import ServiceUnavailable
from actograph.contract.resources import SessionFile
from storage.artifacts.store import ArtifactStore
from storage.queue.leases import LeasedSample
from storage.sessions.manifest import MANIFEST_NAME, SessionManifest
from storage.sessions.sessions import NewSession
from storage.sessions.writer import session_prefix


def store(artifacts: ArtifactStore, lease: LeasedSample, contents: Iterable[tuple[str, bytes]]) -> NewSession:
    """Write the announced session of a lease.

    Args:
        contents: name and bytes of each file.

    Raises:
        ServiceUnavailable: the store cannot be written to.
    """
    assert lease.session_id is not None
    written: list[SessionFile] = []
    try:
        with artifacts.stage(session_prefix(lease.session_id)) as stage:

            def write(name: str, data: bytes) -> None:
                with stage.create(name) as file:
                    file.write(data)
                digest = hashlib.sha256(data).hexdigest()
                written.append(SessionFile(name=name, bytes=len(data), sha256=digest))

            for name, data in contents:
                write(name, data)
            write(MANIFEST_NAME, _manifest(lease, written).encode().encode())
            stage.commit()
    except OSError as error:
        raise ServiceUnavailable(f"session {lease.session_id} could not be written: {error}") from error
    return NewSession(
        id=lease.session_id,
        job_id=lease.job_id,
        sample_id=lease.id,
        sample_index=lease.sample_index,
        condition=lease.condition,
        epoch=lease.epoch,
        model=ANALYSIS,
        prompt_tokens=0,
        generated_tokens=0,
        rows=0,
        dtype="",
        hooks={},
        files=written,
        correct=None,
    )


def npz(arrays: Mapping[str, Any]) -> bytes:
    """Arrays as a file of numpy."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _manifest(lease: LeasedSample, files: Iterable[SessionFile]) -> SessionManifest:
    assert lease.session_id is not None
    return SessionManifest(
        session_id=lease.session_id,
        job_id=lease.job_id,
        sample_id=lease.id,
        sample_index=lease.sample_index,
        model=ANALYSIS,
        capture={},
        capture_sha256=canonical_digest({}),
        dtype="",
        prompt_tokens=0,
        generated_tokens=0,
        seed=0,
        created_at=int(time.time()),
        tensors={},
        files=list(files),
    )
