"""Leases: a worker's heartbeat renews all that it holds; upkeep takes back what a silent worker held.

A claim raises the sample's token, and a commit with an older one changes nothing: a worker that was taken
for dead does no harm. A sample that is lost with several workers becomes a suspect and fails in the end, so
one bad sample cannot kill workers for ever.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import ActographError, WorkerLost
from actograph.contract.resources import SampleStatus
from storage.index import notices, row_locks, tallies, visible
from storage.index.clock import moment_of
from storage.index.database import now
from storage.index.ids import among, among_given, among_values
from storage.index.tallies import Tally
from storage.index.upsert import Upsert
from storage.jobs import control, jobs
from storage.samples import announced
from storage.tables.models import IS_LEASED, JobRow, SampleRow, StateRow, WorkerRow

#: a sample that was lost so often is a suspect and runs in a group of suspects ...
SUSPECT_AFTER = 2
#: ... then alone ...
ALONE_AFTER = 3
#: ... then fails
FAILED_AFTER = 4
PASS, BEGIN = "take back leases", "begin to take back leases"
_remember = Upsert(StateRow, "at")


@dataclass(frozen=True, kw_only=True)
class LeasedSample:
    """A sample that a worker has claimed."""

    id: str
    job_id: str
    sample_index: int
    condition: str
    epoch: int
    input: dict[str, Any]
    seed: int
    token: int
    losses: int = 0
    #: whether its job has no other sample
    is_only: bool = False
    #: tags and expiry of sessions, by the spec of its job
    tags: Sequence[str] = ()
    expires_after: Any = None
    #: announced with the claim; None without a capture
    session_id: str | None = None

    @property
    def key(self) -> str:
        """Name of the lease: a worker that lost a sample may get it again while it still runs it."""
        return f"{self.id}.{self.token}"

    @property
    def shown(self) -> dict[str, Any]:
        """Sample index, condition and epoch of its session: its own, or those that a request names."""
        named = self.input.get("sample", {})
        return {
            "sample_index": named.get("sample_index", self.sample_index),
            "condition": named.get("condition", self.condition),
            "epoch": named.get("epoch", self.epoch),
        }


def ours(lease: LeasedSample) -> tuple[sa.ColumnElement[bool], ...]:
    """Condition that a lease is still valid."""
    return (SampleRow.id == lease.id, IS_LEASED, SampleRow.lease_token == lease.token)


def lock_valid(session: Session, leases: Sequence[LeasedSample]) -> set[str]:
    """Lock the samples of leases that are still valid. Returns the keys of these."""
    dialect = session.get_bind().dialect.name
    found = session.execute(_leased(dialect), among_values(dialect, (lease.id for lease in leases)))
    tokens = {row.id: row.lease_token for row in found}
    return {lease.key for lease in leases if tokens.get(lease.id) == lease.token}


@lru_cache(maxsize=2)
def _leased(dialect: str) -> sa.Select[str, int]:
    """Lock the given samples that are leased. Built once, since every commit runs it."""
    statement = sa.select(SampleRow.id, SampleRow.lease_token)
    statement = statement.where(among_given(dialect, SampleRow.id), IS_LEASED).order_by(SampleRow.id)
    locked = statement.with_for_update(of=SampleRow, key_share=True)
    return locked.execution_options(**visible.BUILT_ONCE)


def mine(session: Session, worker_id: str) -> Mapping[str, int]:
    """Sample -> token of all that a worker still holds and should go on with.

    What is missing, or has another token, was cancelled, deleted, lost, or is past its job's deadline. The
    worker drops it, whatever the reason.
    """
    statement = (
        sa.select(SampleRow.id, SampleRow.lease_token)
        .join(JobRow, JobRow.id == SampleRow.job_id)
        .where(
            SampleRow.worker_id == worker_id,
            IS_LEASED,
            JobRow.status.in_(jobs.ACTIVE),
            sa.or_(JobRow.deadline_at.is_(None), JobRow.deadline_at >= moment_of(session)),
        )
    )
    return {row.id: row.lease_token for row in session.execute(statement)}


def give_back(session: Session, leases: Sequence[LeasedSample], error: ActographError | None = None) -> None:
    """Return unfinished samples whose leases are valid.

    Args:
        error: why they end their worker; each counts a loss.
    """
    locked = {row.id for row in jobs.lock_all(session, {lease.job_id for lease in leases})}
    alive = [lease for lease in leases if lease.job_id in locked]
    if alive:
        _return(session, sa.or_(*(sa.and_(*ours(lease)) for lease in alive)), error)
    announced.abandon(session, [lease.session_id for lease in alive])


def give_back_all(session: Session, worker_id: str) -> None:
    """Return what a worker holds without knowing it: the answer to its claim was lost."""
    theirs = sa.and_(SampleRow.worker_id == worker_id, IS_LEASED)
    held = session.scalars(sa.select(SampleRow.job_id).where(theirs).distinct()).all()
    if held:
        locked = [row.id for row in jobs.lock_all(session, held)]
        _return(session, sa.and_(theirs, among(session, SampleRow.job_id, locked)), None)


def reclaim(session: Session, *, lease_seconds: float, pass_seconds: float) -> int:
    """A pass of upkeep: take back what silent workers held. Returns the number of samples.

    If the last pass is long ago, then upkeep or the database was away, and perhaps the workers could not beat
    either: they get one lease to do so.

    Args:
        pass_seconds: usual time from one pass to the next.
    """
    moment = now(session)
    known = {row.name: row.at for row in session.execute(sa.select(StateRow.name, StateRow.at))}
    begin = known.get(BEGIN, 0.0)
    if moment - known.get(PASS, 0.0) > lease_seconds / 2 + 2 * pass_seconds:
        begin = moment + lease_seconds
    _remember(session, [{"name": PASS, "at": moment}, {"name": BEGIN, "at": begin}])
    if moment < begin:
        return 0
    silent_since = moment - lease_seconds
    silent = (
        sa.select(SampleRow.worker_id)
        .outerjoin(WorkerRow, WorkerRow.id == SampleRow.worker_id)
        .where(IS_LEASED, sa.or_(WorkerRow.id.is_(None), WorkerRow.heartbeat_at < silent_since))
        .distinct()
    )
    found = [worker_id for worker_id in session.scalars(silent) if worker_id is not None]
    return take_back(session, found, silent_since) if found else 0


def take_back(session: Session, worker_ids: Sequence[str], silent_since: float | None = None) -> int:
    """Take back what workers hold, and count a loss. Returns the number of samples.

    Args:
        silent_since: leave out workers with a later heartbeat; None if they are known to be dead.
    """
    # the jobs of all workers at once, then their samples, then workers: nobody waits in a circle
    of_workers = among(session, SampleRow.worker_id, worker_ids)
    held = sa.select(SampleRow.job_id).where(of_workers, IS_LEASED).distinct()
    locked = [row.id for row in jobs.lock_all(session, session.scalars(held).all())]
    back = {
        row.id
        for row in row_locks.lock(session, WorkerRow, worker_ids)
        if silent_since is not None and row.heartbeat_at >= silent_since
    }
    lost = [worker_id for worker_id in worker_ids if worker_id not in back]
    theirs = sa.and_(
        among(session, SampleRow.worker_id, lost), IS_LEASED, among(session, SampleRow.job_id, locked)
    )
    return _return(
        session, theirs, WorkerLost("the worker ended while it ran this sample; its log has the reason")
    )


def _return(session: Session, held: sa.ColumnElement[bool], error: ActographError | None) -> int:
    """Return leased samples of locked jobs. An error counts a loss; samples lost too often fail with it."""
    # a commit, which locks no job, may be storing some of them
    chosen = sa.select(SampleRow.id, SampleRow.job_id, SampleRow.losses).where(held)
    locked = chosen.order_by(SampleRow.id).with_for_update(of=SampleRow, key_share=True)
    found = session.execute(locked).all()
    returned: dict[int, list[str]] = defaultdict(list)
    failed: dict[str, list[str]] = defaultdict(list)
    for sample_id, job_id, before in found:
        losses = before + (error is not None)
        if losses >= FAILED_AFTER:
            failed[job_id].append(sample_id)
        else:
            returned[losses].append(sample_id)
    lost = {one for ids in failed.values() for one in ids}
    for row in jobs.lock_all(session, {row.job_id for row in found if row.id not in lost}):
        row.pending = 1
        notices.note(session, row.model)
    session.flush()
    for losses, sample_ids in returned.items():
        status = SampleStatus.SUSPECT if losses >= SUSPECT_AFTER else SampleStatus.PENDING
        _update(session, sample_ids, status=status, losses=losses, worker_id=None, started_at=None)
    for job_id, sample_ids in failed.items():
        assert error is not None
        _fail(session, job_id, sample_ids, error)
    return len(found)


def _fail(session: Session, job_id: str, sample_ids: Sequence[str], error: ActographError) -> None:
    record = error.as_record()
    record["message"] = f"{record['message']} ({FAILED_AFTER} times, the last time alone)"
    values = {"status": SampleStatus.FAILED, "losses": FAILED_AFTER, "error": record, "worker_id": None}
    _update(session, sample_ids, finished_at=now(session), **values)
    tally = Tally(job_id=job_id)
    for _ in sample_ids:
        tally.count(error)
    tallies.add(session, [tally])
    control.settle(session, [job_id])


def _update(session: Session, sample_ids: Sequence[str], **values: Any) -> None:
    session.execute(
        sa.update(SampleRow)
        .where(among(session, SampleRow.id, sample_ids))
        .values(**values)
        .execution_options(synchronize_session=False)
    )
