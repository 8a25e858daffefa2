"""Current state of queue, workers and store, for monitoring."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.operations import WorkerStatus
from actograph.contract.resources import JobStatus, SampleStatus
from storage.index.database import now
from storage.queue import pause, waiting, workers
from storage.tables.models import FileRow, JobRow, SessionRow, WorkerRow


@dataclass(frozen=True, kw_only=True)
class Gauges:
    """The gauges of one moment."""

    jobs: dict[JobStatus, int]
    #: age of the longest waiting job; 0 if none waits
    oldest_queued_seconds: float
    #: samples of active jobs
    samples: dict[SampleStatus, int]
    is_paused: bool
    workers: dict[WorkerStatus, int]
    #: workers that have not ended
    live: Sequence[WorkerRow]
    #: time of the reading in Unix seconds
    moment: float
    sessions: int
    session_rows: int
    session_bytes: int
    files: int
    file_bytes: int


def read(session: Session) -> Gauges:
    """Read all gauges. Indexes count all but the few workers."""
    moment = now(session)
    jobs = dict.fromkeys(JobStatus, 0)
    known_statuses = sa.select(JobRow.status, sa.func.count()).where(JobRow.status.in_(list(JobStatus)))
    for status, count in session.execute(known_statuses.group_by(JobRow.status)):
        jobs[JobStatus(status)] = count
    oldest = session.execute(
        sa.select(sa.func.min(JobRow.created_at)).where(JobRow.status == JobStatus.QUEUED)
    ).scalar_one()
    known = workers.find(session)
    by_status = dict.fromkeys(WorkerStatus, 0)
    for row in known:
        by_status[WorkerStatus(row.status)] += 1
    stored = session.execute(
        sa.select(sa.func.count(), sa.func.sum(SessionRow.rows), sa.func.sum(SessionRow.bytes))
    ).one()
    uploaded = session.execute(sa.select(sa.func.count(), sa.func.sum(FileRow.bytes))).one()
    return Gauges(
        jobs=jobs,
        oldest_queued_seconds=max(0.0, moment - oldest) if oldest is not None else 0.0,
        samples=waiting.open_samples(session),
        is_paused=pause.holds(session),
        workers=by_status,
        live=[row for row in known if row.status in workers.LIVE],
        moment=moment,
        sessions=stored[0],
        session_rows=int(stored[1] or 0),
        session_bytes=int(stored[2] or 0),
        files=uploaded[0],
        file_bytes=int(uploaded[1] or 0),
    )
