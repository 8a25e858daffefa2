"""Leases: what a worker that holds samples may do with them before they have ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.resources import SampleStatus
from storage.index.database import changed, now
from storage.jobs import jobs
from storage.tables.models import SampleRow


@dataclass(frozen=True, kw_only=True)
class LeasedSample:
    """A sample that this worker holds until `lease_until`, unless it renews."""

    id: str
    job_id: str
    sample_index: int
    condition: str
    epoch: int
    input: dict[str, Any]
    seed: int
    token: int


def ours(lease: LeasedSample) -> tuple[sa.ColumnElement[bool], ...]:
    """The condition under which a lease still holds."""
    return (
        SampleRow.id == lease.id,
        SampleRow.status == SampleStatus.LEASED,
        SampleRow.lease_token == lease.token,
    )


def lock_jobs(session: Session, leases: Sequence[LeasedSample]) -> list[LeasedSample]:
    """Hold the jobs of these leases, in the order of their ids; leases of deleted ones are left out."""
    alive = {row.id for row in jobs.lock_all(session, {lease.job_id for lease in leases})}
    return [lease for lease in leases if lease.job_id in alive]


def renew(session: Session, leases: Sequence[LeasedSample], *, lease_seconds: float) -> set[str]:
    """Prolong leases; returns the ids of the samples that are still ours."""
    alive = lock_jobs(session, leases)
    until = now(session) + lease_seconds if alive else 0.0
    held = set()
    for lease in alive:
        result = session.execute(sa.update(SampleRow).where(*ours(lease)).values(lease_until=until))
        if changed(result):
            held.add(lease.id)
    return held


def release(session: Session, leases: Sequence[LeasedSample]) -> None:
    """Give unfinished samples back; this claim does not count as an attempt."""
    for lease in lock_jobs(session, leases):
        session.execute(
            sa.update(SampleRow)
            .where(*ours(lease))
            .values(
                status=SampleStatus.PENDING,
                lease_until=0.0,
                worker_id=None,
                started_at=None,
                attempts=SampleRow.attempts - 1,
            )
        )


def give_back(session: Session, leases: Sequence[LeasedSample]) -> None:
    """The worker of these leases lives: a claim that it lost by being stopped was no attempt.

    It was counted when another worker took the sample over, which could not know whether the first
    one was dead. Leases that still hold, and samples that have ended, stay as they are.
    """
    for lease in leases:
        session.execute(
            sa.update(SampleRow)
            .where(
                SampleRow.id == lease.id,
                SampleRow.lease_token > lease.token,
                # the claim of the worker that holds it now is one of them
                sa.or_(
                    sa.and_(SampleRow.status == SampleStatus.LEASED, SampleRow.attempts > 1),
                    sa.and_(SampleRow.status == SampleStatus.PENDING, SampleRow.attempts > 0),
                ),
            )
            .values(attempts=SampleRow.attempts - 1)
        )
