"""Claims: who asks gets the next samples that nobody runs."""

from collections.abc import Callable, Mapping
from itertools import takewhile
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import NotFound
from actograph.contract.resources import SampleStatus
from storage.index.database import now
from storage.jobs import jobs
from storage.samples.leases import LeasedSample
from storage.samples.lost_workers import ALONE_AFTER_ATTEMPTS, MAX_ATTEMPTS, give_up_lost
from storage.tables.models import SampleRow


def claim(
    session: Session,
    job_id: str,
    *,
    worker_id: str,
    count: int,
    lease_seconds: float,
    fits: Callable[[Mapping[str, Any]], bool] | None = None,
) -> list[LeasedSample]:
    """Lease the next `count` samples that are pending or whose lease has run out.

    Samples that already cost a worker are claimed one by one, and failed in the end, so that
    one bad sample cannot kill workers for ever. Jobs that are not active yield nothing.

    Args:
        fits: of a sample's input: whether it can be run in this unit; the first that cannot ends it.
    """
    try:
        job = jobs.lock(session, job_id)
    except NotFound:
        return []
    moment = now(session)
    if job.status not in jobs.ACTIVE:
        return []
    while True:
        candidates = _candidates(session, job_id, moment, count, with_input=fits is not None)
        if not candidates or candidates[0].attempts < MAX_ATTEMPTS:
            break
        give_up_lost(session, job_id, candidates[0].id, candidates[0].attempts)
        if jobs.status_of(session, job_id) not in jobs.ACTIVE:
            return []
    if fits is not None:
        candidates = list(takewhile(lambda row: fits(row.input), candidates))
    if candidates and candidates[0].attempts >= ALONE_AFTER_ATTEMPTS:
        ids = [candidates[0].id]
    else:
        ids = [c.id for c in candidates if c.attempts < ALONE_AFTER_ATTEMPTS]
    if not ids:
        return []
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
            SampleRow.id,
            SampleRow.job_id,
            SampleRow.position,
            SampleRow.sample_index,
            SampleRow.condition,
            SampleRow.epoch,
            SampleRow.input,
            SampleRow.seed,
            SampleRow.lease_token,
        )
        .execution_options(synchronize_session=False)
    )
    return [
        LeasedSample(
            id=row.id,
            job_id=row.job_id,
            sample_index=row.sample_index,
            condition=row.condition,
            epoch=row.epoch,
            input=row.input,
            seed=row.seed or 0,
            token=row.lease_token,
        )
        for row in sorted(rows, key=attrgetter("position"))
    ]


def _candidates(
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


def is_any_pending(session: Session, job_id: str) -> bool:
    """Whether the job has a sample that nobody holds."""
    statement = sa.select(SampleRow.id).where(
        SampleRow.job_id == job_id, SampleRow.status == SampleStatus.PENDING
    )
    return session.execute(statement.limit(1)).first() is not None


def next_input(session: Session, job_id: str) -> dict[str, Any] | None:
    """The input of the sample that would be claimed next; None where there is none."""
    found: list[sa.Row[Any]] = []
    for claimable in _either(now(session)):
        statement = sa.select(SampleRow.position, SampleRow.input).where(
            SampleRow.job_id == job_id, claimable
        )
        found += session.execute(statement.order_by(SampleRow.position).limit(1)).all()
    return min(found, key=attrgetter("position")).input if found else None


def _either(moment: float) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    """Pending samples and samples with an expired lease, apart: an index has the order of each."""
    return (
        SampleRow.status == SampleStatus.PENDING,
        sa.and_(SampleRow.status == SampleStatus.LEASED, SampleRow.lease_until < moment),
    )
