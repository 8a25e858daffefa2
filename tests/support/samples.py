"""Results and sessions of samples as a worker commits them. A test names what matters to it."""

from typing import Any

import numpy as np
import sqlalchemy as sa

from actograph.contract.resources import SessionFile
from storage.artifacts.store import ArtifactStore
from storage.files import files
from storage.index import visible
from storage.index.database import Database
from storage.queue.commit import SampleResult
from storage.queue.leases import LeasedSample
from storage.sessions.manifest import SessionManifest, StoredTensor
from storage.sessions.sessions import NewSession
from storage.sessions.writer import SessionWriter, TensorRows
from storage.tables.models import FileRow, JobRow, SessionRow

ROWS = np.arange(12, dtype="<f4").reshape(3, 4)


def result(**changes: Any) -> SampleResult:
    fields: dict[str, Any] = {
        "prompt": "p", "completion": "c", "finish_reason": "length", "prompt_tokens": 2,
        "generated_tokens": 2, "scores": {}, "session_id": None,
    }  # fmt: skip
    return SampleResult(**fields | changes)


def session_of(lease: LeasedSample, **changes: Any) -> NewSession:
    fields: dict[str, Any] = {
        "id": lease.session_id, "job_id": lease.job_id, "sample_id": lease.id,
        "sample_index": lease.sample_index, "condition": "", "epoch": 0, "model": "demo",
        "prompt_tokens": 2, "generated_tokens": 2, "rows": 3, "dtype": "F32", "hooks": {}, "files": [],
        "correct": None,
    }  # fmt: skip
    return NewSession(**fields | changes)


def manifest_of(session_id: str, tensors: dict[str, StoredTensor], /, **changes: Any) -> SessionManifest:
    fields: dict[str, Any] = {
        "session_id": session_id, "job_id": "job_1", "sample_id": "smp_1", "sample_index": 0, "model": "demo",
        "capture": {}, "capture_sha256": "0" * 64, "dtype": "model", "prompt_tokens": 2,
        "generated_tokens": 2, "seed": 0, "created_at": 0, "tensors": tensors,
    }  # fmt: skip
    return SessionManifest(**fields | changes)


def write_session(
    store: ArtifactStore, lease: LeasedSample, session_id: str | None = None
) -> tuple[str, list[SessionFile]]:
    """The files of the announced session of a lease, or of another one, with ROWS: its id and its files."""
    session_id = session_id or lease.session_id
    assert session_id is not None
    of_lease = {"job_id": lease.job_id, "sample_id": lease.id}
    manifest = manifest_of(session_id, {"embed": StoredTensor(shape=(3, 4), dtype="F32")}, **of_lease)
    with SessionWriter(store, session_id) as writer:
        writer.write_shard([TensorRows("embed", "F32", (3, 4), 0, ROWS)])
        return session_id, writer.finish(manifest, [1, 2, 3, 4])


def add_file(database: Database, **values: Any) -> str:
    """A stored file in the index; its bytes are the test's to store. Returns its id."""
    fields: dict[str, Any] = {"filename": "f", "purpose": "dataset"}
    size, sha256 = values.pop("size", 1), values.pop("sha256", "0" * 64)
    with database.write() as session:
        file_id = files.announce(session, **fields | values)
        files.publish(session, file_id, size=size, sha256=sha256)
    return file_id


def age_removals(database: Database) -> None:
    """Let every removal be due: of what is in the making too, and of the reaper's next attempts."""
    with database.write() as session, visible.hidden_too(session):
        for row in (JobRow, SessionRow, FileRow):
            session.execute(sa.update(row).where(row.removal_due_at.is_not(None)).values(removal_due_at=1.0))
