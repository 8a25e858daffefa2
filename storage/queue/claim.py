"""Claims: the only place that picks work, and the order in which it is picked.

Of the jobs of the held model that have work, the most urgent goes first, then the one claimed longest ago.
`positions` counts along the same order. Chats of priority 0 leave one claim in eight to other jobs; with one
slot they take turns. `choose` changes the model.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isqrt
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.chat_job import CHAT
from actograph.contract.operations import WorkerStatus
from actograph.contract.resources import JobStatus, SampleStatus
from storage.index.database import now
from storage.index.visible import of_everyone
from storage.jobs import jobs
from storage.jobs.jobs import LOAD
from storage.queue import pause, workers
from storage.queue.leases import ALONE_AFTER, SUSPECT_AFTER, LeasedSample
from storage.samples import announced
from storage.tables.models import HAS_PENDING, JobRow, SampleRow, WorkerRow

#: the order of service
ORDER = (JobRow.priority, JobRow.served_at, JobRow.created_at, JobRow.id)
#: claims of urgent chats in a row, if another job waits
CHATS_IN_A_ROW = 7
_IS_URGENT_CHAT = sa.and_(JobRow.kind == CHAT, JobRow.priority == 0)
#: built once, without the ORM: a worker with free slots asks this twenty times a second, mostly in vain
_ANY_WAITS = sa.select(sa.literal(1)).where(HAS_PENDING).limit(1)
_CHAT_WAITS = _ANY_WAITS.where(JobRow.model == sa.bindparam("model"), _IS_URGENT_CHAT)
#: a worker is busy with the job
_IS_RUN = sa.exists().where(WorkerRow.status == WorkerStatus.BUSY, WorkerRow.job_id == JobRow.id)
#: one worker alone reads the dataset, or loads the model; then all may open the job
_MAY_BEGIN = sa.or_(JobRow.total.is_not(None), ~_IS_RUN)


class Held(NamedTuple):
    """The model in a worker's memory."""

    model: str
    identity_sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Asking:
    """A worker that asks for work."""

    worker_id: str
    #: None before the first load and after a refused one
    held: Held | None
    #: models that it may load
    may_load: Sequence[str] = ()
    #: True once the held model had its turn; a job of another model then waits no longer
    had_turn: bool = False
    #: claims of urgent chats that it has made in a row
    chats: int = 0
    #: owners whose quota is used up; their jobs wait
    owners: Collection[str] = ()
    #: jobs that it leaves to others for a while
    without: Collection[str] = ()
    #: True if the samples join others that run: then no suspects, and a job without samples stays as it is
    joins: bool = False
    #: True for urgent chats alone
    chats_only: bool = False

    @property
    def other_models(self) -> set[str]:
        """Models that the worker may load in place of its own."""
        return {model for model in self.may_load if self.held is None or model != self.held.model}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Work for a worker."""

    #: the job, or the first of several chats
    job: JobRow
    #: without samples the job must first be opened, is a request to load a model, or has only suspects
    samples: Sequence[LeasedSample] = ()
    #: the jobs of the samples by id
    jobs: Mapping[str, JobRow] = field(default_factory=dict)

    @property
    def is_urgent_chat(self) -> bool:
        return self.job.kind == CHAT and self.job.priority == 0


def claim(session: Session, asking: Asking, room: Callable[[JobRow], int]) -> Claim | None:
    """Lease samples of one job, or of several chats, or name a job to open. Also beats.

    Returns None if nothing waits.

    Args:
        room: most samples to lease of a job; 0 if the worker must open it first.
    """
    _one_at_a_time(session, f"claim {asking.held and asking.held.model}")
    if not asking.chats_only and asking.other_models:
        # two workers must not load one model
        _one_at_a_time(session, "models")
    # a worker with another model may take the chosen job before this lock: then the next one is chosen
    while not pause.holds(session) and (job := choose(session, asking)) is not None:
        if (found := _of_chosen(session, asking, job, room(job))) is not None:
            return found
        asking = replace(asking, without=[*asking.without, job.id])
    return None


def _of_chosen(session: Session, asking: Asking, job: JobRow, size: int) -> Claim | None:
    """Lease up to `size` samples of the chosen job, or of chats like it. None if others took it meanwhile."""
    if job.kind == LOAD or job.total is None or size < 1:
        if asking.joins:
            return Claim(job=job)
        may_begin = sa.select(JobRow.id).where(JobRow.id == job.id, HAS_PENDING, _MAY_BEGIN)
        if not jobs.lock_all(session, [job.id]) or not session.scalar(may_begin):
            return None
        jobs.start(session, job.id)
        _serve(session, asking, job)
        return Claim(job=job)
    several = [job.id] if job.kind != CHAT else _chats(session, asking, job, size)
    locked = {row.id: row for row in jobs.lock_all(session, several)}
    samples: list[LeasedSample] = []
    for row in [locked[one] for one in several if one in locked]:
        beside = len(samples) + asking.joins
        samples += of_job(session, row, asking.worker_id, size - len(samples), beside=beside)
        if len(samples) == size or any(one.losses >= SUSPECT_AFTER for one in samples):
            break
    if samples:
        _serve(session, asking, job)
        return Claim(job=job, samples=samples, jobs=locked)
    if asking.joins and any(row.status in jobs.ACTIVE and row.pending for row in locked.values()):
        return Claim(job=job)
    return None


def _serve(session: Session, asking: Asking, job: JobRow) -> None:
    """Show the worker as busy, which also beats: or upkeep could take its samples back at once."""
    workers.set_busy(session, asking.worker_id, job.id, job.model)


def _one_at_a_time(session: Session, name: str) -> None:
    """Wait for other transactions with this name. SQLite has one writer anyway.

    Claims of one model go one by one, so each reads the order that the one before has left. Otherwise workers
    that wait for the same job would all serve it.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(f"actograph {name}"))))


def choose(session: Session, asking: Asking) -> JobRow | None:
    """The next job of a worker. It waits for no other transaction, so a read may look.

    Jobs of the held model go first among equally urgent ones, until it had its turn. Requests to load a model
    wait for more urgent jobs alone.
    """
    held, own = asking.held, None
    if asking.joins and held is not None:
        waits = _CHAT_WAITS if asking.chats_only else _ANY_WAITS
        if session.connection().execute(waits, {"model": held.model}).first() is None:
            return None
    if held is not None:
        fits = JobRow.identity_sha256.is_(None) | (JobRow.identity_sha256 == held.identity_sha256)
        if asking.chats_only:
            return _head(session, asking, held.model, fits, _IS_URGENT_CHAT)
        own = _head(session, asking, held.model, fits)
        if own is not None and own.kind == CHAT and own.priority == 0 and asking.chats >= CHATS_IN_A_ROW:
            own = _head(session, asking, held.model, fits, ~_IS_URGENT_CHAT) or own
    load = _first(
        _head(session, asking, model, kind=LOAD)
        for model in {*asking.may_load, *([held.model] if held else [])}
    )
    if load is not None and (own is None or load.priority <= own.priority):
        return load
    other = _other(session, asking)
    if other is None or own is None:
        return own if other is None else other
    had_turn = asking.had_turn and _place(other) < _place(own)
    return other if other.priority < own.priority or had_turn else own


def _other(session: Session, asking: Asking) -> JobRow | None:
    """The first job that needs another model than the held one, or another variant of it."""
    held = asking.held
    variant = None
    if held is not None:
        unfit = JobRow.identity_sha256 != held.identity_sha256
        variant = _head(session, asking, held.model, unfit)
    others = asking.other_models
    if others:
        others -= workers.held_models(session)
    return _first([variant, *(_head(session, asking, model) for model in others)])


def _head(
    session: Session, asking: Asking, model: str, *where: sa.ColumnElement[bool], kind: str | None = None
) -> JobRow | None:
    """The first waiting job of a model: a request to load it, or another job."""
    statement = sa.select(JobRow).where(
        HAS_PENDING,
        JobRow.model == model,
        JobRow.kind != LOAD if kind is None else JobRow.kind == kind,
        sa.or_(JobRow.deadline_at.is_(None), JobRow.deadline_at >= now(session)),
        _MAY_BEGIN,
        *where,
    )
    if asking.owners:
        statement = statement.where(JobRow.owner.not_in(asking.owners))
    if asking.without:
        statement = statement.where(JobRow.id.not_in(asking.without))
    return session.scalars(
        statement.order_by(*ORDER).limit(1).execution_options(populate_existing=True)
    ).first()


def _place(job: JobRow) -> tuple[Any, ...]:
    return job.priority, job.served_at, job.created_at, job.id


def _first(found: Any) -> JobRow | None:
    return min((job for job in found if job is not None), key=_place, default=None)


def _chats(session: Session, asking: Asking, first: JobRow, most: int) -> Sequence[str]:
    """The next waiting chats in the order of service, as urgent as the first one and for the same model."""
    statement = sa.select(JobRow.id).where(
        HAS_PENDING,
        JobRow.model == first.model,
        JobRow.kind == CHAT,
        JobRow.priority == first.priority,
        JobRow.identity_sha256.is_not_distinct_from(first.identity_sha256),
    )
    if asking.owners:
        statement = statement.where(JobRow.owner.not_in(asking.owners))
    if asking.without:
        statement = statement.where(JobRow.id.not_in(asking.without))
    return session.scalars(statement.order_by(*ORDER).limit(most)).all()


def of_job(
    session: Session,
    job: JobRow,
    worker_id: str,
    count: int,
    *,
    beside: int = 0,
) -> list[LeasedSample]:
    """Lease up to `count` samples of a locked job.

    Samples that were lost with several workers are suspects. They come after all others and run with nothing
    beside them: first in groups, then alone. Groups of the square root find a poisoned sample with two more
    losses; halving would need the logarithm.
    """
    if job.status not in jobs.ACTIVE:
        return []
    ids = _next(session, job.id, SampleRow.status == SampleStatus.PENDING, count)
    if not ids and not beside:
        suspects = SampleRow.status == SampleStatus.SUSPECT
        of_job = sa.select(SampleRow.losses).where(SampleRow.job_id == job.id, suspects)
        losses = session.scalars(of_job.order_by(SampleRow.position).limit(1)).first()
        if losses is not None:
            most = 1 if losses >= ALONE_AFTER else max(1, isqrt(count)) if losses >= SUSPECT_AFTER else count
            ids = _next(session, job.id, sa.and_(suspects, SampleRow.losses == losses), most)
    if not ids:
        if not beside:
            # the count was wrong; without this, the job would be offered for ever
            open_ones = SampleRow.status.in_((SampleStatus.PENDING, SampleStatus.SUSPECT))
            count_them = sa.select(sa.func.count()).where(SampleRow.job_id == job.id, open_ones)
            job.pending = session.scalars(count_them).one()
            session.flush()
        return []
    jobs.start(session, job.id)
    job.pending, job.served_at = max(0, job.pending - len(ids)), now(session)
    session.flush()
    return _lease(session, job, ids, worker_id)


def _next(session: Session, job_id: str, which: sa.ColumnElement[bool], count: int) -> Sequence[str]:
    """The next samples in running order. The caller has locked their job."""
    statement = sa.select(SampleRow.id).where(SampleRow.job_id == job_id, which)
    return session.scalars(statement.order_by(SampleRow.position).limit(count)).all()


def _lease(session: Session, job: JobRow, ids: Sequence[str], worker_id: str) -> list[LeasedSample]:
    """Lease samples of a locked job. Each lease has a new token, and a session if it captures."""
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
    sessions = announced.announce(session, job, leased)
    return [
        LeasedSample(
            **{name: row[name] for name in row if name != "position"}, session_id=sessions.get(row["id"])
        )
        for row in leased
    ]


@of_everyone
def positions(session: Session, *rows: JobRow) -> dict[str, int]:
    """The place of each queued job among the waiting jobs of its model, from 1, by id."""
    queued = [row for row in rows if row.status == JobStatus.QUEUED and row.pending]
    if not queued:
        return {}
    place = sa.func.row_number().over(partition_by=JobRow.model, order_by=ORDER).label("place")
    of_models = JobRow.model.in_({row.model for row in queued})
    waiting = sa.select(JobRow.id, place).where(HAS_PENDING, of_models).subquery()
    found = sa.select(waiting.c.id, waiting.c.place).where(waiting.c.id.in_([row.id for row in queued]))
    return {row.id: row.place for row in session.execute(found)}
