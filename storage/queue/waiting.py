"""Queries about the whole queue: waiting jobs, their order, and open samples.

`held` names owners whose quota is used up; their jobs do not start.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.chat_job import CHAT
from actograph.contract.operations import WorkerStatus
from actograph.contract.resources import JobStatus, SampleStatus
from storage.index.ownership import of_everyone
from storage.jobs.jobs import ACTIVE, LOAD
from storage.tables.models import IS_LEASED, EventRow, JobRow, SampleRow, WorkerRow

#: condition on a job: a worker is busy with it
IS_RUN = sa.exists().where(WorkerRow.status == WorkerStatus.BUSY, WorkerRow.job_id == JobRow.id)


def can_start(session: Session, held: Collection[str] = ()) -> tuple[sa.ColumnElement[bool], ...]:
    """Conditions on a job that a worker can begin or continue now.

    The job has a pending sample, or a dataset to read.
    """
    pending, suspect = (
        sa.exists(sa.text("1")).where(SampleRow.job_id == JobRow.id, SampleRow.status == status)
        for status in (SampleStatus.PENDING, SampleStatus.SUSPECT)
    )
    may_start = sa.or_(JobRow.owner.is_(None), JobRow.owner.not_in(held)) if held else sa.true()
    return JobRow.status.in_(ACTIVE), sa.or_(pending, suspect, JobRow.total.is_(None)), may_start


def more_urgent_waits(
    session: Session, priority: int, models: Collection[str], *, held: Collection[str] = ()
) -> bool:
    """True if a job of these models that is more urgent than `priority` has work."""
    statement = sa.select(JobRow.id).where(
        *can_start(session, held), JobRow.priority < priority, JobRow.model.in_(models)
    )
    return session.execute(statement.limit(1)).first() is not None


def behind_chats(session: Session, model: str, priority: int, held: Collection[str] = ()) -> str | None:
    """The next job of a model that is not a chat, has work and no worker; None if there is none.

    Args:
        priority: priority of the chats; more urgent jobs run before them anyway and do not count.
    """
    statement = (
        sa.select(JobRow.id)
        .where(
            *can_start(session, held),
            JobRow.kind.not_in((CHAT, LOAD)),
            JobRow.model == model,
            JobRow.priority >= priority,
            ~IS_RUN,
        )
        .order_by(JobRow.priority, JobRow.created_at, JobRow.id)
    )
    return session.scalars(statement.limit(1)).first()


class WaitingJob(NamedTuple):
    """An active job with work for a worker."""

    id: str
    priority: int
    model: str
    kind: str = ""
    #: identity of the pinned model; None before the job is pinned
    identity_sha256: str | None = None


def claimable(session: Session, held: Collection[str] = ()) -> Sequence[WaitingJob]:
    """Active jobs with work, most urgent first."""
    statement = (
        sa.select(JobRow.id, JobRow.priority, JobRow.model, JobRow.kind, JobRow.identity_sha256)
        .where(*can_start(session, held))
        .order_by(JobRow.priority, JobRow.created_at)
    )
    return [WaitingJob(*row) for row in session.execute(statement)]


def next_for(
    session: Session,
    models: Collection[str],
    loads: Collection[str],
    *,
    held: Collection[str] = (),
    without: Collection[str] = (),
) -> WaitingJob | None:
    """The next job for an idle worker: the most urgent, then the one served longest ago.

    Args:
        models: models whose jobs the worker runs.
        loads: models that the worker loads for a job of kind `load`.
        without: jobs that this worker leaves to others.
    """
    statement = (
        sa.select(JobRow.id, JobRow.priority, JobRow.model, JobRow.kind)
        .where(
            *can_start(session, held),
            sa.or_(
                sa.and_(JobRow.kind != LOAD, JobRow.model.in_(models)),
                sa.and_(JobRow.kind == LOAD, JobRow.model.in_(loads)),
            ),
            # one worker alone reads the dataset, or loads the model
            sa.or_(JobRow.total.is_not(None), ~IS_RUN),
            JobRow.id.not_in(without),
        )
        .order_by(JobRow.priority, sa.nulls_first(JobRow.served_at), JobRow.created_at, JobRow.id)
        .limit(1)
    )
    row = session.execute(statement).first()
    return None if row is None else WaitingJob(*row)


def active_models(session: Session) -> set[str]:
    """Models of active jobs."""
    return set(session.scalars(sa.select(JobRow.model).where(JobRow.status.in_(ACTIVE)).distinct()))


def active_without_event(
    session: Session, model: str, event: str, *, submitted_before: float, limit: int
) -> Sequence[str]:
    """Active jobs of a model without this event in their log, oldest first."""
    logged = sa.exists().where(EventRow.job_id == JobRow.id, EventRow.event == event)
    statement = (
        sa.select(JobRow.id)
        .where(
            JobRow.model == model,
            JobRow.status.in_(ACTIVE),
            JobRow.created_at <= submitted_before,
            ~logged,
        )
        .order_by(JobRow.created_at, JobRow.id)
        .limit(limit)
    )
    return session.scalars(statement).all()


@of_everyone
def place(session: Session, row: JobRow) -> int | None:
    """The place of a job among the queued jobs of all owners, from 1; None if it is not queued."""
    if row.status != JobStatus.QUEUED:
        return None
    order = sa.tuple_(JobRow.priority, JobRow.created_at, JobRow.id)
    own = sa.tuple_(sa.literal(row.priority), sa.literal(row.created_at), sa.literal(row.id))
    before = sa.select(sa.func.count()).where(JobRow.status == JobStatus.QUEUED, order < own)
    return 1 + session.execute(before).scalar_one()


def queued(session: Session, limit: int) -> Sequence[str]:
    """The next queued jobs that the session's owner may see, in the order of service."""
    statement = sa.select(JobRow.id).where(JobRow.status == JobStatus.QUEUED)
    order = (JobRow.priority, JobRow.created_at, JobRow.id)
    return session.scalars(statement.order_by(*order).limit(limit)).all()


@of_everyone
def counts(session: Session) -> dict[JobStatus, int]:
    """Number of jobs in each status that is not terminal."""
    open_ones = [status for status in JobStatus if not status.is_terminal()]
    statement = (
        sa.select(JobRow.status, sa.func.count()).where(JobRow.status.in_(open_ones)).group_by(JobRow.status)
    )
    found = {row[0]: row[1] for row in session.execute(statement)}
    return {status: found.get(status, 0) for status in open_ones}


@of_everyone
def open_samples(session: Session) -> dict[SampleStatus, int]:
    """Number of pending and leased samples of active jobs.

    The counts in the jobs' rows give the pending ones, so a queue of millions is not read.
    """
    open_ones = sa.func.sum(JobRow.total - JobRow.completed - JobRow.failed)
    active = JobRow.status.in_(ACTIVE)
    unended = session.execute(sa.select(open_ones).where(active)).scalar_one() or 0
    leased = session.execute(
        sa.select(sa.func.count())
        .select_from(SampleRow)
        .join(JobRow, JobRow.id == SampleRow.job_id)
        .where(active, IS_LEASED, SampleRow.worker_id.is_not(None))
    ).scalar_one()
    return {SampleStatus.PENDING: max(0, int(unended) - leased), SampleStatus.LEASED: leased}
