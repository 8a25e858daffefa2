"""Every query about samples: claims, leases, commits and lists.

A claim raises the sample's lease token. Whoever commits with an older token changes nothing
and gets LeaseLost, so that a worker that was thought dead can do no harm.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract import resources
from actograph.contract.errors import ActographError, LeaseLost, NotFound, WorkerLost
from actograph.contract.resources import SampleStatus
from actograph.contract.tool_use import ToolMessage, ToolUse
from storage import counters, job_control, jobs, pages
from storage.counters import Counter
from storage.database import changed, now
from storage.ids import new_sample_id
from storage.models import JobRow, SampleRow

#: a sample is run alone after so many claims that ended without a result ...
ALONE_AFTER_ATTEMPTS = 2
#: ... and failed after so many: it may be what kills the worker
MAX_ATTEMPTS = 4
INSERT_BATCH = 1000
_INSERT = sa.insert(cast(sa.Table, SampleRow.__table__))


@dataclass(frozen=True, kw_only=True)
class NewSample:
    sample_index: int
    #: name of the condition, "" where the job has none
    condition: str
    epoch: int
    input: dict[str, Any]
    seed: int


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


@dataclass(frozen=True, kw_only=True)
class SampleResult:
    """What a worker commits for a completed sample."""

    prompt: str
    completion: str
    finish_reason: str
    prompt_tokens: int
    generated_tokens: int
    scores: Mapping[str, resources.Score]
    session_id: str | None
    tool_use: ToolUse | None = None
    messages: Sequence[ToolMessage] = ()
    logprobs: Sequence[Mapping[str, Any]] | None = None


def insert(session: Session, job_id: str, samples: Iterable[NewSample]) -> int:
    """Insert a job's samples in the order in which they shall run; returns their number."""
    count = 0
    batch: list[dict[str, Any]] = []

    connection = session.connection()

    def flush() -> None:
        if batch:
            connection.execute(_INSERT, batch)
            batch.clear()

    for position, sample in enumerate(samples):
        batch.append(
            {
                "id": new_sample_id(),
                "job_id": job_id,
                "position": position,
                "sample_index": sample.sample_index,
                "condition": sample.condition,
                "epoch": sample.epoch,
                "status": SampleStatus.PENDING,
                "input": sample.input,
                "seed": sample.seed,
            }
        )
        count += 1
        if len(batch) >= INSERT_BATCH:
            flush()
    flush()
    return count


def claim(
    session: Session, job_id: str, *, worker_id: str, count: int, lease_seconds: float
) -> list[LeasedSample]:
    """Lease the next `count` samples that are pending or whose lease has run out.

    Samples that already cost a worker are claimed one by one, and failed in the end, so that
    one bad sample cannot kill workers for ever. Jobs that are not active yield nothing.
    """
    try:
        job = jobs.lock(session, job_id)
    except NotFound:
        return []
    moment = now(session)
    if job.status not in jobs.ACTIVE:
        return []
    while True:
        candidates = session.execute(
            sa.select(SampleRow.id, SampleRow.attempts)
            .where(SampleRow.job_id == job_id, _claimable(moment))
            .order_by(SampleRow.position)
            .limit(count)
            .with_for_update(skip_locked=True)
        ).all()
        if not candidates or candidates[0].attempts < MAX_ATTEMPTS:
            break
        _give_up(session, job_id, candidates[0].id, candidates[0].attempts)
        if jobs.status_of(session, job_id) not in jobs.ACTIVE:
            return []
    if candidates and candidates[0].attempts >= ALONE_AFTER_ATTEMPTS:
        ids = [candidates[0].id]
    else:
        ids = [c.id for c in candidates if c.attempts < ALONE_AFTER_ATTEMPTS]
    if not ids:
        return []
    session.execute(
        sa.update(SampleRow)
        .where(SampleRow.id.in_(ids), _claimable(moment))
        .values(
            status=SampleStatus.LEASED,
            lease_token=SampleRow.lease_token + 1,
            lease_until=moment + lease_seconds,
            attempts=SampleRow.attempts + 1,
            worker_id=worker_id,
            started_at=moment,
        )
    )
    rows = session.scalars(sa.select(SampleRow).where(SampleRow.id.in_(ids)).order_by(SampleRow.position))
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
        for row in rows
    ]


def is_any_pending(session: Session, job_id: str) -> bool:
    """Whether the job has a sample that nobody holds."""
    statement = sa.select(SampleRow.id).where(
        SampleRow.job_id == job_id, SampleRow.status == SampleStatus.PENDING
    )
    return session.execute(statement.limit(1)).first() is not None


def renew(session: Session, leases: Sequence[LeasedSample], *, lease_seconds: float) -> set[str]:
    """Prolong leases; returns the ids of the samples that are still ours."""
    alive = lock_jobs(session, leases)
    until = now(session) + lease_seconds if alive else 0.0
    held = set()
    for lease in alive:
        result = session.execute(sa.update(SampleRow).where(*_ours(lease)).values(lease_until=until))
        if changed(result):
            held.add(lease.id)
    return held


def release(session: Session, leases: Sequence[LeasedSample]) -> None:
    """Give unfinished samples back; this claim does not count as an attempt."""
    for lease in lock_jobs(session, leases):
        session.execute(
            sa.update(SampleRow)
            .where(*_ours(lease))
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


def give_up_stalled(session: Session, leases: Sequence[LeasedSample], error: ActographError) -> None:
    """A unit hangs and its worker is about to end: its samples are run alone from now on.

    One that hung although it was alone, and not for the first time, fails with `error`.
    """
    for lease in lock_jobs(session, leases):
        attempts = session.execute(sa.select(SampleRow.attempts).where(*_ours(lease))).scalar_one_or_none()
        if attempts is None:
            continue
        if len(leases) == 1 and attempts > ALONE_AFTER_ATTEMPTS:
            fail(session, lease, error)
            jobs.count_finished(session, lease.job_id, completed=0, failed=1)
            _count_failed(session, lease.job_id)
            job_control.follow_failures(session, lease.job_id, [error])
            jobs.end_if_done(session, lease.job_id)
            continue
        session.execute(
            sa.update(SampleRow)
            .where(*_ours(lease))
            .values(
                status=SampleStatus.PENDING,
                lease_until=0.0,
                worker_id=None,
                started_at=None,
                attempts=max(attempts, ALONE_AFTER_ATTEMPTS),
            )
        )


def complete(session: Session, lease: LeasedSample, result: SampleResult) -> None:
    """Store a result under the lease.

    Raises:
        LeaseLost: another worker has claimed the sample since, or the job was deleted.
    """
    moved = session.execute(
        sa.update(SampleRow)
        .where(*_ours(lease))
        .values(
            status=SampleStatus.COMPLETED,
            prompt=result.prompt,
            completion=result.completion,
            finish_reason=result.finish_reason,
            prompt_tokens=result.prompt_tokens,
            generated_tokens=result.generated_tokens,
            scores={key: score.model_dump() for key, score in result.scores.items()},
            tool_use=result.tool_use.model_dump() if result.tool_use else None,
            messages=[message.model_dump() for message in result.messages] or None,
            logprobs=None if result.logprobs is None else list(result.logprobs),
            session_id=result.session_id,
            error=None,
            finished_at=now(session),
        )
    )
    if not changed(moved):
        raise LeaseLost(f"sample {lease.id}: lease token {lease.token} is no longer valid")


def is_committed(session: Session, lease: LeasedSample) -> bool:
    """Whether a result was stored under this very lease: its commit's answer may have been lost."""
    statement = sa.select(SampleRow.id).where(
        SampleRow.id == lease.id,
        SampleRow.lease_token == lease.token,
        SampleRow.status.in_((SampleStatus.COMPLETED, SampleStatus.FAILED)),
    )
    return session.execute(statement).first() is not None


def fail(session: Session, lease: LeasedSample, error: ActographError, prompt: str | None = None) -> None:
    """Store why a sample failed.

    Raises:
        LeaseLost: another worker has claimed the sample since, or the job was deleted.
    """
    moved = session.execute(
        sa.update(SampleRow)
        .where(*_ours(lease))
        .values(status=SampleStatus.FAILED, error=error.as_record(), prompt=prompt, finished_at=now(session))
    )
    if not changed(moved):
        raise LeaseLost(f"sample {lease.id}: lease token {lease.token} is no longer valid")


def get(session: Session, sample_id: str) -> SampleRow:
    """Raises NotFound."""
    row = session.get(SampleRow, sample_id)
    if row is None:
        raise NotFound(f"no sample {sample_id}")
    return row


def find(
    session: Session,
    job_id: str,
    *,
    status: SampleStatus | None = None,
    condition: str | None = None,
    after: str | None = None,
    limit: int = 20,
    order: pages.Order = "asc",
) -> tuple[Sequence[SampleRow], bool]:
    """One page of a job's samples, in running order by default."""
    statement = sa.select(SampleRow).where(SampleRow.job_id == job_id)
    if status is not None:
        statement = statement.where(SampleRow.status == status)
    if condition is not None:
        statement = statement.where(SampleRow.condition == condition)
    return pages.fetch(
        session,
        statement,
        key=SampleRow.position,
        id_column=SampleRow.id,
        after=after,
        limit=limit,
        order=order,
    )


def resource(row: SampleRow) -> resources.Sample:
    """The sample as the API shows it."""
    return resources.Sample(
        id=row.id,
        job_id=row.job_id,
        index=row.sample_index,
        condition=row.condition or None,
        epoch=row.epoch,
        status=SampleStatus(row.status),
        input=row.input,
        prompt=row.prompt,
        completion=row.completion,
        finish_reason=row.finish_reason,
        prompt_tokens=row.prompt_tokens,
        generated_tokens=row.generated_tokens,
        seed=row.seed,
        scores={k: resources.Score.model_validate(v) for k, v in (row.scores or {}).items()},
        tool_use=ToolUse.model_validate(row.tool_use) if row.tool_use else None,
        messages=[ToolMessage.model_validate(message) for message in row.messages or ()],
        error=resources.ErrorRecord.model_validate(row.error) if row.error else None,
        session_id=row.session_id,
        attempts=row.attempts,
        started_at=int(row.started_at) if row.started_at is not None else None,
        finished_at=int(row.finished_at) if row.finished_at is not None else None,
    )


def _claimable(moment: float) -> sa.ColumnElement[bool]:
    return sa.or_(
        SampleRow.status == SampleStatus.PENDING,
        sa.and_(SampleRow.status == SampleStatus.LEASED, SampleRow.lease_until < moment),
    )


def _ours(lease: LeasedSample) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        SampleRow.id == lease.id,
        SampleRow.status == SampleStatus.LEASED,
        SampleRow.lease_token == lease.token,
    )


def lock_jobs(session: Session, leases: Sequence[LeasedSample]) -> list[LeasedSample]:
    """Hold the jobs of these leases, in the order of their ids; leases of deleted ones are left out."""
    alive = set()
    for job_id in sorted({lease.job_id for lease in leases}):
        try:
            jobs.lock(session, job_id)
        except NotFound:
            continue
        alive.add(job_id)
    return [lease for lease in leases if lease.job_id in alive]


def _give_up(session: Session, job_id: str, sample_id: str, attempts: int) -> None:
    error = WorkerLost(f"the worker ended {attempts} times while it ran this sample; its log has the reason")
    session.execute(
        sa.update(SampleRow)
        .where(SampleRow.id == sample_id)
        .values(status=SampleStatus.FAILED, error=error.as_record(), finished_at=now(session))
    )
    session.execute(sa.update(JobRow).where(JobRow.id == job_id).values(failed=JobRow.failed + 1))
    _count_failed(session, job_id)
    job_control.follow_failures(session, job_id, [error])


def _count_failed(session: Session, job_id: str) -> None:
    kind = session.get_one(JobRow, job_id).kind
    counters.add(session, counters.NOBODY, {Counter("samples", kind, SampleStatus.FAILED): 1})
