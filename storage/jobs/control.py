"""End a job before its last sample, and retry it."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.chat_job import BATCH
from actograph.contract.errors import (
    ActographError,
    Conflict,
    DeadlineExceeded,
    InvalidRequest,
    TooManyFailures,
)
from actograph.contract.resources import JobStatus, SampleStatus
from storage.index import events
from storage.index.database import changed, now
from storage.jobs import jobs
from storage.tables.models import EventRow, JobRow, SampleRow

PREPARATION_FAILED = "job.preparation_failed"
#: a job fails after so many failed attempts to make it ready, counted in its log
MAX_PREPARATIONS = 3


def fail_overdue(session: Session, job_id: str | None = None) -> list[str]:
    """Fail active jobs, or only this one, after their deadline. Returns their ids."""
    statement = sa.select(JobRow.id).where(JobRow.status.in_(jobs.ACTIVE), JobRow.deadline_at < now(session))
    if job_id is not None:
        statement = statement.where(JobRow.id == job_id)
    overdue = list(session.scalars(statement))
    failed = []
    for row in jobs.lock_all(session, overdue):
        # it may have ended or been retried meanwhile
        if row.status not in jobs.ACTIVE or row.deadline_at is None or row.deadline_at >= now(session):
            continue
        reason = (
            f"the job had not ended {row.spec['deadline_seconds']:g} s after it was submitted or retried "
            "(deadline_seconds); what finished is kept, a retry runs the rest"
        )
        jobs.fail(session, row.id, DeadlineExceeded(reason))
        failed.append(row.id)
    return failed


def follow_failures(session: Session, job_id: str, errors: Sequence[ActographError | None]) -> None:
    """Count consecutive failures, and fail the job after `max_consecutive_failures`.

    Samples with an invalid input (`InvalidRequest`: a prompt beyond the context) do not count, and do not
    reset the count either.

    Args:
        errors: errors of ended samples in order; None for a completed sample.
    """
    row = jobs.lock(session, job_id)
    limit = row.spec.get("max_consecutive_failures") or 0
    last: ActographError | None = None
    for error in errors:
        if error is None:
            row.failed_in_a_row = 0
        elif not isinstance(error, InvalidRequest):
            row.failed_in_a_row += 1
            if limit and row.failed_in_a_row >= limit:
                last = error
    session.flush()
    if last is not None and jobs.has_open_samples(session, job_id):
        reason = (
            f"{limit} samples failed one after the other (max_consecutive_failures); the last: "
            f"{last.message}; solve this and retry the job, which runs the remaining samples"
        )
        jobs.fail(session, job_id, TooManyFailures(reason))


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
        raise Conflict(f"job {job_id} loads a model; ask for the load again with POST /v1/models/load")
    if row.kind == BATCH:
        raise Conflict(f"job {job_id} is a batch's; send the lines of its error file as a new batch")
    opened = session.execute(
        sa.update(SampleRow)
        .where(SampleRow.job_id == job_id, SampleRow.status != SampleStatus.COMPLETED)
        .values(
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
    # a job that failed before its dataset was read has no samples yet
    if not changed(opened) and row.total is not None:
        raise Conflict(f"every sample of job {job_id} has completed; there is nothing to retry")
    row.status, row.error = JobStatus.QUEUED, None
    row.started_at = row.finished_at = None
    row.served_at, row.pending = 0.0, 1 if row.total is None else changed(opened)
    row.failed = row.failed_in_a_row = 0
    row.logged_at = 0.0
    row.deadline_at = jobs.deadline(row.spec.get("deadline_seconds"), now(session))
    events.append(session, job_id, "job.retried", jobs.counts_of(row) | {"samples": changed(opened)})
    session.flush()
    return row


def note_failed_preparation(session: Session, job_id: str, error: ActographError) -> None:
    """Log a failed attempt to make a job ready, and fail the job after `MAX_PREPARATIONS`.

    Attempts count from the submission or the last retry.
    """
    held = jobs.lock_all(session, [job_id])
    if not held or held[0].status not in jobs.ACTIVE:
        return
    attempt = 1 + _failed_attempts(session, job_id)
    events.append(
        session,
        job_id,
        PREPARATION_FAILED,
        {"attempt": attempt, "of": MAX_PREPARATIONS, "error": error.as_record()},
    )
    if attempt >= MAX_PREPARATIONS:
        jobs.fail(session, job_id, error)


def _failed_attempts(session: Session, job_id: str) -> int:
    retried = (
        sa.select(sa.func.coalesce(sa.func.max(EventRow.id), 0))
        .where(EventRow.job_id == job_id, EventRow.event == "job.retried")
        .scalar_subquery()
    )
    counted = sa.select(sa.func.count()).where(
        EventRow.job_id == job_id, EventRow.event == PREPARATION_FAILED, EventRow.id > retried
    )
    return int(session.execute(counted).scalar_one())
