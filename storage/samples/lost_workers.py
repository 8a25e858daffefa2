"""Samples that end their worker. After some lost claims they run alone, and after more they fail.

So one bad sample cannot kill workers for ever.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import ActographError, WorkerLost
from actograph.contract.resources import SampleStatus
from storage.index import counters
from storage.index.counters import Counter
from storage.index.database import now
from storage.jobs import control, jobs
from storage.samples import announced
from storage.samples.commits import fail
from storage.samples.leases import RETURNED, LeasedSample, lock_jobs, ours
from storage.tables.models import JobRow, SampleRow

#: a sample runs alone after so many claims without a result ...
ALONE_AFTER_ATTEMPTS = 2
#: ... and fails after so many
MAX_ATTEMPTS = 4


def give_up_lost(session: Session, job_id: str, sample_id: str, attempts: int) -> None:
    """Fail a sample whose workers ended `attempts` times. The caller has locked its job."""
    error = WorkerLost(f"the worker ended {attempts} times while it ran this sample; its log has the reason")
    session.execute(
        sa.update(SampleRow)
        .where(SampleRow.id == sample_id)
        .values(status=SampleStatus.FAILED, error=error.as_record(), finished_at=now(session))
    )
    jobs.lock(session, job_id).failed += 1
    _count_failed(session, job_id)
    control.follow_failures(session, job_id, [error])


def give_up(session: Session, leases: Sequence[LeasedSample], error: ActographError) -> None:
    """Return the samples of a batch that ends its worker. They run alone from now on.

    A sample fails with `error` if it ran alone for the second time.
    """
    alive = lock_jobs(session, leases)
    announced.abandon(session, [lease.session_id for lease in alive])
    for lease in alive:
        attempts = session.execute(sa.select(SampleRow.attempts).where(*ours(lease))).scalar_one_or_none()
        if attempts is None:
            continue
        if len(leases) == 1 and attempts > ALONE_AFTER_ATTEMPTS:
            fail(session, lease, error)
            jobs.count_finished(session, lease.job_id, completed=0, failed=1)
            _count_failed(session, lease.job_id)
            control.follow_failures(session, lease.job_id, [error])
            jobs.end_if_done(session, lease.job_id)
            continue
        session.execute(
            sa.update(SampleRow)
            .where(*ours(lease))
            .values(**RETURNED, attempts=max(attempts, ALONE_AFTER_ATTEMPTS))
        )


def _count_failed(session: Session, job_id: str) -> None:
    kind = session.get_one(JobRow, job_id).kind
    counters.add(session, counters.NOBODY, {Counter("samples", kind, SampleStatus.FAILED): 1})
