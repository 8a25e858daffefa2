"""Claims: the only place that picks work, and the order in which it is picked.

Of the jobs of the held model that have work, the most urgent goes first, then the one claimed longest ago.
`positions` counts along the same order. Chats of priority 0 leave one claim in eight to other jobs; with one
slot they take turns. `choose` changes the model.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import isqrt
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.chat_job import CHAT
from actograph.contract.operations import WorkerStatus
from actograph.contract.resources import JobStatus, SampleStatus
from storage.index import clock, row_locks, visible
from storage.index.database import Database, now
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
#: roles of the first waiting jobs: of the held model, without urgent chats, to load one, of another model
_OWN, _NO_CHAT, _LOAD, _OTHER = "own", "no chat", "load", "other"
#: a worker is busy with the job
_IS_RUN = sa.exists().where(WorkerRow.status == WorkerStatus.BUSY, WorkerRow.job_id == JobRow.id)
#: one worker alone reads the dataset, or loads the model; then all may open the job
_MAY_BEGIN = sa.or_(JobRow.is_expanded, ~_IS_RUN)


class HeldModel(NamedTuple):
    """The model in a worker's memory."""

    model: str
    identity_sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Asking:
    """A worker that asks for work."""

    worker_id: str
    #: None before the first load and after a refused one
    held: HeldModel | None
    #: models that it may load
    may_load: Sequence[str] = ()
    #: True once the held model had its turn; a job of another model then waits no longer
    had_turn: bool = False
    #: claims of urgent chats that it has made in a row
    chats: int = 0
    #: the job with which the index shows the worker as busy, if its heart beats
    busy_with: str | None = None
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


class Missed(NamedTuple):
    """Others took the chosen job meanwhile."""

    job_id: str


def claim(database: Database, asking: Asking, room: Callable[[JobRow], int]) -> Claim | None:
    """Lease samples of one job, or of several chats, or name a job to open. Also beats.

    Returns None if nothing waits.

    Args:
        room: most samples to lease of a job; 0 if the worker must open it first.
    """
    while True:
        # A transaction of its own for each job, since one that held a job and waited for the next one could
        # wait for a claim that does so the other way round.
        with database.write() as session:
            found = attempt(session, asking, room)
        if not isinstance(found, Missed):
            return found
        asking = replace(asking, without=[*asking.without, found.job_id])


def attempt(session: Session, asking: Asking, room: Callable[[JobRow], int]) -> Claim | Missed | None:
    """Claim from the first job that waits, unless others take it meanwhile. See `claim`."""
    job, others_wait = _first_of(session, asking)
    if job is not None and _needs_load(asking, job):
        _load_alone(session)
        job, others_wait = _first_of(session, asking)
    if job is None:
        return None
    found = _of_chosen(session, asking, job, room(job))
    if found is None:
        return Missed(job.id)
    if others_wait and found.samples:
        _take_turn(session, job)
    return found


def _needs_load(asking: Asking, job: JobRow) -> bool:
    held = asking.held
    return held is None or job.kind == LOAD or job.model != held.model


def _load_alone(session: Session) -> None:
    """Wait for other claims that load a model, so that no two load the same. SQLite has one writer anyway."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext("actograph models"))))


def _of_chosen(session: Session, asking: Asking, job: JobRow, size: int) -> Claim | None:
    """Lease up to `size` samples of the chosen job, or of chats like it. None if others took it meanwhile."""
    if job.kind == LOAD or not job.is_expanded or size < 1:
        if job.is_expanded and _next_status(session, job.id) is None:
            _offer_no_more(session, job.id)
            return None
        if asking.joins:
            return Claim(job=job)
        may_begin = sa.select(JobRow.id).where(JobRow.id == job.id, HAS_PENDING, _MAY_BEGIN)
        if not jobs.lock_all(session, [job.id]) or not session.scalar(may_begin):
            return None
        jobs.start(session, job.id)
        _serve(session, asking, job)
        return Claim(job=job)
    several = [job] if job.kind != CHAT else _chats(session, asking, job, size)
    samples: list[LeasedSample] = []
    for row in several:
        beside = len(samples) + asking.joins
        samples += of_job(session, row, asking.worker_id, size - len(samples), beside=beside)
        if len(samples) == size or any(one.losses >= SUSPECT_AFTER for one in samples):
            break
    if samples:
        _serve(session, asking, job)
        return Claim(job=job, samples=samples, jobs={row.id: row for row in several})
    if asking.joins and any(row.status in jobs.ACTIVE and row.pending for row in several):
        return Claim(job=job)
    return None


def _serve(session: Session, asking: Asking, job: JobRow) -> None:
    """Show the worker as busy, which also beats, unless the index shows it already."""
    if asking.busy_with != job.id:
        workers.set_busy(session, asking.worker_id, job.id, job.model)


def choose(session: Session, asking: Asking) -> JobRow | None:
    """The next job of a worker. It waits for no other transaction, so a read may look.

    Jobs of the held model go first among equally urgent ones, until it had its turn. Requests to load a model
    wait for more urgent jobs alone.
    """
    return _first_of(session, asking)[0]


def _first_of(session: Session, asking: Asking) -> tuple[JobRow | None, bool]:
    """The next job, and whether any other one waits for its turn."""
    heads = _heads(session, asking)
    waits = sum(map(len, heads.values())) > 1
    own, plain, load = (next(iter(heads.get(role, ())), None) for role in (_OWN, _NO_CHAT, _LOAD))
    if plain is not None and own is not None and own.is_urgent_chat:
        own = plain
    if load is not None and (own is None or load.priority <= own.priority):
        return load, waits
    other = min(heads.get(_OTHER, ()), key=_place, default=None)
    if other is None or own is None:
        return (own if other is None else other), waits
    had_turn = asking.had_turn and _place(other) < _place(own)
    return (other if other.priority < own.priority or had_turn else own), waits


def _heads(session: Session, asking: Asking) -> dict[str, list[JobRow]]:
    """The first waiting jobs in each role, in their order, read by one statement; none during a pause."""
    held, others = asking.held, list[str]()
    if not asking.chats_only and asking.other_models:
        others = sorted(asking.other_models - workers.held_models(session))
    loadable = () if asking.chats_only else {*asking.may_load, *([held.model] if held else [])}
    form = _Form(
        has_model=held is not None,
        chats_only=asking.chats_only,
        no_chat=asking.chats >= CHATS_IN_A_ROW,
        loads=bool(loadable),
        others=len(others),
        without_owners=bool(asking.owners),
        without_jobs=bool(asking.without),
        is_sqlite=session.get_bind().dialect.name == "sqlite",
    )
    if not (form.has_model or form.loads or others):
        return {}
    values: dict[str, Any] = {f"other_{i}": model for i, model in enumerate(others)}
    if held is not None:
        values |= {"model": held.model, "identity": held.identity_sha256}
    for name, given in (("loadable", loadable), ("owners", asking.owners), ("jobs", asking.without)):
        if given:
            values[name] = sorted(given)
    found: dict[str, list[JobRow]] = {}
    for row, role in session.execute(_heads_statement(form), values):
        found.setdefault(role, []).append(row)
    return {role: sorted(rows, key=_place) for role, rows in found.items()}


class _Form(NamedTuple):
    """The parts of a question for the first waiting jobs that change its statement; others are its values."""

    has_model: bool
    chats_only: bool
    no_chat: bool
    loads: bool
    others: int
    without_owners: bool
    without_jobs: bool
    is_sqlite: bool


@lru_cache(maxsize=256)
def _heads_statement(form: _Form) -> sa.Select[JobRow, str]:
    """Built once for each form, since every claim reads it."""
    heads = list[sa.Select[str, str]]()
    if form.has_model:
        identity: sa.BindParameter[str | None] = sa.bindparam("identity", type_=sa.String)
        fits = JobRow.identity_sha256.is_(None) | (JobRow.identity_sha256 == identity)
        of_held = (JobRow.model == sa.bindparam("model"), JobRow.kind != LOAD)
        if form.chats_only:
            heads.append(_head(form, _OWN, *of_held, fits, JobRow.is_urgent_chat))
        else:
            heads.append(_head(form, _OWN, *of_held, fits, most=2))
            if form.no_chat:
                heads.append(_head(form, _NO_CHAT, *of_held, fits, ~JobRow.is_urgent_chat))
            # another variant of the model
            unfit = JobRow.identity_sha256.is_not(None) & JobRow.identity_sha256.is_distinct_from(identity)
            heads.append(_head(form, _OTHER, *of_held, unfit))
    if form.loads:
        loadable = JobRow.model.in_(sa.bindparam("loadable", expanding=True))
        heads.append(_head(form, _LOAD, loadable, JobRow.kind == LOAD))
    # each along the index
    for i in range(form.others):
        heads.append(_head(form, _OTHER, JobRow.model == sa.bindparam(f"other_{i}"), JobRow.kind != LOAD))
    roles = sa.union_all(*(sa.select(one.subquery()) for one in heads)).subquery()
    statement = sa.select(JobRow, roles.c.role).join(roles, roles.c.id == JobRow.id).where(~pause.IS_PAUSED)
    return statement.execution_options(populate_existing=True, **visible.BUILT_ONCE)


def _head(form: _Form, role: str, *where: sa.SQLColumnExpression[bool], most: int = 1) -> sa.Select[str, str]:
    """The first waiting jobs that meet conditions."""
    statement = sa.select(sa.literal(role).label("role"), JobRow.id.label("id")).where(
        HAS_PENDING,
        sa.or_(JobRow.deadline_at.is_(None), JobRow.deadline_at >= clock.moment(is_sqlite=form.is_sqlite)),
        _MAY_BEGIN,
        *where,
    )
    if form.without_owners:
        statement = statement.where(JobRow.owner.not_in(sa.bindparam("owners", expanding=True)))
    if form.without_jobs:
        statement = statement.where(JobRow.id.not_in(sa.bindparam("jobs", expanding=True)))
    return statement.order_by(*ORDER).limit(most)


def _place(job: JobRow) -> tuple[Any, ...]:
    return job.priority, job.served_at, job.created_at, job.id


def _take_turn(session: Session, job: JobRow) -> None:
    """Let the other jobs go first. If another claim is doing so, then it need not be done twice."""
    if row_locks.is_locked(session, JobRow, job.id):
        return  # done with its other changes
    free = sa.select(JobRow.id).where(JobRow.id == job.id).with_for_update(key_share=True, skip_locked=True)
    turn = sa.update(JobRow).where(JobRow.id == free.scalar_subquery()).values(served_at=now(session))
    session.execute(turn.execution_options(synchronize_session=False))


def _chats(session: Session, asking: Asking, first: JobRow, most: int) -> Sequence[JobRow]:
    """Lock the next waiting chats in the order of service, as urgent as the first one and for its model.

    Chats that another claim has locked are left to it. If it has locked all, this one waits for the first.
    """
    statement = sa.select(JobRow).where(
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
    return row_locks.lock_free(session, statement.order_by(*ORDER).limit(most)) or jobs.lock_all(
        session, [first.id]
    )


def of_job(
    session: Session,
    job: JobRow,
    worker_id: str,
    count: int,
    *,
    beside: int = 0,
) -> list[LeasedSample]:
    """Lease up to `count` samples of a job, which is locked only before its first claim and after its last.

    Samples that were lost with several workers are suspects. They come after all others and run with nothing
    beside them: first in groups, then alone. Groups of the square root find a poisoned sample with two more
    losses; halving would need the logarithm.
    """
    if job.status == JobStatus.QUEUED and not _lock_new(session, job):
        return []
    if job.status not in jobs.ACTIVE:
        return []
    is_first = job.status == JobStatus.QUEUED
    if is_first:
        jobs.start(session, job.id)
    leased = _lease(session, job, worker_id, count)
    if leased:
        if row_locks.is_locked(session, JobRow, job.id):
            job.served_at = now(session)
            # nobody else claims from a job that this claim starts
            job.pending = int(not is_first or len(leased) == count < (job.total or 0))
            session.flush()
        return leased
    return _last(session, job.id, worker_id, count, beside=beside)


def _lock_new(session: Session, job: JobRow) -> bool:
    """Lock a job that waits for its first claim, or wait for the claim that starts it. False if none did.

    Many workers may wait, so they wait side by side, and only the one that starts the job keeps its lock.
    """
    attempt = session.begin_nested()
    held = jobs.lock_free(session, [job.id])
    if held and held[0].status == JobStatus.QUEUED:
        attempt.commit()
        return True
    if not held:
        row_locks.wait_for(session, JobRow, job.id)
    attempt.rollback()
    row_locks.forget(session, JobRow, job.id)
    return job.status != JobStatus.QUEUED


def _last(session: Session, job_id: str, worker_id: str, count: int, *, beside: int) -> list[LeasedSample]:
    """Lease suspects of a job without other samples. A job without any is no longer offered."""
    status = _next_status(session, job_id)
    if status is None:
        _offer_no_more(session, job_id)
    if status != SampleStatus.SUSPECT or beside:
        return []  # another claim has locked the pending ones
    job, suspects = jobs.lock(session, job_id), SampleRow.status == SampleStatus.SUSPECT
    of_job = sa.select(SampleRow.losses).where(SampleRow.job_id == job_id, suspects)
    losses = session.scalars(of_job.order_by(SampleRow.position).limit(1)).first()
    if losses is None or job.status not in jobs.ACTIVE:
        return []
    most = 1 if losses >= ALONE_AFTER else max(1, isqrt(count)) if losses >= SUSPECT_AFTER else count
    leased = _lease(session, job, worker_id, most, losses=losses)
    job.served_at = now(session)
    session.flush()
    return leased


def _next_status(session: Session, job_id: str) -> str | None:
    """Pending or suspect, as the next sample of a job is; None if there is none to claim."""
    claimable = (SampleStatus.PENDING, SampleStatus.SUSPECT)
    # in the order of the alphabet too
    statement = sa.select(SampleRow.status).where(SampleRow.job_id == job_id)
    statement = statement.where(SampleRow.status.in_(claimable)).order_by(SampleRow.status)
    return session.scalars(statement.limit(1)).first()


def _offer_no_more(session: Session, job_id: str) -> None:
    """Note that a job has no sample to claim, unless one came back meanwhile."""
    for job in jobs.lock_all(session, [job_id]):
        if job.is_expanded and _next_status(session, job_id) is None:
            job.pending = 0
            session.flush()


def _lease_statement(*which: sa.ColumnElement[bool]) -> Any:
    free = sa.select(SampleRow.id).where(SampleRow.job_id == sa.bindparam("its_job"), *which)
    free = free.order_by(SampleRow.position).limit(sa.bindparam("most", type_=sa.Integer))
    # a common table expression with row locks is evaluated once
    chosen = free.with_for_update(of=SampleRow, skip_locked=True, key_share=True).cte("chosen")
    return (
        sa.update(SampleRow)
        .where(SampleRow.id.in_(sa.select(chosen.c.id)))
        .values(
            status=SampleStatus.LEASED,
            lease_token=SampleRow.lease_token + 1,
            worker_id=sa.bindparam("holder"),
            started_at=sa.bindparam("begun"),
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
        .execution_options(synchronize_session=False, **visible.BUILT_ONCE)
    )


_LEASE = _lease_statement(SampleRow.status == SampleStatus.PENDING)
_LEASE_SUSPECTS = _lease_statement(
    SampleRow.status == SampleStatus.SUSPECT, SampleRow.losses == sa.bindparam("lost")
)


def _lease(
    session: Session, job: JobRow, worker_id: str, count: int, *, losses: int | None = None
) -> list[LeasedSample]:
    """Lease the next samples of a job that no other transaction has locked.

    Each lease has a new token, and a session if it captures.

    Args:
        losses: lease suspects that were lost so often.
    """
    values = {"its_job": job.id, "most": count, "holder": worker_id, "begun": now(session)}
    if losses is None:
        rows = session.execute(_LEASE, values)
    else:
        rows = session.execute(_LEASE_SUSPECTS, values | {"lost": losses})
    leased = sorted(rows.mappings(), key=lambda row: row["position"])
    sessions = announced.announce(session, job, leased)
    return [
        LeasedSample(
            **{name: row[name] for name in row if name != "position"},
            session_id=sessions.get(row["id"]),
            is_only=job.total == 1,
            tags=job.spec.get("tags", ()),
            expires_after=job.spec.get("expires_after"),
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
