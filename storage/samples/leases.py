"""Leases: a worker renews or returns the samples that it has claimed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.resources import SampleStatus
from storage.index.database import changed, now
from storage.jobs import jobs
from storage.samples import announced
from storage.tables.models import SampleRow

#: values of a sample that its worker returns unfinished
RETURNED = {"status": SampleStatus.PENDING, "lease_until": 0.0, "worker_id": None, "started_at": None}


@dataclass(frozen=True, kw_only=True)
class LeasedSample:
    """A sample that a worker has claimed until its lease expires."""

    id: str
    job_id: str
    sample_index: int
    condition: str
    epoch: int
    input: dict[str, Any]
    seed: int
    token: int
    #: announced with the claim; None without a capture
    session_id: str | None = None


def ours(lease: LeasedSample) -> tuple[sa.ColumnElement[bool], ...]:
    """Condition that a lease is still valid."""
    return (
        SampleRow.id == lease.id,
        SampleRow.status == SampleStatus.LEASED,
        SampleRow.lease_token == lease.token,
    )


def lock_jobs(session: Session, leases: Sequence[LeasedSample]) -> list[LeasedSample]:
    """Lock the jobs of leases, in the order of their ids. Returns the leases of existing jobs."""
    alive = {row.id for row in jobs.lock_all(session, {lease.job_id for lease in leases})}
    return [lease for lease in leases if lease.job_id in alive]


def renew(session: Session, leases: Sequence[LeasedSample], *, lease_seconds: float) -> set[str]:
    """Renew leases. Returns the ids of the samples that are still leased."""
    alive = lock_jobs(session, leases)
    until = now(session) + lease_seconds if alive else 0.0
    held = set()
    for lease in alive:
        result = session.execute(sa.update(SampleRow).where(*ours(lease)).values(lease_until=until))
        if changed(result):
            held.add(lease.id)
    return held


def release(session: Session, leases: Sequence[LeasedSample]) -> None:
    """Return unfinished samples. Their claim does not count as an attempt."""
    alive = lock_jobs(session, leases)
    announced.abandon(session, [lease.session_id for lease in alive])
    for lease in alive:
        session.execute(
            sa.update(SampleRow).where(*ours(lease)).values(**RETURNED, attempts=SampleRow.attempts - 1)
        )


def give_back(session: Session, leases: Sequence[LeasedSample]) -> None:
    """Undo the counted attempts of leases that a live worker lost while it was suspended.

    Another worker claimed the samples, because it could not know whether the first one was dead. Valid leases
    and ended samples stay as they are.
    """
    for lease in leases:
        session.execute(
            sa.update(SampleRow)
            .where(
                SampleRow.id == lease.id,
                SampleRow.lease_token > lease.token,
                # one attempt is that of the current worker
                sa.or_(
                    sa.and_(SampleRow.status == SampleStatus.LEASED, SampleRow.attempts > 1),
                    sa.and_(SampleRow.status == SampleStatus.PENDING, SampleRow.attempts > 0),
                ),
            )
            .values(attempts=SampleRow.attempts - 1)
        )
