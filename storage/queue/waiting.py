"""Queries about the whole queue: counts of jobs and samples, and models with work."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.resources import JobStatus, SampleStatus
from storage.index.visible import of_everyone
from storage.jobs.jobs import ACTIVE
from storage.queue.claim import ORDER
from storage.tables.models import HAS_PENDING, IS_LEASED, EventRow, JobRow, SampleRow


def with_work(session: Session) -> Sequence[str]:
    """Jobs that a worker can begin or continue, in the order of service."""
    return session.scalars(sa.select(JobRow.id).where(HAS_PENDING).order_by(*ORDER)).all()


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


def queued(session: Session, limit: int) -> Sequence[str]:
    """The next queued jobs that the session's owner may see, in the order of service."""
    statement = sa.select(JobRow.id).where(JobRow.status == JobStatus.QUEUED)
    return session.scalars(statement.order_by(*ORDER).limit(limit)).all()


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
