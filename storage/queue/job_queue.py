"""Queries about the whole queue: waiting jobs, their order, and open samples."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.chat.chat_job import KIND as CHAT
from actograph.contract.resources import JobStatus, SampleStatus, WorkerStatus
from storage.index.database import now
from storage.index.ownership import of_everyone
from storage.jobs.jobs import ACTIVE, LOAD
from storage.tables.models import IS_LEASED, EventRow, JobRow, SampleRow, WorkerRow

#: condition on a job: a worker is busy with it
IS_RUN = sa.exists().where(WorkerRow.status == WorkerStatus.BUSY, WorkerRow.job_id == JobRow.id)


def more_urgent_waits(
    session: Session,
    job_id: str,
    priority: int,
    models: Collection[str] | None = None,
    *,
    held: Collection[str] = (),
) -> bool:
    """True if a job more urgent than `priority` has pending samples.

    Args:
        models: count only jobs of these models; None counts all.
        held: owners whose quota is used up; their jobs do not start.
    """
    waiting = (
        sa.select(SampleRow.id)
        .where(SampleRow.job_id == JobRow.id, SampleRow.status == SampleStatus.PENDING)
        .exists()
    )
    statement = sa.select(JobRow.id).where(
        JobRow.status.in_(ACTIVE),
        JobRow.priority < priority,
        JobRow.id != job_id,
        sa.or_(waiting, JobRow.total.is_(None)),
        not_held(held),
    )
    if models is not None:
        statement = statement.where(JobRow.model.in_(models))
    return session.execute(statement.limit(1)).first() is not None


def behind_chats(session: Session, model: str, priority: int, held: Collection[str] = ()) -> str | None:
    """The next job of a model that is not a chat, has work and no worker; None if there is none.

    Args:
        priority: priority of the chats; more urgent jobs run before them anyway and do not count.
        held: owners whose quota is used up; their jobs do not start.
    """
    statement = (
        sa.select(JobRow.id)
        .where(
            JobRow.kind.not_in((CHAT, LOAD)),
            JobRow.model == model,
            JobRow.priority >= priority,
            JobRow.status.in_(ACTIVE),
            has_work(now(session)),
            not_held(held),
            ~IS_RUN,
        )
        .order_by(JobRow.priority, JobRow.created_at, JobRow.id)
    )
    return session.scalars(statement.limit(1)).first()


def has_work(moment: float) -> sa.ColumnElement[bool]:
    """Condition on a job: it has a sample without a valid lease, or a dataset to read."""
    # two index lookups; a single one for both would read samples until one fits
    pending, expired = (
        sa.exists(sa.text("1")).where(SampleRow.job_id == JobRow.id, *which)
        for which in (
            (SampleRow.status == SampleStatus.PENDING,),
            (SampleRow.status == SampleStatus.LEASED, SampleRow.lease_until < moment),
        )
    )
    return sa.or_(pending, expired, JobRow.total.is_(None))


def not_held(owners: Collection[str]) -> sa.ColumnElement[bool]:
    """Condition on a job: its owner is not one of these."""
    return sa.or_(JobRow.owner.is_(None), JobRow.owner.not_in(owners)) if owners else sa.true()


class WaitingJob(NamedTuple):
    """An active job with work for a worker."""

    id: str
    priority: int
    model: str
    kind: str = ""
    #: identity of the pinned model; None before the job is pinned
    identity_sha256: str | None = None


def claimable(session: Session, held: Collection[str] = ()) -> Sequence[WaitingJob]:
    """Active jobs with work, most urgent first.

    Args:
        held: owners whose quota is used up; their jobs do not start.
    """
    statement = (
        sa.select(JobRow.id, JobRow.priority, JobRow.model, JobRow.kind, JobRow.identity_sha256)
        .where(
            JobRow.status.in_(ACTIVE),
            has_work(now(session)),
            not_held(held),
        )
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
        held: owners whose quota is used up; their jobs do not start.
        without: jobs that this worker leaves to others.
    """
    statement = (
        sa.select(JobRow.id, JobRow.priority, JobRow.model, JobRow.kind)
        .where(
            JobRow.status.in_(ACTIVE),
            sa.or_(
                sa.and_(JobRow.kind != LOAD, JobRow.model.in_(models)),
                sa.and_(JobRow.kind == LOAD, JobRow.model.in_(loads)),
            ),
            has_work(now(session)),
            # one worker alone reads the dataset, or loads the model
            sa.or_(JobRow.total.is_not(None), ~IS_RUN),
            not_held(held),
            JobRow.id.not_in(without),
        )
        .order_by(JobRow.priority, sa.nulls_first(JobRow.served_at), JobRow.created_at, JobRow.id)
        .limit(1)
    )
    row = session.execute(statement).first()
    return None if row is None else WaitingJob(*row)


def unended(session: Session) -> Sequence[str]:
    """Ids of jobs that `end_if_done` may end."""
    open_sample = (
        sa.select(SampleRow.id)
        .where(
            SampleRow.job_id == JobRow.id,
            SampleRow.status.in_((SampleStatus.PENDING, SampleStatus.LEASED)),
        )
        .exists()
    )
    statement = sa.select(JobRow.id).where(
        sa.or_(
            JobRow.status == JobStatus.CANCELLING,
            sa.and_(JobRow.status.in_(ACTIVE), JobRow.total.is_not(None), ~open_sample),
        )
    )
    return session.scalars(statement).all()


def active_models(session: Session) -> set[str]:
    """Models of active jobs."""
    return set(session.scalars(sa.select(JobRow.model).where(JobRow.status.in_(ACTIVE)).distinct()))


def active_without_event(
    session: Session, model: str, event: str, *, submitted_before: float, limit: int
) -> Sequence[str]:
    """Active jobs of a model without this event in their log, oldest first."""
    logged = sa.select(EventRow.id).where(EventRow.job_id == JobRow.id, EventRow.event == event).exists()
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
def queue_positions(session: Session) -> dict[str, int]:
    """Queued job -> place, counted from 1."""
    statement = (
        sa.select(JobRow.id)
        .where(JobRow.status == JobStatus.QUEUED)
        .order_by(JobRow.priority, JobRow.created_at, JobRow.id)
    )
    return {job_id: place for place, job_id in enumerate(session.scalars(statement), start=1)}


@of_everyone
def places(session: Session, job_ids: Collection[str]) -> dict[str, int]:
    """The places of these jobs, without those that are not queued."""
    columns = (JobRow.id, JobRow.status, JobRow.priority, JobRow.created_at)
    chosen = sa.select(*columns).where(JobRow.id.in_(job_ids), JobRow.status == JobStatus.QUEUED)
    found = session.execute(chosen).all() if job_ids else []
    return {row.id: _place(session, row) for row in found}


def next_of_own(session: Session) -> list[str]:
    """Queued jobs that are visible to the session, in the order of service."""
    visible = set(session.scalars(sa.select(JobRow.id).where(JobRow.status == JobStatus.QUEUED)))
    return [job_id for job_id in queue_positions(session) if job_id in visible]


@of_everyone
def queue_position(session: Session, row: JobRow) -> int | None:
    """The place of one job among queued jobs; None if it is not queued."""
    return _place(session, row) if row.status == JobStatus.QUEUED else None


def _place(session: Session, row: Any) -> int:
    """Counted on an index alone, so it is cheap among thousands of jobs."""
    place = {"priority": row.priority, "created_at": row.created_at, "job_id": row.id}
    return 1 + int(session.connection().execute(_BEFORE, place).scalar_one())


def _jobs_before() -> sa.Select[Any]:
    priority: sa.BindParameter[int] = sa.bindparam("priority")
    created_at: sa.BindParameter[float] = sa.bindparam("created_at")
    same = (JobRow.status == JobStatus.QUEUED, JobRow.priority == priority)
    before = (
        (JobRow.status == JobStatus.QUEUED, JobRow.priority < priority),
        (*same, JobRow.created_at < created_at),
        (*same, JobRow.created_at == created_at, JobRow.id < sa.bindparam("job_id")),
    )
    counted = [sa.select(sa.func.count()).where(*conditions).scalar_subquery() for conditions in before]
    return sa.select(counted[0] + counted[1] + counted[2])


_BEFORE = _jobs_before()


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
