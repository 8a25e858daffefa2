"""Claims and their ends, as a worker makes them. A worker without a row is silent."""

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import ActographError
from storage.index import events
from storage.index.database import Database
from storage.jobs import control, jobs
from storage.queue import claim as claims
from storage.queue import commit, leases, workers
from storage.queue.commit import Ended, SampleResult
from storage.queue.leases import LeasedSample
from storage.sessions.sessions import NewSession
from storage.tables.models import HAS_PENDING, JobRow, SampleRow, StateRow


class LeaseLost(Exception):
    """The sample has another holder, or has ended."""


def claim(session: Session, job_id: str, *, worker_id: str = "wrk_a", count: int = 1) -> list[LeasedSample]:
    """Lease samples of a job, whatever else waits."""
    held = jobs.lock_all(session, [job_id])
    found = claims.of_job(session, held[0], worker_id, count) if held else []
    workers.heartbeat(session, worker_id)
    return found


def begin(database: Database, job_id: str, count: int = 1, *, worker_id: str = "wrk_a") -> list[LeasedSample]:
    """Start a job and lease its samples."""
    with database.write() as session:
        jobs.start(session, job_id)
        return claim(session, job_id, worker_id=worker_id, count=count)


def log(database: Database, job_id: str) -> list[str]:
    """Names of a job's events."""
    with database.read() as session:
        return [entry.event for entry in events.after(session, job_id, 0)]


def with_work(session: Session) -> list[str]:
    """Jobs that a worker can begin or continue, in the order of service."""
    return list(session.scalars(sa.select(JobRow.id).where(HAS_PENDING).order_by(*claims.ORDER)))


def lose(database: Database, worker_id: str | None = None) -> None:
    """Take back what a worker, or every worker, holds, as if it had died."""
    with database.write() as session:
        holders = sa.select(SampleRow.worker_id).where(SampleRow.worker_id.is_not(None)).distinct()
        found = [worker_id] if worker_id else [one for one in session.scalars(holders) if one]
        leases.take_back(session, found)


def end_grace(database: Database) -> None:
    """As if upkeep had run all the time: its next pass takes back what silent workers hold."""
    with database.write() as session:
        leases.reclaim(session, lease_seconds=30, pass_seconds=5)
        session.execute(sa.update(StateRow).where(StateRow.name == leases.BEGIN).values(at=0.0))


def complete(
    session: Session, lease: LeasedSample, result: SampleResult, stored: NewSession | None = None
) -> None:
    """Raises LeaseLost."""
    end(session, Ended(lease=lease, result=result, session=stored))


def fail(session: Session, lease: LeasedSample, error: ActographError, prompt: str | None = None) -> None:
    """Raises LeaseLost."""
    end(session, Ended(lease=lease, error=error, prompt=prompt))


def end(session: Session, *ended: Ended) -> None:
    """Raises LeaseLost."""
    if len(commit.commit(session, ended).kept) < len(ended):
        raise LeaseLost
    control.settle(session, {one.lease.job_id for one in ended})
