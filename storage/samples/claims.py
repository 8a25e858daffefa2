"""Claims: lease the next samples of a job that no worker runs."""

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import NotFound
from actograph.contract.resources import SampleStatus
from storage.index.database import now
from storage.jobs import jobs
from storage.samples import announced
from storage.samples.leases import LeasedSample
from storage.samples.lost_workers import ALONE_AFTER_ATTEMPTS, MAX_ATTEMPTS, give_up_lost
from storage.tables.models import JobRow, SampleRow


def claim(
    session: Session,
    job_id: str,
    *,
    worker_id: str,
    count: int,
    lease_seconds: float,
    fits: Callable[[Mapping[str, Any]], bool] | None = None,
) -> list[LeasedSample]:
    """Lease the next `count` samples that are pending or whose lease has expired.

    Samples that were lost with a worker before are claimed one by one, and fail after several claims, so
    one bad sample cannot kill workers for ever. Inactive jobs yield nothing.

    Args:
        fits: whether a sample with this input can run in the batch; the first that cannot ends the batch.
    """
    try:
        job = jobs.lock(session, job_id)
    except NotFound:
        return []
    moment = now(session)
    candidates = _candidates(session, job, moment, count, with_input=fits is not None)
    if fits is not None:
        candidates = list(takewhile(lambda row: fits(row.input), candidates))
    if candidates and candidates[0].attempts >= ALONE_AFTER_ATTEMPTS:
        ids = [candidates[0].id]
    else:
        ids = [c.id for c in candidates if c.attempts < ALONE_AFTER_ATTEMPTS]
    return _lease(session, job, ids, moment, worker_id=worker_id, lease_seconds=lease_seconds) if ids else []


def _candidates(
    session: Session, job: JobRow, moment: float, count: int, *, with_input: bool
) -> list[sa.Row[Any]]:
    """The next samples of an active job, locked. A first one that was lost too often fails and is skipped."""
    while job.status in jobs.ACTIVE:
        candidates = _claimable(session, job.id, moment, count, with_input=with_input)
        if not candidates or candidates[0].attempts < MAX_ATTEMPTS:
            return candidates
        give_up_lost(session, job.id, candidates[0].id, candidates[0].attempts)
        session.refresh(job, ["status"])
    return []


def _claimable(
    session: Session, job_id: str, moment: float, count: int, *, with_input: bool
) -> list[sa.Row[Any]]:
    """The next samples in running order, locked. Each query reads at most `count` entries of an index."""
    columns = (SampleRow.id, SampleRow.attempts, SampleRow.position)
    found: list[sa.Row[Any]] = []
    for claimable in _either(moment):
        statement = (
            sa.select(*columns, *((SampleRow.input,) if with_input else ()))
            .where(SampleRow.job_id == job_id, claimable)
            .order_by(SampleRow.position)
            .limit(count)
            .with_for_update(skip_locked=True)
        )
        found += session.execute(statement).all()
    return sorted(found, key=attrgetter("position"))[:count]


def _lease(
    session: Session, job: JobRow, ids: Sequence[str], moment: float, *, worker_id: str, lease_seconds: float
) -> list[LeasedSample]:
    """Lease locked samples, unless they ended meanwhile. Each lease has a new token and session."""
    rows = session.execute(
        sa.update(SampleRow)
        .where(SampleRow.id.in_(ids), sa.or_(*_either(moment)))
        .values(
            status=SampleStatus.LEASED,
            lease_token=SampleRow.lease_token + 1,
            lease_until=moment + lease_seconds,
            attempts=SampleRow.attempts + 1,
            worker_id=worker_id,
            started_at=moment,
        )
        .returning(
            SampleRow.position,
            SampleRow.id,
            SampleRow.job_id,
            SampleRow.sample_index,
            SampleRow.condition,
            SampleRow.epoch,
            SampleRow.input,
            sa.func.coalesce(SampleRow.seed, 0).label("seed"),
            SampleRow.lease_token.label("token"),
        )
        .execution_options(synchronize_session=False)
    )
    leased = sorted(rows.mappings(), key=lambda row: row["position"])
    sessions = announced.announce(session, job, leased)
    return [
        LeasedSample(
            **{name: row[name] for name in row if name != "position"}, session_id=sessions.get(row["id"])
        )
        for row in leased
    ]


def is_any_pending(session: Session, job_id: str) -> bool:
    """Whether the job has a pending sample."""
    statement = sa.select(SampleRow.id).where(
        SampleRow.job_id == job_id, SampleRow.status == SampleStatus.PENDING
    )
    return session.execute(statement.limit(1)).first() is not None


def next_input(session: Session, job_id: str) -> dict[str, Any] | None:
    """The input of the sample that would be claimed next, if any."""
    found: list[sa.Row[Any]] = []
    for claimable in _either(now(session)):
        statement = sa.select(SampleRow.position, SampleRow.input).where(
            SampleRow.job_id == job_id, claimable
        )
        found += session.execute(statement.order_by(SampleRow.position).limit(1)).all()
    return min(found, key=attrgetter("position")).input if found else None


def _either(moment: float) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    """Conditions of pending samples and of expired leases, kept apart: an index has the order of each."""
    return (
        SampleRow.status == SampleStatus.PENDING,
        sa.and_(SampleRow.status == SampleStatus.LEASED, SampleRow.lease_until < moment),
    )
