"""Insert the samples of a large job slice by slice.

One transaction for 200,000 samples would block every other writer of a SQLite index for seconds. So each
slice is a transaction of its own. A submitted job stays hidden until its last slice: no list shows it, and no
worker claims its samples. If the process dies meanwhile, healing deletes the incomplete job.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from actograph.contract.errors import ServiceUnavailable
from actograph.contract.models import PinnedModel
from actograph.contract.resources import JobStatus
from storage import samples
from storage.index.database import Database, changed, now
from storage.jobs import batches, job_deletion, jobs
from storage.jobs.request_keys import RequestKey, first_wins
from storage.samples import NewSample
from storage.submission import named
from storage.tables.models import SUBMITTING, JobRow

#: most samples of one transaction, which takes about 50 ms
SLICE = 1000
#: about the most characters of prompts and answers in one transaction
SLICE_CHARACTERS = 4 << 20
#: an incomplete job is abandoned if no slice arrives for so long
ABANDONED_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A checked job to insert; its fields are those of `storage.jobs.jobs.create`."""

    spec: named.Spec
    hooks: Sequence[str] | None
    total: int | None
    owner: str | None = None
    pinned: PinnedModel | None = None
    request_key: RequestKey | None = None
    #: the batch that begins with this job
    batch_id: str | None = None


def insert_job(database: Database, job: NewJob, new: Iterable[NewSample]) -> JobRow:
    """Insert a job with its samples. The last transaction, the only one of a small job, makes it visible.

    Raises:
        Conflict: the batch has begun already, or was cancelled.
        IdempotencyInFlight: another request with this key was faster.
        InvalidDataset, InvalidRequest: a file or vector was deleted since the check.
        ServiceUnavailable: it took so long that the job was deleted as abandoned.
    """
    rest = iter(new)
    following, after = _slice(rest), _slice(rest)
    with database.write() as session:
        row = _create(session, job)
        samples.insert(session, row.id, following)
        if not after:
            _begin_batch(session, job, row)
            return row
        _hide(session, row.id)
    try:
        count = len(following)
        while after:
            following, after = after, _slice(rest)
            with database.write() as session:
                _require(session, row.id, served_at=now(session))
                samples.insert(session, row.id, following, first=count)
                count += len(following)
        with database.write() as session:
            named.keep_all(session, job.spec)
            _begin_batch(session, job, row)
            _require(session, row.id, status=JobStatus.QUEUED, served_at=0.0, pending=count)
    except Exception:
        # otherwise `discard_abandoned` does it later
        with suppress(SQLAlchemyError), database.write() as session:
            job_deletion.discard(session, row.id)
        raise
    return row


def _create(session: Session, job: NewJob) -> JobRow:
    named.keep_all(session, job.spec)
    with first_wins():
        return jobs.create(
            session,
            kind=job.spec.kind,
            model=job.spec.model,
            spec=job.spec,
            hooks=job.hooks,
            total=job.total,
            owner=job.owner,
            pinned=job.pinned,
            request_key=job.request_key,
        )


def _begin_batch(session: Session, job: NewJob, row: JobRow) -> None:
    if job.batch_id is not None:
        batches.begin(session, job.batch_id, row)


def _slice(rest: Iterator[NewSample]) -> list[NewSample]:
    """The samples of the next transaction; fewer than SLICE if they are long."""
    found: list[NewSample] = []
    characters = 0
    for sample in islice(rest, SLICE):
        found.append(sample)
        characters += sum(len(value) for value in sample.input.values() if isinstance(value, str))
        if characters >= SLICE_CHARACTERS:
            break
    return found


def insert_dataset(database: Database, job_id: str, new: Sequence[NewSample]) -> None:
    """Insert the samples of a dataset that the worker has read, and then the job's total.

    Several workers may do this at once: each slice begins after the last stored sample.
    """
    is_complete = False
    while not is_complete:
        with database.write() as session:
            row = jobs.lock(session, job_id)
            if row.total is not None or row.status not in jobs.ACTIVE:
                return
            begin = samples.next_position(session, job_id)
            samples.insert(session, job_id, new[begin : begin + SLICE], first=begin)
            is_complete = begin + SLICE >= len(new)
            if is_complete:
                jobs.set_total(session, job_id, len(new))
                jobs.end_if_done(session, job_id)


def discard_abandoned(database: Database) -> int:
    """Delete incomplete jobs whose submitter died. Returns their number."""
    with database.read() as session:
        silent = JobRow.served_at < now(session) - ABANDONED_SECONDS
        statement = sa.select(JobRow.id).where(
            JobRow.status.in_(jobs.HIDDEN), silent, JobRow.deleted_at.is_(None)
        )
        abandoned = session.scalars(statement).all()
    for job_id in abandoned:
        with database.write() as session:
            job_deletion.discard(session, job_id)
    return len(abandoned)


def _hide(session: Session, job_id: str) -> None:
    session.execute(
        sa.update(JobRow)
        .where(JobRow.id == job_id)
        .values(status=SUBMITTING, served_at=now(session), pending=0)
    )


def _require(session: Session, job_id: str, **values: object) -> None:
    """Change the hidden job. Raises ServiceUnavailable if it was deleted as abandoned."""
    held = session.execute(
        sa.update(JobRow)
        .where(JobRow.id == job_id, JobRow.status == SUBMITTING, JobRow.deleted_at.is_(None))
        .values(**values)
    )
    if not changed(held):
        raise ServiceUnavailable("the job took too long to store and was deleted; submit it again")
