"""Queries about batches. A batch has a request, a job that runs it, and output files."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Unpack

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import Conflict
from actograph.contract.openai_answers import (
    Batch,
    BatchError,
    BatchErrors,
    BatchRequest,
    BatchStatus,
    BatchUsage,
    RequestCounts,
)
from actograph.contract.resources import SampleStatus
from storage.index import pages, row_locks, tallies
from storage.index.database import changed, now
from storage.index.ids import new_batch_id
from storage.index.pages import PageOptions
from storage.jobs import jobs
from storage.jobs.request_keys import RequestKey
from storage.tables.models import IS_OPEN_BATCH, BatchRow, JobRow, SampleRow

#: samples read at a time
PAGE = 200


def create(
    session: Session, request: BatchRequest, owner: str, request_key: RequestKey | None = None
) -> BatchRow:
    """Insert a batch. Its input file is validated later."""
    row = BatchRow(
        id=new_batch_id(),
        status=BatchStatus.VALIDATING,
        input_file_id=request.input_file_id,
        request=request.model_dump(mode="json"),
        created_at=now(session),
        owner=owner,
        moments={},
        idempotency_key=request_key and request_key.key,
        idempotency_sha256=request_key and request_key.sha256,
    )
    session.add(row)
    session.flush()
    return row


def get(session: Session, batch_id: str) -> BatchRow:
    """Raises NotFound."""
    return row_locks.one([session.get(BatchRow, batch_id)], f"batch {batch_id}")


def find(session: Session, **page: Unpack[PageOptions]) -> tuple[Sequence[BatchRow], bool]:
    """One page of batches, newest first by default."""
    return pages.fetch(session, sa.select(BatchRow), BatchRow.created_at, BatchRow.id, **page)


def unended(session: Session) -> list[str]:
    """Batches with work to do: to be validated, or with a job that has ended or was deleted."""
    # a batch without a job is to be validated, or its job was deleted
    has_work = sa.or_(JobRow.id.is_(None), JobRow.finished_at.is_not(None))
    statement = sa.select(BatchRow.id).outerjoin(JobRow, JobRow.id == BatchRow.job_id)
    statement = statement.where(IS_OPEN_BATCH, has_work).order_by(BatchRow.created_at, BatchRow.id)
    return list(session.scalars(statement))


def move(session: Session, row: BatchRow, status: BatchStatus, **values: Any) -> BatchRow | None:
    """Change the status of a batch. Returns None if another process changed it first."""
    moments = {**row.moments, status.value: now(session)}
    moved = session.execute(
        sa.update(BatchRow)
        .where(BatchRow.id == row.id, BatchRow.status == row.status)
        .values(status=status, moments=moments, **values)
    )
    if not changed(moved):
        return None
    fresh = sa.select(BatchRow).where(BatchRow.id == row.id).execution_options(populate_existing=True)
    return session.scalars(fresh).one()


def begin(session: Session, batch_id: str, job: JobRow) -> None:
    """Move a batch on to its job. Raises Conflict if another process did, or it was cancelled."""
    held = row_locks.lock(session, BatchRow, [batch_id])
    if not held or held[0].status != BatchStatus.VALIDATING:
        raise Conflict(f"batch {batch_id} has begun already, or was cancelled")
    move(session, held[0], BatchStatus.IN_PROGRESS, job_id=job.id, model=job.model)


def cancel(session: Session, batch_id: str) -> BatchRow:
    """Cancel a batch. Finished requests are kept.

    Raises:
        NotFound: no such batch.
        Conflict: it has ended already.
    """
    row = get(session, batch_id)
    status = BatchStatus(row.status)
    if status in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
        return row
    if status.is_terminal() or status is BatchStatus.FINALIZING:
        raise Conflict(f"batch {batch_id} is {status} already")
    if row.job_id is None:
        cancelled = move(session, row, BatchStatus.CANCELLED, counts=RequestCounts().model_dump())
        if cancelled is None:
            raise Conflict(f"batch {batch_id} has just begun; cancel it again")
        return cancelled
    held = jobs.lock_all(session, [row.job_id])
    is_running = held and held[0].finished_at is None
    cancelled = move(session, row, BatchStatus.CANCELLING) if is_running else None
    if cancelled is None:
        raise Conflict(f"all requests of batch {batch_id} have ended already")
    jobs.cancel(session, row.job_id)
    return cancelled


def lines(session: Session, job_id: str) -> Iterator[list[SampleRow]]:
    """Lists of the samples of each line, in the order of the input file."""

    def rows() -> Iterator[SampleRow]:
        place = sa.tuple_(SampleRow.sample_index, SampleRow.epoch)
        last = (-1, 0)
        while True:
            found = session.scalars(
                sa.select(SampleRow)
                .where(SampleRow.job_id == job_id, place > last)
                .order_by(SampleRow.sample_index, SampleRow.epoch)
                .limit(PAGE)
            ).all()
            yield from found
            if len(found) < PAGE:
                return
            last = (found[-1].sample_index, found[-1].epoch)
            session.expunge_all()

    for _, samples in groupby(rows(), key=lambda row: row.sample_index):
        yield list(samples)


def counts(session: Session, row: BatchRow) -> RequestCounts:
    """Counts of requests. A request fails with any of its choices, and completes with all of them."""
    if row.counts is not None:
        return RequestCounts.model_validate(row.counts)
    if row.job_id is None:
        return RequestCounts()
    job = jobs.get(session, row.job_id)
    if job.spec.get("requests") == job.total:
        # one sample for each request, and samples are counted already
        done = tallies.progress(session, job)[job.id]
        return RequestCounts(total=done.total, completed=done.completed, failed=done.failed)
    completed = sa.func.min(sa.case((SampleRow.status == SampleStatus.COMPLETED, 1), else_=0))
    failed = sa.func.max(sa.case((SampleRow.status == SampleStatus.FAILED, 1), else_=0))
    of_job = sa.select(completed.label("completed"), failed.label("failed"))
    lines = of_job.where(SampleRow.job_id == row.job_id).group_by(SampleRow.sample_index).subquery()
    sums = sa.select(sa.func.count(), sa.func.sum(lines.c.completed), sa.func.sum(lines.c.failed))
    total, completed_lines, failed_lines = session.execute(sums).one()
    return RequestCounts(total=total, completed=int(completed_lines or 0), failed=int(failed_lines or 0))


def resource(session: Session, row: BatchRow) -> Batch:
    request = BatchRequest.model_validate(row.request)
    status = BatchStatus(row.status)
    if status is BatchStatus.IN_PROGRESS and row.job_id is not None:
        job = session.get(JobRow, row.job_id)
        # a deleted job has ended too
        if job is None or job.finished_at is not None:
            status = BatchStatus.FINALIZING
    moments = {f"{name}_at": int(moment) for name, moment in row.moments.items()}
    errors = [BatchError.model_validate(error) for error in row.errors or ()]
    return Batch(
        id=row.id,
        endpoint=request.endpoint,
        model=row.model,
        errors=BatchErrors(data=errors) if errors else None,
        input_file_id=request.input_file_id,
        completion_window=request.completion_window,
        status=status,
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        created_at=int(row.created_at),
        expires_at=int(row.created_at + request.window_seconds),
        request_counts=counts(session, row),
        usage=BatchUsage.model_validate(row.counts) if "input_tokens" in (row.counts or {}) else None,
        metadata=request.metadata,
        job_id=row.job_id,
        owner=row.owner or None,
        **moments,
    )
