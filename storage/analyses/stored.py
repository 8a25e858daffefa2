"""Stored results of analyses that read the sessions of a job."""

import csv
import io
from collections.abc import Sequence

import numpy as np
import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.analyses import AnalysisKind
from actograph.contract.resources import JobStatus
from storage.artifacts.checked_files import CheckedFile
from storage.artifacts.store import ArtifactStore
from storage.index.ids import among
from storage.jobs import jobs
from storage.sessions import sessions
from storage.sessions.selected_rows import Floats
from storage.tables.models import SessionRow

#: newest analyses of a kind that are looked through
_JOBS = 100
#: larger files are not read
_MOST_BYTES = 32 << 20


def of_job(session: Session, kind: AnalysisKind, job_id: str) -> Sequence[SessionRow]:
    """The results of completed analyses of a job, or of sessions of it, newest first."""
    done, _ = jobs.find(session, {"kind": kind, "status": JobStatus.COMPLETED}, limit=_JOBS)
    queries = {job.id: job.spec["sessions"] for job in done}
    named = {one for query in queries.values() for one in query.get("ids", ())}
    of_job = SessionRow.job_id == job_id
    own = set(session.scalars(sa.select(SessionRow.id).where(of_job, among(session, SessionRow.id, named))))
    chosen = [
        name
        for name, query in queries.items()
        if job_id in query["jobs"] or own.intersection(query.get("ids", ()))
    ]
    statement = sa.select(SessionRow).where(SessionRow.job_id.in_(chosen))
    return session.scalars(statement.order_by(SessionRow.created_at.desc())).all()


def direction(store: ArtifactStore, results: SessionRow, hook: str) -> Floats:
    """The direction of a hook's probe; empty without one."""
    data = _read(store, results, "directions.npz")
    if not data:
        return np.zeros(0)
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return np.asarray(arrays.get(hook, []), dtype=np.float64)


def lens(
    store: ArtifactStore, results: SessionRow, session_id: str, hook: str, token: int
) -> list[tuple[str, float]]:
    """Text and log probability of the next tokens of a row, best first; none if the row is not listed."""
    lines = csv.DictReader(io.StringIO(_read(store, results, "lens.csv").decode(), newline=""))
    cell = {"session_id": session_id, "hook": hook, "position": str(token)}
    return [(line["text"], float(line["log_probability"])) for line in lines if cell.items() <= line.items()]


def _read(store: ArtifactStore, results: SessionRow, name: str) -> bytes:
    """A file of the results; empty if there is none, or if it is too large."""
    file = sessions.files_of(results).get(name)
    if file is None or file.bytes > _MOST_BYTES:
        return b""
    checked = CheckedFile(store, f"sessions/{results.id}/{name}", size=file.bytes, sha256=file.sha256)
    return b"".join(checked.stream())
