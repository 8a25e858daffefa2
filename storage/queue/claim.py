"""Claims: lease the next samples of a job that no worker runs."""

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from math import isqrt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import NotFound
from actograph.contract.resources import SampleStatus
from storage.index.database import now
from storage.jobs import jobs
from storage.queue import workers
from storage.queue.leases import ALONE_AFTER, SUSPECT_AFTER, LeasedSample
from storage.tables.models import SampleRow

Fits = Callable[[Mapping[str, Any]], bool]


def of_job(
    session: Session,
    job_id: str,
    *,
    worker_id: str,
    count: int,
    fits: Fits | None = None,
    is_alone: bool = True,
) -> list[LeasedSample]:
    """Lease up to `count` samples of an active job, and beat.

    Samples that were lost with several workers are suspects. They come after all others and run with nothing
    beside them: first in groups, then alone. Groups of the square root find a poisoned sample with two more
    losses; halving would need the logarithm.

    Args:
        fits: whether a sample with this input can run in the batch; the first that cannot ends the batch.
        is_alone: whether nothing else runs in the batch; if not, no suspect is claimed.
    """
    try:
        job = jobs.lock(session, job_id)
    except NotFound:
        return []
    if job.status not in jobs.ACTIVE:
        return []
    ids = _next(session, job_id, SampleRow.status == SampleStatus.PENDING, count, fits)
    if not ids and is_alone:
        suspects = SampleRow.status == SampleStatus.SUSPECT
        of_job = sa.select(SampleRow.losses).where(SampleRow.job_id == job_id, suspects)
        losses = session.scalars(of_job.order_by(SampleRow.position).limit(1)).first()
        if losses is not None:
            most = 1 if losses >= ALONE_AFTER else max(1, isqrt(count)) if losses >= SUSPECT_AFTER else count
            ids = _next(session, job_id, sa.and_(suspects, SampleRow.losses == losses), most, fits)
    return _lease(session, ids, worker_id) if ids else []


def _next(
    session: Session, job_id: str, which: sa.ColumnElement[bool], count: int, fits: Fits | None
) -> Sequence[str]:
    """The next samples in running order. The caller has locked their job."""
    columns = (SampleRow.id,) if fits is None else (SampleRow.id, SampleRow.input)
    statement = sa.select(*columns).where(SampleRow.job_id == job_id, which)
    found: Sequence[sa.Row[Any]] = session.execute(statement.order_by(SampleRow.position).limit(count)).all()
    return [row.id for row in (found if fits is None else takewhile(lambda row: fits(row.input), found))]


def _lease(session: Session, ids: Sequence[str], worker_id: str) -> list[LeasedSample]:
    rows = session.execute(
        sa.update(SampleRow)
        .where(SampleRow.id.in_(ids))
        .values(
            status=SampleStatus.LEASED,
            lease_token=SampleRow.lease_token + 1,
            worker_id=worker_id,
            started_at=now(session),
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
            SampleRow.losses,
        )
        .execution_options(synchronize_session=False)
    )
    leased = sorted(rows.mappings(), key=lambda row: row["position"])
    # or upkeep could take them back before the first heartbeat
    workers.beat(session, worker_id)
    return [LeasedSample(**{name: row[name] for name in row if name != "position"}) for row in leased]


def next_input(session: Session, job_id: str) -> dict[str, Any] | None:
    """The input of the sample that would be claimed next, if any."""
    for status in (SampleStatus.PENDING, SampleStatus.SUSPECT):
        statement = sa.select(SampleRow.input).where(SampleRow.job_id == job_id, SampleRow.status == status)
        found = session.scalars(statement.order_by(SampleRow.position).limit(1)).first()
        if found is not None:
            return dict(found)
    return None
