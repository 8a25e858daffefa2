"""Forecast of when jobs end, from the index alone.

Workers serve jobs of the most urgent priority first, and jobs of one priority in turns. Turns are short
compared with jobs, so jobs of one priority are assumed to share the workers evenly at every moment
(processor sharing, https://en.wikipedia.org/wiki/Processor_sharing).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.resources import JobStatus, SampleStatus
from storage.index.database import now
from storage.index.ownership import of_everyone
from storage.jobs import jobs
from storage.jobs.jobs import LOAD
from storage.queue import pause, workers
from storage.tables.models import JobRow, SampleRow, WorkerRow

#: weight of older batches when a new one is measured: about the last ten count
KEPT_WEIGHT = 0.9
#: jobs in a forecast; jobs further behind have none
MOST_JOBS = 200
#: latest ended jobs of a model and kind that are searched for one like a queued job
MOST_ENDED = 100


@dataclass(frozen=True, kw_only=True)
class Work:
    """Remaining work of a job."""

    job_id: str
    priority: int
    #: time of one worker; infinite if unknown
    worker_seconds: float


def remaining(left: int, seconds_per_sample: float | None, running: Sequence[tuple[int, float]]) -> float:
    """Worker-seconds that `left` samples still take.

    Args:
        left: samples that have not ended, leased ones included.
        seconds_per_sample: worker-seconds; None if unknown.
        running: number of samples and elapsed seconds of each running batch. A batch counts as done no
            further than its expected time allows.
    """
    if seconds_per_sample is None:
        return math.inf
    done = sum(min(elapsed, samples * seconds_per_sample) for samples, elapsed in running)
    return max(0.0, left * seconds_per_sample - done)


def ends(work: Sequence[Work], workers: int) -> Mapping[str, float]:
    """Seconds from now until each job ends, without jobs whose end is unknown.

    A job of unknown work counts as endless: jobs of its priority share with it, and less urgent jobs have no
    known end.
    """
    found: dict[str, float] = {}
    if workers <= 0:
        return found
    clock = 0.0
    in_order = sorted(work, key=lambda one: (one.priority, one.worker_seconds))
    for _, siblings in groupby(in_order, key=lambda one: one.priority):
        sharing = list(siblings)
        done = 0.0  # worker-seconds that each running job has had
        for place, one in enumerate(sharing):
            if math.isinf(one.worker_seconds):
                return found
            clock += (one.worker_seconds - done) * (len(sharing) - place) / workers
            done = one.worker_seconds
            found[one.job_id] = clock
    return found


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
        """Jobs of one likeness are assumed to need the same time for a sample."""
        return self.model, self.kind, self.max_tokens

    @property
    def seconds_per_sample(self) -> float | None:
        return self.recent_seconds / self.recent_samples if self.recent_samples > 0 else None


@of_everyone
def etas(session: Session) -> Mapping[str, float]:
    """Job -> seconds until it ends, without jobs whose end is unknown.

    It is known if the queue is not paused, a worker holds the job's model, and the job or one like it (same
    model, kind and max_tokens) has run. Workers are assumed to keep their models.
    """
    if pause.holds(session):
        return {}
    active = _read(session, JobRow.status.in_(jobs.ACTIVE), JobRow.kind != LOAD, by_turn=True)
    if not active:
        return {}
    known = _costs(session, active)
    running = _running(session, [job.id for job in active if job.status == JobStatus.IN_PROGRESS])
    work: dict[str, list[Work]] = defaultdict(list)
    for job in active:
        cost = job.seconds_per_sample or known.get(job.likeness)
        left = remaining(job.left or 0, cost if job.left is not None else None, running[job.id])
        work[job.model].append(Work(job_id=job.id, priority=job.priority, worker_seconds=left))
    holders = Counter(session.scalars(sa.select(WorkerRow.model).where(WorkerRow.status.in_(workers.LIVE))))
    found: dict[str, float] = {}
    for model, its_work in work.items():
        found |= ends(its_work, holders[model])
    return found


def measure(session: Session, job_id: str, *, samples: int, seconds: float) -> None:
    """Count a batch of `samples` that took one worker `seconds`, including the time before the batch."""
    row = jobs.lock(session, job_id)
    row.recent_samples = row.recent_samples * KEPT_WEIGHT + samples
    row.recent_seconds = row.recent_seconds * KEPT_WEIGHT + seconds


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
    """Seconds per sample of each likeness: of a running job, else of the last ended one."""
    known: dict[tuple[str, str, int | None], float] = {}
    for job in sorted(active, key=lambda one: one.recent_samples):
        if job.seconds_per_sample is not None:
            known[job.likeness] = job.seconds_per_sample
    wanted = {job.likeness for job in active if job.seconds_per_sample is None} - set(known)
    # one kind at a time: an index has the jobs of a kind in the order of time
    for model, kind in sorted({(model, kind) for model, kind, _ in wanted}):
        of_kind = (JobRow.kind == kind, JobRow.model == model, JobRow.status.not_in(jobs.ACTIVE))
        for job in reversed(_read(session, *of_kind, by_turn=False)):
            if job.likeness in wanted and job.seconds_per_sample is not None:
                known[job.likeness] = job.seconds_per_sample
    return known


def _running(session: Session, job_ids: Sequence[str]) -> Mapping[str, list[tuple[int, float]]]:
    """Job -> number of samples and elapsed seconds of each running batch."""
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
