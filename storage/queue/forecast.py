"""Foretells when the jobs of the queue will end, from the index alone."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.resources import JobStatus, SampleStatus
from storage.index.database import now
from storage.index.ownership import of_everyone
from storage.jobs import jobs
from storage.jobs.job_control import LOAD
from storage.queue import eta, queue_pause, workers
from storage.tables.models import JobRow, SampleRow, WorkerRow

#: jobs that are looked at: those behind so many are not foretold
MOST_JOBS = 200
#: latest ended jobs of a kind and model among which one like a job that has not begun is sought
MOST_ENDED = 100


class _Job(NamedTuple):
    id: str
    status: str
    priority: int
    model: str
    kind: str
    max_tokens: int | None
    left: int | None
    recent_samples: float
    recent_seconds: float

    @property
    def likeness(self) -> tuple[str, str, int | None]:
        """Jobs of one likeness are taken to need the same time for a sample."""
        return self.model, self.kind, self.max_tokens

    @property
    def seconds_per_sample(self) -> float | None:
        return self.recent_seconds / self.recent_samples if self.recent_samples > 0 else None


@of_everyone
def etas(session: Session) -> Mapping[str, float]:
    """Job -> seconds until it ends; without those whose end cannot be told.

    It can where the queue is not paused, a worker holds the job's model, and the job or one like it
    (same model, kind and max_tokens) has run. A change of the model that a worker holds is not foreseen.
    """
    if queue_pause.holds(session):
        return {}
    active = _read(session, JobRow.status.in_(jobs.ACTIVE), JobRow.kind != LOAD, by_turn=True)
    if not active:
        return {}
    known = _costs(session, active)
    in_hand = _in_hand(session, [job.id for job in active if job.status == JobStatus.IN_PROGRESS])
    work: dict[str, list[eta.Work]] = defaultdict(list)
    for job in active:
        cost = job.seconds_per_sample or known.get(job.likeness)
        left = eta.remaining(job.left or 0, cost if job.left is not None else None, in_hand[job.id])
        work[job.model].append(eta.Work(job_id=job.id, priority=job.priority, worker_seconds=left))
    holders = Counter(session.scalars(sa.select(WorkerRow.model).where(WorkerRow.status.in_(workers.LIVE))))
    found: dict[str, float] = {}
    for model, its_work in work.items():
        found |= eta.ends(its_work, holders[model])
    return found


def measure(session: Session, job_id: str, *, samples: int, seconds: float) -> None:
    """Count a unit of `samples` that took one worker so long, what lay before it included."""
    row = jobs.lock(session, job_id)
    row.recent_samples = row.recent_samples * eta.KEPT_WEIGHT + samples
    row.recent_seconds = row.recent_seconds * eta.KEPT_WEIGHT + seconds


def _read(session: Session, *where: sa.ColumnElement[bool], by_turn: bool) -> list[_Job]:
    max_tokens: Any = JobRow.spec["sampling"]["max_tokens"].as_integer()
    statement = sa.select(
        JobRow.id,
        JobRow.status,
        JobRow.priority,
        JobRow.model,
        JobRow.kind,
        max_tokens,
        JobRow.total - JobRow.completed - JobRow.failed,
        JobRow.recent_samples,
        JobRow.recent_seconds,
    ).where(*where)
    if by_turn:
        statement = statement.order_by(JobRow.priority, JobRow.created_at).limit(MOST_JOBS)
    else:
        statement = statement.order_by(JobRow.created_at.desc()).limit(MOST_ENDED)
    return [_Job(*row) for row in session.execute(statement)]


def _costs(session: Session, active: Sequence[_Job]) -> dict[tuple[str, str, int | None], float]:
    """Seconds per sample of each likeness: of a job that runs, else of the last one that ended."""
    known: dict[tuple[str, str, int | None], float] = {}
    for job in sorted(active, key=lambda one: one.recent_samples):
        if job.seconds_per_sample is not None:
            known[job.likeness] = job.seconds_per_sample
    wanted = {job.likeness for job in active if job.seconds_per_sample is None} - set(known)
    # by kind, since an index has the jobs of a kind in the order of time
    for model, kind in sorted({(model, kind) for model, kind, _ in wanted}):
        of_kind = (JobRow.kind == kind, JobRow.model == model, JobRow.status.not_in(jobs.ACTIVE))
        for job in reversed(_read(session, *of_kind, by_turn=False)):
            if job.likeness in wanted and job.seconds_per_sample is not None:
                known[job.likeness] = job.seconds_per_sample
    return known


def _in_hand(session: Session, job_ids: Sequence[str]) -> Mapping[str, list[tuple[int, float]]]:
    """For each job the units that are being run: their samples, and for how long they have run."""
    moment = now(session)
    statement = (
        sa.select(SampleRow.job_id, sa.func.count(), SampleRow.started_at)
        .where(
            SampleRow.job_id.in_(job_ids),
            SampleRow.status == SampleStatus.LEASED,
            SampleRow.lease_until >= moment,
        )
        .group_by(SampleRow.job_id, SampleRow.worker_id, SampleRow.started_at)
    )
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for job_id, samples, started_at in session.execute(statement):
        found[job_id].append((samples, max(0.0, moment - (started_at or moment))))
    return found
