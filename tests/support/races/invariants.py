"""Invariants of an index and its store at rest."""

from collections import Counter as Tally
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.resources import JobStatus, SampleStatus
from actograph.contract.roles import Role
from storage.index import tallies
from storage.index.counters import Counter
from storage.jobs import jobs
from storage.queue import model_loads
from storage.tables.models import (
    ApiKeyRow,
    BatchRow,
    EventRow,
    FileRow,
    JobRow,
    JobTagRow,
    SampleRow,
    SessionRow,
)
from tests.support import leasing
from tests.support.races.client_acts import Memory
from tests.support.races.world import World

OPEN = (SampleStatus.PENDING, SampleStatus.LEASED)


def broken(world: World, memory: Memory) -> list[str]:
    """Every invariant that does not hold, in words."""
    services = world.apis[0]
    with services.database.read() as session:
        found = [
            *_jobs(session),
            *_sessions(session),
            *_counts(session),
            *_batches(session),
            *_once(session, memory),
            *_accepted(session, memory),
        ]
        admins = session.scalars(
            sa.select(ApiKeyRow.id).where(ApiKeyRow.role == Role.ADMIN, ApiKeyRow.revoked_at.is_(None))
        ).all()
        if not admins:
            found.append("every admin's key is revoked")
        stored = {"sessions": set(session.scalars(sa.select(SessionRow.id))),
                  "files": set(session.scalars(sa.select(FileRow.id)))}  # fmt: skip
    for kind, known in stored.items():
        there = {prefix.prefix.rpartition("/")[2] for prefix in services.store.list_prefixes(kind)}
        if there - known:
            found.append(f"{kind} without a row: {sorted(there - known)}")
        if known - there:
            found.append(f"{kind} without bytes: {sorted(known - there)}")
    return found


def _jobs(session: Session) -> Iterator[str]:
    statuses: dict[str, Tally[str]] = {}
    for job_id, status, count in session.execute(
        sa.select(SampleRow.job_id, SampleRow.status, sa.func.count()).group_by(
            SampleRow.job_id, SampleRow.status
        )
    ):
        statuses.setdefault(job_id, Tally())[status] = count
    orphans = set(statuses) - set(session.scalars(sa.select(JobRow.id)))
    if orphans:
        yield f"samples of no job: {orphans}"
    for row in session.scalars(sa.select(JobRow)):
        name = f"{row.kind} {row.id} ({row.status})"
        if row.kind == jobs.LOAD:
            begun = sa.select(sa.func.count()).where(
                EventRow.job_id == row.id, EventRow.event == model_loads.LOADING
            )
            if session.execute(begun).scalar_one() > 1:
                yield f"{name} was begun by several workers"
            continue
        has = statuses.get(row.id, Tally())
        if (row.completed, row.failed) != (has["completed"], has["failed"]):
            yield f"{name} counts {row.completed} completed, {row.failed} failed; its samples are {dict(has)}"
        if row.total is not None and row.total != has.total():
            yield f"{name} says {row.total} samples, there are {has.total()}"
        left = sum(has[status] for status in OPEN)
        if not JobStatus(row.status).is_terminal():
            yield f"{name} has not ended; its samples are {dict(has)}"
        elif left:
            yield f"{name} has ended and {left} samples have not"
        elif row.status == JobStatus.COMPLETED and has["cancelled"]:
            yield f"{name} has completed with cancelled samples"
        if row.status == JobStatus.COMPLETED and row.finished_at is None:
            yield f"{name} has no end"


def _sessions(session: Session) -> Iterator[str]:
    named = session.execute(
        sa.select(SampleRow.id, SampleRow.session_id, SessionRow.id)
        .outerjoin(SessionRow, SessionRow.id == SampleRow.session_id)
        .where(SampleRow.session_id.is_not(None), SessionRow.id.is_(None))
    ).all()
    if named:
        yield f"samples name sessions that are not there: {named}"
    unnamed = session.execute(
        sa.select(SessionRow.id, SampleRow.status, SampleRow.session_id)
        .join(SampleRow, SampleRow.id == SessionRow.sample_id)
        .where(
            sa.or_(
                SampleRow.session_id.is_(None),
                SampleRow.session_id != SessionRow.id,
                SampleRow.status != SampleStatus.COMPLETED,
                SampleRow.job_id != SessionRow.job_id,
            )
        )
    ).all()
    if unnamed:
        yield f"sessions of samples that do not name them: {unnamed}"


def _counts(session: Session) -> Iterator[str]:
    """Counts grow in the transactions of what they count: none is lost, none is doubled."""
    totals = tallies.totals(session)
    written = sum(value for counter, value in totals.items() if counter.name == "sessions_written")
    removed = sum(value for counter, value in totals.items() if counter.name == "sessions_removed")
    rows = session.execute(sa.select(sa.func.count()).select_from(SessionRow)).scalar_one()
    if written - removed != rows:
        yield f"{written:g} sessions written, {removed:g} removed, {rows} there"
    wrong = [counter for counter, value in totals.items() if value < 0]
    if wrong:
        yield f"counts below zero: {wrong}"
    if Counter("samples", "capture", SampleStatus.COMPLETED) not in totals:
        yield "nothing was counted"


def _batches(session: Session) -> Iterator[str]:
    rows = session.scalars(sa.select(BatchRow)).all()
    unended = [
        row.id for row in rows if row.status in ("validating", "in_progress", "finalizing", "cancelling")
    ]
    if unended:
        yield f"batches have not ended: {unended}"
    jobs = Tally(row.job_id for row in rows if row.job_id is not None)
    of_batches = set(session.scalars(sa.select(JobRow.id).where(JobRow.kind == "batch")))
    if of_batches - set(jobs):
        yield f"jobs of no batch: {of_batches - set(jobs)}"
    for row in rows:
        for file_id in (row.output_file_id, row.error_file_id):
            if file_id is not None and session.get(FileRow, file_id) is None:
                yield f"batch {row.id} names file {file_id}, which is not there"


def _once(session: Session, memory: Memory) -> Iterator[str]:
    for key, answered in memory.answered.items():
        there = set(session.scalars(sa.select(JobTagRow.job_id).where(JobTagRow.tag == f"key-{key}")))
        # a deleted job frees its key
        if len(answered - memory.deleted) > 1 or len(there) > 1 or there - answered:
            yield f"Idempotency-Key {key} was answered with {answered}, and made {there}"


def _accepted(session: Session, memory: Memory) -> Iterator[str]:
    there = set(session.scalars(sa.select(JobRow.id)))
    lost = memory.accepted - there - memory.deleted
    if lost:
        yield f"jobs were accepted and are not there: {lost}"
    open_jobs = leasing.with_work(session)
    if open_jobs:
        yield f"jobs still have work: {open_jobs}"
