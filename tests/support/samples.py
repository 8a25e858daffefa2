"""Results and sessions of samples as a worker commits them. A test names what matters to it."""

from typing import Any

import numpy as np

from actograph.contract.resources import SessionFile
from storage.artifacts.store import ArtifactStore
from storage.index.ids import new_session_id
from storage.queue.commit import SampleResult
from storage.queue.leases import LeasedSample
from storage.sessions.manifest import SessionManifest, StoredTensor
from storage.sessions.sessions import NewSession
from storage.sessions.writer import SessionWriter, TensorRows

ROWS = np.arange(12, dtype="<f4").reshape(3, 4)


def result(**changes: Any) -> SampleResult:
    fields: dict[str, Any] = {
        "prompt": "p", "completion": "c", "finish_reason": "length", "prompt_tokens": 2,
        "generated_tokens": 2, "scores": {}, "session_id": None,
    }  # fmt: skip
    return SampleResult(**fields | changes)


def session_of(lease: LeasedSample, **changes: Any) -> NewSession:
    fields: dict[str, Any] = {
        "id": new_session_id(), "job_id": lease.job_id, "sample_id": lease.id,
        "sample_index": lease.sample_index, "condition": "", "epoch": 0, "model": "demo",
        "prompt_tokens": 2, "generated_tokens": 2, "rows": 3, "dtype": "F32", "hooks": {}, "files": [],
        "correct": None,
    }  # fmt: skip
    return NewSession(**fields | changes)


def write_session(store: ArtifactStore, lease: LeasedSample) -> tuple[str, list[SessionFile]]:
    """The files of a session of ROWS, before its row: its id and its files."""
    session_id = new_session_id()
    manifest = SessionManifest(
        session_id=session_id, job_id=lease.job_id, sample_id=lease.id, sample_index=0, model="demo",
        capture={}, capture_sha256="0" * 64, dtype="model", prompt_tokens=2, generated_tokens=2, seed=0,
        created_at=0, tensors={"embed": StoredTensor(shape=(3, 4), dtype="F32")},
    )  # fmt: skip
    with SessionWriter(store, session_id) as writer:
        writer.write_shard([TensorRows("embed", "F32", (3, 4), 0, ROWS)])
        return session_id, writer.finish(manifest, [1, 2, 3, 4])
