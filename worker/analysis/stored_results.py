"""The results of an analysis as a session: JSON, CSV files, a figure and a manifest, without tensors."""

import csv
import hashlib
import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from actograph.contract.analyses import ANALYSIS, RESULT_FILE
from actograph.contract.base import canonical_digest
from actograph.contract.errors import ServiceUnavailable
from actograph.contract.resources import SessionFile
from actograph.report.analysis_figures import figures_of
from storage.artifacts.store import ArtifactStore
from storage.queue.leases import LeasedSample
from storage.sessions.manifest import MANIFEST_NAME, SessionManifest
from storage.sessions.sessions import NewSession
from storage.sessions.writer import session_prefix
from worker.analysis.run import AnalysisResults

DIRECTIONS_FILE = "directions.npz"


def store_results(store: ArtifactStore, lease: LeasedSample, results: AnalysisResults) -> NewSession:
    """Write the announced session of a lease.

    Raises:
        ServiceUnavailable: the store cannot be written to.
    """
    assert lease.session_id is not None
    written: list[SessionFile] = []
    try:
        with store.stage(session_prefix(lease.session_id)) as stage:
            for name, data in _contents(results):
                with stage.create(name) as file:
                    file.write(data)
                written.append(
                    SessionFile(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
                )
            data = _manifest(lease, written).encode().encode()
            with stage.create(MANIFEST_NAME) as file:
                file.write(data)
            stage.commit()
    except OSError as error:
        raise ServiceUnavailable(f"session {lease.session_id} could not be written: {error}") from error
    manifest = SessionFile(name=MANIFEST_NAME, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
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
        files=[*written, manifest],
        correct=None,
    )


def _contents(results: AnalysisResults) -> Iterator[tuple[str, bytes]]:
    yield RESULT_FILE, (results.body.model_dump_json(indent=1) + "\n").encode()
    for name, lines in results.tables.items():
        yield f"{name}.csv", _csv(lines)
    if results.arrays:
        file = io.BytesIO()
        np.savez(file, **results.arrays)  # type: ignore[arg-type]
        yield DIRECTIONS_FILE, file.getvalue()
    for figure in figures_of(results.body):
        yield f"{figure.name}.png", figure.png
        yield f"{figure.name}.svg", figure.svg


def _csv(lines: Sequence[Mapping[str, Any]]) -> bytes:
    columns = list(dict.fromkeys(name for line in lines for name in line))
    text = io.StringIO()
    # the usual line end: with another one, the writer would not quote a token that is "\r"
    writer = csv.DictWriter(text, columns, lineterminator="\r\n")
    writer.writeheader()
    for line in lines:
        writer.writerow(
            {
                name: json.dumps(value) if isinstance(value, list | dict) else value
                for name, value in line.items()
            }
        )
    return text.getvalue().encode()


def _manifest(lease: LeasedSample, files: Sequence[SessionFile]) -> SessionManifest:
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
