"""Count the ended samples of a job, end it, retry it, and delete it; cancel and delete many jobs.

A deleted job disappears at once; `storage.upkeep.reaper` removes its rows and files.
"""

from collections.abc import Collection, Sequence
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.chat_job import BATCH, CHAT
from actograph.contract.errors import (
    ActographError,
    Conflict,
    DeadlineExceeded,
    TooManyFailures,
)
from actograph.contract.resources import JobStatus, SampleStatus
from storage.index import counters, events, notices, row_locks, tallies, visible
from storage.index.clock import moment_of
from storage.index.database import Database, changed, now
from storage.index.ids import slices
from storage.jobs import jobs
from storage.jobs.jobs import JobFilter
from storage.tables.models import IS_OPEN_BATCH, BatchRow, EventRow, JobRow, SampleRow, SessionRow

Kind = Literal["chats", "jobs"]
#: a job's progress is logged once in so many seconds at most; its end is always logged
EVENT_SECONDS = 1.0
PREPARATION_FAILED = "job.preparation_failed"
#: a job fails after so many failed attempts to make it ready, counted in its log
MAX_PREPARATIONS = 3
#: jobs that one transaction cancels or deletes
AT_ONCE = 200
_REMOVABLE = (
    JobRow.status.not_in(jobs.ACTIVE),
    ~sa.exists().where(SessionRow.job_id == JobRow.id),
    ~sa.exists().where(BatchRow.job_id == JobRow.id, IS_OPEN_BATCH),
)


def fail_overdue(session: Session, *, limit: int = AT_ONCE) -> list[str]:
    """Fail up to `limit` active jobs after their deadline. Returns their ids."""
    overdue = sa.select(JobRow.id).where(JobRow.status.in_(jobs.ACTIVE), JobRow.deadline_at < now(session))
    failed = []
    for row in jobs.lock_all(session, session.scalars(overdue.limit(limit)).all()):
        # it may have ended or been retried meanwhile
        if row.status in jobs.ACTIVE and row.deadline_at is not None and row.deadline_at < now(session):
            reason = (
                f"the job had not ended {row.spec['deadline_seconds']:g} s after it was submitted or retried "
                "(deadline_seconds); what finished is kept, a retry runs the rest"
            )
            jobs.fail(session, row.id, DeadlineExceeded(reason))
            failed.append(row.id)
    return failed


def unsettled(
    session: Session, job_ids: Collection[str], failing: Collection[str]
) -> tuple[Sequence[str], Sequence[str]]:
    """The jobs to settle after a commit of their samples: those that may end, and those to log.

    Args:
        failing: jobs with failed samples in the commit.
    """
    is_open = sa.exists().where(SampleRow.job_id == JobRow.id, SampleRow.status.in_(jobs.OPEN))
    is_due = JobRow.logged_at <= moment_of(session) - EVENT_SECONDS
    limit = JobRow.spec["max_consecutive_failures"].as_integer() if failing else sa.null()
    active = sa.select(JobRow.id, is_open, is_due, limit)
    active = active.where(JobRow.id.in_(job_ids), JobRow.status.in_(jobs.ACTIVE))
    ending, to_log = [], []
    for job_id, goes_on, is_late, most in session.execute(active):
        if not goes_on or (most and job_id in failing):
            ending.append(job_id)
        elif is_late:
            to_log.append(job_id)
    return ending, to_log


def settle(session: Session, job_ids: Collection[str], *, if_free: Collection[str] = ()) -> None:
    """Bring jobs up to date with the samples that have ended: counts, progress in their logs, their ends.

    A job ends with its last sample, or after `max_consecutive_failures`. Progress is logged once a second at
    most.

    Args:
        if_free: further jobs, which are left out if another transaction has locked them.
    """
    held = jobs.lock_all(session, job_ids)
    if further := set(if_free) - set(job_ids):
        held += jobs.lock_free(session, further)
    for row in held:
        _settle(session, row)


def _settle(session: Session, row: JobRow) -> None:
    limit = row.spec.get("max_consecutive_failures") or 0
    in_a_row, last = tallies.failures(session, row) if limit else (0, "")
    moment = now(session)
    if tallies.fold(session, row) and moment - row.logged_at >= EVENT_SECONDS:
        row.logged_at = moment
        events.append(session, row.id, "job.progress", jobs.counts_of(row))
    session.flush()
    if limit and in_a_row >= limit and jobs.has_open_samples(session, row.id):
        reason = (
            f"{limit} samples failed one after the other (max_consecutive_failures); the last: "
            f"{last}; solve this and retry the job, which runs the remaining samples"
        )
        jobs.fail(session, row.id, TooManyFailures(reason))
    jobs.end_if_done(session, row.id)


def note_failed_preparation(session: Session, job_id: str, error: ActographError) -> None:
    """Log a failed attempt to make a job ready, and fail the job after `MAX_PREPARATIONS`.

    Attempts count from the submission or the last retry.
    """
    if jobs.lock_active(session, job_id) is None:
        return
    of_job = sa.select(EventRow.event).where(
        EventRow.job_id == job_id, EventRow.event.in_((PREPARATION_FAILED, "job.retried"))
    )
    newest = session.scalars(of_job.order_by(EventRow.id.desc()).limit(MAX_PREPARATIONS)).all()
    before = newest.index("job.retried") if "job.retried" in newest else len(newest)
    data = {"attempt": before + 1, "of": MAX_PREPARATIONS, "error": error.as_record()}
    events.append(session, job_id, PREPARATION_FAILED, data)
    if before + 1 >= MAX_PREPARATIONS:
        jobs.fail(session, job_id, error)


def retry(session: Session, job_id: str) -> JobRow:
    """Queue an ended job again for its samples that failed or did not run.

    Their losses count from zero. Completed samples keep their results and sessions. A deadline counts from
    now.

    Raises:
        NotFound: no such job.
        Conflict: it has not ended, or every sample has completed.
    """
    row = jobs.lock(session, job_id)
    if not JobStatus(row.status).is_terminal():
        raise Conflict(f"job {job_id} is {row.status}; only a job that has ended is retried")
    if row.kind == jobs.LOAD:
        raise Conflict(f"job {job_id} loads a model; request the load again with POST /v1/models/load")
    if row.kind == BATCH:
        raise Conflict(f"job {job_id} runs a batch; send the failed lines as a new batch")
    unfinished = sa.update(SampleRow).where(
        SampleRow.job_id == job_id, SampleRow.status != SampleStatus.COMPLETED
    )
    opened = changed(
        session.execute(
            unfinished.values(
                status=SampleStatus.PENDING,
                # the lease of a worker that was taken for dead must not become valid again
                lease_token=SampleRow.lease_token + 1,
                worker_id=None,
                losses=0,
                prompt=None,
                error=None,
                started_at=None,
                finished_at=None,
            )
        )
    )
    # a job that failed before its dataset was read has no samples yet
    if not opened and row.is_expanded:
        raise Conflict(f"every sample of job {job_id} has completed; there is nothing to retry")
    row.status, row.error = JobStatus.QUEUED, None
    row.started_at = row.finished_at = None
    row.served_at, row.pending = 0.0, 1
    row.failed = row.failed_in_a_row = 0
    row.logged_at = 0.0
    row.deadline_at = jobs.deadline(row.spec.get("deadline_seconds"), now(session))
    events.append(session, job_id, "job.retried", jobs.counts_of(row) | {"samples": opened})
    notices.note(session, row.model)
    session.flush()
    return row


def delete(session: Session, job_id: str, *, include_pinned: bool = True) -> None:
    """Delete an ended or queued job with its samples, sessions and events.

    Raises:
        NotFound: no such job.
        Conflict: a worker is running it, or it has pinned sessions and `include_pinned` is False.
    """
    row = row_locks.one(row_locks.lock(session, JobRow, [job_id], to_delete=True), f"job {job_id}")
    if row.status == JobStatus.IN_PROGRESS:
        raise Conflict(f"job {job_id} is {row.status}; cancel it first")
    # under the lock: its last samples may have been committed meanwhile
    if not include_pinned and (pinned := _pinned(session, [job_id])):
        raise Conflict(
            f"{pinned[job_id]} sessions of job {job_id} are pinned; unpin them, or set include_pinned=true"
        )
    _delete(session, [job_id])
    session.expunge(row)


def delete_matching(database: Database, wanted: JobFilter) -> int:
    """Delete the matching jobs that do not run and have no pinned session. Returns their number."""
    with database.read() as session:
        found = session.scalars(jobs.narrow(sa.select(JobRow.id), wanted)).all()
    count = 0
    for batch in slices(found, AT_ONCE):
        with database.write() as session:
            held = row_locks.lock(session, JobRow, batch, to_delete=True)
            pinned = _pinned(session, batch)
            going = [row for row in held if row.status != JobStatus.IN_PROGRESS and row.id not in pinned]
            _delete(session, [row.id for row in going])
            count += len(going)
    return count


def cancel_matching(database: Database, wanted: JobFilter) -> int:
    """Cancel the matching jobs that have not ended. Returns their number."""
    active = sa.select(JobRow.id).where(JobRow.status.in_(jobs.ACTIVE))
    with database.read() as session:
        found = session.scalars(jobs.narrow(active, wanted)).all()
    count = 0
    for batch in slices(found, AT_ONCE):
        with database.write() as session:
            for row in jobs.lock_all(session, batch):
                if row.status in jobs.ACTIVE:
                    jobs.cancel(session, row.id)
                    count += 1
    return count


def _pinned(session: Session, job_ids: Sequence[str]) -> dict[str, int]:
    """Job -> number of its pinned sessions, for jobs that have some."""
    of_jobs = sa.select(SessionRow.job_id, sa.func.count()).where(
        SessionRow.job_id.in_(job_ids), SessionRow.pinned == sa.true()
    )
    return {row[0]: row[1] for row in session.execute(of_jobs.group_by(SessionRow.job_id))}


def _delete(session: Session, job_ids: Sequence[str]) -> None:
    """Hide locked jobs, and count their sessions as deleted."""
    sums = sa.select(sa.func.count(), sa.func.sum(SessionRow.bytes))
    count, size = session.execute(sums.where(SessionRow.job_id.in_(job_ids))).one()
    counters.add_removed(session, "deleted", sessions=count, size=int(size or 0))
    # the foreign key does so only when the row is removed
    session.execute(sa.update(BatchRow).where(BatchRow.job_id.in_(job_ids)).values(job_id=None))
    _hide(session, JobRow.id.in_(job_ids))


def delete_old(database: Database, kind: Kind, seconds: float, *, limit: int) -> int:
    """Delete up to `limit` chats, or other jobs, that ended more than `seconds` ago. Returns their number.

    A job with sessions stays, and so does the job of a batch that has not ended. Jobs that load models stay
    too, because the last one has the options of its model.
    """
    of_kind = JobRow.kind == CHAT if kind == "chats" else JobRow.kind.not_in((CHAT, jobs.LOAD))
    with database.read() as session:
        old = sa.select(JobRow.id).where(of_kind, JobRow.finished_at < now(session) - seconds, *_REMOVABLE)
        ids = session.scalars(old.order_by(JobRow.created_at).limit(limit)).all()
    if not ids:
        return 0
    with database.write() as session:
        jobs.lock_unread(session, ids, to_delete=True)
        # a job may have changed meanwhile
        return _hide(session, JobRow.id.in_(ids), *_REMOVABLE)


def _hide(session: Session, *which: sa.ColumnElement[bool]) -> int:
    """Hide jobs, whose idempotency keys are free again. Returns their number."""
    statement = sa.update(JobRow).where(*which).values(**visible.deleted(now(session)), idempotency_key=None)
    return changed(session.execute(statement.execution_options(synchronize_session=False)))
